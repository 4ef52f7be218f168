"""`gristmill tune`: what another threshold would keep and drop, answered from stored signals.

The rules of a segment are held against its signals twice, as they were and as they would be; no text is read but that
of the few documents that are shown.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import as_change, as_share, by_size, one_line, plain
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.processes import cores_here
from gristmill.pipeline.report_data.documents import Row, Value, around
from gristmill.pipeline.store.partitions import ROW, columns_of, read_part
from gristmill.pipeline.store.records import Partition
from gristmill.pipeline.store.run_records import SegmentRules
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tables import TerminalTable
from gristmill.pipeline.tasks.bound_rule import BROKE, KEPT, BoundRule, RuleOutcome, outcome_of
from gristmill.stages.blend.groups import NO_VALUE
from gristmill.stages.stage import Rule

PREVIEW = 400
QUARANTINED = "quarantined"
MOST = 8  # conditions


@dataclass(frozen=True)
class Change:
    """One field of one rule, and what it would be."""

    stage: str
    field: str
    before: JSON
    after: JSON


@dataclass(frozen=True)
class Moved:
    """A document that changes sides."""

    uid: str
    source: str
    url: str | None
    side: str  # "dropped" or "kept", as it would be
    reason: str  # why it would go, or why it went
    signals: Row
    text: str


@dataclass
class KeptCounts:
    """How many documents of a source are kept as it is and as it would be."""

    documents: int = 0
    before: int = 0
    after: int = 0
    newly_dropped: int = 0
    newly_kept: int = 0

    def add(self, other: KeptCounts) -> None:
        for name in ("documents", "before", "after", "newly_dropped", "newly_kept"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Tuning:
    """The answer."""

    segment: str
    changes: list[Change]
    where: dict[str, str] = field(default_factory=dict)  # values of signals: only these documents are counted
    sources: dict[str, KeptCounts] = field(default_factory=dict)
    drops_before: dict[str, int] = field(default_factory=dict)
    drops_after: dict[str, int] = field(default_factory=dict)
    moved: list[Moved] = field(default_factory=list)

    @property
    def total(self) -> KeptCounts:
        total = KeptCounts()
        for sides in self.sources.values():
            total.add(sides)
        return total


@dataclass
class _PartAnswer:
    """What the rules as they were and as they would be do with one part."""

    sides: KeptCounts = field(default_factory=KeptCounts)
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    moved: list[tuple[int, int, Moved]] = field(default_factory=list)  # uid, row; without url and text


def tune(folder: RunFolder, settings: Sequence[str], samples: int = 5, where: str = "") -> Tuning:
    """What STAGE.FIELD=VALUE would do, one or several of the same segment; `where` to documents of a cell alone."""
    try:
        conditions = conditions_of(where)
    except ValueError as error:
        raise RecipeError(f"--where {error}") from error
    out, store = folder.out, folder.store
    if not folder.has("run.json"):
        raise RecipeError(f"{out}: no run is here (there is no run.json)")
    record, rules = folder.record, folder.rules
    if not record.stages or not record.finished:
        raise RecipeError(f"{out}: this run is at work or was killed; run its recipe to the end first")
    if not rules and record.recipe.get("keep") == "nothing":
        raise RecipeError(f"{out}: the run kept no signals (`keep: nothing`); run the recipe with `keep: signals`")
    segments, changes = _changed(rules, settings, [stage.name for stage in record.stages])
    changed = {c.stage for c in changes}
    answer = Tuning(", ".join(segment.name for segment in segments), changes, conditions)
    work = [(segment, part) for segment in segments for part in segment.parts]
    with ThreadPoolExecutor(cores_here()) as pool:
        parts = list(
            pool.map(lambda pair: _ask(store, pair[1], pair[0].before, pair[0].after, samples, conditions), work)
        )
    for (_, part), of_part in zip(work, parts, strict=True):
        answer.sources.setdefault(part.source, KeptCounts()).add(of_part.sides)
        answer.drops_before = dict(Counter(answer.drops_before) + of_part.before)
        answer.drops_after = dict(Counter(answer.drops_after) + of_part.after)
    for side in ("dropped", "kept"):
        every = [
            (uid, row, moved, segment, part)
            for (segment, part), of_part in zip(work, parts, strict=True)
            for uid, row, moved in of_part.moved
            if moved.side == side
        ]
        for _, row, moved, segment, part in sorted(every, key=lambda item: item[0])[:samples]:
            changed_rule = next(d for d in segment.after if d.rule.called in changed)
            answer.moved.append(_with_text(folder, part, changed_rule, row, moved))
    answer.sources = dict(sorted(answer.sources.items()))
    return answer


@dataclass(frozen=True)
class _Segment:
    """A segment's parts, and its rules as they were and as they would be."""

    name: str
    parts: list[Partition]
    before: tuple[BoundRule, ...]
    after: tuple[BoundRule, ...]


