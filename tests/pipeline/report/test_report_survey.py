"""What the report says that a moved threshold would keep is what `tune` says, and a recount of the Parquet files."""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.funnel import Volume
from gristmill.pipeline.look.history import cuts_of
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.tune import tune
from gristmill.pipeline.report import build_report
from gristmill.pipeline.report.what_if import chart_of, tokens_a_unit, until
from gristmill.pipeline.report_data import survey as survey_module
from gristmill.pipeline.report_data.histograms import (
    MOST,
    Decomposition,
    RuleThreshold,
    SignalCounts,
    SurveyRecord,
    edges_of,
    plan_survey,
    thresholds_of,
)
from gristmill.pipeline.report_data.survey import survey as survey_again, survey_segments
from gristmill.pipeline.store.run_records import SegmentRules, rules_by_segment
from gristmill.pipeline.store.serialize import read_as
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tasks.bound_rule import BoundRule
from gristmill.stages import GopherQuality, KeepLanguages
from gristmill.stages.stage import Limit, Rule, Signals, Verdict, above, below
from tests.pipeline.report import surveyed
from tests.pipeline.runs import go


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return surveyed.make(tmp_path_factory.mktemp("surveyed"))


@pytest.fixture(scope="module")
def survey(out: Path) -> dict[str, Any]:
    return surveyed.survey_of(out)


def rules(out: Path) -> SegmentRules:
    """Both sources have a segment of their own, with the same rules."""
    one, other = rules_by_segment(Store(str(out))).values()
    assert one.rules == other.rules
    return SegmentRules(one.rules, one.parts + other.parts)


def test_every_threshold_is_found_and_none_that_hangs_on_two_signals(survey: dict[str, Any]) -> None:
    found = {(cut["stage"], cut["field"]): (cut["signal"], cut["side"], cut["value"]) for cut in survey["cuts"]}
    assert found["gopher_quality", "min_words"] == ("words", "low", 20.0)
    assert found["gopher_quality", "max_hash_ratio"] == ("hash_ratio", "high", 0.125)
    assert found["dolma_gopher", "words.low"] == ("words", "low", 10.0)
    assert found["dolma_gopher", "words.high"] == ("words", "high", 300.0)
    assert found["keep_languages", "at_least"] == ("language_score", "low", 0.3)
    assert ("dolma_gopher", "max_symbol_ratio") not in found  # hash_ratio + ellipsis_ratio
    assert len([1 for stage, _ in found if stage == "gopher_repetition"]) == 13
    assert len([1 for stage, _ in found if stage == "gopher_quality"]) == 10


def test_one_threshold_moved_anywhere_is_what_tune_counts(out: Path, survey: dict[str, Any]) -> None:
    chance = random.Random(3)
    changed = 0
    for k, cut in enumerate(survey["cuts"]):
        edges = surveyed.edges(survey, cut)
        for at in {0, cut["at"], len(edges) - 1, *chance.sample(range(len(edges)), min(4, len(edges)))}:
            value = int(edges[at]) if edges[at].is_integer() else edges[at]
            if value < 0 or (cut["field"] == "at_least" and value > 1):
                continue
            answer = tune(RunFolder(out), [f"{cut['stage']}.{cut['field']}={value}"])
            mine = surveyed.exact(survey, k, at)
            assert {name: sides.after for name, sides in answer.sources.items()} == {
                name: its[0] for name, its in mine.items()
            }, (
                cut,
                value,
            )
            changed += answer.total.after != answer.total.before
    assert changed > 30


def test_words_that_would_stay_are_those_of_the_files(out: Path, survey: dict[str, Any]) -> None:
    k = next(
        k for k, cut in enumerate(survey["cuts"]) if (cut["stage"], cut["field"]) == ("gopher_quality", "min_words")
    )
    rhymes = [part for part in rules(out).parts if part.source == "rhymes"]
    words = np.concatenate([np.array(pq.read_table(out / part.documents.path)["words"]) for part in rhymes])
    verdicts = pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("partitions/*/*.verdicts.parquet"))])
    by_others = [
        verdicts[f"failed:{name}"].to_numpy() for name in ("keep_languages", "gopher_repetition", "dolma_gopher")
    ]
    by_others.append(verdicts["failed:gopher_quality"].to_numpy() & ~np.uint64(1))  # its first reason is too_few_words
    others = verdicts["uid"].to_numpy()[np.any(by_others, axis=0)]
    uids = np.concatenate([np.array(pq.read_table(out / part.documents.path)["uid"]) for part in rhymes])
    edges = surveyed.edges(survey, survey["cuts"][k])
    at = next(at for at, edge in enumerate(edges) if edge > 50)
    stays = (words >= edges[at]) & ~np.isin(uids, others)
    assert surveyed.exact(survey, k, at)["rhymes"] == [stays.sum(), words[stays].sum()]
    assert survey["weight"] == "words" and 0 < stays.sum() < len(words)


