"""Ids are those of the tokenizer and of the whole text, whoever cuts it; a page cannot write a special token; the
corpus makes the same tokenizer every time."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gristmill.kernels.common.settings import SettingsError
from gristmill.shards import format as shard_format
from gristmill.stages.stage import CannotRun
from gristmill.stages.tokens import encoding, training
from gristmill.stages.tokens.encoding import TextEncoder
from gristmill.stages.tokens.tokenize import MOST_OF_ONE, Tokenize
from gristmill.stages.tokens.training import trained
from gristmill.stages.tokens.vocabulary import TokenizerVocabulary, dtype_of
from tests.stages.scattered import Scattered

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIALS = ["<|endoftext|>", "<|begin_of_text|>", "<|pad|>"]
WORDS = [
    "the",
    "mill",
    "stone",
    "l'eau",
    "wheel",
    "don't",
    "Grüße",
    "水車",
    "पनचक्की",
    "10,000",
    "a.b",
    "…",
    "río",
    "e\u0301te\u0301",
    "it's",
]
GAPS = [" ", "  ", "\n", " \n ", "\n\n", "\t", ", ", "，", "。", "", "<|endoftext|>", "\u00a0", "\r\n", "?!\n", " - "]


def mill_texts(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return [
        "".join(chance.choice(WORDS) + chance.choice(GAPS) for _ in range(chance.randint(1, 120))) for _ in range(count)
    ]


CORPUS = mill_texts(300)
TRAINED = trained(CORPUS, 600, 2, SPECIALS)


def documents(texts: list[str | None], **columns: Any) -> pa.Table:
    n = len(texts)
    base = {
        "uid": pa.array([hash_of(i) for i in range(n)], pa.uint64()),
        "source": pa.array([f"source {i % 3}" for i in range(n)]).dictionary_encode(),
        "text": pa.array(texts, pa.string()),
    }
    return pa.table(base | columns)


def column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def hash_of(i: int) -> int:
    return int.from_bytes(hashlib.sha256(str(i).encode()).digest()[:8], "little")


def written(folder: Path, text: str, **config: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(text)
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def run(stage: Tokenize, docs: pa.Table, seed: int = 0) -> tuple[dict[int, dict[str, Any]], Scattered]:
    flow = Scattered(seed)
    stage.run(flow.parts(docs), flow)
    return {row["uid"]: row for row in flow.named.to_pylist()}, flow


def ids_in(row: dict[str, Any], dtype: str = "<u2") -> list[int]:
    return np.frombuffer(row["token_ids"], dtype).tolist()


def like(pattern: str | None, normalizer: Any = None, add_prefix_space: bool = False) -> str:
    """The trained vocabulary behind the pre-tokenizer of another family."""
    tokenizer = Tokenizer.from_str(TRAINED)
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer.to_str()


def unigram() -> str:
    """A model that knows its special tokens as pieces of text, as T5's and Llama's do."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((c, -3.0) for c in "</>s▁amilp"), ("▁mill", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, 2, False))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return tokenizer.to_str()


# --- ids -------------------------------------------------------------------------------------------------------------


def test_every_document_comes_back_from_its_ids():
    texts = [*CORPUS[:40], "a", "\x00", "\u0301", "🙂👨‍👩‍👧", "שלום עולם", "   ", "\n", "x" * 5000, " " * 5000]
    rows, flow = run(Tokenize(vocab_size=600, bos=True), documents(texts))
    tokenizer = Tokenizer.from_str(flow.shared_values["tokenizer_json"])
    assert len(rows) == len(texts)
    for i, text in enumerate(texts):
        row = rows[hash_of(i)]
        ids = ids_in(row)
        assert row["reason"] is None and row["tokens"] == len(ids) >= 3
        assert (ids[0], ids[-1]) == (1, 0)
        assert tokenizer.decode(ids[1:-1], skip_special_tokens=False) == text
        assert row["bytes_per_token"] == pytest.approx(len(text.encode()) / (len(ids) - 2))
    assert flow.metrics["round_trip"] == {"checked": len(texts), "restored": len(texts), "changed": []}
    assert flow.metrics["tokens"] == sum(row["tokens"] for row in rows.values())
    assert flow.metrics["tokenizer"]["encoded_by"] == "kernels"


