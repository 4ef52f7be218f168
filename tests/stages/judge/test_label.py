"""Labels of documents: by a judge or a language model, `unknown` where neither may be trusted, kept and dropped by
name, and counted in the report."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
from gristmill.kernels.common.settings import SettingsError
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.build import build_report
from gristmill.stages import Judge, KeepLabels, Label, LlmLabel
from gristmill.stages.documents import uid_of
from gristmill.stages.judge import llm_score
from gristmill.stages.judge.label import learned_languages
from gristmill.stages.rules.language import plain_language
from gristmill.stages.stage import CannotRun
from tests.classifiers.labelled import BAD, GOOD, QUALITY, texts_of, two_kinds
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply, prompt_of
from tests.classifiers.test_labels_heads import KITCHEN, TOPIC, three_topics
from tests.pipeline.judging.test_judging import ask
from tests.pipeline.runs import go, save

SCIENCE = " ".join(GOOD * 2)
GERMAN = (
    "Das Brot geht auf, weil die Hefe aus Zucker Gas macht, und deshalb braucht der Teig viel Wärme und etwas Zeit."
)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It learned English, and a little of French."""
    folder = tmp_path_factory.mktemp("judges") / "topic"
    judge = train_linear(three_topics(), TOPIC, LinearRecipe(bits=12))
    replace(judge, card=replace(judge.card, training={"languages": {"eng_Latn": 995, "fr": 5}})).save(folder)
    return folder


def batch(texts: list[str | None], **columns: Any) -> pa.RecordBatch:
    uids = [uid_of("s", "f", row) for row in range(len(texts))]
    return pa.record_batch({"uid": pa.array(uids, pa.uint64()), "text": pa.array(texts, pa.string()), **columns})


def test_a_document_has_the_likeliest_label_and_its_probability(judge: Path) -> None:
    texts = [SCIENCE, " ".join(BAD * 2), " ".join(KITCHEN * 2)]
    signals = Label(judge_path=str(judge)).annotate(batch(texts, language=pa.array(["en"] * 3)))
    assert signals["topic"].to_pylist() == ["science", "shop", "cooking"]
    chances = load_judge(judge).outputs(pa.array(texts))["topic"].max(axis=1)
    assert signals["topic_chance"].type == pa.float32()
    assert np.array_equal(signals["topic_chance"].to_numpy(), chances) and chances.min() > 0.6


def test_unknown_are_unsure_short_and_foreign_texts(judge: Path) -> None:
    mixed = " ".join(GOOD + BAD + KITCHEN)
    texts = [SCIENCE, mixed, "oven flour", None, SCIENCE, SCIENCE]
    languages = pa.array(["en", "en", "en", "en", "fr", None])
    signals = Label(judge_path=str(judge), least_chance=0.6).annotate(batch(texts, language=languages))
    assert signals["topic"].to_pylist() == ["science"] + ["unknown"] * 5
    chances = signals["topic_chance"].to_pylist()
    assert 0 < chances[1] < 0.6 < chances[0] and chances[2:] == [None] * 4
    anyway = Label(judge_path=str(judge), any_language=True, fewest_words=2, least_chance=0)
    assert (
        anyway.annotate(batch(texts, language=languages))["topic"].to_pylist()[2:]
        == ["cooking", "unknown"] + ["science"] * 2
    )


def test_the_language_is_found_out_where_no_stage_did(judge: Path) -> None:
    english = (
        "The bread rises because the yeast turns sugar into gas, and so the dough needs a warm place and some time."
    )
    stage = Label(judge_path=str(judge), least_chance=0)
    alone = [stage.annotate(batch([text]))["topic"][0].as_py() for text in (english, GERMAN, "short")]
    assert alone[0] != "unknown" and alone[1:] == ["unknown", "unknown"]
    assert stage.annotate(batch([english, GERMAN, "short"]))["topic"].to_pylist() == alone
    assert stage.annotate(batch([]))["topic"].to_pylist() == []


def test_languages_are_the_same_under_the_names_of_other_models() -> None:
    assert [plain_language(name) for name in ("en", "eng_Latn", "zho_Hans", "gsw_Latn", "unknown")] == [
        "en", "en", "zh", "gsw", "unknown",
    ]  # fmt: skip
    assert learned_languages({"languages": {"en": 99, "de": 1, "unknown": 0}}) == {"en", "de"}
    assert learned_languages({"languages": {"en": 995, "de": 5}}) == {"en"}
    assert learned_languages({}) is None


def test_each_kind_of_judge_has_its_stage(judge: Path, tmp_path: Path) -> None:
    train_linear(two_kinds(20), QUALITY, LinearRecipe(bits=8)).save(tmp_path / "quality")
    with pytest.raises(SettingsError, match="use the stage `judge`"):
        Label(judge_path=str(tmp_path / "quality"))
    with pytest.raises(SettingsError, match="use the stage `label`"):
        Judge(judge_path=str(judge))
    with pytest.raises(SettingsError, match="no folder of a judge"):
        Label(judge_path=str(tmp_path / "nothing"))


