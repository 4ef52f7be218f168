"""`gristmill new`: a stage of the user's own, with its test."""

from __future__ import annotations

import importlib.util
import keyword
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import START, Command
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape


class Kind(StrEnum):
    RULE = "rule"
    MEASURE = "measure"
    REWRITE = "rewrite"
    PAIR = "pair"


def new(
    what: Annotated[str, typer.Argument(help="stage", show_default=False)],
    name: Annotated[str, typer.Argument(help="its name in recipes: my_rule", show_default=False)],
    kind: Annotated[
        Kind,
        typer.Option("--kind", help="rule: drops documents; measure: adds a signal; pair: both; rewrite: changes text"),
    ] = Kind.RULE,
    folder: Annotated[Path, typer.Option("--folder", help="where to write it")] = Path(),
) -> None:
    """Begin a stage of your own, with its test."""
    if what != "stage":
        raise RecipeError(f"new {what}: only a stage can be begun: gristmill new stage {name}")
    if not name.isidentifier() or keyword.iskeyword(name) or not name.islower():
        raise RecipeError(f"{name}: a name in small letters, digits and _ was expected, such as my_rule")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    files = {folder / f"{name}.py": STAGES[kind], folder / f"test_{name}.py": TESTS[kind]}
    if there := [path for path in files if path.exists()]:
        raise RecipeError(f"{there[0]}: there is a file of that name already")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text.replace("MyStage", class_name).replace("my_stage", name), encoding="utf-8")
    test, show = folder / f"test_{name}.py", console()
    show.print(f"wrote {escape(str(folder / f'{name}.py'))} and {escape(str(test))}", soft_wrap=True)
    install = "" if importlib.util.find_spec("pytest") else "pip install pytest; "
    show.print(f"try it:       {install}python -m pytest {escape(shlex.quote(str(test)))}", soft_wrap=True)
    show.print(f"in a recipe:  - {escape(str(folder / f'{name}.py'))}:{class_name}", soft_wrap=True)


STAGES = {
    Kind.RULE: '''\
"""A rule: it drops documents with few words.

An example to change. Reports and `gristmill inspect` describe the stage by the first line of its class's docstring.
"""

from typing import ClassVar

from pydantic import Field

from gristmill.stages import Rule, below


class MyStage(Rule):
    """Drop documents with few words."""

    min_words: int = Field(default=20, ge=0, description="words that a document must have")

    needs: ClassVar[tuple[str, ...]] = ("words",)  # signals that it decides by; the run measures them before it
    limits = (below("words", "min_words", "too_few_words"),)
''',
    Kind.MEASURE: '''\
"""A measure: it adds the signal `my_stage`, the exclamation marks of a text.

An example to change. Reports and `gristmill inspect` describe the stage by the first line of its class's docstring.
"""

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages import Annotate


class MyStage(Annotate):
    """Count exclamation marks."""

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = ("my_stage",)

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        return {"my_stage": pc.count_substring(batch.column("text"), "!").cast(pa.float64())}
''',
    Kind.PAIR: '''\
"""A measure and a rule on its signal: a recipe names the rule, and the run measures the signal before it.

An example to change. Reports and `gristmill inspect` describe the stage by the first line of its class's docstring.
"""

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.stages import Annotate, Rule, above


class MyStageSignal(Annotate):
    """Count exclamation marks."""

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = ("exclamation_marks",)

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        return {"exclamation_marks": pc.count_substring(batch.column("text"), "!").cast(pa.float64())}


class MyStage(Rule):
    """Drop documents with many exclamation marks."""

    max_marks: int = Field(default=5, ge=0, description="exclamation marks that a document may have")

    limits = (above("exclamation_marks", "max_marks", "too_many_marks"),)
''',
    Kind.REWRITE: '''\
"""A rewrite: it takes white space away from the ends of lines.

An example to change. Reports and `gristmill inspect` describe the stage by the first line of its class's docstring.
"""

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages import Applied, Rewrite, Verdict, with_columns


class MyStage(Rewrite):
    """Take spaces and tabs away from the ends of lines."""

    needs: ClassVar[tuple[str, ...]] = ("text",)

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        text = pc.replace_substring_regex(batch.column("text"), r"[ \\t]+(\\n|$)", r"\\1")
        return Applied(with_columns(batch, {"text": text}), Verdict.keep(len(batch)))
''',
}
TESTS = {
    Kind.RULE: """\
from my_stage import MyStage

from gristmill.stages import TextSignals


def test_it_drops_what_is_short() -> None:
    rows = [{"text": "word " * 30}, {"text": "few words"}]
    kept = MyStage(min_words=20)(TextSignals(only=("words",))(rows))
    assert [row["words"] for row in kept] == [30]
""",
    Kind.MEASURE: """\
from my_stage import MyStage


def test_it_counts() -> None:
    rows = [{"text": "Oh! No!"}, {"text": "Well."}]
    assert [row["my_stage"] for row in MyStage()(rows)] == [2, 0]
""",
    Kind.PAIR: """\
from my_stage import MyStage, MyStageSignal


def test_it_drops_what_exclaims() -> None:
    rows = [{"text": "Oh! No! No!"}, {"text": "Well."}]
    kept = MyStage(max_marks=2)(MyStageSignal()(rows))
    assert [row["text"] for row in kept] == ["Well."]
""",
    Kind.REWRITE: """\
from my_stage import MyStage


def test_it_changes_text() -> None:
    assert MyStage()([{"text": "one  \\ntwo\\t"}]) == [{"text": "one\\ntwo"}]
""",
}


COMMAND = Command(new, START, ("new stage my_rule", "new stage my_signal --kind measure"))