def test_texts_without_tokens_are_dropped():
    rows, flow = run(Tokenize(vocab_size=300), documents(["", None, "mill"]))
    assert [rows[hash_of(i)]["reason"] for i in range(3)] == ["no_tokens", "no_tokens", None]
    assert [rows[hash_of(i)]["tokens"] for i in range(3)] == [0, 0, 5]
    assert all(rows[hash_of(i)]["token_ids"] == b"" and rows[hash_of(i)]["bytes_per_token"] == 0 for i in range(2))
    assert flow.gone.keys() == {hash_of(0), hash_of(1)}


def test_a_corpus_of_nothing_gets_a_tokenizer_of_bytes():
    rows, flow = run(Tokenize(), documents(["", ""]))
    assert flow.metrics["tokenizer"]["vocab_size"] == 259 and {row["reason"] for row in rows.values()} == {"no_tokens"}
    assert flow.metrics["tokens"] == 0 and flow.metrics["bytes_per_token"] is None
    assert run(Tokenize(), documents([]))[0] == {}


def test_special_tokens_that_a_page_spells_out_are_text():
    text = "before <|endoftext|> and <|pad|><|begin_of_text|> after"
    rows, flow = run(Tokenize(vocab_size=400), documents([text] * 3))
    assert len(rows) == 3
    for row in rows.values():
        assert ids_in(row)[-1] == 0 and min(ids_in(row)[:-1]) > 2
    assert flow.metrics["round_trip"]["restored"] == 3
    tokenizer = Tokenizer.from_str(flow.shared_values["tokenizer_json"])
    assert tokenizer.encode(text, add_special_tokens=False).ids.count(0) == 1, "what others do"
    tokenizer.encode_special_tokens = True
    assert ids_in(rows[hash_of(0)])[:-1] == tokenizer.encode(text, add_special_tokens=False).ids


def test_special_tokens_that_a_model_knows_as_pieces_are_text_too(tmp_path):
    assert 1 in Tokenizer.from_str(unigram()).encode("a</s>p").ids
    folder = written(tmp_path, unigram(), eos_token="</s>", pad_token={"content": "<pad>"})
    rows, flow = run(Tokenize(tokenizer=folder), documents(["mill a</s>p </s></s>", "mill pq", "</s>"]))
    ids = {i: ids_in(rows[hash_of(i)]) for i in range(3)}
    assert [ids[i].count(1) for i in range(3)] == [1, 1, 1] and all(found[-1] == 1 for found in ids.values())
    assert 2 in ids[1], "what is unknown may be"
    assert flow.metrics["tokenizer"] | {"eos_id": 1, "pad_id": 0, "bos_id": None} == flow.metrics["tokenizer"]


def test_a_special_token_that_only_the_normalizer_makes_drops_the_document(tmp_path):
    tokenizer = Tokenizer.from_str(unigram())
    tokenizer.normalizer = normalizers.NFKC()
    folder = written(tmp_path, tokenizer.to_str(), eos_token="</s>")
    rows, _ = run(Tokenize(tokenizer=folder), documents(["mill ＜/s＞", "mill"]))
    assert [rows[hash_of(i)]["reason"] for i in range(2)] == ["special_token", None]
    assert rows[hash_of(0)]["token_ids"] == b""


def test_ids_are_those_of_any_layout_of_the_column():
    texts: list[str | None] = [*CORPUS[:20], None, ""]
    rows = TokenizerVocabulary("t", TRAINED, dict(zip(("eos", "bos", "pad"), SPECIALS, strict=True))).table()
    stage = Tokenize()
    whole = stage.encode(documents(texts), rows).to_pylist()
    assert sum(row["tokens"] for row in whole) > 1000
    for kind in (pa.large_string(), pa.string_view()):
        table = documents(texts)
        table = table.set_column(2, "text", pa.array(texts, kind))
        assert stage.encode(table, rows).to_pylist() == whole
        assert stage.encode(table.slice(5, 9), rows).to_pylist() == whole[5:14]
    parts = [documents(texts).slice(0, 3), documents(texts).slice(3)]
    assert stage.encode(pa.concat_tables(parts), rows).to_pylist() == whole


def test_ids_of_a_large_vocabulary_take_four_bytes(tmp_path):
    assert dtype_of(1 << 16) == np.uint16 and dtype_of((1 << 16) + 1) == np.uint32
    assert all(dtype_of(size) == shard_format.dtype_of(size) for size in (1, 1 << 16, (1 << 16) + 1))
    tokenizer = Tokenizer.from_str(TRAINED)
    tokenizer.add_tokens([f"\ue000{i}\ue000" for i in range(1 << 16)])
    stage = Tokenize(tokenizer=written(tmp_path, tokenizer.to_str(), eos_token="<|endoftext|>"))
    rows, flow = run(stage, documents(["mill \ue00065000\ue000"]))
    (row,) = rows.values()
    assert flow.metrics["tokenizer"]["dtype"] == "uint32" and max(ids_in(row, "<u4")) == 65000 + 600
    assert row["tokens"] == len(row["token_ids"]) // 4 and flow.metrics["round_trip"]["restored"] == 1


