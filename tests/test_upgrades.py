"""What older versions left on disk is opened by this one, or refused in one line that says what to do.
tests/fixtures/README.md tells what is there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from gristmill.pipeline.cli import app as cli
from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.errors import GristmillError, RecipeError
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.shards.reader import open_shards
from gristmill.shards.verify import verify
from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.run.loop import train
from gristmill.trainer.run.settings import Training
from tests.fixtures.facts import facts_of_batches, facts_of_documents, facts_of_shards, funnel_of, shards_of
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines

FOLDERS = sorted(path for path in (Path(__file__).parent / "fixtures").glob("v*") if path.is_dir())
# What this version no longer opens: (folder, what) and words of its one line, such as ("v0.1", "inspect"): "made by
# Gristmill 0.1; run the recipe again". What is not listed must open.
REFUSED: dict[tuple[str, str], str] = {}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_work", work_here)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def copied(folder: Path, tmp_path: Path, *without: str) -> Path:
    """Under the name under which it was made: a tokenizer beside a recipe is called after its folder."""
    here = tmp_path / "gristmill-fixture"
    shutil.copytree(folder, here, ignore=lambda at, names: [*without] if Path(at) == folder else [])
    return here


def expected_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "expected.json").read_text()))


@contextmanager
def opened(folder: Path, what: str) -> Iterator[None]:
    """Nothing, unless it is listed as refused: then the error is one line with the words listed, and the rest of the
    block is passed over."""
    words = REFUSED.get((folder.name, what))
    if words is None:
        yield
        return
    with pytest.raises(
        (GristmillError, RuntimeError, ValueError)
    ) as error:  # errors with words, in all of our packages
        yield
    message = str(error.value)
    assert words in message and "\n" not in message, message


def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """What a command prints; RuntimeError with its message where it ends with an exit code."""
    monkeypatch.setattr(sys, "argv", ["gristmill", *map(str, arguments)])
    try:
        cli.main()
        code: object = 0
    except SystemExit as end:
        code = end.code
    out, errors = capsys.readouterr()
    if code not in (0, None):
        assert code in (1, 2) and "Traceback" not in errors, errors
        raise RuntimeError(errors.strip() or out.strip())
    return out


def test_there_is_a_folder_of_the_first_version_on() -> None:
    assert "v0.1" in [path.name for path in FOLDERS]
    assert {name for name, _ in REFUSED} <= {path.name for path in FOLDERS}
    for path in FOLDERS:
        assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 2_000_000


@pytest.mark.parametrize("what", ["inspect", "inspect a stage", "tune", "report", "verify"])
def test_a_finished_run_can_be_looked_into(
    folder: Path, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_of(folder)
    out = copied(folder, tmp_path) / "out"
    arguments = {
        "inspect": ("inspect", out, "--json"),
        "inspect a stage": ("inspect", out, "minhash_dedup", "--json"),
        "tune": ("tune", out, expected["tuned"]["change"], "--json"),
        "report": ("report", out),
        "verify": ("verify", out),
    }[what]
    with opened(folder, what):
        printed = command(capsys, monkeypatch, *arguments)
        if what == "inspect":
            kept = {stage["name"]: stage["count"]["kept"] for stage in json.loads(printed)["stages"]}
            assert kept == {name: counts["kept"] for name, counts in expected["funnel"].items()}
        elif what == "inspect a stage":
            view = json.loads(printed)
            assert view["stage"]["count"]["dropped"] == expected["funnel"]["minhash_dedup"]["dropped"]
            assert len(view["samples"]) == sum(expected["funnel"]["minhash_dedup"]["dropped"].values()) > 0
        elif what == "tune":
            assert json.loads(printed)["total"] == expected["tuned"]["total"]
        elif what == "report":
            page = (out / "report.html").read_text()
            assert [name for name in expected["funnel"] if f">{name}<" not in page] == []
        else:
            assert all(f"shards/{length}: " in printed for length in expected["shards"])


def test_a_run_of_another_version_is_not_resumed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = copied(folder, tmp_path)
    monkeypatch.chdir(here)
    with pytest.raises(RecipeError, match="is of another version of Gristmill; give the run a new folder"):
        go(here / "recipe.yaml", here / "out")


def test_a_later_run_finds_what_is_in_a_saved_index(folder: Path, tmp_path: Path) -> None:
    expected = expected_of(folder)["later"]
    here = copied(folder, tmp_path, "out")
    with opened(folder, "index"):
        go(here / "later.yaml", here / "later-out")
        assert funnel_of(here / "later-out") == expected["funnel"]
        assert facts_of_documents(here / "later-out") == expected["documents"]
        assert expected["funnel"]["minhash_dedup"] == {
            "docs_in": 4,
            "kept": 2,
            "dropped": {"near_duplicate": 2},
            "quarantined": 0,
        }


@pytest.mark.parametrize("kind", ["fasttext", "linear", "neural"])
def test_a_judge_gives_the_scores_that_it_gave(
    folder: Path, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_of(folder)
    texts = lines(tmp_path / "texts.jsonl", expected["texts"])
    scores = tmp_path / "scores.parquet"
    with opened(folder, f"judge {kind}"):
        command(capsys, monkeypatch, "judge", folder / "judges" / kind, texts, "--out", scores, "--device", "cpu")
        assert pq.read_table(scores)["quality"].to_pylist() == pytest.approx(expected["scores"][kind], abs=1e-5)
        assert len(set(expected["scores"][kind])) == len(expected["texts"]) == 3


def test_training_goes_on_from_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    expected = expected_of(folder)["training"]
    here = copied(folder, tmp_path)
    losses = expected["losses"]
    with opened(folder, "training"):
        training, shape = (
            Training.from_facts(expected["training"]),
            DecoderShape(**{**expected["shape"], "windows": ()}),
        )
        loader = Loader(open_shards(here / "out" / "shards" / "64"), order=Shuffled(), **expected["loader"])
        train(
            initialise(Decoder(shape), 99),
            loader,
            training,
            here / "training",
            device=torch.device("cpu"),
            save_model=False,
        )
        told = [json.loads(line) for line in (here / "training" / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in told] == [*range(1, training.updates + 1)] and expected["at"] == 4
        assert [line["loss"] for line in told][4:] == pytest.approx(losses[4:], abs=1e-4)
        assert min(abs(a - b) for a, b in pairwise(losses)) > 1e-3, "the losses tell updates apart"


def test_shards_are_read_as_they_were_written(folder: Path) -> None:
    expected = expected_of(folder)
    with opened(folder, "shards"):
        shards = shards_of(folder / "out")
        assert {length: facts_of_shards(path) for length, path in shards.items()} == expected["shards"]
        assert {length: facts_of_batches(path) for length, path in shards.items()} == expected["batches"]
        assert {length: verify(path) for length, path in shards.items()} == {"64": [], "256": []}