def test_several_moved_together_are_counted_on_a_sample_that_is_all_of_a_small_run(
    out: Path, survey: dict[str, Any]
) -> None:
    place = {(cut["stage"], cut["field"]): k for k, cut in enumerate(survey["cuts"])}
    chance, changed = random.Random(1), 0
    for _ in range(12):
        moved, settings = {}, []
        for stage, field in (
            ("gopher_quality", "min_words"),
            ("gopher_repetition", "max_top_2gram_share"),
            ("dolma_gopher", "words.high"),
            ("keep_languages", "at_least"),
        ):
            k = place[stage, field]
            edges = surveyed.edges(survey, survey["cuts"][k])
            moved[k] = chance.choice(
                [at for at, edge in enumerate(edges) if edge >= 0 and (edge <= 1 or "words" in field)]
            )
            settings.append(f"{stage}.{field}={edges[moved[k]]:g}")
        answer = tune(RunFolder(out), settings)
        assert surveyed.sampled(survey, moved).sum() == answer.total.after
        changed += answer.total.after != answer.total.before
    assert changed > 6 and sum(survey["sample"]["sizes"]) == 400 == sum(survey["sample"]["groups"])


def test_what_nothing_moves_is_what_the_run_kept(out: Path, survey: dict[str, Any]) -> None:
    run = json.loads((out / "run.json").read_text())
    last = next(entry for entry in run["stages"] if entry["name"] == "dolma_gopher")
    assert {name: its[0] for name, its in zip(survey["sources"], survey["stay"], strict=True)} == {
        n: its["kept"] for n, its in last["sources"].items()
    }
    assert sum(its[0] for its in survey["reach"]) == 400 > last["kept"] > 0
    for k, cut in enumerate(survey["cuts"]):
        assert sum(its[0] for its in surveyed.exact(survey, k, cut["at"]).values()) == last["kept"]
    for its in survey["signals"].values():
        assert sum(its["counts"]) == 400 and len(its["counts"]) == len(its["edges"]) + 1 <= MOST + 1
    assert (
        sum(came for _, came, _ in survey["languages"]) == 400
        and sum(left for _, _, left in survey["languages"]) == last["kept"]
    )
    assert survey["kept"] and all(row["text"] for row in survey["kept"])


@pytest.mark.run
def test_a_survey_is_the_same_for_any_number_of_workers_and_is_not_done_without_need(
    out: Path, survey: dict[str, Any], tmp_path: Path
) -> None:
    go(out.parent / "r.yaml", tmp_path / "out", workers=2)
    assert surveyed.survey_of(tmp_path / "out") == survey


def test_a_sample_of_many_documents_is_of_equal_shares(
    out: Path, survey: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_module, "SAMPLE", 60)
    found = rules(out)
    small = survey_again(Store(str(out)), "x", found.rules, found.parts)
    assert small is not None and small.sample.groups == [30, 30] and small.sample.sizes == [300, 100]
    assert [len(surveyed.unpacked(bins)) for bins in small.sample.bins] == [60] * len(small.cuts)
    assert [cut.documents[0] and cut.free for cut in small.cuts] != []
    assert small.stay == survey["stay"]
    parts: Any = [
        SimpleNamespace(source=name, kept=kept) for name, kept in (("a", 5), ("b", 900), ("c", 10), ("b", 100))
    ]
    assert survey_module.quotas(parts, {"a": 0, "b": 1, "c": 2}) == [5, 45, 10]


class Mixed(Rule):
    """A limit on a sum, one on a signal, one that no setting moves, and a setting that bounds two signals."""

    most_together: float = 10.0
    most: float = 5.0
    at_least: float = 2.0
    limits = (
        above("a + b", "most_together", "together"),
        above("c", "most", "high"),
        below("c", 1, "fixed"),
        below("a", "at_least", "either"),
        below("b", "at_least", "either"),
    )