# --- long texts ------------------------------------------------------------------------------------------------------

FAMILIES = {
    "ours": TRAINED,
    "gpt2": like(None),
    "gpt2 with a space before": like(None, add_prefix_space=True),
    "gpt2 as a pattern": like(GPT2),
    "gpt4": like(GPT4),
    "nfc": like(GPT4, normalizers.NFC()),
    "lower case, composed": like(GPT4, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "metaspace": unigram(),
}


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(GAPS)), max_size=60),
    st.integers(1, 40),
    st.text(max_size=5),
)
def test_a_text_in_pieces_has_the_ids_of_the_whole(family, pairs, piece, odd):
    text = odd + "".join(word + gap for word, gap in pairs) + odd
    encoder = encoder_for(family)
    whole = encoder.tokenizer.encode(text, add_special_tokens=False).ids
    before = encoding.PIECE
    encoding.PIECE = piece
    try:
        pieces = list(encoder.pieces(text))
        found = [encoder.tokenizer.encode(part, add_special_tokens=False).ids for part in pieces]
    finally:
        encoding.PIECE = before
    assert "".join(pieces) == text and [i for ids in found for i in ids] == whole


ENCODERS: dict[str, TextEncoder] = {}


def encoder_for(family: str) -> TextEncoder:
    return ENCODERS.setdefault(family, TextEncoder(FAMILIES[family]))


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("metaspace", "gpt2 with a space before")])
def test_long_texts_are_cut(family, monkeypatch):
    monkeypatch.setattr(encoding, "PIECE", 200)
    text = "".join(word + gap for word in WORDS for gap in GAPS) * 10
    pieces = list(encoder_for(family).pieces(text))
    assert len(pieces) > 10 and max(map(len, pieces)) < 2000 and "".join(pieces) == text


def test_a_tokenizer_whose_tokens_reach_over_spaces_is_not_cut():
    for token in (AddedToken("the ", normalized=False), AddedToken("x", lstrip=True), AddedToken("mill stone")):
        tokenizer = Tokenizer.from_str(TRAINED)
        tokenizer.add_tokens([token])
        assert not TextEncoder(tokenizer.to_str()).cuts
    assert TextEncoder(TRAINED).cuts


