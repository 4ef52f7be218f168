"""`judge train PLAN` and `judge rate PLAN`: training sets, rounds, distillation and seeds, from a
plan to a judge's folder and its card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from gristmill.classifiers.judge import load_judge
from gristmill.mixing.weights.tables import utilities
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.judging import judge_plan, labelling, medu
from tests.classifiers.labelled import BAD, GOOD, texts_of
from tests.classifiers.llm.llm_server import LanguageServer
from tests.pipeline.judging.test_judging import answering, as_lines, as_table, ask, fails, labelled_rows, medu_folder

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
SETS = {"kind": "linear", "good": "good.jsonl", "bad": "bad.jsonl", "hold_out": 0.4}
SOURCES = {"books": {"files": "good.jsonl", "label": "good"}, "web": {"files": "bad.jsonl", "label": "bad"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of two kinds by host, and a pool of both whose hosts are partly the same."""
    at = tmp_path_factory.mktemp("plans")
    rows = labelled_rows()
    for label in ("good", "bad"):
        as_lines(at / f"{label}.jsonl", [row for row in rows if row["label"] == label])
    as_table(at / "table.parquet", rows)
    fresh = texts_of(GOOD, 60, 11) + texts_of(BAD, 60, 12)
    urls = [f"https://{'good' if i % 2 else 'new'}{i % 26}.example/{i}" for i in range(len(fresh))]
    as_lines(at / "pool.jsonl", [{"text": text, "url": url} for text, url in zip(fresh, urls, strict=True)])
    train(at, SETS | {"out": "teacher"})
    return at


def write(folder: Path, facts: dict[str, Any]) -> Path:
    path = folder / f"{facts.get('out', 'plan')}.yaml"
    path.write_text(yaml.safe_dump(facts, sort_keys=False))
    return path