class Odd(Mixed):
    """A verdict that does not do what a limit of it says."""

    def verdict(self, signals: Signals) -> Verdict:
        return Verdict.keep(len(signals)).drop(signals.c > 2 * self.most, "high")


def view(rows: int = 300) -> pa.RecordBatch:
    chance = np.random.default_rng(5)
    columns = {name: pa.array(chance.uniform(0, 9, rows).astype(np.float32)) for name in "abc"}
    return pa.record_batch({"uid": pa.array(range(rows), pa.uint64()), **columns})


def test_only_limits_of_one_setting_on_one_signal_have_a_slider() -> None:
    assert Mixed().needs == ("a", "b", "c")
    found = thresholds_of(Mixed(), view())
    assert [(cut.field, cut.signal, cut.side, cut.value) for cut in found] == [("most", "c", "high", 5.0)]
    assert found[0].narrow  # a Python number is rounded to float32 by numpy
    ranged = thresholds_of(
        KeepLanguages(languages=["en", "de"], thresholds={"de": 0.4}),
        pa.record_batch({"language": ["en", "de"], "language_score": pa.array([0.5, 0.7], pa.float32())}),
    )
    assert [(cut.field, cut.side, cut.narrow) for cut in ranged] == [("at_least", "low", True)]


@pytest.mark.parametrize("rule", [Mixed(), Odd()])
def test_a_verdict_that_does_not_do_what_its_limits_say_is_noticed(rule: Rule) -> None:
    deciding, batch = BoundRule(rule, {}, ()), view()
    plan = plan_survey([deciding], [thresholds_of(rule, batch)], batch, ["a", "b", "c"], None, {"s": 0})
    apart = Decomposition.of(plan, batch)
    assert apart.odd == ({0} if isinstance(rule, Odd) else set())
    if not apart.odd:
        gone = (apart.gone | apart.beyond[0]).tolist()
        assert gone == (~rule.checked(batch).verdict.kept).tolist() and 0 < sum(gone) < len(gone)


def test_a_rule_that_decides_nothing_is_refused() -> None:
    class Nothing(Rule):
        most: float = 1.0

    class Missing(Rule):
        most: float = 1.0
        limits = (above("words", "mots", "many"),)

    with pytest.raises(ValueError, match="declares `limits`, or has a method `verdict"):
        Nothing()
    with pytest.raises(ValueError, match="limits: mots is no number among the settings"):
        Missing()


@given(
    st.sampled_from(["low", "high"]),
    st.booleans(),
    st.lists(st.floats(-3, 3, width=32), min_size=1),
    st.lists(st.decimals(-3, 3, places=2), min_size=1, unique=True),
)
def test_bins_are_on_the_side_of_each_edge_that_the_comparison_says(
    side: Any, narrow: bool, values: list[float], steps: list[Any]
) -> None:
    cut = RuleThreshold("s", Limit("x", "f", side, "r"), 0.0, narrow)
    edges = np.array(sorted(float(step) for step in steps))
    numbers = np.array([*values, *edges.astype(np.float32)], np.float32)
    bins = cut.bins(numbers, edges)
    for at, edge in enumerate(edges):
        assert ((bins <= at) if side == "low" else (bins > at)).tolist() == cut.beyond(numbers, float(edge)).tolist()


@given(st.lists(st.floats(0, 1e7), min_size=1), st.lists(st.floats(0, 1e6), max_size=3), st.booleans())
def test_edges_are_few_and_ordered_and_hold_the_thresholds(
    values: list[float], thresholds: list[float], whole: bool
) -> None:
    values, thresholds = ([float(round(v)) for v in found] if whole else found for found in (values, thresholds))
    edges = edges_of(np.array(values), thresholds, whole)
    assert 1 <= len(edges) <= MOST and edges == sorted(set(edges)) and set(thresholds) <= set(edges)


@pytest.mark.parametrize(("low", "high"), [(2, 16_000), (12, 100_000), (0, 3_000_000)])
def test_counts_stop_at_the_numbers_that_people_write(low: int, high: int) -> None:
    values = np.geomspace(max(low, 1), high, 1000).round()
    edges = edges_of(values, [50.0, 37.0], True)
    assert {37.0, 40, 50, 60, 80, 90, 100, 120, 150, 200, 250, 300, 500, 1000} <= set(edges)
    assert all(edge == float(f"{edge:.2g}") for edge in edges if edge >= 100)