def test_a_tokenizer_that_counts_characters_from_the_beginning_is_not_cut(monkeypatch):
    monkeypatch.setattr(encoding, "PIECE", 100)
    tokenizer = Tokenizer.from_str(TRAINED)
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.FixedLength(8), bytes_of])
    text = "".join(mill_texts(20))
    encoder = TextEncoder(tokenizer.to_str())
    assert encoder.encode(column([text])).ids.tolist() == encoder.tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "unit", ["the mill and the stone ", "a", " ", "\n", "-", "7", "水車", "水車。", "<|endoftext|>", "e\u0301"]
)
def test_a_line_of_megabytes_is_no_trouble(unit):
    text = unit * (2_000_000 // len(unit.encode()))
    encoder = TextEncoder(TRAINED)
    start = time.perf_counter()
    found = encoder.encode(column([text]))
    assert time.perf_counter() - start < 10
    assert encoder.tokenizer.decode(found.ids.tolist(), skip_special_tokens=False) == text
    start = time.perf_counter()
    assert np.array_equal(encoder.by_package([text]).ids, found.ids)
    assert time.perf_counter() - start < 30


# --- training --------------------------------------------------------------------------------------------------------


def test_the_tokenizer_does_not_hang_on_order_or_parts():
    docs = documents([*CORPUS, "", None])
    stage = Tokenize(vocab_size=500, sample_bytes=20_000)
    made = {
        json.dumps([run(stage, docs, seed)[1].metrics, run(stage, docs, seed)[1].shared_values], sort_keys=True)
        for seed in range(4)
    }
    assert len(made) == 1
    other = run(stage.model_copy(update={"seed": 1}), docs)[1].metrics["tokenizer"]["hash"]
    assert other not in made.pop(), "another seed draws another sample"


PROGRAM = """
import hashlib, json, sys
from gristmill.stages.tokens.training import trained
texts = json.load(sys.stdin)
print(hashlib.sha256(trained(texts, 600, 2, ["<|endoftext|>", "<|begin_of_text|>", "<|pad|>"]).encode()).hexdigest())
"""


def test_training_does_not_hang_on_order_threads_or_hash_seeds():
    wanted = hashlib.sha256(TRAINED.encode()).hexdigest()
    for hash_seed, threads in (("1", "1"), ("2", "2"), ("3", "4")):
        texts = CORPUS[:]
        random.Random(hash_seed).shuffle(texts)
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true",
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps(texts),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == wanted


def test_the_sample_is_the_lowest_draws_whoever_looks():
    texts = [f"{i:03d} " + "mill " * 30 for i in range(200)]
    docs, stage = documents(texts), Tokenize(sample_bytes=5_000)
    flow = Scattered(3)
    chosen = flow.gather(
        flow.combine(stage.lowest, flow.map(stage.weigh, flow.parts(docs), columns=("uid", "text"), by="key"), by="key")
    )
    keys = np.sort(stage.draw(docs, 0x73616D706C65))
    assert np.sort(chosen["key"].to_numpy()).tolist() == keys[: len(chosen)].tolist()
    assert len(chosen) == -(-5_000 // len(texts[0])) == 33
    texts_of = stage.texts(docs, chosen)
    assert len(texts_of) == 33 and set(texts_of["text"].to_pylist()) <= set(texts)


def test_a_book_gives_no_more_than_its_share():
    book = "水" * MOST_OF_ONE
    stage, docs = Tokenize(), documents([book, "mill"])
    chosen = stage.weigh(docs)
    assert sorted(chosen["bytes"].to_pylist()) == [4, MOST_OF_ONE]
    given = sorted(stage.texts(docs, chosen)["text"].to_pylist())
    assert given == ["mill", "水" * (MOST_OF_ONE // 3)]


def test_pieces_of_the_trained_pattern_hold_everything_and_no_more_than_64():
    split = training.untrained(2).pre_tokenizer
    for text in [
        *CORPUS,
        "x" * 1000,
        " " * 1000,
        "\n" * 1000,
        "-" * 1000,
        "a" + "\u0301" * 1000,
        "\x00\x01",
        "1234567",
    ]:
        spans = [span for _, span in split.pre_tokenize_str(text)]
        assert [a for a, _ in spans] == [0, *(b for _, b in spans)][:-1] and spans[-1][1] == len(text)
        assert max(b - a for a, b in spans) <= 130
    text = "पनचक्की 1234567\n'song"
    words = [text[a:b] for _, (a, b) in split.pre_tokenize_str(text)]
    assert words == ["पनचक्की", " ", "12", "34", "56", "7", "\n", "'song"]


# --- tokenizers that are there ---------------------------------------------------------------------------------------


def test_a_folder_and_its_file_are_the_same_tokenizer(tmp_path):
    folder = written(
        tmp_path / "mill-bpe", TRAINED, eos_token={"content": "<|endoftext|>"}, pad_token="<|pad|>", bos_token=None
    )
    facts = []
    for name in (folder, f"{folder}/tokenizer.json"):
        rows, flow = run(Tokenize(tokenizer=name), documents(CORPUS[:9]))
        assert len(rows) == 9 and flow.shared_values["tokenizer_json"] == TRAINED
        facts.append(flow.metrics)
    assert facts[0] == facts[1]
    wanted = {
        "name": "mill-bpe",
        "hash": hashlib.sha256(TRAINED.encode()).hexdigest(),
        "vocab_size": 600,
        "eos_id": 0,
        "pad_id": 2,
        "bos_id": None,
    }
    assert facts[0]["tokenizer"] | wanted == facts[0]["tokenizer"]


def test_what_a_file_says_of_length_and_specials_is_not_done(tmp_path):
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.from_str(TRAINED)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 1)]
    )
    folder = written(tmp_path, tokenizer.to_str())
    texts = CORPUS[:5]
    rows, _ = run(Tokenize(tokenizer=folder, eos_token="<|endoftext|>"), documents(texts))
    plain = TextEncoder(TRAINED)
    assert [ids_in(rows[hash_of(i)]) for i in range(5)] == [
        [*plain.encode(column([text])).ids.tolist(), 0] for text in texts
    ]


def test_errors_say_what_to_do(tmp_path):
    folder = written(tmp_path, TRAINED)
    with pytest.raises(
        CannotRun,
        match=r"does not say which token ends a text; name it as `eos_token`.*<\|endoftext\|>, <\|begin_of_text\|>",
    ):
        run(Tokenize(tokenizer=folder), documents(["mill"]))
    with pytest.raises(CannotRun, match=r"eos_token: .* has no token '</s>'"):
        run(Tokenize(tokenizer=folder, eos_token="</s>"), documents(["mill"]))
    rows, _ = run(Tokenize(tokenizer=folder, eos=False), documents(["mill"]))
    assert len(rows) == 1 and 0 not in ids_in(rows[hash_of(0)])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CannotRun, match="no tokenizer that the package"):
        run(Tokenize(tokenizer=folder), documents(["mill"]))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CannotRun, match=r"holds no tokenizer\.json"):
        run(Tokenize(tokenizer=folder), documents(["mill"]))
    with pytest.raises(SettingsError, match="there is no file or folder"):
        Tokenize(tokenizer=str(tmp_path / "none" / "tokenizer.json"))
    with pytest.raises(SettingsError, match="vocab_size is for `tokenizer: train`"):
        Tokenize(tokenizer=folder, vocab_size=1000)
    with pytest.raises(SettingsError, match="must be different"):
        Tokenize(eos_token="<|pad|>")


