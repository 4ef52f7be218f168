"""What `export` promises whatever the format: helpful refusals, a destination that appears whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.shards.export.export import FORMATS, ExportError, Format, Options, Progress, export
from gristmill.shards.reader import ShardSet, open_shards
from tests.shards.made_shards import make_shards, run_elsewhere

LENGTHS = [[3, 9, 4, 20], [5, 5, 2]]


@pytest.mark.parametrize("to", sorted(FORMATS))
def test_every_format_writes_into_a_new_or_an_empty_folder_and_reports_progress_to_the_end(
    tmp_path: Path, to: str
) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    heard: list[tuple[int, int]] = []
    done = export(made.folder, to, tmp_path / "deep" / "new", progress=lambda rows, whole: heard.append((rows, whole)))
    (tmp_path / "empty").mkdir()
    again = export(made.folder, to, tmp_path / "empty")
    rows = sum(packed.rows for packed in made.packed)
    assert done.items == again.items == (7 if to == "megatron" else rows)
    assert heard[-1] == (rows, rows) and heard == sorted(heard)
    files = sorted(p.relative_to(tmp_path / "empty") for p in (tmp_path / "empty").rglob("*") if p.is_file())
    assert files
    assert all((tmp_path / "deep" / "new" / f).read_bytes() == (tmp_path / "empty" / f).read_bytes() for f in files)
    assert done.bytes == sum((tmp_path / "empty" / f).stat().st_size for f in files)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["new"]


def test_one_more_format_is_a_function_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_lengths(shards: ShardSet, folder: Path, options: Options, progress: Progress) -> int:
        (folder / "lengths.txt").write_text("".join(f"{rows}\n" for rows in shards.first_rows))
        return len(shards)

    monkeypatch.setitem(FORMATS, "lengths", Format(write_lengths, frozenset(), "open('{0}/lengths.txt')"))
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    command = ["export", str(made.folder), str(tmp_path / "out"), "--to", "lengths"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and "lengths.txt" in done.output
    assert (tmp_path / "out" / "lengths.txt").read_text().startswith("0\n")
    refused = CliRunner().invoke(app, [*command[:-1], "lenghts"])
    assert "did you mean lengths?" in str(refused.exception or refused.output)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    for place in (tmp_path / "full", tmp_path / "full" / "mine"):
        with pytest.raises(ExportError, match="not empty"):
            export(made.folder, "mds", place)
    assert (tmp_path / "full" / "mine").read_text() == "x"


@pytest.mark.parametrize(("wrong", "hint"), [("megatorn", "megatron"), ("MDS", "mds"), ("torch-tune", "torchtune")])
def test_an_unknown_format_is_answered_with_the_nearest(tmp_path: Path, wrong: str, hint: str) -> None:
    with pytest.raises(ExportError, match=f"did you mean {hint}"):
        export(tmp_path, wrong, tmp_path / "out")
    with pytest.raises(ExportError, match=r"there are.*megatron-rows"):
        export(tmp_path, "zzzz", tmp_path / "out")


def test_an_option_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="eod means nothing to mds; it is an option of megatron-rows"):
        export(tmp_path, "mds", tmp_path / "out", Options(eod=1))


@pytest.mark.parametrize(
    ("to", "options", "says"),
    [
        ("megatron-rows", Options(eod=1000), "not in the vocabulary"),
        ("mds", Options(hashes=("md6",)), "unknown hash"),
        ("mds", Options(shard_bytes=1 << 32), "4,294,967,295"),
        ("trl", Options(files="csv"), "parquet and arrow"),
    ],
)
def test_what_fails_leaves_nothing_behind(tmp_path: Path, to: str, options: Options, says: str) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    with pytest.raises(ExportError, match=says):
        export(made.folder, to, tmp_path / "out", options)
    assert [p.name for p in tmp_path.iterdir()] == ["shards"]


def test_an_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)

    def interrupt(done: int, rows: int) -> None:
        raise KeyboardInterrupt

    for to in FORMATS:
        with pytest.raises(KeyboardInterrupt):
            export(made.folder, to, tmp_path / "out", progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["shards"]


def test_shards_without_end_of_text_ask_for_one(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, eos=None)
    with pytest.raises(ExportError, match="which token with eod"):
        export(made.folder, "megatron-rows", tmp_path / "out")
    assert export(made.folder, "megatron-rows", tmp_path / "out", Options(eod=5)).items


def test_a_hub_folder_holds_the_same_shards_and_a_card_that_names_them(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "run" / "shards" / "8", LENGTHS, 8, tokenizer_hash=hashlib.sha256(b"{}").hexdigest())
    (tmp_path / "run" / "tokenizer").mkdir()
    (tmp_path / "run" / "tokenizer" / "tokenizer.json").write_text("{ }")
    with pytest.raises(ExportError, match="another tokenizer, or was changed"):
        export(made.folder, "hf", tmp_path / "hub")
    (tmp_path / "run" / "tokenizer" / "tokenizer.json").write_text("{}")
    export(made.folder, "hf", tmp_path / "hub")
    for path in made.folder.iterdir():
        assert (tmp_path / "hub" / "8" / path.name).read_bytes() == path.read_bytes()
    assert len(open_shards(tmp_path / "hub" / "8")) == sum(packed.rows for packed in made.packed)
    assert (tmp_path / "hub" / "tokenizer" / "tokenizer.json").exists()
    card = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["configs"] == [
        {"config_name": "8", "data_files": [{"split": "train", "path": "8/*.arrow"}], "default": True}
    ]
    assert "a tokenizer" in card


def test_what_lies_above_shards_that_were_moved_is_not_theirs(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "home" / "mine" / "8", LENGTHS, 8)
    for folder in ("home", "home/mine"):
        (tmp_path / folder / "README.md").write_text("# A diary")
    (tmp_path / "home" / "tokenizer").mkdir()
    export(made.folder, "hf", tmp_path / "hub")
    assert (
        "A diary" not in (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
        and not (tmp_path / "hub" / "tokenizer").exists()
    )


def test_the_card_of_a_hub_folder_says_how_to_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_shards(tmp_path / "shards", [[8] * 130], 8)
    export(made.folder, "hf", tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    ours = next(block for block in card.split("```python\n")[1:] if "from gristmill import Loader" in block).split(
        "```"
    )[0]
    monkeypatch.chdir(tmp_path / "hub")
    exec(compile(ours, "card", "exec"), {})
    assert capsys.readouterr().out == "(64, 8)\n" * 2


def test_a_hub_folder_takes_the_card_of_the_run_with_its_own_places(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "run" / "shards" / "8", LENGTHS, 8)
    text = "---\nlicense: mit\nconfigs:\n- config_name: x\n---\n\n# Mine\n\n---\n\nbody\n"
    (tmp_path / "run" / "README.md").write_text(text, encoding="utf-8")
    export(made.folder, "hf", tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    assert card.endswith("\n# Mine\n\n---\n\nbody\n")
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == "mit" and front["configs"][0]["config_name"] == "8"


def test_datasets_opens_the_shards_as_they_are_and_the_hub_folder_by_its_card(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    export(made.folder, "hf", tmp_path / "hub")
    as_they_are = run_elsewhere("GRISTMILL_DATASETS_PYTHON", "with_datasets.py", "arrow", f"{made.folder}/*.arrow")
    by_card = run_elsewhere("GRISTMILL_DATASETS_PYTHON", "with_datasets.py", "folder", tmp_path / "hub", "8")
    assert as_they_are["rows"] == by_card["rows"]
    shards = open_shards(made.folder)
    assert [row["input_ids"] for row in by_card["rows"]] == [shards[i].input_ids.tolist() for i in range(len(shards))]
    assert [row["seq_lens"] for row in by_card["rows"]] == [shards[i].seq_lens.tolist() for i in range(len(shards))]
    assert {name for row in by_card["rows"] for name in row["source"]} == {"web", "books"}