def _changed(
    rules_of_segments: dict[str, SegmentRules], settings: Sequence[str], others: Collection[str]
) -> tuple[list[_Segment], list[Change]]:
    """The segments that are meant: every one that has a changed rule. Sources that have not joined yet have segments of
    their own, and beside a rule that all of them pass some may have rules that are theirs alone."""
    segments = {name: tuple(map(BoundRule.of, data.rules)) for name, data in rules_of_segments.items()}
    rules = {d.rule.called: d.rule for deciding in segments.values() for d in deciding}
    names = ", ".join(rules) or "none"
    new: dict[str, Rule] = {}
    changes = []
    for setting in settings:
        target, equals, value = setting.partition("=")
        stage, dot, path = target.partition(".")
        if not equals or not dot:
            raise RecipeError(f"{setting}: STAGE.FIELD=VALUE was expected, such as gopher_quality.min_words=80")
        if stage not in rules:
            near = difflib.get_close_matches(stage, rules, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            if stage in others:
                hint = f"; change {path} in the recipe and run it again: what comes before it is not done again."
            raise RecipeError(
                f"{setting}: {stage} is no rule of this run that decides on stored signals{hint} There are: {names}"
            )
        new[stage], change = _with_setting(new.get(stage, rules[stage]), stage, path, _read(value, setting), setting)
        changes.append(change)
    homes = {name: {d.rule.called for d in deciding} & new.keys() for name, deciding in segments.items()}
    if not any(changed == new.keys() for changed in homes.values()):
        several = ", ".join(name for name, changed in homes.items() if changed)
        raise RecipeError(f"these rules lie in different segments ({several}); ask for one segment at a time")
    return [
        _Segment(
            name,
            list(rules_of_segments[name].parts),
            deciding,
            tuple(dataclasses.replace(d, rule=new.get(d.rule.called, d.rule)) for d in deciding),
        )
        for name, deciding in segments.items()
        if homes[name]
    ], changes


def _read(value: str, setting: str) -> JSON:
    """A value as a recipe would have it."""
    try:
        loaded: JSON = yaml.safe_load(value)
        return loaded
    except yaml.YAMLError as error:
        raise RecipeError(f"{setting}: {value} is no value that a recipe could have") from error


def _with_setting(rule: Rule, stage: str, path: str, value: JSON, setting: str) -> tuple[Rule, Change]:
    settings = rule.model_dump()
    place = settings
    *way, last = path.split(".")
    for step in [*way, last]:
        if not isinstance(place, dict) or (step not in place):
            fields = list(place) if isinstance(place, dict) else []
            near = difflib.get_close_matches(step, fields, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            raise RecipeError(f"{setting}: {stage} has no field {step}; {hint}")
        if step is not last:
            place = place[step]
    change = Change(stage, path, place[last], value)
    place[last] = value
    try:
        return type(rule).model_validate(settings), change
    except ValidationError as error:
        raise RecipeError(f"{setting}: {error.errors(include_url=False)[0]['msg']}") from error


def _ask(
    store: Store,
    part: Partition,
    before: Sequence[BoundRule],
    after: Sequence[BoundRule],
    samples: int,
    where: Mapping[str, str],
) -> _PartAnswer:
    """One part, held against both sets of rules."""
    there = columns_of(store, part)
    if lacking := [name for name in where if name not in there]:
        near = difflib.get_close_matches(lacking[0], there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(n for n in there if '@' not in n)}"
        raise RecipeError(f"--where {lacking[0]}: documents have no such signal where these rules decide; {hint}")
    columns = list(dict.fromkeys(["uid", *where, *(name for d in (*before, *after) for name in d.reads(there))]))
    answer = _PartAnswer()
    for batch in read_part(store, part, columns, numbered=True):
        if where:
            batch = batch.filter(pa.array(holds(batch, where)))
        views = [d.view(batch) for d in before]
        outcomes_before = [outcome_of(d.rule, view) for d, view in zip(before, views, strict=True)]
        outcomes_after = [
            old if new.rule == d.rule else outcome_of(new.rule, view)
            for d, new, view, old in zip(before, after, views, outcomes_before, strict=True)
        ]
        why_before, names = _first(before, outcomes_before, len(batch))
        why_after, names_after = _first(after, outcomes_after, len(batch))
        answer.sides.add(
            KeptCounts(
                len(batch),
                int((why_before < 0).sum()),
                int((why_after < 0).sum()),
                int(((why_before < 0) & (why_after >= 0)).sum()),
                int(((why_before >= 0) & (why_after < 0)).sum()),
            )
        )
        for why, called, counter in ((why_before, names, answer.before), (why_after, names_after, answer.after)):
            for index, times in enumerate(np.bincount(why[why >= 0], minlength=len(called)).tolist()):
                if times:
                    counter[called[index]] += times
        uids, rows = batch.column("uid").to_numpy(), batch.column(ROW).to_numpy()
        for side, mask in (
            ("dropped", (why_before < 0) & (why_after >= 0)),
            ("kept", (why_before >= 0) & (why_after < 0)),
        ):
            places = np.flatnonzero(mask)
            for place in places[np.argsort(uids[places], kind="stable")][:samples].tolist():
                reason = names_after[why_after[place]] if side == "dropped" else names[why_before[place]]
                uid, signals = int(uids[place]), _signals(before, after, views, place)
                moved = Moved(f"{uid:016x}", part.source, None, side, reason, signals, "")
                answer.moved.append((uid, int(rows[place]), moved))
    return answer


def _first(
    rules: Sequence[BoundRule], outcomes: Sequence[RuleOutcome], rows: int
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """For each document the first rule and reason that drops it, as an index into names; -1 keeps."""
    why = np.full(rows, -1, dtype=np.int64)
    names: list[str] = []
    for deciding, outcome in zip(rules, outcomes, strict=True):
        start = len(names)
        names += [f"{deciding.rule.called}: {reason}" for reason in outcome.verdict.reasons] + [
            f"{deciding.rule.called}: {QUARANTINED}"
        ]
        first = np.where(outcome.first == BROKE, len(outcome.verdict.reasons), outcome.first)
        newly = (why < 0) & (outcome.first != KEPT)
        why[newly] = start + first[newly]
    return why, names


def _signals(before: Sequence[BoundRule], after: Sequence[BoundRule], views: Sequence[pa.RecordBatch], row: int) -> Row:
    """The numbers that the changed rules looked at, for one document."""
    seen: Row = {}
    for old, new, view in zip(before, after, views, strict=True):
        if new.rule != old.rule:
            for name in new.rule.needs:
                if name in view.schema.names and name not in ("text", "uid", "url"):
                    seen[name] = view.column(name)[row].as_py()
    return seen


def _with_text(folder: RunFolder, part: Partition, deciding: BoundRule, row: int, moved: Moved) -> Moved:
    """The document with what it would go for, or went for."""
    columns = ["uid", "url", "text", *deciding.texts]
    for batch in read_part(folder.store, part, columns, numbered=True):
        rows = batch.column(ROW).to_numpy()
        if rows[0] <= row <= rows[-1]:
            document = batch.slice(int(np.searchsorted(rows, row)), 1)
            text = deciding.text(document)[0].as_py() or ""
            stage, _, reason = moved.reason.partition(": ")
            excerpt, _ = around(text, folder.places.of(stage, reason, text), PREVIEW)
            url = document.column("url")[0].as_py() if "url" in document.schema.names else None
            return dataclasses.replace(moved, url=url, text=excerpt)
    raise RecipeError(f"part {part.key} has no row {row}: were its files changed?")


# --- documents by the values of their signals, as `topic=science, quality_bucket=2` -----------------------------------


def conditions_of(text: str) -> dict[str, str]:
    """Values by signal; a value with a comma stands in quotation marks with its name. ValueError says what is wrong."""
    try:
        fields = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error as error:
        raise ValueError(f"{text!r}: {error}") from error
    conditions: dict[str, str] = {}
    for condition in filter(None, map(str.strip, fields)):
        name, equals, value = (part.strip() for part in condition.partition("="))
        if not (name and equals) or name in conditions:
            raise ValueError(f"{condition!r}: SIGNAL=VALUE was expected, each signal once, such as topic=science")
        conditions[name] = value
    if len(conditions) > MOST:
        raise ValueError(f"{len(conditions)} conditions; {MOST} at most")
    return conditions


def holds(batch: pa.RecordBatch | pa.Table, conditions: Mapping[str, str]) -> npt.NDArray[np.bool_]:
    """Which rows have all the values; `(none)` is no value."""
    mask = np.ones(len(batch), np.bool_)
    for name, value in conditions.items():
        column = batch.column(name)
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            raise ValueError(f"{name}: a signal with one value a document was expected, not {column.type}")
        texts = pc.fill_null(column.cast(pa.string()), NO_VALUE)
        mask &= pc.equal(texts, value).to_numpy(zero_copy_only=False) if len(batch) else mask
    return mask


# --- terminal ---------------------------------------------------------------------------------------------------------


def render(answer: Tuning) -> RenderableType:
    head = [Text(f"{c.stage}.{c.field}: {c.before} -> {c.after}", style="bold") for c in answer.changes]
    total = answer.total
    rows = [*answer.sources.items(), *([("all", total)] if len(answer.sources) > 1 else [])]
    table = TerminalTable.of(
        "Documents that reach these rules" + "".join(f", {name}={value}" for name, value in answer.where.items()),
        ("source", "documents", "kept now", "kept then", "newly dropped", "newly kept", "kept then / now"),
        (
            (name, s.documents, s.before, s.after, s.newly_dropped, s.newly_kept, as_share(s.after, s.before))
            for name, s in rows
        ),
    )
    reasons = [name for name, _ in by_size(dict(Counter(answer.drops_before) | Counter(answer.drops_after)))]
    changed = [name for name in reasons if answer.drops_before.get(name, 0) != answer.drops_after.get(name, 0)]
    drops = TerminalTable.of(
        "Drops that change, by the first rule",
        ("rule", "now", "then", "difference"),
        (
            (
                name,
                now := answer.drops_before.get(name, 0),
                then := answer.drops_after.get(name, 0),
                as_change(then - now),
            )
            for name in changed
        ),
    )
    parts: list[RenderableType] = [*head, Text(), table]
    parts += [Text(), drops] if changed else [Text("No document changes sides.")]
    for moved in answer.moved:
        title = "would go" if moved.side == "dropped" else "would stay"
        numbers = ", ".join(f"{name}={_short(value)}" for name, value in moved.signals.items())
        parts += [
            Text(),
            Text(f"{title} ({one_line(moved.reason)})  {moved.uid}  {one_line(moved.url or '')}", style="bold"),
        ]
        parts += [
            Padding(Text(one_line(numbers), style="dim"), (0, 0, 0, 2)),
            Padding(Text(plain(moved.text)), (0, 0, 0, 2)),
        ]
    parts += [
        Text(),
        Text("To apply this, change the recipe and run it again; nothing is extracted or measured again.", style="dim"),
        *(Text(line) for line in recipe_lines(answer.changes)),
    ]
    return Group(*parts)


def recipe_lines(changes: Sequence[Change]) -> list[str]:
    """The changed settings as a recipe has them, below `stages`: `  - gopher_quality: {min_words: 80}`."""
    stages: dict[str, dict[str, JSON]] = {}
    for change in changes:
        *way, last = change.field.split(".")
        place: dict[str, JSON] = stages.setdefault(change.stage, {})
        for step in way:
            place = cast(dict[str, JSON], place.setdefault(step, {}))
        place[last] = change.after
    flow = {
        name: yaml.safe_dump(new, default_flow_style=True, sort_keys=False, width=1000).strip()
        for name, new in stages.items()
    }
    return [f"  - {name}: {settings}" for name, settings in flow.items()]


def _short(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def as_json(answer: Tuning) -> str:
    return json.dumps(dataclasses.asdict(answer) | {"total": dataclasses.asdict(answer.total)}, default=str)
