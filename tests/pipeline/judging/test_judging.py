"""`judge train`, `judge score` and `judge rate` from files to files, what they say of wrong input, what
reports say of scores."""

from __future__ import annotations

import csv
import gzip
import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from typer.testing import CliRunner, Result

from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.rating.medu import SampledDocument
from gristmill.mixing.weights.supply import Supply
from gristmill.mixing.weights.tables import utilities
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.judging.medu import RatePlan, RateTask, _file_names, documents_of, tasks_of
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.build import build_report
from gristmill.pipeline.report_data import scores
from gristmill.pipeline.store.partitions import new_part
from gristmill.stages.blend.methods import Utilimax
from gristmill.stages.judge.llm_score import LlmScore
from tests.classifiers.labelled import BAD, GOOD, texts_of
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply, prompt_of
from tests.pipeline.runs import go, save

HOSTILE = "<script>alert('x')</script> [bold]{{ 7*7 }}\x1b[31m"


def ask(*words: object, given: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=given)


def fails(*words: object, given: str | None = None) -> str:
    """The message of a wrong argument, which ends the command with 2."""
    result = ask(*words, given=given)
    assert isinstance(result.exception, RecipeError), result.output or result.exception
    assert result.exception.exit_code == 2
    return str(result.exception)


def written(plan: Path, facts: dict[str, Any]) -> Path:
    plan.write_text(yaml.safe_dump(json.loads(json.dumps(facts, default=str)), sort_keys=False))
    return plan


def train(out: Path, *options: str, **facts: object) -> Result:
    """By a plan beside the judge, which is linear unless the facts say another kind."""
    plan = written(out.parent / f"{out.name}.yaml", {"kind": "linear"} | facts)
    return ask("judge", "train", plan, "--out", out, *options)


def rows_of(words: list[str], label: str, count: int, seed: int) -> list[dict[str, Any]]:
    return [
        {"text": text, "label": label, "url": f"https://{label}{i % 13}.example/{i}", "id": str(i)}
        for i, text in enumerate(texts_of(words, count, seed))
    ]


def labelled_rows() -> list[dict[str, Any]]:
    return rows_of(GOOD, "good", 90, 1) + rows_of(BAD, "bad", 90, 2)


def as_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def as_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        as_lines(path, rows)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judges")
    table = as_table(folder / "table.parquet", labelled_rows())
    result = train(folder / "linear", labelled={"files": table}, hold_out=0.3)
    assert result.exit_code == 0, result.exception
    return folder / "linear"


@pytest.mark.parametrize("suffix", ["t.parquet", "t.jsonl", "t.jsonl.gz", "t.csv"])
def test_tables_of_any_kind_make_the_same_judge(suffix: str, trained: Path, tmp_path: Path) -> None:
    table = as_table(tmp_path / suffix, labelled_rows())
    result = train(tmp_path / "j", "--json", labelled={"files": table}, hold_out=0.3)
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert told["metrics"]["quality"]["auc"] > 0.95 and told["training"]["held_out"]["texts"] > 20
    assert told["training"]["grouped_by"] == "the host or value of url"
    assert (tmp_path / "j/weights.safetensors").read_bytes() == (trained / "weights.safetensors").read_bytes()


def test_what_was_held_out_is_said_and_no_host_is_on_both_sides(trained: Path, tmp_path: Path) -> None:
    card = load_judge(trained).card
    assert card.training["groups"] is not None and card.training["groups"] < 26
    assert card.training["grouped_by"] == "the host or value of url"
    result = train(tmp_path / "j", labelled={"files": trained.parent / "table.parquet"})
    assert all(
        said in result.stdout
        for said in ("AUC", "calibration error", "held out whole by the host", "Calibration by tenths", "are good")
    )


def test_two_sets_of_files_and_several_groups(tmp_path: Path) -> None:
    good, bad = rows_of(GOOD, "good", 60, 1), rows_of(BAD, "bad", 60, 2)
    as_table(tmp_path / "good.parquet", [{"text": row["text"], "work": f"book{i % 5}"} for i, row in enumerate(good)])
    (tmp_path / "bad").mkdir()
    for half in (0, 1):
        as_lines(tmp_path / f"bad/{half}.jsonl", [{"text": row["text"], "url": row["url"]} for row in bad[half::2]])
    sets = {"good": tmp_path / "good.parquet", "bad": tmp_path / "bad"}
    result = train(tmp_path / "j", "--json", **sets, group=["work", "url"], hold_out=0.3)
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert (
        told["heads"][0]["labels"] == ["bad", "good"]
        and told["training"]["grouped_by"] == "the host or value of work, url"
    )
    assert told["training"]["texts"] + told["metrics"]["quality"]["texts"] == 120


