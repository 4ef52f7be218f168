"""Hints for what a first recipe often gets wrong about where things stand."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.kernels.common.settings import in_a_sentence
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.yaml_lines import YAML
from gristmill.pipeline.recipe.yaml_settings import quoted
from gristmill.stages.stage import Reader, Stage


def source_hint(name: str, data: YAML) -> str:
    """What is wrong with a source that has no reader, where that can be told; empty for any other."""
    kind = stage_of(name)
    if isinstance(data, dict) and any(is_reader(key) or is_from_outside(key) for key in data):
        return ""
    if kind is not None and issubclass(kind, Reader):
        return (
            f"{name} is a reader, and stands where a source has its name; "
            f"put a name of your own above it: `my_data: {{{name}: …}}`"
        )
    if kind is not None:
        return f"{name} is a stage; it belongs under stages, as `- {name}`"
    if not isinstance(data, dict):
        return f"a reader was expected, such as `warc: {{path: crawl/*.warc.gz}}`, not {quoted(data)}"
    if "path" in data:
        return (
            f"path is a setting of a reader, which is missing: `{name}: {{READER: {{path: …}}}}`, "
            "and READER is jsonl, parquet, warc or another"
        )
    return ""


def readers_hint(keys: Sequence[YAML]) -> str:
    """What to do with keys of a source that are not its one reader."""
    inside = [str(key) for key in keys if stage_of(key) is not None and not is_reader(key)]
    if inside:
        return f"; stages of one source stand in its own list: `stages: [{', '.join(inside)}]`"
    return "; give each a source of its own" if sum(map(is_reader, keys)) > 1 else ""


def stage_hint(data: YAML) -> str:
    """What was probably meant by an item of a list of stages that is no stage."""
    if isinstance(data, list):
        return "; one list holds all stages, each behind a dash of its own"
    if not isinstance(data, dict) or len(data) < 2:
        return ""
    name, *others = data
    if data[name] is None and not any(stage_of(key) for key in others):
        return f"; settings are indented below their stage: `{name}: {{{', '.join(f'{key}: …' for key in others)}}}`"
    return (
        f"; {in_a_sentence([str(key) for key in data])} each need a dash of their own"
        if all(stage_of(key) for key in data)
        else ""
    )


def stage_of(name: YAML) -> type[Stage] | None:
    """The stage of ours that has a name."""
    return registry.find(name) if isinstance(name, str) and name in registry.names() else None


def is_reader(name: YAML) -> bool:
    kind = stage_of(name)
    return kind is not None and issubclass(kind, Reader)


def is_from_outside(name: YAML) -> bool:
    """May it be a reader of the user's own?"""
    return ".py:" in str(name) or name in registry.installed()
