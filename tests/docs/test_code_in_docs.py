"""Every piece of Python in README and docs is run by a test, or its imports, names and arguments are checked."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest

import gristmill.stages
from tests.docs.pages import ALL, ROOT, Block

RUN_BY = {  # pages whose code another test runs as it stands
    "README.md": "tests/pipeline/recipe/test_readme.py",
    "CONTRIBUTING.md": "tests/pipeline/test_stage_hooks.py",
    "docs/shards.md": "tests/pipeline/recipe/test_readme.py",
    "docs/start.md": "tests/docs/test_walkthroughs.py",
    "docs/how_to/why_dropped.md": "tests/docs/test_walkthroughs.py",
    "docs/how_to/own_rule.md": "tests/docs/test_walkthroughs.py",
}
PYTHON = [block for block in ALL if block.language == "python"]
CHECKED = [block for block in PYTHON if block.page not in RUN_BY]


class Unknown:
    """A value of which nothing is known."""


def value_of(node: ast.expr, names: dict[str, Any]) -> Any:
    """What an expression is: an object that was imported, or a type, for a value of it."""
    if isinstance(node, ast.Name):
        return names.get(node.id, Unknown)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, names)
        if owner is Unknown or (isinstance(node.value, ast.Name) and node.value.id in {"self", "torch", "pa", "pc"}):
            return Unknown
        if not hasattr(owner, node.attr) and node.attr not in getattr(owner, "__annotations__", {}):
            raise AssertionError(f"{ast.unparse(node)}: {owner} has no {node.attr}")
        return getattr(owner, node.attr, Unknown)
    if isinstance(node, ast.Call):
        called = value_of(node.func, names)
        return called if inspect.isclass(called) else result_of(called)
    return Unknown


def result_of(function: Any) -> Any:
    try:
        kind = typing.get_type_hints(function).get("return", Unknown)
    except (NameError, TypeError, AttributeError):
        return Unknown
    return kind if inspect.isclass(kind) and kind.__module__.startswith("gristmill") else Unknown


def check_call(node: ast.Call, names: dict[str, Any]) -> bool:
    """Do the arguments of a call fit what is called? False if nothing is known of that."""
    if isinstance(node.func, ast.Call):  # a stage on a table
        return False
    called = value_of(node.func, names)
    module = str(getattr(called, "__module__", ""))
    if called is Unknown or not callable(called) or not module.startswith("gristmill"):
        return False
    arguments: list[Any] = [None for each in node.args if not isinstance(each, ast.Starred)]
    given = {each.arg: None for each in node.keywords if each.arg}
    method = (
        inspect.isfunction(called)
        and isinstance(node.func, ast.Attribute)
        and inspect.isclass(value_of(node.func.value, names))
    )
    try:
        inspect.signature(called).bind(*([None] if method else []), *arguments, **given)
    except TypeError as error:
        raise AssertionError(f"{ast.unparse(node)}: {error}") from error
    return True


def calls_checked(text: str) -> int:
    tree, names, count = ast.parse(text), {}, 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gristmill"):
            module = importlib.import_module(str(node.module))
            for each in node.names:
                value = getattr(module, each.name, None)
                names[each.asname or each.name] = value or importlib.import_module(f"{node.module}.{each.name}")
        elif isinstance(node, ast.Import) and any(each.name == "gristmill" for each in node.names):
            names["gristmill"] = importlib.import_module("gristmill")
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            names[statement.targets[0].id] = value_of(statement.value, names)
        if isinstance(statement, ast.Call):
            count += check_call(statement, names)
        elif isinstance(statement, ast.ClassDef) and statement.name in gristmill.stages.HOMES:
            count += check_excerpt(statement)
    return count


def check_excerpt(shown: ast.ClassDef) -> int:
    """A class of ours that a page shows in part has the settings and methods that the page shows."""
    kind = getattr(gristmill.stages, shown.name)
    settings = [
        node.target.id for node in shown.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert set(settings) <= {*kind.model_fields}
    for node in shown.body:
        if isinstance(node, ast.FunctionDef):
            names = [each.arg for each in node.args.args]
            assert [*inspect.signature(getattr(kind, node.name)).parameters] == names
    return 1


def test_code_is_found() -> None:
    assert len(PYTHON) > 15 and {block.page for block in PYTHON} > {*RUN_BY}
    for page, test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("block", CHECKED, ids=str)
def test_its_imports_and_arguments_are_right(block: Block) -> None:
    theirs = re.match(r"# \.\.\. imports", block.text)  # a pipeline of another tool
    assert calls_checked(block.text) > 0 or theirs


def test_wrong_code_is_seen() -> None:
    with pytest.raises(AssertionError, match="unexpected keyword argument 'sed'"):
        calls_checked("from gristmill import Loader, open_shards\nLoader(open_shards('x'), batch_rows=8, sed=1)")
    with pytest.raises(AssertionError, match="has no scores"):
        calls_checked("from gristmill.classifiers.judge import load_judge\njudge = load_judge('x')\njudge.scores([])")
    assert calls_checked("from gristmill import open_shards\nopen_shards('x').row(3)") == 2
