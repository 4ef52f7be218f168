"""YAML that remembers on which line each value stands, so that an error can say where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import RecipeError

Place = tuple[str | int, ...]


def load_with_lines(path: Path) -> tuple[Any, dict[Place, int]]:
    """The data of a YAML file, and the line of every key and item by its place in the data."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}:1: not valid YAML: {' '.join(str(error).split())}") from error
    if node is None:
        raise RecipeError(f"{path}:1: the file is empty")
    lines: dict[Place, int] = {(): 1}
    loader = yaml.SafeLoader("")
    try:
        data = _walk(node, (), lines, loader, path)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except RecursionError:
        raise RecipeError(f"{path}:1: an alias stands within its own anchor, or things lie too deep") from None
    finally:
        loader.dispose()
    return data, lines


def _walk(node: yaml.Node, place: Place, lines: dict[Place, int], loader: yaml.SafeLoader, path: Path) -> Any:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, str | int):
                raise RecipeError(f"{path}:{key_node.start_mark.line + 1}: a name was expected, not {key!r}")
            if key in found:
                raise RecipeError(f"{path}:{key_node.start_mark.line + 1}: {key} stands here a second time")
            lines[(*place, key)] = key_node.start_mark.line + 1
            found[key] = _walk(value_node, (*place, key), lines, loader, path)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_walk(item, (*place, i), lines, loader, path) for i, item in enumerate(node.value)]
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:  # a date that no calendar has
        raise RecipeError(f"{path}:{node.start_mark.line + 1}: {node.value!r} cannot be understood: {error}") from error