def test_shares_stop_at_whole_hundredths_and_no_step_of_the_tail_is_finer() -> None:
    chance = np.random.default_rng(0)
    for top in (0.3, 0.304, 0.66, 1.0, 1.00003):
        edges = edges_of(np.append(chance.beta(1, 20, 500) * top, top), [0.125], False)
        assert 0.125 in edges
        assert {round(k / 100, 2) for k in range(19)} <= set(edges)
        assert all(abs(200 * edge - round(200 * edge)) < 1e-9 for edge in edges if edge > 0.2), top


def test_what_a_threshold_takes_anywhere_is_a_recount_of_what_is_within_its_reach(
    out: Path, survey: dict[str, Any]
) -> None:
    words = np.concatenate([np.array(pq.read_table(out / part.documents.path)["words"]) for part in rules(out).parts])
    cut = next(cut for cut in survey["cuts"] if (cut["stage"], cut["field"]) == ("gopher_quality", "min_words"))
    edges = surveyed.edges(survey, cut)
    for at in range(0, len(edges), 7):
        assert sum(cut["reached"][: at + 1]) == (words < edges[at]).sum()
    for cut in survey["cuts"]:
        at = cut["at"] + 1
        assert cut["takes"] == sum(cut["reached"][:at] if cut["side"] == "low" else cut["reached"][at:])
        assert (np.sum(cut["documents"], axis=0) <= cut["reached"]).all()
    assert survey["signals"]["words"]["low"] == words.min() and survey["signals"]["words"]["high"] == words.max()


def test_bars_hold_all_documents(survey: dict[str, Any]) -> None:
    for name, signal in read_as(SurveyRecord, survey).signals.items():
        bars = chart_of(name, signal, [], "")
        assert sum(bars.counts) == 400 and len(bars.places) == len(bars.counts) + 1 and bars.places[-1] == 1
        assert len(bars.counts) <= 56 and 1 <= len(bars.ticks) <= 6


@pytest.mark.parametrize("count", [0, 2])
def test_documents_at_an_upper_limit_are_drawn_as_those_that_stay(count: int) -> None:
    values = np.array([0] * 1948 + [count] * 3 + [count + 1] * 5, np.float64)
    edges = edges_of(values, [float(count)], whole=True)
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1).tolist()
    signal = SignalCounts(edges, counts, True, 0.0, float(count + 1))
    cut = SimpleNamespace(side="high", value=float(count), at=edges.index(count), signal="braces")
    chart = chart_of("braces", signal, [cut], "0-0")  # type: ignore[list-item]
    [mark] = chart.thresholds
    stays = [k for k, edge in enumerate(chart.edges) if chart.counts[k] and edge <= count]
    goes = [k for k, edge in enumerate(chart.edges) if chart.counts[k] and edge > count]
    assert [sum(chart.counts[k] for k in stays), sum(chart.counts[k] for k in goes)] == [1951, 5]
    assert all(chart.places[k + 1] <= mark.place for k in stays) and all(chart.places[k] >= mark.place for k in goes)


def test_words_are_told_as_the_tokens_that_the_funnel_estimates(out: Path) -> None:
    [survey] = RunFolder(out).surveys
    run = RunFolder(out).record
    last = next(stage for stage in run.stages if stage.name == "dolma_gopher")
    assert until(survey, run) == "Counted after dolma_gopher."
    tales, rhymes = ([weight for _, weight in survey.stay][survey.sources.index(name)] for name in ("tales", "rhymes"))
    lefts = {last.name: {"tales": Volume(1, 3 * tales), "rhymes": Volume(1, 2 * rhymes)}}
    assert tokens_a_unit(survey, run, lefts) == [{"tales": 3.0, "rhymes": 2.0}[name] for name in survey.sources]
    assert tokens_a_unit(survey, run, {last.name: {"tales": Volume(1, 3 * tales), "rhymes": Volume()}}) == [
        3.0,
        3.0,
    ]
    assert (
        tokens_a_unit(survey, run, {last.name: {}}) is None
        and tokens_a_unit(replace(survey, weight="tokens"), run, lefts) is None
    )