def test_labels_are_kept_and_dropped_by_name() -> None:
    table = pa.table({"topic": pa.array(["science", "shop", None, "unknown"]).dictionary_encode()})
    kept = KeepLabels(signal="topic", keep=["science", "unknown"])
    verdict = kept.apply(table.to_batches()[0]).verdict
    assert verdict.kept.tolist() == [True, False, False, True]
    assert [verdict.every_reason(row) for row in (1, 2)] == [["other_topic"], ["no_topic"]]
    assert verdict.details[1] == "shop"
    verdict = KeepLabels(signal="topic", drop=["shop"]).apply(table.to_batches()[0]).verdict
    assert verdict.kept.tolist() == [True, False, True, True] and verdict.every_reason(1) == ["dropped_topic"]
    with pytest.raises(SettingsError, match="one of `keep` and `drop`"):
        KeepLabels(signal="topic")
    with pytest.raises(CannotRun, match="keep_where is for numbers"):
        KeepLabels(signal="words", keep=["1"]).apply(pa.record_batch({"words": [1]}))


def by_topic(path: str, body: dict[str, Any]) -> dict[str, Any]:
    prompt = prompt_of(body)
    word = next((word for word in ("science", "food", "none", "Quatsch") if f"a {word} " in prompt), "money")
    if body.get("logprobs"):
        return chat_reply("x", {word: math.log(0.8), "money": math.log(0.15), "work": math.log(0.05)})
    return chat_reply(f"It may be.\nFinal Label: {word}" if word != "Quatsch" else "Final Label: perhaps")


@pytest.mark.parametrize("reading", ["at_once", "reasoned"])
def test_a_language_model_labels_by_a_taxonomy(reading: str) -> None:
    rest = "and so on and so forth, " * 6
    texts = [f"a {word} text {rest}" for word in ("science", "food", "none", "Quatsch")] + ["a science text", None]
    with LanguageServer(by_topic) as server:
        stage = LlmLabel(model="m", endpoint=server.url, taxonomy="topic", reading=reading, most_failures=1)
        signals = stage.annotate(batch(texts))
        llm_score.opened.cache_clear()
        prompts = [prompt_of(body) for body in server.bodies]
    assert len(prompts) == 4 and all("- science: " in prompt and "- none: " in prompt for prompt in prompts)
    fourth = "money" if reading == "at_once" else "unknown"  # at once, of labels alone the likeliest counts
    assert signals["topic"].to_pylist() == ["science", "food", "unknown", fourth, "unknown", "unknown"]
    chances = signals["topic_chance"].to_pylist()
    assert chances == (
        [pytest.approx(0.8)] * 3 + [pytest.approx(0.75), None, None] if reading == "at_once" else [None] * 6
    )


def test_too_many_unreadable_answers_stop_the_run() -> None:
    with LanguageServer(by_topic) as server:
        stage = LlmLabel(model="m", endpoint=server.url, taxonomy="format", reading="reasoned", fewest_words=0)
        with pytest.raises(CannotRun, match="3 of 3 answers could not be read"):
            stage.annotate(batch(["a Quatsch b", "a Quatsch c", "a Quatsch d"]))
        llm_score.opened.cache_clear()


@pytest.fixture(scope="module")
def labelled_run(judge: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    for source, words, count in (("books", GOOD, 60), ("shops", BAD, 90)):
        rows = [
            {"text": text * 3, "url": f"https://{source}.example/<b>{i}"}
            for i, text in enumerate(texts_of(words, count, 5))
        ]
        (folder / f"{source}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "oven"}]))
    recipe = (
        "name: labelled\nsources:\n  books: {jsonl: {path: books.jsonl}}\n  shops: {jsonl: {path: shops.jsonl}}\nstages:\n"
        f"  - label: {{judge_path: {judge}, any_language: true}}\n  - keep_labels: {{signal: topic, drop: [shop]}}\n  - write\n"
    )
    go(save(folder / "r.yaml", recipe), folder / "out")
    return folder / "out"


def test_a_run_keeps_by_label_and_counts_every_label(labelled_run: Path, judge: Path) -> None:
    rows = [row for path in (labelled_run / "write").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    written = Counter(row["topic"] for row in rows)
    report = json.loads((labelled_run / "stages/label/report.json").read_text())["scores"]
    (labels,) = report["labels"]
    assert labels["signal"] == "topic" and labels["documents"] == 152 == sum(labels["counts"].values())
    assert {label: count for label, count in labels["counts"].items() if label != "shop"} == written
    assert labels["by"]["books"]["science"] > 50 and labels["by"]["shops"]["shop"] > 80 and written["unknown"] >= 2
    (chances,) = report["signals"]
    assert (chances["signal"], chances["documents"] + chances["without"]) == ("topic_chance", 152)
    dropped = json.loads((labelled_run / "stages/keep_labels/report.json").read_text())
    assert dropped["docs_in"] - dropped["kept"] == labels["counts"]["shop"]


def test_page_and_terminal_show_the_labels(labelled_run: Path) -> None:
    page, shown = build_report(RunFolder(labelled_run)), ask("inspect", labelled_run, "label").stdout
    for title in ("Documents by topic", "topic by source: the commonest labels", "Judge of topic"):
        assert title in page and title in shown
    assert "<b>1" not in page
