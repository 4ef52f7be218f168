"""Why a document went, in numbers: the signal, its value and the threshold are those that decided, whatever the rule is
made of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from gristmill.pipeline.look.history import history
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report_data.rejects import reasons_held, telling_digits
from gristmill.stages import C4Quality, DolmaGopher, GopherQuality, GopherRepetition, KeepLanguages, KeepWhere
from gristmill.stages.stage import Range, Rule, Signals, Verdict
from tests.pipeline.runs import go, lines, save

INTEGERS = {"words", "stop_words", "lines", "c4_sentences", "c4_lorem_ipsum", "c4_curly_brackets"}


def document(rule: Rule, **signals: Any) -> pa.RecordBatch:
    """One that the rule keeps, but for what is said of it."""
    usual: dict[str, Any] = {
        "words": 200,
        "stop_words": 5,
        "lines": 9,
        "c4_sentences": 9,
        "mean_word_length": 5.0,
        "median_word_length": 5.0,
    }
    usual |= {"alphabetic_word_share": 1.0, "language": "en", "language_score": 0.9}
    values = {name: signals.get(name, usual.get(name, 0)) for name in rule.needs}
    kinds = {
        name: pa.int32() if name in INTEGERS else pa.string() if name == "language" else pa.float32() for name in values
    }
    return pa.record_batch({name: pa.array([value], kinds[name]) for name, value in values.items()})


def words(rule: Rule, **signals: Any) -> list[tuple[str | None, str, str | None]]:
    return [(held.reason, held.words, held.field) for held in reasons_held(rule, document(rule, **signals))]


@pytest.mark.parametrize(
    ("rule", "signals", "expected"),
    [
        (GopherRepetition(), {}, []),
        (GopherRepetition(), {"top_2gram_share": 0.5003}, [("top_2gram", "top_2gram_share 0.5003 > 0.2", "max_top_2gram_share")]),
        (GopherRepetition(), {"lines": 0}, [("empty", "lines 0 < 1", None)]),
        (GopherQuality(min_words=40), {"words": 39}, [("too_few_words", "words 39 < 40", "min_words")]),
        (GopherQuality(), {"words": 123_456}, [("too_many_words", "words 123,456 > 100,000", "max_words")]),
        (GopherQuality(), {"alphabetic_word_share": 0.79999}, [("too_few_alphabetic_words", "alphabetic_word_share 0.79999 < 0.8", "min_alphabetic_word_share")]),
        (DolmaGopher(), {"top_3gram_share": 0.25}, [("top_3gram", "top_3gram_share 0.25 > 0.18", "max_top_grams.1")]),
        (DolmaGopher(median_word_length=Range(low=4.9, high=4.95)), {"median_word_length": 6}, [("median_word_length", "median_word_length 6 > 4.95", "median_word_length.high")]),
        (DolmaGopher(), {"hash_ratio": 0.08, "ellipsis_ratio": 0.06}, [("too_many_symbols", "hash_ratio + ellipsis_ratio 0.14 > 0.1", "max_symbol_ratio")]),
        (C4Quality(), {"c4_curly_brackets": 3, "c4_sentences": 2}, [("curly_bracket", "c4_curly_brackets 3 > 0", "max_curly_brackets"), ("too_few_sentences", "c4_sentences 2 < 5", "min_sentences")]),
        (KeepLanguages(languages=["en"]), {"language_score": 0.31}, [("low_score", "language_score 0.31 < 0.65", "at_least")]),
        (KeepLanguages(languages=["en", "de"], thresholds={"de": 0.8}), {"language": "de", "language_score": 0.7}, [("low_score", "language_score 0.7 < 0.8", "thresholds.de")]),
        (KeepLanguages(languages=["en"]), {"language": "de"}, [("other_language", "language de, language_score 0.9", None)]),
        (KeepWhere(signal="edu", at_least=2.5), {"edu": 1}, [("low_edu", "edu 1 < 2.5", "at_least")]),
        (KeepWhere(signal="edu", at_least=2.5), {"edu": None}, [("no_edu", "edu unknown", None)]),
    ],
)  # fmt: skip
def test_the_number_is_the_one_that_decided(rule: Rule, signals: dict[str, Any], expected: list[Any]) -> None:
    assert words(rule, **signals) == expected


def test_a_threshold_of_the_documents_own_language(tmp_path: Path) -> None:
    (tmp_path / "table.yaml").write_text("de: {min_words: 90}\n")
    rule = GopherQuality(thresholds_file=str(tmp_path / "table.yaml"))
    assert words(rule, language="de", words=60) == [("too_few_words", "words 60 < 90", None)]
    assert words(rule, language="en", words=60) == []


@given(st.floats(0.0078125, 1e6, width=32), st.floats(1.01, 1e3))
def test_any_threshold_is_found(threshold: float, times: float) -> None:
    above, below = KeepWhere(signal="edu", at_most=threshold), KeepWhere(signal="edu", at_least=threshold)
    for rule, value, sign in ((above, threshold * times, ">"), (below, threshold / times, "<")):
        [held] = reasons_held(rule, pa.record_batch({"edu": pa.array([value], pa.float64())}))
        assert (held.value, held.sign, held.threshold) == (value, sign, threshold)


class Free(Rule):
    """A verdict of its own, and no limits."""

    at_most: int = 6
    needs: ClassVar[tuple[str, ...]] = ("words",)

    def verdict(self, signals: Signals) -> Verdict:
        return Verdict.keep(len(signals)).drop(signals.words > self.at_most, "many")


def test_a_rule_without_limits_shows_what_it_saw() -> None:
    assert words(Free(), words=30) == [("many", "words 30", None)]


def test_numbers_have_as_many_digits_as_tell_them_apart() -> None:
    assert telling_digits(0.50034, 0.2) == ("0.5003", "0.2") and telling_digits(0.200001, 0.2) == ("0.200001", "0.2")
    assert telling_digits(26, 40.0) == ("26", "40") and telling_digits(1234.5678, 1000) == ("1,235", "1,000")
    assert telling_digits(np.nextafter(0.2, 1), 0.2)[0] != "0.2"


MARK = """
from gristmill.stages.stage import Rule, above