@pytest.fixture(scope="module")
def apart(out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, had one source not passed a rule that the other did: then each has rules of its own."""
    copied = tmp_path_factory.mktemp("apart") / "out"
    shutil.copytree(out, copied)
    path = copied / "partitions/rhymes/rules.json"
    its = json.loads(path.read_text())
    its["rules"] = [rule for rule in its["rules"] if rule["stage"]["stage"] != "gopher_repetition"]
    path.write_text(json.dumps(its))
    survey_segments(Store(str(copied)))
    return copied


def test_a_rule_is_asked_of_all_sources_that_pass_it_whatever_else_they_pass(out: Path, apart: Path) -> None:
    together, answer = (tune(RunFolder(folder), ["gopher_quality.min_words=60"]) for folder in (out, apart))
    assert answer.sources["tales"] == together.sources["tales"] and answer.sources["rhymes"].documents == 100
    assert answer.sources["rhymes"].newly_dropped > 0
    assert sum(answer.drops_before.values()) == answer.total.documents - answer.total.before
    own = tune(RunFolder(apart), ["gopher_repetition.max_top_2gram_share=0.01"])
    assert own.sources == {
        "tales": tune(RunFolder(out), ["gopher_repetition.max_top_2gram_share=0.01"]).sources["tales"]
    }
    both = tune(RunFolder(apart), ["gopher_repetition.max_top_2gram_share=0.01", "gopher_quality.min_words=60"])
    assert both.sources["rhymes"] == answer.sources["rhymes"] and both.segment == "rhymes, tales"


def test_rules_are_asked_in_their_own_order(out: Path, apart: Path) -> None:
    """What an earlier rule takes is not counted for a later one."""
    record = json.loads((out / "run.json").read_text())
    entry = next(entry for entry in record["stages"] if entry["name"] == "gopher_repetition")
    answer = tune(RunFolder(apart), ["gopher_repetition.max_top_2gram_share=0.01"])
    taken = {
        name.removeprefix("gopher_repetition: "): n
        for name, n in answer.drops_before.items()
        if name.startswith("gopher_repetition")
    }
    assert taken == {reason: n for reason, n in entry["sources"]["tales"]["dropped"].items() if n} != {}


def test_the_page_says_whose_documents_a_threshold_was_counted_on(apart: Path) -> None:
    html = build_report(RunFolder(apart))
    assert html.count("<h4>Thresholds of tales</h4>") == html.count("<h4>Thresholds of rhymes</h4>") == 3
    assert html.count("<h4>Thresholds</h4>") == 1  # gopher_repetition, of one source alone
    assert "300 documents come to these rules" in html and "100 documents come to these rules" in html
    assert ", of rhymes: 100 documents" in html and ", of tales: 300 documents" in html
    spoken = [json.loads(path.read_text())["languages"] for path in sorted(apart.glob("partitions/*/survey.json"))]
    whole = sum(came for rows in spoken for name, came, _ in rows if name == "en")
    assert re.search(rf'>en</th><td class="track".*?data-head="came">{whole}</td>', html) and len(spoken) == 2


def test_a_value_that_is_no_yaml_is_an_error_in_words(out: Path) -> None:
    with pytest.raises(RecipeError, match=r"gopher_quality\.min_words=\[: \[ is no value"):
        tune(RunFolder(out), ["gopher_quality.min_words=["])


def test_a_limit_that_no_array_holds_is_a_limit_like_any_other() -> None:
    """Whoever wants no limit writes a large number: the survey comes last, and may not end a run over it."""
    rule = GopherQuality(max_words=10**21, max_mean_word_length=1e300)
    view = pa.record_batch({name: np.arange(5.0) for name in rule.needs})
    found = {cut.field: cut.value for cut in thresholds_of(rule, view)}
    assert found["min_words"] == 50.0 and found.get("max_words", 1e21) == 1e21


def test_a_threshold_that_several_segments_have_is_one(apart: Path) -> None:
    """Else nobody could say which field of a rule took a document."""
    found = [(cut.stage, cut.field) for cut in cuts_of(RunFolder(str(apart)))]
    assert found.count(("gopher_quality", "min_words")) == 1 and len(set(found)) == len(found)
    surveys = [json.loads(path.read_text()) for path in apart.glob("partitions/*/survey.json")]
    assert set(found) == {(cut["stage"], cut["field"]) for its in surveys for cut in its["cuts"]} and len(surveys) == 2