def test_old_formats_ask_for_transformers(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    monkeypatch.setitem(sys.modules, "transformers", None)
    for named in (tmp_path, tmp_path / "tokenizer.model"):  # a file of the format stands for its folder
        with pytest.raises(CannotRun, match="pip install transformers sentencepiece protobuf"):
            run(Tokenize(tokenizer=str(named)), documents(["mill"]))


def test_a_hub_id_is_fetched_with_what_says_its_specials(tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    folder = Path(written(tmp_path, TRAINED, eos_token="<|endoftext|>"))
    asked = []

    def hf_hub_download(name: str, file: str, revision: str | None, local_files_only: bool) -> str:
        asked.append((name, file, revision, local_files_only))
        if not (folder / file).exists():
            raise EntryNotFoundError(file)
        return str(folder / file)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    rows, flow = run(Tokenize(tokenizer="mills/bpe", revision="abc"), documents(["mill"]))
    assert (
        len(rows) == 1 and flow.metrics["tokenizer"]["name"] == "mills/bpe" and flow.metrics["tokenizer"]["eos_id"] == 0
    )
    assert asked[0] == ("mills/bpe", "tokenizer.json", "abc", False)

    def unreachable(name: str, file: str, revision: str | None, local_files_only: bool) -> str:
        raise LocalEntryNotFoundError(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(CannotRun, match="neither a file nor a folder here, and the Hugging Face hub cannot be reached"):
        run(Tokenize(tokenizer="mills/bpe"), documents(["mill"]))


def hub_that(monkeypatch, refusal: Exception | None) -> None:
    """The hub's answer to whether it has a file; None: it has."""
    import huggingface_hub

    def asked(url: str) -> None:
        logging.getLogger("huggingface_hub.utils").warning("trying again")
        if refusal is not None:
            raise refusal

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", asked)


def hub_error(name: str) -> Exception:
    import huggingface_hub.errors

    kind = getattr(huggingface_hub.errors, name)
    return kind.__new__(kind)  # each version of the package wants another response


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (
            ConnectionError("no way there\nat all"),
            r"cannot be reached \(no way there\); fetch it .*`hf download mills/bpe`.*HF_HOME",
        ),
        ("RepositoryNotFoundError", "none of this name, or a private one"),
        ("GatedRepoError", "gated: accept its terms there, and log in"),
        ("RevisionNotFoundError", "no revision abc of it"),
    ],
)
def test_before_any_work_the_hub_is_asked_once_and_its_no_is_put_in_words(monkeypatch, tmp_path, caplog, refusal, says):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    stage = Tokenize(tokenizer="mills/bpe", revision="abc")
    hub_that(monkeypatch, hub_error(refusal) if isinstance(refusal, str) else refusal)
    for deed in (stage.check, lambda: run(stage, documents(["mill"]))):
        with pytest.raises(CannotRun, match=f"neither a file nor a folder here, and .*{says}"):
            deed()
    assert not caplog.records
    hub_that(monkeypatch, None)
    stage.check()


def test_a_hub_id_that_was_fetched_before_needs_no_network(monkeypatch, tmp_path):
    kept = tmp_path / "models--mills--bpe"
    Path(written(kept / "snapshots" / ("ab" * 20), TRAINED, eos_token="<|endoftext|>"))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("ab" * 20)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub_that(monkeypatch, ConnectionError("no way there"))
    stage = Tokenize(tokenizer="mills/bpe")
    stage.check()
    rows, flow = run(stage, documents(["mill"]))
    assert (
        len(rows) == 1 and flow.metrics["tokenizer"]["name"] == "mills/bpe" and flow.metrics["tokenizer"]["eos_id"] == 0
    )


def test_a_tokenizer_on_disk_is_looked_at_before_any_work(tmp_path, monkeypatch):
    folder = written(tmp_path / "a", TRAINED)
    with pytest.raises(CannotRun, match="does not say which token ends a text"):
        Tokenize(tokenizer=folder).check()
    Tokenize(tokenizer=folder, eos=False).check()
    Tokenize().check()
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    with pytest.raises(CannotRun, match="no tokenizer that the package"):
        Tokenize(tokenizer=folder).check()
    older = tmp_path / "older"
    older.mkdir()
    with pytest.raises(CannotRun, match=r"holds no tokenizer\.json"):
        Tokenize(tokenizer=str(older)).check()
    (older / "vocab.txt").write_text("a")
    monkeypatch.setattr("gristmill.stages.tokens.vocabulary.find_spec", lambda name: object())
    Tokenize(tokenizer=str(older)).check()  # transformers will make one of it
    monkeypatch.setattr("gristmill.stages.tokens.vocabulary.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CannotRun, match="pip install transformers sentencepiece protobuf"):
        Tokenize(tokenizer=str(older)).check()


def test_old_formats_come_through_transformers(tmp_path):
    pytest.importorskip("transformers")
    model = json.loads(like(None))["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"]))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"})
    )
    text = "the mill <|endoftext|> don't"
    rows, flow = run(Tokenize(tokenizer=str(tmp_path)), documents([text]))
    assert ids_in(rows[hash_of(0)]) == [*TextEncoder(like(None)).encode(column([text])).ids.tolist(), 0]
    assert flow.metrics["round_trip"]["restored"] == 1


