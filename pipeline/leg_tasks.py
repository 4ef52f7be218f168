"""Which parts a leg has, and the task for each: the driver's side of legs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import xxhash

from pipeline import fingerprint
from pipeline.errors import RecipeError
from pipeline.inputs import InputFile, Span, contents_of, cut_into_parts, find_files, key_of, with_contents
from pipeline.leg import Task
from pipeline.measures import measured_again, seen_by, texts_kept
from pipeline.parts import Part, identity
from pipeline.plan import Leg
from pipeline.recipe import Parts, Recipe, Source
from pipeline.store import Store
from stages.stage import Reader

SAMPLE_PART_BYTES = 8 << 20


@dataclass(frozen=True)
class Portion:
    """How much of the inputs to take: all of them, unless one is trying things out."""

    documents: int | None = None  # at most so many of each source
    share: float | None = None  # or about this share of its bytes

    @property
    def whole(self) -> bool:
        return self.documents is None and self.share is None

    def parts(self, parts: Parts) -> Parts:
        return parts if self.whole else parts.model_copy(update={"max_bytes": min(parts.max_bytes, SAMPLE_PART_BYTES), "files": 1})

    def choose(self, source: str, cut: list[list[Span]], workers: int) -> list[tuple[list[Span], int | None]]:
        """Spans to read and how many documents of each at most; chosen by hash, so that it is a fair sample."""
        if self.whole:
            return [(spans, None) for spans in cut]
        by_hash = sorted(cut, key=lambda spans: xxhash.xxh3_64_intdigest(key_of(source, spans).encode()))
        if self.share is not None:
            return [(spans, None) for spans in by_hash[: max(1, round(self.share * len(by_hash)))]]
        assert self.documents is not None
        few = by_hash[: max(1, min(2 * workers, self.documents, len(by_hash)))]
        each, more = divmod(self.documents, len(few))
        return [(spans, each + (i < more)) for i, spans in enumerate(few) if each + (i < more)]


@dataclass(frozen=True)
class Inputs:
    """The files of a source, found once, and how they are cut."""

    source: Source
    files: tuple[InputFile, ...]
    parts: tuple[tuple[list[Span], int | None], ...]

    @property
    def bytes(self) -> int:
        return sum(f.size for f in self.files)


def find_inputs(recipe: Recipe, store: Store, portion: Portion, workers: int, remember: bool = True) -> dict[str, Inputs]:
    """The inputs of every source; RecipeError where a path leads nowhere. `remember` False leaves the run's folder as it is."""
    found = {}
    for source in recipe.sources:
        files = with_contents(find_files(source, Path(recipe.path).resolve().parent), store, source.name, remember)
        cut = list(cut_into_parts(files, cast(Reader, source.reader.stage), portion.parts(recipe.head.parts), source.name))
        found[source.name] = Inputs(source, tuple(files), tuple(portion.choose(source.name, cut, workers)))
    return found


def tasks_of_leg(leg: Leg, recipe: Recipe, store: Store, inputs: dict[str, Inputs], upstream: Iterable[Part]) -> list[Task]:
    """One task for each part of a leg: the work on its documents. A leg of rules alone has none."""
    if leg.source is None and not leg.works:
        return []
    common: dict[str, Any] = {
        "kind": "leg",
        "node": leg.name,
        "out": store.address,
        "leg": leg.name,
        "stages": [s.spec for s in leg.works],
        "documents": leg.documents,
        "beside": leg.beside,
        "measured_again": measured_again(leg.steps),
        "texts_kept": texts_kept(leg.steps, leg.decides),
        "rejects": recipe.head.rejects.model_dump(),
        "batch_bytes": recipe.head.parts.batch_bytes,
        "gpu": any(s.stage.gpu for s in leg.works),
    }
    base = leg.fingerprint(recipe)
    tasks = []
    if leg.source is not None:
        common |= {"reader": leg.source.reader.spec, "source": leg.source.name, "part": None}
        for spans, limit in inputs[leg.source.name].parts:
            key = key_of(leg.source.name, spans)
            tasks.append(
                common
                | {
                    "task": fingerprint.digest([base, key, contents_of(spans), limit]),
                    "key": key,
                    "files": [s.plain() for s in spans],
                    "inputs": [{"source": leg.source.name, "path": s.file.path, "start": s.start, "end": s.end} for s in spans],
                    "limit": limit,
                    "cost": sum((s.end or s.file.size) - s.start for s in spans),
                }
            )
    else:
        for part in upstream:
            origin = [{"from": part["leg"], "key": part["key"]}]
            tasks.append(
                common
                | {
                    "task": fingerprint.digest([base, identity(part)]),
                    "key": part["key"],
                    "reader": None,
                    "source": part["source"],
                    "part": part,
                    "files": [],
                    "inputs": origin,
                    "limit": None,
                    "cost": part["text_bytes"],
                }
            )
    keys = [t["key"] for t in tasks]
    if len(set(keys)) != len(keys):
        raise RecipeError(f"{leg.name}: two parts have the same name; give the sources names of their own")
    return sorted(tasks, key=lambda t: str(t["key"]))


def tasks_of_rules(leg: Leg, recipe: Recipe, store: Store, parts: Iterable[Part]) -> list[Task]:
    """One task for each part that has documents left: what the leg's rules say of it."""
    if not leg.decides:
        return []
    rules = []
    for step in leg.decides:
        columns, texts = seen_by(leg.steps, leg.decides, step)
        rules.append({"stage": step.spec, "columns": columns, "texts": texts})
    common = {"kind": "decide", "node": leg.name, "out": store.address, "leg": leg.name, "rules": rules}
    base = leg.fingerprint_of_rules(recipe)
    return [
        common
        | {
            "task": fingerprint.digest([base, identity(part)]),
            "key": part["key"],
            "source": part["source"],
            "part": part,
            "rejects": recipe.head.rejects.model_dump(),
            "cost": part["text_bytes"],
        }
        for part in sorted(parts, key=lambda p: str(p["key"]))
        if part["kept"]
    ]


def global_task(stage_fingerprint: str, parts: Iterable[Part]) -> str:
    """The fingerprint of a global stage on its documents, under which the journal knows that it is done."""
    return fingerprint.digest(["global", stage_fingerprint, sorted(identity(p) for p in parts)])