def train(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    result = ask("judge", "train", write(folder, facts), "--json")
    assert result.exit_code == 0, result.exception or result.output
    told: dict[str, Any] = json.loads(result.stdout)
    assert load_judge(folder / facts["out"]).card.metrics == told["metrics"]
    return told


def test_a_folder_that_cannot_be_written_is_told_before_training(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path, out = write(folder, SETS | {"out": "unwritten"}), tmp_path / "file" / "judge"
    result = ask("judge", "train", path, "--out", out)
    assert isinstance(result.exception, RunFailed) and "training a" not in result.output
    assert f"{tmp_path}/file: the output folder cannot be written" in str(result.exception)


def test_shipped_plans_are_read() -> None:
    judges = sorted((RECIPES / "judges").glob("*.yaml"))
    assert [path.stem for path in judges] == ["distilled", "labels", "quality"]
    distilled, quality = (judge_plan.load(path).plan for path in (judges[0], judges[2]))
    assert labelling.load(judges[1]).plan.most == 20_000
    assert quality.training_set is not None and quality.training_set.sources["liked"].at_least == 0.75
    assert distilled.distil is not None and distilled.distil.teacher == str(RECIPES / "judges" / "judges" / "neural")
    assert medu.load(RECIPES / "mixing" / "utilities.yaml").plan.model.tensor_parallel == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hold_outt": 0.1}, "plan.yaml:5: hold_outt: no such field; did you mean hold_out?"),
        ({"kind": {"linear": {"epochs": 3}}}, "kind.linear.epochs: no such field; epochs is a field of fasttext"),
        ({"kind": "lineer"}, "no such kind of judge; did you mean linear?"),
        ({"labelled": {"files": "table.parquet"}}, "not from labelled and good"),
        ({"bad": None}, "`good` and `bad` are given together"),
        ({"seeds": 3}, "plan.yaml:5: seeds: training a linear judge has no chance in it"),
        ({"iterate": {"pool": "pool.jsonl"}, "hold_out": 0}, "held-out texts decide which rounds are kept"),
        ({"iterate": {"pool": "pool.jsonl", "verify": {"cuts": [0.1, 0.2], "judge": "teacher"}}}, "1 were expected"),
        ({"iterate": {"pool": "pool.jsonl", "verify": {"judge": "nowhere"}}}, "nowhere: no folder of a judge"),
        ({"text": "body"}, "plan.yaml:5: text: bad.jsonl: no column 'body'"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said_with_its_line(folder: Path, change: dict[str, Any], message: str) -> None:
    path = write(folder, {name: value for name, value in (SETS | change).items() if value is not None})
    assert message in fails("judge", "train", path, "--out", folder / "never")
    assert not (folder / "never").exists()


def test_a_plan_has_no_options_and_is_asked_for(folder: Path) -> None:
    path = write(folder, SETS)
    assert "`out` is missing" in fails("judge", "train", path)
    assert ask("judge", "train", path, "--seed", 1).exit_code == 2
    assert "Missing argument 'PLAN'" in ask("judge", "rate").output
    assert "no such plan" in fails("judge", "train", folder / "none.yaml")


def test_a_dry_run_says_what_would_be_trained(folder: Path) -> None:
    llm = {"model": "m", "endpoint": "http://localhost:1/v1", "rubric": "How good is it?"}
    rounds = {"pool": "pool.jsonl", "rounds": 2, "candidates": 50, "verify": {"llm_score": llm}}
    shown = ask("judge", "train", write(folder, SETS | {"out": "dry", "iterate": rounds}), "--dry-run").stdout
    for words in ("bad 90, good 90", "at most 3", "2 of 50 candidates, of 120 texts", "at most 100 texts", "tokens of"):
        assert words in shown, words
    assert not (folder / "dry").exists()


def test_a_training_set_out_of_sources_keeps_account_of_every_row(folder: Path) -> None:
    copies = [row | {"url": f"https://copy{i}.example/"} for i, row in enumerate(labelled_rows()[:20])]
    scored = [row | {"score": i / 20, "url": row["url"]} for i, row in enumerate(copies)]
    as_lines(folder / "scored.jsonl", scored)
    sources = SOURCES | {"scored": {"files": "scored.jsonl", "label": "good", "at_least": 0.5, "share": 0.1}}
    facts = {"out": "built", "kind": "linear", "training_set": {"sources": sources, "shortest": 20}, "hold_out": 0.3}
    with pytest.raises(AssertionError, match="no text of it is left"):  # the copies of books go
        train(folder, facts)
    for i, (row, text) in enumerate(zip(scored, texts_of(GOOD, 20, 77), strict=True)):
        row["text"] = text if i > 12 else row["text"]
    as_lines(folder / "scored.jsonl", scored)
    told = train(folder, facts)
    counts = told["training"]["training_set"]["sources"]
    assert counts["scored as good (mark >= 0.5)"]["rows"] == 20 and sum(c["rows"] for c in counts.values()) == 200
    assert counts["scored as good (mark >= 0.5)"]["dropped"]["mark"] == 10
    rows = pq.read_table(folder / "built.training_set.parquet").to_pylist()
    assert len(rows) == 200 and sum(row["reason"] is None for row in rows) == sum(c["kept"] for c in counts.values())
    kept = [row for row in rows if row["reason"] is None]
    assert told["metrics"]["quality"]["texts"] == sum(row["held_out"] for row in kept) > 20
    assert told["training"]["texts"] == sum(not row["held_out"] for row in kept)
    assert not {r["group"] for r in kept if r["held_out"]} & {r["group"] for r in kept if not r["held_out"]}
    assert told["metrics"]["quality"]["auc"] > 0.95


def test_rounds_add_what_a_judge_or_a_language_model_verifies(folder: Path) -> None:
    rounds = {"pool": "pool.jsonl", "rounds": 2, "candidates": 20, "top": 0.3, "bottom": 0.3, "patience": 2}
    proposed = train(folder, SETS | {"out": "rounds", "iterate": rounds})
    lines = proposed["training"]["rounds"]
    assert [line["round"] for line in lines] == [0, 1, 2] and lines[0]["gain"] is None
    assert lines[1]["gain"] == lines[1]["gate"] - lines[0]["gate"]
    assert sum(lines[1]["added"].values()) >= 10 and lines[1]["refused"] == 0
    assert 60 < lines[1]["pool"] < 120  # hosts that are held out give no candidates
    halves = proposed["metrics"]["quality"]["texts"]
    assert 10 < halves < 180 - lines[0]["texts"]  # the other half decided
    by_judge = train(
        folder, SETS | {"out": "judged", "iterate": rounds | {"rounds": 1, "verify": {"judge": "teacher"}}}
    )
    assert sum(by_judge["training"]["rounds"][1]["added"].values()) >= 10
    with LanguageServer(answering) as server:
        llm = {
            "model": "m",
            "endpoint": server.url,
            "rubric": "Because?",
            "labels": {"Good": 1, "Okay": 0.5, "Useless": 0},
        }
        asked = rounds | {"rounds": 1, "verify": {"llm_score": llm}}
        result = ask("judge", "train", write(folder, SETS | {"out": "asked", "iterate": asked}))
        assert result.exit_code == 0, result.exception
        assert sum(server.asked.values()) == 20
    assert "asking a language model about" in result.stderr and "Rounds" in result.stdout and "gain" in result.stdout


@pytest.mark.parametrize("kind", ["linear", "pooled"])
def test_a_student_learns_its_teachers_scores_with_seeds(folder: Path, kind: str) -> None:
    if kind == "pooled":
        pytest.importorskip("torch", reason="training a pooled judge needs torch")
    pooled = {"kind": {"pooled": {"epochs": 6, "device": "cpu"}}, "seeds": 2}
    facts = {"kind": "linear", "distil": {"files": "pool.jsonl", "teacher": "teacher"}, "hold_out": 0.4}
    told = train(folder, facts | {"out": f"student_{kind}"} | (pooled if kind == "pooled" else {}))
    metrics = told["metrics"]["quality"]
    assert metrics["spearman"] == metrics["agreement"]["spearman"] > 0.5 and 30 < metrics["texts"] < 60
    assert told["training"]["distilled_from"] == str(folder / "teacher")
    assert told["training"]["lesson"]["form"] == ("value" if kind == "pooled" else "soft")
    assert told["training"]["texts"] + metrics["texts"] <= 120
    if kind == "pooled":
        spread = metrics["seeds"]
        assert spread["seeds"] == [0, 1] and spread["figures"]["spearman"][0] == metrics["spearman"]
        assert spread["figures"]["spearman"][0] != spread["figures"]["spearman"][1]
        assert len(spread["pairs"]["spearman"]) == 1 and 0.3 < spread["pairs"]["spearman"][0] < 1


def test_scores_that_are_there_teach_too(folder: Path) -> None:
    rows = [row | {"edu": 5.0 * (row["label"] == "good") if i % 9 else None} for i, row in enumerate(labelled_rows())]
    as_table(folder / "edu.parquet", rows)
    distil = {"files": "edu.parquet", "scores": "edu", "high": 5, "form": "hard", "cuts": [3]}
    path = write(folder, {"out": "edu", "kind": "linear", "distil": distil, "hold_out": 0.4, "head": "educational"})
    result = ask("judge", "train", path)
    assert result.exit_code == 0, result.exception
    assert "rank correlation" in result.stdout and "AUC at a teacher's score of 3" in result.stdout
    card = load_judge(folder / "edu").card
    assert card.heads[0].name == "educational" and card.training["texts"] < 160


def test_a_language_model_rates_sources_by_a_plan(tmp_path: Path) -> None:
    facts = medu_folder(tmp_path) | {"sources": {"news": "news.jsonl"}, "prices": {"prompt": 1, "answer": 2}}
    as_lines(tmp_path / "news.jsonl", [{"text": f"because of {i}"} for i in range(4)])
    with LanguageServer(answering) as server:
        path = write(tmp_path, facts | {"model": {"model": "m", "endpoint": server.url}})
        shown = ask("judge", "rate", path, "--dry-run").stdout
        assert "source news" in shown and "cost" in shown and sum(server.asked.values()) == 0
        result = ask("judge", "rate", path)
        assert result.exit_code == 0, result.exception
        asked = sum(server.asked.values())
        assert asked == 2 + (12 + 12 + 4)  # both descriptions are the same here, so that half of the answers are kept
        assert f"{2 + 2 * (12 + 12 + 4)} answers" in shown
        again = ask("judge", "rate", path)
        assert again.exit_code == 0 and sum(server.asked.values()) == asked  # the same questions
    assert utilities((tmp_path / "m/utilities.csv").read_text()).sources == ("books", "news", "shops")
    path.write_text(yaml.safe_dump(facts | {"model": {"model": "m", "engin": "vllm"}}))
    assert "model.engin: no such field; did you mean engine?" in fails("judge", "rate", path)
