"""Reasons for which documents are dropped and records skipped: limits as rules declare them, and all others as the
code of stages names them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gristmill.stages as stages
from gristmill.pipeline.recipe import registry
from gristmill.stages.contract import Limit
from gristmill.stages.stage import Reader, Stage

ROOT = Path(__file__).resolve().parents[2]
REASON = re.compile(r"[a-z][a-z0-9_]{2,}")
MAKERS = {"drop": 1, "skip": 0, "members": 2, "above": 2, "below": 2, "Limit": 3}  # which argument is the reason
BY_THE_ENGINE = {
    "quarantined": "the document broke a stage; the error is its detail",
    "forgotten": "on the list of `gristmill forget`",
}


def declared_limits(kind: type[Stage]) -> tuple[Limit, ...]:
    """The limits of a rule; of one whose settings make them, with its defaults if it has them all."""
    limits = getattr(kind, "limits", ())
    if isinstance(limits, property):
        try:
            limits = kind().limits  # type: ignore[attr-defined]
        except ValueError:
            return ()
    return limits if isinstance(limits, tuple) and all(isinstance(each, Limit) for each in limits) else ()


CONTRACT = (
    "gristmill.stages.stage",
    "gristmill.stages.contract",
    "gristmill.stages.documents",
)


@cache
def tree_of(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split(".")[1:])
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    return ast.parse(file.read_text(encoding="utf-8"))


def constants(tree: ast.Module) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            pairs = zip(node.targets[0].elts, node.value.elts, strict=True)
            found |= {target.id: value for target, value in pairs if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


def texts(node: ast.expr, known: dict[str, ast.expr]) -> Iterator[str]:
    """The texts that an expression may be: constants, and names of settings in capitals."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value)
            if isinstance(part, ast.Constant)
            else ast.unparse(part).split(".")[-1].strip("{}'\"").upper()
            for part in node.values
        )
    elif isinstance(node, ast.Name) and node.id in known:
        yield from texts(known[node.id], known)
    elif isinstance(node, ast.IfExp):
        yield from (*texts(node.body, known), *texts(node.orelse, known))
    elif isinstance(node, ast.Tuple | ast.List):
        for each in node.elts:
            yield from texts(each, known)
    elif isinstance(node, ast.Call):
        for each in node.args:
            yield from texts(each, known)


def named_in(trees: Iterable[ast.AST], known: dict[str, ast.expr]) -> set[str]:
    """The reasons that code gives."""
    found: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call):
            maker = getattr(node.func, "attr", getattr(node.func, "id", ""))
            place = MAKERS.get(maker)
            if place is not None and len(node.args) > place:
                found |= {*texts(node.args[place], known)}
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "reason":
                    found |= {*texts(value, known)}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if getattr(target, "id", "") in ("reason", "reasons"):
                found |= {*texts(node.value, known)}
    return {each for each in found if REASON.fullmatch(each.lower()) and "REASON" not in each}


def listed_in(known: dict[str, ast.expr]) -> set[str]:
    """Reasons that a module lists as constants."""
    return {text for name, value in known.items() if re.search(r"(^|_)REASONS?$", name) for text in texts(value, known)}


def reasons_of(kind: type[Stage]) -> dict[str, str]:
    """Every reason of a stage, with what it tests where a limit says so."""
    limits = declared_limits(kind)
    found = {
        limit.reason: f"`{limit.signal}` {'below' if limit.side == 'low' else 'above'} `{limit.setting}`"
        for limit in limits
    }
    named: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("gristmill.stages.") and base.__module__ not in CONTRACT:
            tree = tree_of(base.__module__)
            classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
            others = {name for name, home in stages.HOMES.items() if home == base.__module__} - {base.__name__}
            own = (
                [node for node in tree.body if node not in classes or node.name == base.__name__] if others else [tree]
            )
            named |= named_in(own, constants(tree)) | (set() if others else listed_in(constants(tree)))
    for module in imported(kind):
        tree = tree_of(module)
        near = module.rpartition(".")[0] == kind.__module__.rpartition(".")[0]
        if module not in stages.HOMES.values() and module not in CONTRACT:
            named |= listed_in(constants(tree)) | (named_in([tree], constants(tree)) if near else set())
    for reason in named - ({reason for reason in named if re.search("_?[A-Z]", reason)} if limits else set()):
        found.setdefault(reason, "")
    return dict(sorted(found.items()))


def imported(kind: type[Stage]) -> set[str]:
    """Modules of stages that the stage's module imports from."""
    nodes = ast.walk(tree_of(kind.__module__))
    return {
        str(n.module) for n in nodes if isinstance(n, ast.ImportFrom) and str(n.module).startswith("gristmill.stages.")
    }


def reasons_page() -> str:
    from meanings import REASONS, check
    from reference import table

    everything: dict[bool, list[Any]] = {True: [], False: []}
    named: set[str] = set()
    for name, kind in sorted(registry.built_in().items()):
        page = "readers" if issubclass(kind, Reader) else "stages"
        for reason, test in reasons_of(kind).items():
            named |= set() if test else {reason}
            meaning = test or REASONS.get(reason, "")
            everything[issubclass(kind, Reader)].append((f"`{reason}`", f"[`{name}`]({page}.md#{name})", meaning))
    check(named, REASONS, "reasons")
    return "\n\n".join(
        [
            "# Reasons",
            "The names under which documents are dropped and records are skipped. `gristmill inspect OUT STAGE --reason"
            " REASON` shows samples; [Why was my document dropped?](../how_to/why_dropped.md) is the way from a document"
            " to its reason. Capitals stand for what a recipe names.",
            "## Documents dropped\n\n" + table(("reason", "stage", "meaning"), sorted(everything[False])),
            "## Records skipped\n\nA reader makes no document of them. They are counted, and named by url where they have one.\n\n"
            + table(("reason", "reader", "meaning"), sorted(everything[True])),
            "## By the engine\n\n" + table(("reason", "meaning"), ((f"`{n}`", words) for n, words in BY_THE_ENGINE.items())),
        ]
    ) + "\n"  # fmt: skip
