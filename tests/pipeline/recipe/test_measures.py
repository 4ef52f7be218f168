"""Measure once, then decide: rules act on stored signals, and a new threshold touches no text."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.tune import tune
from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.recipe import recipe as recipes, registry
from gristmill.pipeline.run.dry_run import foresee, render
from tests.pipeline.runs import go, save, written

STAGES = '''
import os
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.stage import Annotate, Applied, Rewrite, Rule, Signals, Verdict, with_columns


def called(what, rows):
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{what} {rows}\\n")


class Length(Annotate):
    """Characters of the text."""

    needs: ClassVar = ("text",)
    adds: ClassVar = ("length",)

    def annotate(self, batch):
        called("measure", len(batch))
        texts = Signals(batch).column("text")
        if any("breaks the measure" in t for t in texts.to_pylist()):
            raise ValueError("broken measure")
        return {"length": pc.utf8_length(texts)}


class Shorten(Rewrite):
    """Takes the first word away."""

    def rewrite(self, batch):
        called("rewrite", len(batch))
        texts = [t.partition(" ")[2] if t.startswith("drop ") else t for t in Signals(batch).column("text").to_pylist()]
        return Applied(with_columns(batch, {"text": pa.array(texts, pa.string())}), Verdict.keep(len(batch)))


class LongEnough(Rule):
    """Drops what is short."""

    at_least: int = 20
    needs: ClassVar = ("length",)

    def verdict(self, signals):
        called("decide", len(signals))
        if (signals.length == 13).any():
            raise ValueError("thirteen breaks the rule")
        return Verdict.keep(len(signals)).drop(signals.length < self.at_least, "too_short").drop(signals.length < 5, "tiny")


class NotTooLong(Rule):
    """Drops what is long."""

    at_most: int = 40
    needs: ClassVar = ("length",)

    def verdict(self, signals):
        return Verdict.keep(len(signals)).drop(signals.length > self.at_most, "too_long", [f"{n} characters" for n in signals.length])
'''
TEXTS = ["x" * n for n in (3, 10, 19, 20, 25, 40, 41, 60)] + [
    "drop " + "y" * 18,
    "drop " + "z" * 30,
    "breaks the measure, it does",
    "thirteen long",
]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    (tmp_path / "s.py").write_text(STAGES)
    for f in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        rows = [json.dumps({"text": t, "url": f"http://e.x/{f}/{i}"}) for i, t in enumerate(TEXTS)]
        (tmp_path / "in" / f"{f}.jsonl").write_text("\n".join(rows) + "\n")

    def take() -> Counter[str]:
        path = tmp_path / "calls"
        found: Counter[str] = Counter()
        for line in path.read_text().splitlines() if path.exists() else []:
            what, rows = line.split()
            found[what] += int(rows)
        path.unlink(missing_ok=True)
        return found

    return take


def recipe(folder: Path, *stages: str, parts: str = "{files: 1}") -> Path:
    listed = "".join(f"  - {s}\n" for s in stages)
    return save(
        folder / "r.yaml", f"name: r\nparts: {parts}\nsources:\n  a: {{jsonl: {{path: in}}}}\nstages:\n{listed}"
    )


RULE_NAMES = ("long_enough", "not_too_long")
RULES = ("s.py:Length", "s.py:LongEnough: {at_least: 20}", "s.py:NotTooLong: {at_most: 40}", "write")


def entries(out: Path) -> dict[str, dict[str, object]]:
    return {s["name"]: s for s in json.loads((out / "run.json").read_text())["stages"]}


def test_a_new_threshold_measures_nothing_again(tmp_path: Path, calls) -> None:
    out = tmp_path / "out"
    go(recipe(tmp_path, *RULES), out)
    assert calls()["measure"] >= 3 * len(TEXTS)
    assert sorted(len(t) for _, t in written(out)) == sorted([20, 25, 40, 23, 35] * 3)
    changed = recipe(tmp_path, RULES[0], "s.py:LongEnough: {at_least: 24}", *RULES[2:])
    seen = {s.name: s for s in foresee(recipes.load(changed), str(out))}
    assert (
        seen["a"].why == "changed: settings of long_enough; decided again on stored signals"
        and seen["a"].up_to_date == 0
    )
    _, anew = go(changed, out)
    again = calls()
    assert again["measure"] == again["rewrite"] == 0 and again["decide"] > 0
    assert anew["a", "stages"] == 0 and anew["a", "rules"] == 3
    assert sorted(len(t) for _, t in written(out)) == sorted([25, 40, 35] * 3)
    fresh = tmp_path / "fresh"
    go(changed, fresh)
    assert (
        written(fresh) == written(out)
        and entries(fresh)["long_enough"]["dropped"] == entries(out)["long_enough"]["dropped"]
    )


def test_a_plan_imports_the_stages_it_needs_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "A mill."}\n')
    sources = f"{{a: {{jsonl: {{path: {tmp_path}}}}}}}"
    path = save(tmp_path / "r.yaml", f"name: r\nsources: {sources}\nstages: [gopher_quality, write]\n")
    code = (
        "import sys; from gristmill.pipeline.recipe import recipe; from gristmill.pipeline.plan.plan import make_plan;"
        f"make_plan(recipe.load({str(path)!r})); print(*(n for n in sys.modules if n.startswith('gristmill.stages.')))"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gristmill.stages.text.signals" in imported
    assert not [name for name in imported if name.split(".")[2] in ("dedup", "blend", "tokens", "judge", "extract")]


def test_each_signal_is_added_by_one_stage() -> None:
    adders = Counter(signal for kind in registry.built_in().values() for signal in kind.adds)
    assert len(adders) > 30
    assert [signal for signal, count in adders.items() if count > 1] == ["embedding"]  # of a model or of the corpus


def test_the_account_and_what_broke(tmp_path: Path, calls) -> None:
    out = tmp_path / "out"
    go(recipe(tmp_path, *RULES), out)
    found = entries(out)
    assert list(found) == ["a", "length", "long_enough", "not_too_long", "write"]
    assert found["length"]["quarantined"] == 3 and found["long_enough"]["quarantined"] == 3
    assert found["long_enough"]["dropped"] == {"too_short": 9} and found["not_too_long"]["dropped"] == {"too_long": 6}
    before = None
    for entry in found.values():
        assert entry["docs_in"] == entry["kept"] + sum(entry["dropped"].values()) + entry["quarantined"]
        assert before is None or entry["docs_in"] == before
        before = entry["kept"]
    rejects = [
        r for p in sorted((out / "stages/not_too_long/rejects").glob("*.parquet")) for r in pq.read_table(p).to_pylist()
    ]
    assert {(r["reason"], r["detail"], len(r["text"])) for r in rejects} == {
        ("too_long", "41 characters", 41),
        ("too_long", "60 characters", 60),
    }
    broken = [
        r
        for p in sorted((out / "stages/long_enough/rejects").glob("*.parquet"))
        for r in pq.read_table(p).to_pylist()
        if r["reason"] == "quarantined"
    ]
    assert [r["text"] for r in broken] == ["thirteen long"] * 3 and "thirteen breaks the rule" in broken[0]["detail"]


def test_every_failing_rule_is_on_record(tmp_path: Path, calls) -> None:
    out = tmp_path / "out"
    go(recipe(tmp_path, "s.py:Length", "s.py:LongEnough: {at_least: 50}", "s.py:NotTooLong: {at_most: 40}"), out)
    table = pq.read_table(next((out / "partitions/a").glob("*.verdicts.parquet")))
    reasons = json.loads(table.schema.metadata[b"gristmill.reasons"])
    assert reasons == {"long_enough": ["too_short", "tiny"], "not_too_long": ["too_long"]}
    rows = {(row["reason"], row["failed:long_enough"], row["failed:not_too_long"]) for row in table.to_pylist()}
    assert ("too_short", 3, 0) in rows and ("too_short", 1, 1) in rows and ("too_long", 0, 1) in rows


@pytest.mark.parametrize("before", [(), ("exact_dedup",)], ids=["read", "beside"])
def test_rules_on_both_sides_of_a_rewrite_see_their_own_text(tmp_path: Path, calls, before: tuple[str, ...]) -> None:
    """`drop zzz` is 35 long before the rewrite and 30 after; `drop yyy` is 23, then 18."""
    out = tmp_path / "out"
    stages = (
        "s.py:Length",
        "s.py:LongEnough: {at_least: 22}",
        "s.py:Shorten",
        "s.py:NotTooLong: {at_most: 34}",
        "write",
    )
    go(recipe(tmp_path, *before, *stages), out)
    found = entries(out)
    assert "length_after_shorten" in found
    assert {t for _, t in written(out)} == {"x" * 25, "y" * 18, "z" * 30}
    rejects = [
        r for p in sorted((out / "stages/long_enough/rejects").glob("*.parquet")) for r in pq.read_table(p).to_pylist()
    ]
    assert not any("z" in r["text"] for r in rejects)
    go(recipe(tmp_path, *before, "s.py:Length", "s.py:LongEnough: {at_least: 24}", *stages[2:]), out)
    again = calls()
    rejects = [
        r for p in sorted((out / "stages/long_enough/rejects").glob("*.parquet")) for r in pq.read_table(p).to_pylist()
    ]
    assert {r["text"] for r in rejects if "y" in r["text"]} == {"drop " + "y" * 18}, (
        "a reject shows the text that the rule saw"
    )
    table = pq.read_table(next((out / "write").glob("*.parquet")))
    assert not any("@" in name for name in table.column_names) and "length" in table.column_names
    assert [len(r["text"]) for r in table.to_pylist()] == table["length"].to_pylist()
    assert again["measure"] > 0


def test_measuring_beside_documents_copies_no_text(tmp_path: Path, calls) -> None:
    out = tmp_path / "out"
    go(recipe(tmp_path, "exact_dedup", *RULES), out)
    beside = {p.name.rsplit(".", 2)[1] for p in (out / "partitions/length").glob("*.parquet")}
    assert beside == {"signals", "quarantined", "verdicts"}
    assert sorted(len(t) for _, t in written(out)) == [20, 23, 25, 35, 40]
    assert calls()["measure"] >= len(TEXTS)
    go(recipe(tmp_path, "exact_dedup", RULES[0], "s.py:LongEnough: {at_least: 24}", *RULES[2:]), out)
    assert calls()["measure"] == 0
    assert sorted(len(t) for _, t in written(out)) == [25, 35, 40]


@pytest.mark.run
def test_the_same_for_any_parts_and_workers(tmp_path: Path, calls) -> None:
    go(recipe(tmp_path, *RULES), tmp_path / "one")
    go(recipe(tmp_path, *RULES, parts="{files: 50, batch_bytes: 100}"), tmp_path / "two", workers=2)
    assert written(tmp_path / "one") == written(tmp_path / "two") != []
    for name in ("length", "long_enough", "not_too_long"):
        a, b = entries(tmp_path / "one")[name], entries(tmp_path / "two")[name]
        assert {k: a[k] for k in ("docs_in", "kept", "dropped", "quarantined")} == {
            k: b[k] for k in ("docs_in", "kept", "dropped", "quarantined")
        }


def test_the_plan_cuts_where_text_should_lie_on_disk(tmp_path: Path, calls) -> None:
    save(
        tmp_path / "w.yaml",
        "name: w\nsources:\n  a: {warc: {path: in}}\nstages:\n  - sample: {rate: 0.5}\n  - extract\n  - s.py:Length\n  - s.py:LongEnough\n  - write\n",
    )
    plan = make_plan(recipes.load(tmp_path / "w.yaml"))
    segments = [(n.name, [s.called for s in n.works], [s.called for s in n.decides], n.beside) for n in plan.segments]
    assert [node.name for node in plan.nodes] == ["a"]
    assert segments == [
        ("a", ["sample", "extract"], [], False),
        ("length", ["length"], ["long_enough"], True),
        ("write", ["write"], [], False),
    ]


def test_a_signal_that_nobody_measures(tmp_path: Path, calls) -> None:
    (tmp_path / "t.py").write_text(STAGES.replace('adds: ClassVar = ("length",)', 'adds: ClassVar = ("size",)'))
    with pytest.raises(RecipeError, match=r"r\.yaml:6: long_enough needs the signal length, which no stage measures"):
        make_plan(recipes.load(recipe(tmp_path, "t.py:LongEnough")))


def test_a_signal_is_measured_by_the_stage_in_the_same_file(tmp_path: Path, calls) -> None:
    out = tmp_path / "out"
    go(recipe(tmp_path, "s.py:LongEnough", "s.py:NotTooLong", "write"), out)
    assert calls()["measure"] >= 3 * len(TEXTS) and list(entries(out)) == ["a", "length", *RULE_NAMES, "write"]
    (tmp_path / "u.py").write_text(STAGES.replace('"""Characters of the text."""', "least: int"))
    with pytest.raises(RecipeError, match=r"needs the signal length: put u\.py:Length before it, which adds it"):
        make_plan(recipes.load(recipe(tmp_path, "u.py:LongEnough")))


def test_stages_that_were_inserted_or_moved_are_marked(tmp_path: Path, calls) -> None:
    out = tmp_path / "out"
    file = recipe(tmp_path, "s.py:LongEnough", "s.py:Shorten", "s.py:NotTooLong", "write")
    loaded = recipes.load(file)
    seen = foresee(loaded, str(out))
    inserted = {"length": "long_enough", "length_after_shorten": "not_too_long"}
    assert [name for node in seen for name in node.stages] == [
        "length", "shorten", "length_after_shorten", *RULE_NAMES, "write",
    ]  # fmt: skip
    assert (seen[0].inserted, seen[0].moved) == (inserted, {"long_enough": "shorten"})
    screen = Console(width=200, file=io.StringIO())
    screen.print(render(seen))
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "length_after_shorten inserted for not_too_long\n" in said
    assert "long_enough moved: the recipe has it before shorten\n" in said
    go(file, out)
    record = RunFolder(str(out)).record
    assert {stage.name: stage.inserted_for for stage in record.stages if stage.inserted_for} == inserted
    assert [(stage.name, stage.moved_behind) for stage in record.stages if stage.moved_behind] == [
        ("long_enough", "shorten")
    ]
    page = (out / "report.html").read_text()
    assert page.count("moved: the recipe has it before shorten") == page.count("inserted for not_too_long") == 2


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("  - mix: {by: [sorce]}\n", "r.yaml:5: mix: by: documents have no column 'sorce' here; did you mean source?"),
        ("  - order: {within: [language]}\n", "order: within: documents have no column 'language' here; put language"),
        ("  - cap_domains: {by: [topik], documents: 3}\n", "column 'topik' here; did you mean topic?"),
        ("  - pack: {by: [shelf], row_length: 64}\n", "'shelf' here; `from_meta` adds columns of the input"),
    ],
)
def test_a_column_to_tell_groups_apart_by_that_nobody_adds(tmp_path: Path, stages: str, said: str) -> None:
    topic = "  - from_meta: {texts: {topic: subject}}\n"
    head = f"name: r\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages:\n{topic}"
    with pytest.raises(RecipeError) as error:
        make_plan(recipes.load(save(tmp_path / "r.yaml", head + stages)))
    assert said in str(error.value)
    make_plan(
        recipes.load(save(tmp_path / "r.yaml", f"{head}  - cap_domains: {{by: [topic, source], documents: 3}}\n"))
    )


def test_a_source_that_joins_is_measured_too(tmp_path: Path, calls) -> None:
    listed = "sources:\n  a: {jsonl: {path: in}, stages: [s.py:Length]}\n  b: {jsonl: {path: in}, join: long_enough}\n"
    text = f"name: j\n{listed}stages:\n  - sample: {{rate: 1.0}}\n  - s.py:LongEnough\n  - write\n"
    go(save(tmp_path / "j.yaml", text), tmp_path / "out")
    found = entries(tmp_path / "out")
    assert found["long_enough"]["docs_in"] == 3 * len(TEXTS) * 2 - found["length"]["quarantined"] - sum(
        e["quarantined"] for n, e in found.items() if n.startswith("length_")
    )
    assert sorted(found["long_enough"]["sources"]) == ["a", "b"]


def test_tune_says_what_a_run_would_do(tmp_path: Path, calls) -> None:
    out = tmp_path / "out"
    go(recipe(tmp_path, *RULES), out)
    calls()
    answer = tune(RunFolder(out), ["long_enough.at_least=24", "not_too_long.at_most=45"])
    assert calls()["measure"] == 0
    (sides,) = answer.sources.values()
    go(
        recipe(tmp_path, RULES[0], "s.py:LongEnough: {at_least: 24}", "s.py:NotTooLong: {at_most: 45}", "write"),
        tmp_path / "then",
    )
    assert sides.before == len(written(out)) == 15 and sides.after == len(written(tmp_path / "then")) == 12
    assert (sides.newly_dropped, sides.newly_kept) == (6, 3)
    assert answer.drops_after == {
        "long_enough: too_short": 15,
        "long_enough: quarantined": 3,
        "not_too_long: too_long": 3,
    }
    shown = {(m.side, m.reason, len(m.text), m.signals["length"]) for m in answer.moved}
    assert ("kept", "not_too_long: too_long", 41, 41) in shown and (
        "dropped",
        "long_enough: too_short",
        20,
        20,
    ) in shown


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("long_enough.at_leats=3", "has no field at_leats; did you mean at_least?"),
        ("long_enuf.at_least=3", "no rule of this run that decides on stored signals; did you mean long_enough?"),
        ("long_enough=3", "STAGE.FIELD=VALUE was expected"),
        ("long_enough.at_least=many", "valid integer"),
        ("write.dump=x", "There are: long_enough, not_too_long"),
    ],
)
def test_tune_explains_what_it_cannot_do(tmp_path: Path, calls, setting: str, message: str) -> None:
    out = tmp_path / "out"
    go(recipe(tmp_path, *RULES), out)
    with pytest.raises(RecipeError, match=re.escape(message)):
        tune(RunFolder(out), [setting])


def test_tokens_of_a_text_that_is_rewritten_afterwards_do_not_count(tmp_path):
    text = "name: r\nsources: {a: {jsonl: {path: in}}}\nstages:\n  - tokenize\n  - personal_data\n  - pack\n"
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(
        RecipeError, match=r"r.yaml:5: personal_data changes texts between tokenize \(line 4\) and pack \(line 6\)"
    ):
        make_plan(recipes.load(path))
    path.write_text(text.replace("  - tokenize\n", ""))
    with pytest.raises(RecipeError, match=r"pack needs the signal tokens.*put tokenize before it"):
        make_plan(recipes.load(path))


def test_stages_of_one_source_are_not_moved_because_another_has_none(tmp_path: Path, calls) -> None:
    text = (
        "name: r\nsources:\n  a: {jsonl: {path: in}}\n  b: {warc: {path: in}, stages: [extract]}\n"
        "stages:\n  - text_signals\n  - gopher_quality\n  - exact_dedup\n  - repair\n  - write\n"
    )
    plan = make_plan(recipes.load(save(tmp_path / "m.yaml", text)))
    assert (plan.inserted(), plan.moved()) == ({}, {})
