"""Runs that keep little, runs of earlier versions, answers of language models, indexes and cards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.pipeline.forget.forget import forget
from gristmill.pipeline.forget.indexes import rows_in_index
from gristmill.pipeline.forget.request import read_request
from gristmill.pipeline.store.store import Store
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply
from tests.pipeline.forget.forgetting import RECIPE, contents, documents, make_run, places, tokens_of, windows
from tests.pipeline.runs import go, lines, save


def ask(out: Path, *names: str, **how: bool) -> dict[str, Any]:
    return forget(str(out), read_request(save(out.parent / "ids.txt", "\n".join(names))), **how)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made"))


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


def test_indexes_and_cards_follow_and_asking_again_does_nothing(out: Path) -> None:
    rows = documents(out)
    uids = np.array([row["uid"] for row in rows[:6]], np.uint64)
    index = Store(str(out.parent / "index/exact/hashes"))
    held = rows_in_index(index, np.array([row["uid"] for row in rows], np.uint64))
    assert rows_in_index(index, uids) == len(uids) and held >= len(rows)
    card = (out / "shards/README.md").read_text()
    names = [f"{uid:016x}" for uid in uids.tolist()]
    ask(out, *names)
    assert rows_in_index(index, uids) == 0
    assert rows_in_index(index, np.array([row["uid"] for row in rows], np.uint64)) == held - len(uids)
    tokens = sum(map(len, tokens_of(out).values()))
    told = json.loads((out / "stages/pack/report.json").read_text())["packing"]
    assert told["tokens"] == tokens == sum(counts["tokens"] for counts in told["sources"].values())
    assert sum(counts["documents"] for counts in told["sources"].values()) == len(tokens_of(out)) == len(rows) - 6
    assert f"{tokens:,}" in (out / "shards/README.md").read_text() and f"{tokens:,}" not in card
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    receipt = ask(out, *names)
    assert receipt["documents"] == 0 and "receipt" not in receipt
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_run_of_an_earlier_version_is_settled_by_its_next_run(out: Path) -> None:
    shutil.rmtree(out / "journal/outcomes")
    rows = documents(out)
    receipt = ask(out, *(f"{row['uid']:016x}" for row in rows[::5]))
    assert receipt["done_again"] == ["exact_dedup", "minhash_dedup", "pack", "tokenize"]
    _, anew = go(out.parent / "r.yaml", out)
    left = {row["uid"] for row in rows} - {row["uid"] for row in rows[::5]}
    assert anew and ("a", "leg") not in anew and {row["uid"] for row in documents(out)} == left == set(tokens_of(out))


@pytest.mark.parametrize("keep", ["signals", "nothing"])
def test_a_run_that_keeps_little(out: Path, keep: str) -> None:
    recipe = save(out.parent / "little.yaml", RECIPE.replace("name: r", f"name: r\nkeep: {keep}"))
    shutil.rmtree(out)
    shutil.rmtree(out.parent / "index")
    go(recipe, out)
    rows = documents(out)
    gone, stay = rows[::6], [row for i, row in enumerate(rows) if i % 6]
    theirs = windows(str(row["text"]) for row in gone) - windows(str(row["text"]) for row in stay)
    receipt = ask(out, *(str(row["url"]) for row in gone))
    assert receipt["documents"] == len(gone) and len(theirs) > 1000
    rejected = (out / "stages").rglob("rejects/*.parquet")
    copies = windows(str(row["text"]) for path in rejected for row in documents(path.parent.parent, "rejects"))
    assert places(contents(out), theirs - copies) == {}
    assert documents(out) == stay
    go(recipe, out)
    assert documents(out) == stay and set(tokens_of(out)) == {row["uid"] for row in stay}


def test_answers_of_a_language_model_go_by_their_keys(tmp_path: Path) -> None:
    texts = [f"A text about the {i}th thing, and how it came to be." for i in range(12)]
    lines(tmp_path / "in/a.jsonl", texts)
    with LanguageServer(lambda path, body: chat_reply("x", {"Great": -0.1, "Useless": -3.0})) as server:
        asked = f"{{model: m, endpoint: '{server.url}', rubric: 'Is it useful?', cache_path: {tmp_path / 'answers'}}}"
        recipe = f"name: r\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages:\n  - llm_score: {asked}\n  - write\n"
        go(save(tmp_path / "r.yaml", recipe), tmp_path / "out")
        rows = documents(tmp_path / "out")
        kept = (tmp_path / "answers/answers-0000.jsonl").read_text().splitlines()
        assert len(kept) == len(rows) == len(texts)
        ask(tmp_path / "out", *(f"{row['uid']:016x}" for row in rows[:3]))
    left = (tmp_path / "answers/answers-0000.jsonl").read_text().splitlines()
    assert len(left) == len(kept) - 3 and set(left) < set(kept)