def test_fasttext_with_labels_of_your_own(tmp_path: Path) -> None:
    rows = [row | {"label": {"good": "book", "bad": "shop"}[row["label"]]} for row in labelled_rows()] + [
        row | {"label": "menu"} for row in rows_of(BAD, "bad", 10, 3)
    ]
    table = as_table(tmp_path / "t.jsonl", rows)
    shape = {"kind": {"fasttext": {"epochs": 30}}, "head": "bookish", "meaning": "reads like a book"}
    assert train(tmp_path / "j", **shape, labelled={"files": table, "good": "book"}).exit_code == 0
    head = load_judge(tmp_path / "j").card.heads[0]
    assert (head.name, head.kind, head.labels, head.meaning) == (
        "bookish",
        "probability",
        ("bad", "good"),
        "reads like a book",
    )
    classes = ["menu", "shop", "book"]
    assert train(tmp_path / "k", **shape, labelled={"files": table, "classes": classes}).exit_code == 0
    assert load_judge(tmp_path / "k").card.heads[0].labels == ("menu", "shop", "book")


def test_grades_are_classes_in_their_order(tmp_path: Path) -> None:
    words = {0: BAD, 1: BAD[:8] + GOOD[:8], 2: GOOD}
    rows = [row | {"label": grade} for grade, its in words.items() for row in rows_of(its, f"g{grade}", 60, grade)]
    table = as_table(tmp_path / "t.parquet", rows)
    shown = train(tmp_path / "j", labelled={"files": table}, hold_out=0.3).stdout
    head = load_judge(tmp_path / "j").card.heads[0]
    assert (head.kind, head.labels, head.high) == ("classes", ("0", "1", "2"), 2)
    assert all(said in shown for said in ("kappa by distance", "AUC of 2", "from 0 to 2"))


def test_a_pooled_judge_learns_labels_and_the_scores_of_another_judge(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training a pooled judge needs torch")
    table = as_table(tmp_path / "t.parquet", labelled_rows())
    pooled = {"epochs": 10, "device": "cpu"}
    result = train(tmp_path / "j", "--json", kind={"pooled": pooled}, labelled={"files": table}, hold_out=0.3)
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert told["kind"] == "pooled" and told["metrics"]["quality"]["auc"] > 0.95
    assert ask("judge", "score", trained, table, "--out", tmp_path / "scores.parquet").exit_code == 0
    scores = pq.read_table(tmp_path / "scores.parquet")["quality"].cast(pa.float64()).to_pylist()
    rows = [row | {"score": score} for row, score in zip(labelled_rows(), scores, strict=True)]
    marked = as_table(tmp_path / "marked.parquet", rows)
    labelled = {"files": marked, "label": "score"}
    result = train(tmp_path / "k", kind={"pooled": pooled | {"most_bytes": 300}}, labelled=labelled, hold_out=0.3)
    assert result.exit_code == 0, result.exception
    assert "rank correlation" in result.stdout
    card = load_judge(tmp_path / "k").card
    assert card.heads[0].kind == "regression" and card.preprocessing["most_bytes"] == 300
    assert card.metrics["quality"]["spearman"] > 0.4 and card.metrics["quality"]["texts"] > 20
    shown = ask("judge", "score", tmp_path / "k", "--explain", given="because theory explains light. buy cart").stdout
    assert "raised by" in shown and "because" in shown


def test_a_neural_judge_on_an_encoder_of_yours(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tests.classifiers.neural_makings import labelled_table, tokenizer_json

    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=64)).save_pretrained(
        tmp_path / "encoder"
    )
    (tmp_path / "encoder/tokenizer.json").write_text(tokenizer_json())
    rows = [row for row in labelled_table(200).to_pylist() if row["quality"]]
    table = as_table(tmp_path / "t.parquet", [{"text": row["text"], "label": row["quality"]} for row in rows])
    neural: dict[str, object] = {"device": "cpu", "epochs": 1}
    refused = train(tmp_path / "j", kind={"neural": neural}, labelled={"files": table}).exception
    assert isinstance(refused, RecipeError) and "kind.neural.encoder" in str(refused) and "missing" in str(refused)
    neural["encoder"] = tmp_path / "encoder"
    result = train(tmp_path / "j", "--json", kind={"neural": neural}, labelled={"files": table})
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["metrics"]["quality"]["texts"] > 5
    assert "cannot say which words" in ask("judge", "score", tmp_path / "j", "--explain", given="a lens").stdout


