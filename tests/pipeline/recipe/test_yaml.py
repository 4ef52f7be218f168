"""Recipes may use anchors, aliases and merge keys; errors keep their lines; a small file cannot become a large one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe import recipe as recipes, yaml_lines
from gristmill.pipeline.recipe.yaml_lines import load_with_lines
from tests.pipeline.runs import save

SHARED = """\
name: shared
x-limits: &limits
  min_words: 20
  max_words: 500
.web: &web
  jsonl: {path: web}
  stages:
    - gopher_quality: {<<: *limits, max_words: 900, name: web_quality}
sources:
  web: *web
  books:
    <<: [*web]
    stages: []
stages:
  - gopher_quality:
      <<: *limits
  - write
"""


def complaint(folder: Path, text: str) -> str:
    path = save(folder / "r.yaml", text)
    with pytest.raises(RecipeError) as error:
        recipes.load(path)
    return str(error.value).removeprefix(f"{path}:")


def test_anchors_and_merge_keys_say_things_once(tmp_path: Path) -> None:
    loaded = recipes.load(save(tmp_path / "r.yaml", SHARED))
    web, books = loaded.sources
    assert [(s.name, s.reader.address, len(s.steps)) for s in (web, books)] == [
        ("web", "jsonl", 1),
        ("books", "jsonl", 0),
    ]
    limits = [(s.stage.min_words, s.stage.max_words) for s in (web.steps[0], loaded.steps[0])]
    assert limits == [(20, 900), (20, 500)] and "x-limits" not in str(loaded.resolved())


def test_what_is_written_goes_before_what_is_merged_and_the_first_of_a_list_before_the_others(tmp_path: Path) -> None:
    data, lines = load_with_lines(
        save(
            tmp_path / "m.yaml",
            "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2, z: 2}\nc:\n  <<: [*b, {z: 3, w: 3}]\n  x: 4\n",
        )
    )
    assert data["c"] == {"x": 4, "y": 2, "z": 2, "w": 3}
    assert [lines["c", key] for key in "xyzw"] == [5, 2, 2, 4]


def test_an_error_in_what_is_merged_names_the_line_on_which_it_is_written(tmp_path: Path) -> None:
    said = complaint(tmp_path, SHARED.replace("min_words: 20", "min_wrods: 20"))
    assert [line.split(" no such field")[0] for line in said.replace(f"{tmp_path}/r.yaml:", "").splitlines()] == [
        "3: sources.web.stages[0].gopher_quality.min_wrods:",
        "3: stages[0].gopher_quality.min_wrods:",
    ]
    assert complaint(tmp_path, SHARED.replace("<<: *limits\n", "<<: 3\n")) == (
        "16: `<<` merges a mapping, such as `<<: *common`, or a list of mappings"
    )


def test_a_key_for_anchors_of_another_name_is_told_its_prefix(tmp_path: Path) -> None:
    assert complaint(tmp_path, SHARED.replace("x-limits", "limits")).endswith(
        "; a key of your own, for anchors, begins with `x-`"
    )


def nested(opens: str, closes: str) -> str:
    """Nine aliases of nine aliases, eight times."""
    rows = [
        f"x-{b}: &{b} {opens}{','.join([f'*{a}'] * 9)}{closes}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    return "name: r\nx-a: &a " + ("[1]" if opens == "[" else "{k: v}") + "\n" + "".join(rows) + "sources: *i\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (nested("[", "]"), "aliases make more than 100,000 values"),
        (nested("{<<: [", "]}"), "aliases make more than 100,000 values"),
        ("name: r\nx-a: &a " + "y" * 200_000 + "\nx-b: [" + "*a," * 200 + "]\n", "or 16 MB"),
        ("name: &a [*a]\n", "does an alias stand within its own anchor?"),
        ("name: &a {<<: *a}\n", "does an alias stand within its own anchor?"),
        ("name: " + "[" * 20_000, "more than 64 levels"),
        ("name: " + "{a: " * 20_000, "more than 64 levels"),
        ("".join(" " * i + "a:\n" for i in range(200)), "more than 64 levels"),
    ],
)
def test_a_small_file_that_would_become_a_large_one_is_refused_at_once(tmp_path: Path, text: str, says: str) -> None:
    began = time.process_time()
    said = complaint(tmp_path, text)
    assert says in said and said[0].isdigit() and len(said) < 200
    assert time.process_time() - began < 5  # under a second on a machine that is not busy


def test_a_data_file_in_place_of_a_recipe_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_lines, "MOST_BYTES", 1000)
    assert complaint(tmp_path, '{"text": "a document"}\n' * 100) == " 2,300 bytes are no recipe; is this a data file?"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "sources:\n\tcrawl: {}\n",
            "2: not valid YAML: found character '\\t' that cannot start any token; a tab stands here",
        ),
        ("sources: {a: {jsonl: {path: *.gz}}}\n", "a text that begins with * @ % or ` stands in quotes"),
        ("sources: {a: {jsonl: {path: @a}}}\n", "a text that begins with * @ % or ` stands in quotes"),
        ("name:r\nsources: {}\n", "a name has a space after its colon"),
        ("description: first: try\n", "a text with `: ` in it stands in quotes"),
        ("name: [a\nsources: {}\n", "is the bracket on line 1 closed?"),
        ("name: r\nout: 'a\n", "is the quote on line 2 closed?"),
        (
            "name: r\nsources:\n  a:\n    b: 1\n   c: 2\n",
            "5: not valid YAML: expected <block end>, but found '<block mapping start>'; this line",
        ),
        ("name: r\n---\nname: s\n", "`---` begins it, and a file holds one"),
    ],
)
def test_yaml_that_cannot_be_read_is_explained(tmp_path: Path, text: str, says: str) -> None:
    assert says in complaint(tmp_path, text)
