"""YAML that remembers on which line each value stands, so that an error can say where it is.

Anchors, aliases and merge keys (`<<: *common`) work; the line of a merged value is where it is written. What a small
file can become is bounded: aliases of aliases double, and brackets in brackets nest.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TypeAlias

import yaml

from gristmill.kernels.common.settings import nearest
from gristmill.pipeline.errors import RecipeError

Place = tuple[str | int, ...]
YAML: TypeAlias = "bool | int | float | str | date | list[YAML] | dict[str | int, YAML] | None"

MOST_BYTES = 4 << 20  # of a file: a larger one is data that was given for a recipe
MOST_VALUES = 100_000  # that aliases and merge keys may make of it
MOST_TEXT = 16 << 20  # characters of all values, aliases counted each time
DEEPEST = 64
MERGE = "tag:yaml.org,2002:merge"


def load_with_lines(path: Path, text: str | None = None) -> tuple[YAML, dict[Place, int]]:
    """The data of a YAML file, and the line of every key and item by its place in the data. `text`: what the file
    would hold, of one that is not on a disk."""
    try:
        if text is None and path.stat().st_size > MOST_BYTES:
            raise RecipeError(f"{path}: {path.stat().st_size:,} bytes are no recipe; is this a data file?")
        text = path.read_text(encoding="utf-8") if text is None else text
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file{near_file(path)}") from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: a folder; a YAML file was expected") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise RecipeError(f"{path}:1: the file is empty")
        reading = _Reading(path, loader)
        return reading.value(node, ()), reading.lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise RecipeError(
            f"{path}:{mark.line + 1 if mark else 1}: not valid YAML: {error.problem}{_hint(error)}"
        ) from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}:1: not valid YAML: {' '.join(str(error).split())}") from error


def near_file(path: Path) -> str:
    """A YAML file beside it that may have been meant."""
    try:
        there = {each.stem: each for each in path.parent.iterdir() if each.suffix in (".yaml", ".yml")}
    except OSError:
        return ""
    return "".join(f"; did you mean {there[name]}?" for name in nearest(path.stem, there))


class _Loader(yaml.SafeLoader):
    """PyYAML's own, which stops where values nest too deep."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            place = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"more than {DEEPEST} levels, one in another", problem_mark=place)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Reading:
    """Turns nodes into data, and counts what it makes: a node that has many aliases is made as often."""

    def __init__(self, path: Path, loader: _Loader) -> None:
        self.path = path
        self.loader = loader
        self.lines: dict[Place, int] = {(): 1}
        self.values = 0
        self.text = 0

    def value(self, node: yaml.Node, place: Place) -> YAML:
        self.count(node, len(place))
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            pairs = self.pairs(node, len(place))
            self.lines |= {(*place, key): line for key, (line, _) in pairs.items()}
            return {key: self.value(inner, (*place, key)) for key, (_, inner) in pairs.items()}
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        try:
            value: YAML = self.loader.construct_object(node, deep=True)  # type: ignore[no-untyped-call]
            return value
        except ValueError as error:  # a date that no calendar has
            raise RecipeError(f"{self.at(node)}: {node.value!r} cannot be understood: {error}") from error

    def pairs(self, node: yaml.MappingNode, depth: int) -> dict[str | int, tuple[int, yaml.Node]]:
        """By key, its line and the node of its value. Keys of the mapping itself go before those that it merges; of
        these the first mapping's."""
        merged: dict[str | int, tuple[int, yaml.Node]] = {}
        own: dict[str | int, tuple[int, yaml.Node]] = {}
        for key_node, value_node in node.value:
            self.count(key_node, depth)
            if key_node.tag == MERGE:
                for other in self.mappings(value_node):
                    merged = self.pairs(other, depth + 1) | merged
                continue
            key = None
            if isinstance(key_node, yaml.ScalarNode):
                key = self.loader.construct_object(key_node)  # type: ignore[no-untyped-call]
            if not isinstance(key, str | int):
                raise RecipeError(
                    f"{self.at(key_node)}: a name was expected, "
                    f"not {'a list or a mapping' if key is None else repr(key)}"
                )
            if key in own:
                raise RecipeError(f"{self.at(key_node)}: {key} stands here a second time")
            own[key] = (key_node.start_mark.line + 1, value_node)
        return merged | own

    def mappings(self, node: yaml.Node) -> list[yaml.MappingNode]:
        """What a merge key merges."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(each, yaml.MappingNode) for each in nodes):
            raise RecipeError(f"{self.at(node)}: `<<` merges a mapping, such as `<<: *common`, or a list of mappings")
        return list(nodes)

    def count(self, node: yaml.Node, depth: int) -> None:
        self.values += 1
        self.text += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        if depth > DEEPEST:
            raise RecipeError(
                f"{self.at(node)}: more than {DEEPEST} levels, one in another; "
                "does an alias stand within its own anchor?"
            )
        if self.values > MOST_VALUES or self.text > MOST_TEXT:
            raise RecipeError(
                f"{self.at(node)}: aliases make more than {MOST_VALUES:,} values, or {MOST_TEXT >> 20} MB, of this file"
            )

    def at(self, node: yaml.Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}"


def _hint(error: yaml.MarkedYAMLError) -> str:
    """What was probably meant."""
    problem, context = str(error.problem), str(error.context)
    opened = f" on line {error.context_mark.line + 1}" if error.context_mark else ""
    if "'\\t'" in problem:
        return "; a tab stands here, and YAML is indented by spaces"
    if "cannot start any token" in problem or "scanning an alias" in context or "undefined alias" in problem:
        return "; a text that begins with * @ % or ` stands in quotes"
    if "mapping values are not allowed" in problem:
        return "; a text with `: ` in it stands in quotes, and a name has a space after its colon"
    if "expected <block end>" in problem:
        return f"; this line is not indented as those of the block that begins{opened}"
    if "expected ',' or" in problem:
        return f"; is the bracket{opened} closed?"
    if "unexpected end of stream" in problem:
        return f"; is the quote{opened} closed?"
    if "another document" in problem:
        return "; `---` begins it, and a file holds one"
    return ""
