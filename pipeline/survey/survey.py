"""One pass over the stored signals of a leg: how documents lie by each signal, and what every threshold would keep if
it were moved.

What a rule does is taken apart as: a document goes if it lies beyond one of the limits that the rule declares and that
can take it (`within reach`), or for another reason (`fixed`). That documents beyond a limit do go is checked on each;
a rule of which it does not hold stays whole. So the count of a moved threshold is exact: of the
documents that all else keeps, those that it can take and that lie on the near side of it stay. Measured: 4.4 s a
million documents on two cores, 9 s beside other work, with 31 thresholds (docs/log.md). Signals only, no text but of
what is shown. Parts are read by tasks on workers, whose answers are of one size and add up (`tasks.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from gristmill.pipeline.errors import STAGE_ERRORS, DamagedFile, RetiredFiles
from gristmill.pipeline.leg.bound_rule import BoundRule
from gristmill.pipeline.store.partitions import columns_of
from gristmill.pipeline.store.records import Part, RuleSpec
from gristmill.pipeline.store.run_records import LegRules
from gristmill.pipeline.store.storage import Store, open_checked
from gristmill.pipeline.survey.counts import LANGUAGE, SurveyCounts, weights_of
from gristmill.pipeline.survey.decomposition import NOT_SIGNALS, Decomposition, SurveyPlan
from gristmill.pipeline.survey.histogram_edges import places_of
from gristmill.pipeline.survey.records import CutCounts, RuleLines, SampleEntry, SignalCounts, SurveyRecord
from gristmill.pipeline.survey.sample import kept_samples
from gristmill.pipeline.survey.tasks import BETWEEN, Asking, Look, Question, Sample, here, plan_of
from gristmill.pipeline.survey.thresholds import is_number

SOURCES = 12  # told apart; the smaller ones are one
OTHERS = "other sources"
LANGUAGES = 60
OUT_OF_REACH = 255  # a bin that no slider comes to
WEIGHTS = ("tokens", "words")  # what documents are weighed by: the first that is there
VERSION = 3  # of what survey.json holds


def survey_legs(
    store: Store,
    keep: Callable[[str, bytes], None] | None = None,
    look: Look = here,
    failed: Callable[[str, str], None] | None = None,
) -> None:
    """Write legs/NAME/survey.json, one for all legs with the same rules. It holds no times, and is the same for any
    number of workers. `look` carries out the tasks that read parts. `failed` gets the leg whose survey failed and the
    reason; without it the error is raised."""
    paths = sorted(store.files("legs"))
    legs: dict[str, LegRules] = {
        path.split("/")[1]: store.read_json(path) for path in paths if path.endswith("/rules.json")
    }
    alike: dict[str, list[str]] = {}
    for name, leg in legs.items():
        alike.setdefault(json.dumps(leg["rules"], sort_keys=True), []).append(name)
    surveyed = set()
    for names in alike.values():
        parts = [part for name in names for part in legs[name]["parts"]]
        try:
            seen = survey(store, names[0], legs[names[0]]["rules"], parts, look)
        except (DamagedFile, RetiredFiles):  # the run mends them
            raise
        except STAGE_ERRORS as error:
            if failed is None:
                raise
            failed(names[0], f"thresholds: {error}")
            continue
        if seen is not None:
            path = f"legs/{names[0]}/survey.json"
            (keep or store.write_if_other)(path, json.dumps(seen, separators=(",", ":")).encode())
            surveyed.add(path)
    store.remove(sorted(store.files(BETWEEN)))
    store.remove([path for path in paths if path.endswith("/survey.json") and path not in surveyed])


def survey(
    store: Store, leg: str, rules: Sequence[RuleSpec], parts: Sequence[Part], look: Look = here
) -> SurveyRecord | None:
    """For the report, of a leg with rules; `parts` are its documents as they came to the rules, and `look` carries out
    the tasks that read them."""
    parts = [part for part in parts if part["rows"] and part["documents"] is not None]
    if not parts:
        return None
    deciding = [BoundRule.of(rule) for rule in rules]
    there = sorted({name for part in parts[:64] for name in columns_of(store, part)})
    weight = next((name for name in WEIGHTS if name in there), None)
    groups = groups_of(parts)
    wanted = [
        "uid",
        *(name for d in deciding for name in d.reads(there)),
        *([weight] if weight else []),
        *([LANGUAGE] if LANGUAGE in there else []),
    ]
    signals = [name for name in there if "@" not in name and name not in NOT_SIGNALS]
    numbers = numbers_of(store, parts[0])
    columns = [name for name in dict.fromkeys([*wanted, *signals]) if name in wanted or name in numbers]
    asking = Asking(store, leg, parts, groups, look)
    sample = asking.sample(columns)
    if sample.facts is None:
        return None
    question: Question = {
        "rules": rules,
        "sample": sample.facts,
        "odd": [],
        "columns": columns,
        "weight": weight,
        "groups": groups,
    }
    while True:
        plan = plan_of(store, question)
        counts = SurveyCounts.from_plain(plan, asking.counts(question))
        if not counts.odd:
            break
        question = {**question, "odd": sorted({*question["odd"], *counts.odd})}
    return survey_record(leg, rules, plan, counts, sample, kept_samples(store, parts, deciding, there))


def numbers_of(store: Store, part: Part) -> set[str]:
    """Columns of a part, and of what is laid beside it, that are a number for each document."""
    names = set()
    for facts in (facts for facts in [part["documents"], *part["signals"]] if facts is not None):
        with open_checked(store, facts) as file:
            names |= {column.name for column in pq.read_schema(file) if is_number(column.type)}
    return names


def groups_of(parts: Sequence[Part]) -> dict[str, int]:
    """The largest sources by documents, each a group; the others one more."""
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part["source"]] = sizes.get(part["source"], 0) + part["kept"]
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    own_group = len(ordered) if len(ordered) <= SOURCES else SOURCES - 1
    return {name: min(k, own_group) for k, name in enumerate(ordered)}


# --- what is told ----------------------------------------------------------------------------------------------------


def survey_record(
    leg: str,
    rules: Sequence[RuleSpec],
    plan: SurveyPlan,
    totals: SurveyCounts,
    sample: Sample,
    kept: list[SampleEntry],
) -> SurveyRecord:
    names = {group: name for name, group in reversed(plan.groups.items())}
    sources = [OTHERS if list(plan.groups.values()).count(k) > 1 else names[k] for k in range(len(totals.reach))]
    cuts = [cut for of_rule in plan.cuts for cut in of_rule]
    recipe = {d.rule.called: recipe_lines(d, rule) for d, rule in zip(plan.rules, rules, strict=True)}
    lines: list[CutCounts] = []
    for k, cut in enumerate(cuts):
        place = plan.edges[cut.signal].tolist().index(cut.value)
        reached = totals.reached[k]
        lines.append(
            {
                "stage": cut.stage,
                "field": cut.field,
                "signal": cut.signal,
                "side": cut.side,
                "value": cut.value,
                "at": place,
                "takes": int((reached[: place + 1] if cut.side == "low" else reached[place + 1 :]).sum()),
                "reached": reached.tolist(),
                "free": totals.free[k].tolist(),
                "documents": totals.bins[k][:, 0].tolist(),
                "weights": totals.bins[k][:, 1].tolist(),
            }
        )
    apart = Decomposition.of(plan, sample.batch)
    languages = sorted(totals.languages.items(), key=lambda item: (-item[1][0], item[0]))
    return {
        "version": VERSION,
        "leg": leg,
        "weight": plan.weight,
        "sources": sources,
        "reach": totals.reach.tolist(),
        "stay": totals.stay.tolist(),
        "rules": recipe,
        "cuts": lines,
        "signals": {name: signal_record(plan, totals, name) for name in plan.edges},
        "languages": [(name, int(counts[0]), int(counts[1])) for name, counts in languages[:LANGUAGES]],
        "more_languages": (
            max(0, len(languages) - LANGUAGES),
            sum(int(counts[0]) for _, counts in languages[LANGUAGES:]),
            sum(int(counts[1]) for _, counts in languages[LANGUAGES:]),
        ),
        "kept": kept,
        "sample": {
            "sizes": sample.sizes.tolist(),
            "groups": np.bincount(sample.groups, minlength=len(sample.sizes)).tolist(),
            "weights": weights_of(sample.batch, plan.weight).tolist(),
            "gone": as_base64(apart.gone.astype(np.uint8)),
            "bins": [
                as_base64(np.where(touched, bins, OUT_OF_REACH))
                for touched, bins in zip(apart.touched, apart.bins, strict=True)
            ],
        },
    }


def recipe_lines(deciding: BoundRule, rule: RuleSpec) -> RuleLines:
    """What a recipe has to say to have this rule: its name there, and the settings that are no defaults."""
    return {"stage": rule["stage"]["stage"], "settings": deciding.rule.model_dump(mode="json", exclude_defaults=True)}


def signal_record(plan: SurveyPlan, totals: SurveyCounts, name: str) -> SignalCounts:
    edges, decades = plan.edges[name].tolist(), name in plan.decades
    cuts = [cut for of_rule in plan.cuts for cut in of_rule if cut.signal == name]
    knee = max([knee_of(edges), *(cut.value for cut in cuts)])
    places = [round(p, 4) for p in places_of(edges, decades, knee)]
    low, high = totals.spans.get(name, (edges[0], edges[-1]))
    return {
        "edges": edges,
        "counts": totals.histograms[name].tolist(),
        "places": places,
        "decades": decades,
        # Where the scale of the drawing jumps.
        "knee": None if decades or knee >= edges[-1] else places[edges.index(knee)],
        "low": low,
        "high": high,
    }


def knee_of(edges: list[float]) -> float:
    """Where the even steps end and those of the tail begin."""
    if len(edges) < 8:
        return edges[-1]
    step = float(np.median(np.diff(edges)))
    wide = [edge for edge, after in pairwise(edges) if after - edge > 1.5 * step]
    return wide[0] if wide else edges[-1]


def as_base64(values: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode()