@pytest.mark.parametrize(
    ("labelled", "facts", "said"),
    [
        ({}, {"kind": "forest"}, "kind: no such kind of judge; there are fasttext, linear, pooled, neural"),
        ({"files": "nowhere.parquet"}, {}, "no such file"),
        ({"label": "lable"}, {}, "no column 'lable'; did you mean label?"),
        ({}, {"text": "body"}, "no column 'body'. There are: text, label, url, id"),
        ({}, {"group": "host"}, "group: no column 'host'"),
        ({"good": "god"}, {}, "no row has the label 'god'; did you mean good?"),
        ({"classes": ["bad"]}, {}, "labelled.classes: names 1 of 2 labels"),
        ({"label": "id"}, {}, "which labels are good?"),
        ({"label": "url"}, {}, "which labels are good? Name them as `good`"),
        ({}, {"kind": {"linear": {"preset": "dclm"}}}, "kind.linear.preset: no such field"),
        ({}, {"kind": {"fasttext": {"tokens": 256}}}, "kind.fasttext.tokens: no such field"),
        ({}, {"kind": {"fasttext": {"preset": "x"}}}, "kind.fasttext.preset: "),
        ({}, {"head": "Big Head"}, "a name is lower-case letters"),
        ({}, {"out": "full"}, "already and not empty"),
        ({"files": "broken.jsonl"}, {}, "broken.jsonl:2: no JSON"),
        ({"files": "one.jsonl"}, {}, "every row has the label 'good'"),
        ({"files": "odd.parquet", "label": "grade", "good": "1"}, {}, "2 rows have no label"),
        ({"files": "odd.parquet", "label": "lists"}, {}, "labelled.label: labels are texts or numbers, not list"),
        ({"files": "odd.parquet", "label": "kind"}, {"group": "lists"}, "group: groups are texts or numbers, not list"),
        ({"files": "odd.parquet", "label": "kind"}, {"weight": "words"}, "weight: words: weights are numbers, not"),
        ({"files": "odd.parquet", "label": "kind"}, {"weight": "grade"}, "weight: grade: has weights that are not"),
        ({"files": "t.bin"}, {}, "its name ends in none of"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(
    labelled: dict[str, Any], facts: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = labelled_rows()
    as_lines(Path("t.jsonl"), rows)
    as_lines(Path("one.jsonl"), rows[:5])
    odd = {
        "text": ["a", "b", "c", "d"],
        "kind": ["bad", "good"] * 2,
        "lists": [["a"]] * 4,
        "words": ["1", "2", "x", "3"],
    }
    pq.write_table(pa.table(odd | {"grade": [1.0, 0.5, math.nan, math.nan]}), "odd.parquet")
    save(Path("broken.jsonl"), '{"text": "a", "label": "b"}\n{"text": \n')
    save(Path("t.bin"), "x")
    Path("full").mkdir()
    save(Path("full/x"), "x")
    plan = {"out": "j", "kind": "linear", "labelled": {"files": "t.jsonl"} | labelled} | facts
    assert said in fails("judge", "train", written(Path("plan.yaml"), plan))
    assert not Path("j").exists()


def test_scores_are_those_of_the_judge_in_order_whatever_the_files(trained: Path, tmp_path: Path) -> None:
    rows = labelled_rows()
    as_table(tmp_path / "a.parquet", rows[:100])
    as_table(tmp_path / "b.jsonl.gz", rows[100:])
    save(tmp_path / "c.txt", "because water bends light")
    out = tmp_path / "scores.parquet"
    result = ask(
        "judge",
        "score",
        trained,
        tmp_path / "a.parquet",
        tmp_path / "b.jsonl.gz",
        tmp_path / "c.txt",
        "--out",
        out,
        "--json",
        "--show",
        2,
    )
    assert result.exit_code == 0, result.exception
    written = pq.read_table(out)
    texts = pa.array([row["text"] for row in rows] + ["because water bends light"])
    assert written["quality"].to_pylist() == load_judge(trained).score(texts)["quality"].tolist()
    assert written["file"].to_pylist() == ["a.parquet"] * 100 + ["b.jsonl.gz"] * 80 + ["c.txt"]
    assert written["row"].to_pylist() == [*range(100), *range(80), 0] and written["url"].null_count == 1
    told = json.loads(result.stdout)["heads"]["quality"]
    scored = sorted(written["quality"].to_pylist())
    assert told["texts"] == 181 and (told["quantiles"]["0%"], told["quantiles"]["100%"]) == (scored[0], scored[-1])
    assert [one["score"] for one in told["best"]] == scored[:-3:-1] and [
        one["score"] for one in told["worst"]
    ] == scored[:2]


def test_one_text_from_standard_input_with_its_words(trained: Path) -> None:
    shown = ask("judge", "score", trained, "--explain", given="because theory explains light. buy cart").stdout
    assert "raised by" in shown and "lowered by" in shown and "because" in shown and "cart" in shown
    assert "a linear judge, made with scikit-learn" in ask("judge", "score", trained, given=" ").stdout
    assert json.loads(ask("judge", "score", trained, "--json", given="").stdout)["kind"] == "linear"


def test_crawled_text_cannot_steer_the_terminal(trained: Path, tmp_path: Path) -> None:
    as_lines(
        tmp_path / "t.jsonl", [{"text": f"{HOSTILE} light because", "url": f"javascript:{HOSTILE}"}, {"text": "buy"}]
    )
    shown = ask("judge", "score", trained, tmp_path / "t.jsonl", "--explain").stdout
    assert "\x1b" not in shown and "[bold]" in shown


def test_what_is_wrong_with_a_judge_is_said(trained: Path, tmp_path: Path) -> None:
    text = save(tmp_path / "t.txt", "light")
    assert "no folder of a judge" in fails("judge", "score", tmp_path / "none", text)
    assert "no such file" in fails("judge", "score", trained, tmp_path / "none.parquet")
    as_lines(tmp_path / "t.jsonl", [{"body": "x"}])
    assert "--text: t.jsonl: no column 'text'. There are: body" in fails(
        "judge", "score", trained, tmp_path / "t.jsonl", "--out", tmp_path / "s.parquet"
    )
    assert "no folder" in fails("judge", "score", trained, text, "--out", tmp_path / "deep/s.parquet")
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in trained.iterdir():
        (broken / path.name).write_bytes(path.read_bytes() + (b"x" if path.suffix == ".safetensors" else b""))
    assert "is not the file that was saved" in fails("judge", "score", broken, text)
    (broken / "judge.json").write_text("{")
    assert "not JSON" in fails("judge", "score", broken, text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "t.jsonl", "t.txt"]


def test_wrong_arguments_end_with_2_and_help_is_fast(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app"]
    wrong = subprocess.run(
        [*command, "judge", "score", str(tmp_path), "x.txt"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr
    assert "no folder of a judge" in " ".join(wrong.stderr.split())
    code = "import sys, gristmill.pipeline.cli.app; print([m for m in ('numpy', 'pyarrow', 'torch', 'dask', 'gristmill.classifiers.judge') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


# --- MEDU ------------------------------------------------------------------------------------------------------------

WEIGHED = {"Great": 1.0, "Good": 0.75, "Okay": 0.5, "Poor": 0.25, "Useless": 0.0}


def answering(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Describes, and finds documents with `because` Good and others Useless, a little less sure in one pass."""
    prompt = prompt_of(body)
    if "three sections" in prompt:
        return chat_reply("Test type: quiz\nLanguages, skills and knowledge: physics\nIdeal training data: textbooks")
    label = "Good" if "because" in prompt else "Useless"
    if body.get("logprobs"):
        return chat_reply(label, {label: -0.01, "Okay": -4.6})
    return chat_reply(f"A document.\nFinal Score: {label}")


def sampled(**named: Any) -> list[SampledDocument]:
    """Documents of a plan that names these."""
    plan = RatePlan.model_validate({"tasks": {"t": "t.txt"}, "model": {"model": "m"}, **named})
    return documents_of(plan, lambda *place: ".".join(map(str, place)))


def development_sets(named: dict[str, list[str]]) -> dict[str, Any]:
    return tasks_of({name: RateTask(files=files) for name, files in named.items()}, lambda *place: "plan")


def test_examples_of_plain_text_are_the_same_however_it_is_written(tmp_path: Path) -> None:
    examples = [f"question {i}?\nanswer {i}" for i in range(50)]
    text = "\n\n".join(examples)
    written = {
        "a.txt": text.encode(),
        "b.txt.gz": gzip.compress(text.encode()),
        "c.txt": text.replace("\n", "\r\n").encode(),
        "d.txt": text.replace("\n\n", "\n \t\n").encode(),
        "e.md": text.replace("\n\n", "\n\n \n\n\n").encode(),
        "f.TXT": text.replace("\n", "\r").encode(),
        "g.text.zst": zstandard.compress(text.replace("\n", "\r\n").encode()),
    }
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
    assert development_sets({name[0]: [str(tmp_path / name)] for name in written}) == {
        name[0]: examples for name in written
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "one\n\nexample"}) + "\n")
    assert development_sets({"rows": [str(tmp_path / "rows.jsonl")]}) == {"rows": ["one\n\nexample"]}


def medu_folder(folder: Path) -> dict[str, Any]:
    """Files, and a plan that reads them."""
    as_table(
        folder / "mixed.parquet",
        [{"text": f"because {i}", "source": "books"} for i in range(20)]
        + [{"text": f"buy {i}", "source": "shops"} for i in range(30)],
    )
    as_lines(folder / "quiz.jsonl", [{"question": f"Why {i}?", "answer": "So."} for i in range(6)])
    save(folder / "sums.txt", "1 + 1?\n2\n\n2 + 2?\n4\n")
    return {
        "out": "m",
        "documents": "mixed.parquet",
        "sources": {"news": "quiz.jsonl"},
        "tasks": {"quiz": "quiz.jsonl", "maths": "sums.txt"},
        "model": {"model": "m"},
        "most": 12,
    }


def test_sources_get_utilities_that_mixers_read_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    facts = medu_folder(tmp_path) | {"reading": "both", "prices": {"prompt": 1, "answer": 2}}
    as_lines(tmp_path / "quiz.jsonl", [{"text": f"because of {i}"} for i in range(4)])
    with LanguageServer(answering) as server:
        facts["model"]["endpoint"] = server.url
        plan = written(tmp_path / "plan.yaml", facts)
        result = ask("judge", "rate", plan)
        assert result.exit_code == 0, result.exception
        table = utilities((tmp_path / "m/utilities.csv").read_text())
        assert table.sources == ("books", "news", "shops") and table.tasks == ("quiz", "maths")
        assert table.values_NT[:, 0].tolist() == [0.75, 0.75, 0.0]
        assert "Both readings" in result.stdout and "cost" in result.stdout
        asked = sum(server.asked.values())
        assert ask("judge", "rate", plan).exit_code == 0 and sum(server.asked.values()) == asked
    marks = pq.read_table(tmp_path / "m/marks.parquet").to_pylist()
    assert len(marks) == (12 + 12 + 4) * 2 * 2 and {row["label"] for row in marks} == {"Good", "Useless"}
    told = json.loads((tmp_path / "m/account.json").read_text())
    assert told["account"]["calls"] == 0 and told["account"]["kept"] > 0 and told["agreement"]["quiz"]["kappa"] == 1.0
    described = LlmScore(
        model="m", endpoint="http://localhost:1/v1", description_file=str(tmp_path / "m/descriptions/quiz.txt")
    )
    prompts = {body["messages"][0]["content"] for body in server.bodies}
    request = described.asking().request("because of 1")
    assert "textbooks" in request.shared and request.shared + request.own in prompts  # kept answers serve both


WANTED = "Educational value: does the text teach something?"


def test_a_description_or_a_rubric_is_a_task_whose_utilities_mixers_read(tmp_path: Path) -> None:
    facts = medu_folder(tmp_path) | {"sources": {}, "reading": "both"}
    save(tmp_path / "wanted.txt", WANTED + "\n")
    facts["tasks"] = {
        "educational": {"description": WANTED},
        "same": {"description_file": "wanted.txt"},
        "rubric": {"rubric": "Does it explain? Good: yes.", "labels": {"Useless": 0.0, "Okay": 0.5, "Good": 0.875}},
        "quiz": "quiz.jsonl",
    }
    with LanguageServer(answering) as server:
        facts["model"]["endpoint"] = server.url
        plan = written(tmp_path / "plan.yaml", facts)
        dry = ask("judge", "rate", plan, "--dry-run")
        assert dry.exit_code == 0 and WANTED in dry.stdout and not server.asked
        result = ask("judge", "rate", plan)
        assert result.exit_code == 0, result.exception
    text = (tmp_path / "m/utilities.csv").read_text()
    table = utilities(text)
    assert table.sources == ("books", "shops") and table.tasks == ("educational", "same", "rubric", "quiz")
    assert table.values_NT == pytest.approx(np.array([[0.75, 0.75, 0.875, 0.75], [0.0] * 4]), abs=1e-12)
    prompts = [prompt_of(body) for body in server.bodies]
    assert sum(WANTED in prompt for prompt in prompts) == 2 * (12 + 12)  # equal requests of two tasks are asked once
    assert sum("three sections" in prompt for prompt in prompts) == 1  # of the development set alone
    assert [path.name for path in (tmp_path / "m/descriptions").iterdir()] == ["quiz.txt"]
    told = json.loads((tmp_path / "m/account.json").read_text())
    assert {task: one["kappa"] for task, one in told["agreement"].items()} == dict.fromkeys(table.tasks, 1.0)
    marks = pq.read_table(tmp_path / "m/marks.parquet").to_pylist()
    assert {row["label"] for row in marks if row["task"] == "rubric"} == {"Good", "Useless"}
    supply = Supply.of({"books": 1e6, "shops": 1e6}, 1e6)
    weights, _ = Utilimax(utilities_file=str(tmp_path / "m/utilities.csv"), aversion=0.1).weigh(supply, 0)
    assert weights[0] > 0.8 and weights.sum() == pytest.approx(1)


def test_marks_of_a_run_become_utilities_without_a_model(tmp_path: Path) -> None:
    as_lines(tmp_path / "books.jsonl", [{"text": f"because {i} " * (1 + i % 3)} for i in range(20)])
    as_lines(tmp_path / "shops.jsonl", [{"text": f"buy {i}"} for i in range(10)])
    with LanguageServer(answering) as server:
        asked = json.dumps({"model": "m", "endpoint": server.url, "rubric": "Useful?", "reading": "reasoned"})
        sources = "".join(f"  {name}: {{jsonl: {{path: {name}.jsonl}}}}\n" for name in ("books", "shops"))
        text = f"name: r\nsources:\n{sources}stages:\n  - llm_score: {asked}\n  - write\n"
        go(save(tmp_path / "r.yaml", text), tmp_path / "out", 0)
    facts = {"out": "m", "documents": "out/write", "tasks": {"useful": {"signal": "llm_score"}}}
    plan = written(tmp_path / "plan.yaml", facts)
    assert "marks of llm_score" in ask("judge", "rate", plan, "--dry-run").stdout
    result = ask("judge", "rate", plan)
    assert result.exit_code == 0, result.exception
    table = utilities((tmp_path / "m/utilities.csv").read_text())
    assert (table.sources, table.tasks) == (("books", "shops"), ("useful",))
    assert table.values_NT.tolist() == [[0.75], [0.0]] and table.errors_NT.tolist() == [[0.0], [0.0]]
    # by another column, and weighted by tokens: of 3 and 1 tokens with marks 1 and 0 the mean is 0.75
    rows = [{"text": "x" * (4 * n), "kind": kind, "mark": mark} for kind, n, mark in GROUPS]
    as_table(tmp_path / "rows.parquet", rows)
    of_kinds = {"out": "k", "documents": "rows.parquet", "by": "kind", "tasks": {"t": {"signal": "mark"}}}
    assert ask("judge", "rate", written(tmp_path / "k.yaml", of_kinds)).exit_code == 0
    assert utilities((tmp_path / "k/utilities.csv").read_text()).values_NT.tolist() == [[0.75], [0.5]]
    for change, said in (
        ({"tasks": {"t": {"signal": "none"}}}, "no column 'none'"),
        ({"tasks": {"t": {"signal": "text"}}}, "marks are numbers"),
        ({"model": {"model": "m"}}, "is not asked: all tasks have a `signal`"),
        ({"tasks": {"t": {"signal": "mark"}, "d": {"description": "good"}}}, "`model` is missing"),
    ):
        assert said in fails("judge", "rate", written(tmp_path / "k.yaml", of_kinds | change))
    as_table(tmp_path / "rows.parquet", [*rows, {"text": "more", "kind": "b", "mark": None}])
    assert "1 of 3 documents have no 'mark', more than 2.0%" in fails(
        "judge", "rate", written(tmp_path / "k.yaml", of_kinds)
    )


GROUPS = [("a", 3, 1.0), ("a", 1, 0.0), ("b", 2, 0.5), ("b", 7, 0.5)]


def test_every_source_is_found_with_documents_or_the_run_does_not_begin(tmp_path: Path) -> None:
    for name, count in (("full", 5), ("blank", 3), ("one", 1)):
        as_lines(tmp_path / f"{name}.jsonl", [{"text": "" if name == "blank" else f"text {i}"} for i in range(count)])
    named = {name: f"{tmp_path / name}.jsonl" for name in ("full", "blank", "one")}
    with pytest.raises(RecipeError, match="of every source, and 'blank' has none, 'one' has 1; leave such sources out"):
        sampled(sources=named)
    pq.write_table(
        pa.table({"text": ["a", "b", "c", "d"], "source": [None, "web", None, "web"]}), tmp_path / "mixed.parquet"
    )
    of_mixed = sampled(documents=str(tmp_path / "mixed.parquet"))
    assert [one.source for one in of_mixed] == ["(none)"] * 2 + ["web"] * 2


def test_a_column_of_tokens_counts_only_where_it_holds_counts(tmp_path: Path) -> None:
    for name, tokens in {"lists": [[1, 2], [3]], "words": ["a", "b"], "none": pa.array([None, 1])}.items():
        pq.write_table(pa.table({"text": ["abcd", "abcdefgh"], "tokens": tokens}), tmp_path / f"{name}.parquet")
        documents = sampled(sources={"s": f"{tmp_path / name}.parquet"})
        assert sorted(one.weight for one in documents) == [1.0, 2.0]
    pq.write_table(pa.table({"text": ["a", "b"], "tokens": [3, -1]}), tmp_path / "below.parquet")
    with pytest.raises(RecipeError, match=r"below\.parquet: the column tokens has numbers that count nothing"):
        sampled(sources={"s": f"{tmp_path / 'below.parquet'}"})


def test_a_folder_of_a_partitioned_table_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("lang=en", "de"):
        Path(folder).mkdir()
        as_lines(Path(folder, "a.jsonl"), [{"text": f"{folder} {i}", "source": "web"} for i in range(3)])
    for named, source in (({"documents": "lang=en/*.jsonl"}, "web"), ({"sources": {"l": "lang=en/*.jsonl"}}, "l")):
        assert {one.source for one in sampled(**named)} == {source}


def test_examples_of_nothing_are_none(tmp_path: Path) -> None:
    as_lines(tmp_path / "t.jsonl", [{"question": "", "answer": " "}, {"question": "Why?", "answer": ""}])
    assert development_sets({"t": [str(tmp_path / "t.jsonl")]}) == {"t": ["Why?\n"]}
    as_lines(tmp_path / "t.jsonl", [{"question": " "}])
    with pytest.raises(RecipeError, match="no examples"):
        development_sets({"t": [str(tmp_path / "t.jsonl")]})


def test_each_task_has_a_file_of_its_own() -> None:
    tasks = ["quiz", "数学", "物理", "a b", "a_b", "Law", "law"]
    names = _file_names(tasks)
    assert names["quiz"] == "quiz" and len({name.lower() for name in names.values()}) == len(tasks)
    assert all(name.isascii() and name.replace("_", "").replace("-", "").isalnum() for name in names.values())


def test_a_run_that_failed_half_way_goes_on(tmp_path: Path) -> None:
    facts = medu_folder(tmp_path) | {"sources": {}, "tasks": {"quiz": "quiz.jsonl"}}
    with LanguageServer(
        answering, mood=lambda prompt, before: "404" if "buy 1" in prompt and before == 0 else ""
    ) as server:
        facts["model"] |= {"endpoint": server.url, "connections": 1}
        plan = written(tmp_path / "plan.yaml", facts)
        first = ask("judge", "rate", plan)
        assert isinstance(first.exception, RunFailed) and "run the same command to resume" in str(first.exception)
        while (again := ask("judge", "rate", plan)).exit_code:
            assert isinstance(again.exception, RunFailed)
        assert max(server.delivered.values()) == 1 and sum(server.delivered.values()) == 1 + 12 + 12
    assert utilities((tmp_path / "m/utilities.csv").read_text()).values_NT.tolist() == [
        [pytest.approx(0.75, abs=0.01)],
        [pytest.approx(0.0, abs=0.01)],
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reading": "twice"}, "reading: "),
        ({"prices": {"prompt": 1}}, "prices.answer"),
        ({"by": "origin"}, "no column 'origin' says which source a document is of"),
        ({"model": {"engine": "magic"}}, "model.engine: "),
        (
            {"model": {"endpoint": "http://localhost:1/v1", "tensor_parallel": 2}},
            "`tensor_parallel` is for vllm in this process",
        ),
        (
            {"model": {"engine": "transformers", "quantization": "fp8"}},
            "`quantization` is for vllm in this process",
        ),
        ({"model": {"key_variable": "KEY"}}, "`key_variable` is for an endpoint"),
        ({"tasks": {"none": "none.jsonl"}}, "no such file"),
        ({"tasks": {"t": {"description": "d", "signal": "s"}}}, "a task is one of files, description"),
        ({"tasks": {"t": {}}}, "given are none"),
        ({"tasks": {"t": {"description": "d", "labels": {"a": 0, "b": 1}}}}, "`labels` are for a `rubric`"),
        ({"tasks": {"t": {"rubric": "r", "labels": {"a": 0, "b": 2}}}}, "marks lie between 0 and 1"),
        ({"tasks": {"t": {"description_file": "none.txt"}}}, "cannot be read"),
        ({"tasks": {"t": {"descripton": "d"}}}, "did you mean description?"),
        ({"text": "body"}, "no column 'body'"),
    ],
)
def test_what_is_wrong_with_a_rating_is_said(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    facts = medu_folder(tmp_path)
    facts |= {"sources": {}} | change | {"model": {"model": "m"} | change.get("model", {})}
    assert said in fails("judge", "rate", written(tmp_path / "plan.yaml", facts))


# --- reports ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    as_lines(
        folder / "books.jsonl",
        [
            {"text": f"{row['text']} {HOSTILE}", "url": f"https://a.example/{HOSTILE}"}
            for row in rows_of(GOOD, "good", 60, 7)
        ],
    )
    as_lines(folder / "shops.jsonl", rows_of(BAD, "bad", 140, 8))
    sources = "sources:\n  books: {jsonl: {path: books.jsonl}}\n  shops: {jsonl: {path: shops.jsonl}}\n"
    stages = (
        f"stages:\n  - judge: {{judge_path: {trained}}}\n  - keep_where: {{signal: quality, at_least: 0.2}}\n"
        "  - quantile_buckets: {by: [quality], buckets: 4}\n  - threshold: {by: quality, keep: 0.5, within: [source]}\n  - write\n"
    )
    go(save(folder / "r.yaml", f"name: judged\n{sources}{stages}"), folder / "out")
    return folder / "out"


def told(out: Path, stage: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "stages" / stage / "report.json").read_text())["scores"]
    return found


def test_reports_show_the_scores_of_all_that_were_scored(judged: Path, trained: Path) -> None:
    found = told(judged, "judge")
    (one,) = found["signals"]
    assert (one["documents"], one["without"], found["of"], found["whole"]) == (200, 0, 200, True)
    assert sum(one["counts"]) == 200 and {name: sum(counts) for name, counts in one["by"]["source"].items()} == {
        "shops": 140,
        "books": 60,
    }
    assert found["judge"]["metrics"] == load_judge(trained).card.metrics and "golden" not in found["judge"]
    examples = one["examples"]
    assert {example["tenth"] for example in examples} == set(range(1, 11)) and max(
        len(example["text"]) for example in examples
    ) <= 200
    assert all(low["score"] <= high["score"] for low, high in pairwise(examples))
    cut = told(judged, "threshold")["signals"][0]
    assert (
        cut["documents"] < 200
        and cut["documents"] == json.loads((judged / "stages/threshold/report.json").read_text())["docs_in"]
    )


def test_the_page_and_the_terminal_show_the_same_and_hostile_text_stays_text(judged: Path) -> None:
    page = build_report(RunFolder(judged))
    assert page.count("<script>") == 1 and "\x1b" not in page and "&lt;script&gt;" in page  # its own
    for stage, titles in {
        "judge": ["Judge of quality", "Calibration", "How quality lies, by source", "Examples by quality"],
        "quantile_buckets": ["Where buckets begin", "How quality lies"],
        "threshold": ["Where the threshold lies", "How quality lies"],
    }.items():
        shown = ask("inspect", judged, stage).stdout
        assert "\x1b" not in shown
        assert all(title in page and title in shown for title in titles), stage


def test_a_large_run_is_looked_at_in_part_with_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST_ROWS", 100)
    parts = [
        replace(new_part(f"{i}", "big" if i else "small", 40, 0, None, []), home=i * 7919 % 101) for i in range(20)
    ]
    chosen = scores._chosen(parts)
    assert len(chosen) == 2 and {part.source for part in chosen} == {"big", "small"}
    assert chosen == scores._chosen(parts[::-1])


def test_a_signal_of_one_value_or_none_has_a_report() -> None:
    assert scores._range(pa.array([3.0, 3.0]).to_numpy()) == (2.5, 3.5)
    assert scores._range(pa.array([0.0, 1.0]).to_numpy()) == (0.0, 1.0)


def test_rows_without_an_address_are_held_out_by_work_or_a_column_that_looks_like_a_group_is_named(
    tmp_path: Path,
) -> None:
    rows = [
        {"text": text, "label": label, "book": f"{label} {i // 6}", "id": f"{label} {i}"}
        for label, words in (("good", GOOD), ("bad", BAD))
        for i, text in enumerate(texts_of(words, 60, 5))
    ]
    plan = {"kind": "linear", "hold_out": 0.3, "out": "j"}

    def told(name: str, rows: list[dict[str, Any]], **changes: Any) -> Result:
        as_table(tmp_path / f"{name}.parquet", rows)
        facts = plan | {"labelled": {"files": f"{name}.parquet", "good": "good"}, "out": name} | changes
        result = ask("judge", "train", save(tmp_path / f"{name}.yaml", json.dumps(facts)))
        assert result.exit_code == 0, result.exception
        return result

    warned = told("alone", rows)
    assert "120 of 120 texts have no url or work" in warned.stderr and "the column 'book' looks like" in warned.stderr
    assert "AUC of length alone" in warned.stdout
    assert "warning" not in told("named", rows, group="book").stderr
    by_work = told("works", [{"work": row["book"], **row} for row in rows])
    assert "warning" not in by_work.stderr and "held out whole by the host or value of work" in by_work.stdout
    metrics = load_judge(tmp_path / "works").card.metrics["quality"]
    assert 0.5 <= metrics["auc_of_length"] <= 1
    modes = {path.stat().st_mode for path in (tmp_path / "works").iterdir()}
    assert modes == {(tmp_path / "works.yaml").stat().st_mode}