# --- the report ------------------------------------------------------------------------------------------------------


def test_the_report_has_bytes_per_token_by_language_and_source():
    texts = [*CORPUS[:30], ""]
    docs = documents(texts, language=pa.array((["en", "de", None] * 11)[: len(texts)]))
    rows, flow = run(Tokenize(vocab_size=500, bos=True), docs)
    of_source = flow.metrics["bytes_per_token_by_source"]
    assert {name: found["documents"] for name, found in of_source.items()} == {
        "source 0": 10,
        "source 1": 10,
        "source 2": 10,
    }
    mine = [rows[hash_of(i)] for i in range(0, 30, 3)]
    tokens = sum(row["tokens"] for row in mine)
    size = sum(len(texts[i].encode()) for i in range(0, 30, 3))
    assert of_source["source 0"] == {
        "documents": 10,
        "tokens": tokens,
        "bytes_per_token": round(size / (tokens - 20), 3),
    }
    assert flow.metrics["bytes_per_token_by_language"]["en"] == of_source["source 0"]
    assert flow.metrics["bytes_per_token_by_language"].keys() == {"en", "de", "unknown"}
    assert "bytes_per_token_by_language" not in run(Tokenize(vocab_size=300), documents(["mill"]))[1].metrics


def test_texts_that_a_tokenizer_changes_are_named(tmp_path):
    folder = written(tmp_path, like(GPT4, normalizers.Lowercase()), eos_token="<|endoftext|>")
    texts = ["Mill" if i < 8 else "mill" for i in range(20)]
    flow = run(Tokenize(tokenizer=folder), documents(texts))[1]
    wanted = [f"{uid:016x}" for uid in sorted(map(hash_of, range(8)))[:5]]
    assert flow.metrics["round_trip"] == {"checked": 20, "restored": 12, "changed": wanted}


def test_workers_that_are_forked_print_no_warning():
    program = (
        "import os\nimport pyarrow as pa\nfrom gristmill.stages.tokens.encoding import TextEncoder\nfrom gristmill.stages.tokens.training import trained\n"
        "text, column = trained(['mill'] * 9, 300, 2, []), pa.chunked_array([['mill stone'] * 100])\nTextEncoder(text).encode(column)\nTextEncoder(text).by_package(['mill stone'] * 100)\n"
        "child = os.fork()\nif not child:\n    TextEncoder(text).encode(column)\n    TextEncoder(text).by_package(['mill stone'] * 100)\n    os._exit(0)\nos.waitpid(child, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == done.stderr == ""
