"""What two runs were told to do: stages side by side in the order of work, and the fields in which they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.store.run_records import RunRecord

NOT_COMPARED = ("name", "out", "description", "sources", "stages")  # of a recipe's head: stages have their own lines


@dataclass(frozen=True)
class Difference:
    """A field that is not the same; null where a side has none."""

    field: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class StagePair:
    """A stage of both runs by its name, or of one of them."""

    name: str
    state: str  # same, changed, only in A, only in B
    moved: bool
    inserted: bool  # no recipe names it: it measures what a rule needs
    differences: list[Difference] = field(default_factory=list)


def stage_pairs(a: RunRecord, b: RunRecord) -> list[StagePair]:
    """Every source and stage of either run, in one order that agrees with both as far as one can."""
    settings_a, settings_b = (
        {stage.name: flat({"stage": stage.stage or None, **stage.settings, "name": None}) for stage in run.stages}
        for run in (a, b)
    )
    named = named_in(a) | named_in(b)
    pairs = []
    for name, moved in aligned([stage.name for stage in a.stages], [stage.name for stage in b.stages]):
        fields = differences(settings_a.get(name, {}), settings_b.get(name, {}))
        state = "changed" if fields else "same"
        if not (name in settings_a and name in settings_b):
            state = "only in A" if name in settings_a else "only in B"
        pairs.append(StagePair(name, state, moved, name not in named, fields))
    return pairs


def aligned(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Names of both lists, each once, and whether it stands elsewhere in the other."""
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from ((name, False) for name in a[a0:a1])
        else:
            yield from ((name, False) for name in a[a0:a1] if name not in b)
            yield from ((name, name in a) for name in b[b0:b1])


def head_differences(a: RunRecord, b: RunRecord) -> list[Difference]:
    """What the recipes say beside sources and stages."""
    heads = [flat(head_of(run)) for run in (a, b)]
    return differences(*heads)


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    return [Difference(key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]


def flat(settings: Mapping[str, JSON], above: str = "") -> dict[str, str]:
    """Settings by their path, as text; lists as a whole, and what is null left out."""
    texts: dict[str, str] = {}
    for key, value in settings.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            texts |= flat(value, f"{path}.")
        elif value is not None:
            texts[path] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return texts


def named_in(run: RunRecord) -> set[str]:
    """Names that a recipe itself gives: sources, stages of sources, shared stages."""
    sources = run.recipe.get("sources") or {}
    steps = [
        *(run.recipe.get("stages") or []),
        *(step for source in sources.values() for step in stages_in(source)),
    ]
    named = {
        str((settings.get("name") if isinstance(settings, Mapping) else None) or stage)
        for step in steps
        if isinstance(step, Mapping)
        for stage, settings in step.items()
    }
    return named | {str(name) for name in sources}


def head_of(run: RunRecord) -> dict[str, JSON]:
    """The recipe without what has its own lines."""
    return {key: value for key, value in run.recipe.items() if key not in NOT_COMPARED}


def stages_in(source: Mapping[str, Any]) -> Sequence[JSON]:
    stages = source.get("stages")
    return stages if isinstance(stages, list) else []
