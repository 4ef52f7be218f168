"""Tokens of DataTrove and Megatron become shards with the same documents, and damaged files are refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from gristmill.shards.export import importing
from gristmill.shards.export.export import export
from gristmill.shards.export.importing import Known, NotImported, import_tokens
from gristmill.shards.reader import open_shards
from gristmill.shards.verify import verify
from tests.shards.made_shards import EOS, all_documents, make_shards

LENGTHS = [[3, 9, 4, 20, 8, 8], [5, 5, 2, 17], [1]]
TEXT = "{}"  # of a tokenizer.json; nobody opens it here


def known(vocab_size: int) -> Known:
    import hashlib

    return Known("a tokenizer", TEXT, hashlib.sha256(TEXT.encode()).hexdigest(), vocab_size, None, EOS, 0)


def documents_in(folder: Path) -> list[list[int]]:
    return [document.tokens.tolist() for document in open_shards(folder).documents()]


@pytest.mark.parametrize("vocab_size", [1000, 65_500, 65_536, 200_000])
@pytest.mark.parametrize("kind", ["datatrove", "megatron"])
def test_documents_go_out_and_come_back_token_for_token(
    kind: str, vocab_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "WINDOW_TOKENS", 30)
    made = make_shards(tmp_path / "shards", LENGTHS, 8, vocab_size)
    export(made.folder, kind, tmp_path / "out")
    done = import_tokens(tmp_path / "out", kind, tmp_path / "back", known(vocab_size), 16)
    assert sorted(documents_in(tmp_path / "back")) == sorted(all_documents(made)) and done.documents == 11
    assert done.tokens == 82 and verify(tmp_path / "back") == []
    assert len(open_shards(tmp_path / "back").index.shards) > 1
    again = import_tokens(tmp_path / "out", kind, tmp_path / "again", known(vocab_size), 16)
    assert again.rows == done.rows
    assert (tmp_path / "again" / "index.json").read_bytes() == (tmp_path / "back" / "index.json").read_bytes()


@pytest.mark.parametrize("vocab_size", [1000, 200_000])
def test_a_rank_without_documents_is_no_file_of_another_tokenizer(tmp_path: Path, vocab_size: int) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, vocab_size)
    export(made.folder, "datatrove", tmp_path / "out")
    for name in ("empty.ds", "empty.ds.index"):
        (tmp_path / "out" / name).touch()
    done = import_tokens(tmp_path / "out", "datatrove", tmp_path / "back", known(vocab_size), 16)
    assert done.documents == 11 and sorted(documents_in(tmp_path / "back")) == sorted(all_documents(made))


def test_damaged_and_foreign_files_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    export(made.folder, "datatrove", tmp_path / "ds")
    export(made.folder, "megatron", tmp_path / "mg")
    [first, *_] = sorted((tmp_path / "ds").glob("*.ds"))
    index = tmp_path / "mg" / "tokens.idx"

    def refused(kind: str, words: str, vocab_size: int = 1000) -> None:
        source = tmp_path / ("ds" if kind == "datatrove" else "mg")
        with pytest.raises(NotImported, match=words):
            import_tokens(source, kind, tmp_path / "back", known(vocab_size), 16)
        assert not (tmp_path / "back").exists()

    refused("datatrove", "is not in the vocabulary of 100 of a tokenizer", 100)
    refused("megatron", "is not in the vocabulary of 100 of a tokenizer", 100)
    whole = first.read_bytes()
    first.write_bytes(whole[:-2])
    refused("datatrove", re.escape(first.name) + ".*one was cut off")
    first.write_bytes(whole)
    ends = np.fromfile(f"{first}.index", "<u8")
    ends[[0, 1]] = ends[[1, 0]]
    ends.tofile(f"{first}.index")
    refused("datatrove", "are not of each other")
    Path(f"{first}.index").unlink()
    refused("datatrove", "its index .* is missing")
    content = index.read_bytes()
    for changed, words in (
        (content[:20], "too short"),
        (b"X" + content[1:], "not an index of Megatron's"),
        (content[:60], "was it cut off"),
        (content[:34] + b"\xff\xff\xff\x7f" + content[38:], "lengths and places"),
        (content[:26] + (1 << 60).to_bytes(8, "little") + content[34:], "was it cut off"),
    ):
        index.write_bytes(changed)
        refused("megatron", words)
    with pytest.raises(NotImported, match=r"name a \.ds file"):
        import_tokens(tmp_path / "nothing", "datatrove", tmp_path / "back", known(1000), 16)


def test_datatroves_own_files_come_in_and_ours_open_there(tmp_path: Path) -> None:
    tokenizer = pytest.importorskip("datatrove.pipeline.tokens.tokenizer", reason="needs datatrove")
    torch = pytest.importorskip("torch")
    datasets = pytest.importorskip("datatrove.utils.dataset")
    random = np.random.default_rng(5)
    texts = [[*random.integers(3, 70_000, length).tolist(), EOS] for length in (3, 40, 1, 17)]
    theirs = tokenizer.TokenizedFile(
        str(tmp_path / "theirs"), "00000_tokens.ds", save_final_metadata=True, tokenizer_name_or_path="x", token_size=4
    )
    for text in texts:
        theirs.write(text, None)
    theirs.close()
    import_tokens(tmp_path / "theirs", "datatrove", tmp_path / "in", known(70_000), 64)
    assert sorted(documents_in(tmp_path / "in")) == sorted(texts)
    export(tmp_path / "in", "datatrove", tmp_path / "out")
    rows = datasets.DatatroveFolderDataset(str(tmp_path / "out"), 15, "*.ds", token_size=4, return_positions=True)
    flat = [token for text in documents_in(tmp_path / "in") for token in text]
    assert len(rows) == len(flat) // 16 == 4
    assert torch.cat([row["input_ids"] for row in rows]).tolist() == flat[: 16 * len(rows)]
    assert (tmp_path / "out" / "00000_tokens.ds.metadata").read_text().split("\n")[:2] == ["a tokenizer|4", "65"]
    assert json.loads((tmp_path / "in" / "index.json").read_text())["documents"] == 4