class FewNumbers(Rule):
    at_most: int = 3
    limits = (above("words", "at_most", "many"),)
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that go for several reasons, by rules that look at the text before and after a rewrite; one of them is
    the user's own."""
    folder = tmp_path_factory.mktemp("why")
    save(folder / "own.py", MARK)
    same = "the mill and the miller say that with all of the grain"
    texts = (
        [f"number {n} of {same}" for n in range(40)]
        + ["again and again " * 30] * 2
        + ["few words", f"{same} &amp; more"]
    )
    lines(folder / "in.jsonl", texts)
    stages = "[gopher_repetition: {max_top_2gram_share: 0.3}, repair, gopher_quality: {min_words: 12}, 'own.py:FewNumbers': {at_most: 14}, write]"
    go(
        save(folder / "recipe.yaml", f"name: why\nsources: {{a: {{jsonl: {{path: in.jsonl}}}}}}\nstages: {stages}\n"),
        folder / "out",
    )
    return folder / "out"


def uid_of(out: Path, text: str) -> int:
    for path in sorted(out.glob("stages/*/rejects/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row["text"].startswith(text):
                return int(row["uid"])
    raise AssertionError(text)


def test_a_story_has_every_reason_of_every_rule_with_its_number(out: Path) -> None:
    story = history(RunFolder(out), uid=uid_of(out, "again"))
    assert story.outcome == "dropped by gopher_repetition: top_2gram" and story.verdicts[-1].verdict == "dropped"
    found = {(held.stage, held.reason): held for held in story.why}
    assert (
        story.why[0].reason == "top_2gram"
        and story.why[0].threshold == 0.3
        and story.why[0].field == "max_top_2gram_share"
    )
    assert len(found) == len(story.why) >= 6
    assert found["few_numbers", "many"].words == "words 90 > 14"  # of the survey: the user's own code is not run again
    for held in story.why:
        assert held.value is not None and held.threshold is not None
        assert (held.value > held.threshold) == (held.sign == ">") and held.value != held.threshold
    signals = {name: value for passage in story.passages for name, value in passage.signals.items()}
    assert all(signals[held.column or ""] == held.value for held in story.why)
    assert not any(name.startswith(("text@", "@")) for name in signals)


def test_the_numbers_are_those_that_the_rule_saw(out: Path) -> None:
    """`words` was measured again after the rewrite: the rule before it saw another number than the rule behind it."""
    rules = json.loads(next(out.glob("partitions/*/rules.json")).read_text())["rules"]
    seen = {rule["stage"]["stage"].split(":")[-1]: rule["columns"] for rule in rules}
    assert set(seen) == {"gopher_repetition", "gopher_quality", "FewNumbers"} and not seen["gopher_quality"]
    held = history(RunFolder(out), uid=uid_of(out, "few words")).why
    assert [(one.stage, one.words) for one in held if one.signal == "words"] == [("gopher_quality", "words 2 < 12")]


def test_samples_say_what_the_document_was_beyond(out: Path) -> None:
    samples = json.loads((out / "stages/gopher_repetition/report.json").read_text())["samples"]
    [one, other] = samples["top_2gram"]
    assert one["detail"] == other["detail"]
    first, also = one["detail"].split("; also ")
    assert (
        first.startswith("top_2gram_share ")
        and first.endswith(" > 0.3")
        and also.startswith("top_3gram_share, top_4gram_share, ")
        and also.count(",") == 3
        and re.search(r" and \d more$", also)
    )
    quality = json.loads((out / "stages/gopher_quality/report.json").read_text())["samples"]["too_few_words"]
    assert [sample["detail"].split(";")[0] for sample in quality] == ["words 2 < 12"]
    own = json.loads((out / "stages/few_numbers/report.json").read_text())["samples"]["many"]
    assert own and all(sample["detail"].startswith("words 1") and sample["detail"].endswith(" > 14") for sample in own)


def test_rejects_on_disk_stay_as_the_stage_left_them(out: Path) -> None:
    details = [
        row["detail"]
        for path in out.glob("stages/gopher_repetition/rejects/*")
        for row in pq.read_table(path).to_pylist()
    ]
    assert len(details) == 2 and not any(">" in (detail or "") for detail in details)


def test_a_run_without_what_it_needs_still_has_its_reasons(out: Path, tmp_path: Path) -> None:
    import shutil

    broken = Path(shutil.copytree(out, tmp_path / "out"))
    for path in [*broken.glob("partitions/*/rules.json"), *broken.glob("partitions/*/survey.json")]:
        path.unlink()
    held = history(RunFolder(broken), uid=uid_of(out, "again")).why
    assert held[0].reason == "top_2gram" and {one.threshold for one in held} == {None} and len(held) >= 6
