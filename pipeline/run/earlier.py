"""What earlier runs say of the stages of a recipe, for the time left: the last run in the same folder, and one on a
part of the input beside it."""

from __future__ import annotations

from dataclasses import replace

from gristmill.pipeline.plan.plan import Plan
from gristmill.pipeline.progress.events import variant_of
from gristmill.pipeline.progress.time_left import HOMES
from gristmill.pipeline.progress.usual import HOME_TASK, Known, Usual, usual_of
from gristmill.pipeline.recipe.recipe import Source
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.pipeline.store.storage import Store

ENOUGH = 1000  # documents of a stage, of which its time can be told
MOST_TIMES = 3.0  # the usual time
ENOUGH_KEPT = 100  # and how many stay


def known_before(plan: Plan, store: Store) -> Known | None:
    """By stages that are the same as in this recipe; the larger of the runs counts."""
    found: dict[str, tuple[StageRecord, int]] = {}
    for folder in (store, store.sample):
        record: RunRecord | None = folder.read_json_if_whole("run.json")
        if record is None or not record.get("stages"):
            continue
        parts = sum((entry.get("estimate") or {"parts": HOMES})["parts"] for entry in record["inputs"].values())
        for entry in record["stages"]:
            if entry["name"] not in found or entry["docs_in"] > found[entry["name"]][0]["docs_in"]:
                found[entry["name"]] = entry, parts
    known = {}
    for name, thing in plan.stage_order():
        stage = thing.reader.stage if isinstance(thing, Source) else thing.stage
        if name not in found:
            continue
        entry, parts = found[name]
        usual = seen_to_be(entry, parts, variant_of(stage))
        if usual is not None and entry["settings"] == stage.model_dump(mode="json", exclude_none=True):
            known[name] = usual
    return Known(known) if known else None


def seen_to_be(entry: StageRecord, parts: int, variant: str) -> Usual | None:
    """A stage, as it was in another run: of one that is known, what it takes for documents was so many times the usual;
    what it takes for tasks does not grow with them."""
    documents = entry["kept"] if entry["kind"] == "read" else entry["docs_in"]
    kept = 1.0 if entry["kind"] == "read" else entry["kept"] / max(1, documents)
    usual = usual_of(variant)
    if documents < ENOUGH_KEPT:
        return None
    if documents < ENOUGH:
        return replace(usual, kept=kept)
    megabytes = entry["text_bytes"] / 1e6 * documents / max(1, entry["kept"])
    usually = documents * usual.per_document + megabytes * usual.per_megabyte
    if entry["kind"] != "global" or not usually:
        return Usual(per_document=entry["seconds"] / documents, kept=kept, whole=True)
    of_tasks = usual.passes * min(max(1, parts), HOMES) * HOME_TASK
    alone = usual.wall + usual.wall_per_megabyte * min(megabytes, usual.wall_megabytes)
    times = min(MOST_TIMES, max(1 / MOST_TIMES, entry["seconds"] / (usually + of_tasks + alone)))
    return replace(
        usual,
        kept=kept,
        per_document=usual.per_document * times,
        per_megabyte=usual.per_megabyte * times,
        wall_per_megabyte=usual.wall_per_megabyte * times,
    )
