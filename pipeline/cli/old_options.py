"""Options of `train-judge` and `medu` from before they had plans, as the settings that say the same. They go in the
next version, and this module with them."""

from __future__ import annotations

from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import Any

import typer

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

LISTS = ("good", "bad", "good_label", "group", "plan")
KIND = "kind"
OF_KIND = {
    "preset": "preset",
    "epochs": "epochs",
    "threads": "threads",
    "tokenizer": "tokenizer_path",
    "encoder": "encoder",
    "tokens": "tokens",
    "most_bytes": "most_bytes",
    "device": "device",
}
OF_LABELS = {
    "label": "label",
    "good_label": "good",
    "classes": "classes",
    "unordered": "unordered",
    "fewest": "fewest",
}
OF_MODEL = (
    "endpoint",
    "engine",
    "form",
    "key_variable",
    "revision",
    "tensor_parallel",
    "quantization",
    "connections",
    "timeout",
)
OF_BOTH = ("plan", "out", "dry_run", "as_json")


def old(name: str) -> Any:
    """An option that works, and that the help no longer shows."""
    return typer.Option(name, hidden=True)


def given_in(context: typer.Context) -> dict[str, Any]:
    """What stands on the command line, by the names of the parameters."""
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in context.params.items()}
    return {name: value for name, value in given.items() if value is not None and value is not False and value != []}


def plan_alone(given: Mapping[str, Any], example: str) -> Path | None:
    """The plan, where one is given. A plan has no options beside it."""
    paths = given.get("plan", [])
    if not paths and not set(given) - set(OF_BOTH):
        raise RecipeError(f"name a plan, a YAML file; {example} is one to copy")
    plans = [path for path in paths if path.lower().endswith((".yaml", ".yml"))]
    if not plans:
        return None
    beside = [f"--{name.replace('_', '-')}" for name in given if name not in OF_BOTH]
    if len(paths) > 1 or beside:
        others = [*(path for path in paths if path != plans[0]), *beside]
        raise RecipeError(f"{plans[0]} is a plan, which says everything: put {', '.join(others)} into it")
    return Path(plans[0])


def judge_facts(given: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a judge that options describe."""
    facts: dict[str, Any] = {"out": given.get("out")}
    of_kind = {OF_KIND[name]: value for name, value in given.items() if name in OF_KIND}
    kind = given.get(KIND)
    if kind not in ("pooled", "neural") and of_kind.get("device") in ("auto", "cpu"):
        del of_kind["device"]  # says nothing there
    facts |= {KIND: {kind: of_kind} if of_kind else kind} if kind else {}
    if "plan" in given and ("good" in given or "bad" in given):
        of = given.get("good", given.get("bad"))[0]
        raise RecipeError(
            f"give a table of labelled texts, or both --good FILES and --bad FILES (is {of!r} a label of the table?"
            f" --good-label {of}; several files are a pattern in quotes: --good 'crawl/*.parquet')"
        )
    labels = {OF_LABELS[name]: _split(name, value) for name, value in given.items() if name in OF_LABELS}
    if "plan" in given or labels:
        facts["labelled"] = {"files": given.get("plan", []), **labels}
    taken = {*OF_BOTH, KIND, *OF_KIND, *OF_LABELS}
    return facts | {name: value for name, value in given.items() if name not in taken}


def medu_facts(given: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of `medu` that options describe."""
    facts: dict[str, Any] = {"out": given.get("out")}
    for argument in given.get("plan", []):
        name, path = named_in(argument)
        if name:
            facts.setdefault("sources", {}).setdefault(name, []).append(path)
        else:
            facts.setdefault("documents", []).append(path)
    facts["tasks"] = tasks = {}
    for argument in given.get("task", []):
        name, path = named_in(argument)
        for task, file in [(name, path)] if name else _tasks_at(path):
            if task in tasks:
                raise RecipeError(f"--task: two tasks are called {task!r}; name them: NAME=PATH")
            tasks[task] = file
    if model := given.get("model"):
        in_folder = "endpoint" not in given and Path(model).is_dir()
        facts["model"] = {"model_path" if in_folder else "model": model}
        facts["model"] |= {option: given[option] for option in OF_MODEL if option in given}
    prices = {"prompt": given.get("price_prompt"), "answer": given.get("price_answer")}
    facts |= (
        {"prices": {key: value for key, value in prices.items() if value is not None}} if any(prices.values()) else {}
    )
    taken = {*OF_BOTH, *OF_MODEL, "task", "model", "price_prompt", "price_answer"}
    return facts | {name: value for name, value in given.items() if name not in taken}


def advise(command: str, facts: Mapping[str, Any]) -> None:
    """One line: the same as a plan."""
    import yaml

    written = yaml.safe_dump(dict(facts), default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**20)
    console(stderr=True).print(
        f"[yellow]options[/yellow]  those of {command} go in the next version; `gristmill {command} PLAN.yaml` with this"
        f" in PLAN.yaml does the same: {escape(written.strip())}",
        soft_wrap=True,
    )


def _split(name: str, value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if name == "classes" else value


def named_in(argument: str) -> tuple[str, str]:
    """A path that is there is one, whatever signs it holds: `lang=en/` of a partitioned table is no source called
    lang."""
    name, equals, path = argument.partition("=")
    # PTH207: it may be a pattern of any shape
    return (name, path) if equals and "/" not in name and not glob(argument) else ("", argument)  # noqa: PTH207


def _tasks_at(path: str) -> list[tuple[str, str]]:
    """Files of tasks, each named by its file."""
    from gristmill.pipeline.inputs.columns import files_of

    return [(Path(file.path).name.split(".")[0], file.address) for file in files_of([path], "--task")]
