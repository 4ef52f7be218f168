"""The first commands: `demo`, `init`, `doctor`, and `new`, which begins a stage of the user's own."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import keyword
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli import report as cli_report
from gristmill.pipeline.errors import GristmillError, RecipeError
from gristmill.pipeline.screen import console, escape, say

LIKE = (
    "dclm", "dclm_full", "decontaminate", "dolma", "fineweb", "fineweb2", "multilingual", "nemotron_cc", "refinedweb",
    "web_cells", "web_code", "web_math",
)  # fmt: skip  # recipes of one source
NEXT = (
    ("inspect {run}", "the funnel, and what each stage dropped"),
    ("tune {run} gopher_quality.min_words=80", "what another threshold would do"),
    ("init FOLDER", "a recipe for files of your own"),
)


def doctor() -> None:
    """Show what this machine can run."""
    from gristmill.pipeline.cli.upkeep import examine, next_steps

    show = console()
    show.print(examine())
    for step in next_steps(Path()):
        say(show, step)


class Schema(StrEnum):
    """What there is a JSON schema of: recipes, and plans of these commands."""

    RECIPE = "recipe"
    TRAIN = "train"
    ABLATE = "ablate"
    TRAIN_JUDGE = "train-judge"
    MEDU = "medu"


def schema(
    of: Annotated[
        Schema, typer.Argument(help="recipe, or the command whose plans: train, ablate, train-judge, medu")
    ] = Schema.RECIPE,
) -> None:
    """Print the JSON schema of recipes, or of a command's plans, for editors."""
    from gristmill.pipeline.cli.upkeep import schema_of

    print(json.dumps(schema_of(of.value), indent=1))


def init(
    folder: Annotated[Path, typer.Argument(help="the folder with your data", show_default=False)],
    recipe: Annotated[Path, typer.Option("--recipe", help="the recipe to write")] = Path("recipe.yaml"),
    like: Annotated[
        str | None, typer.Option("--like", help=f"with the steps of a shipped recipe: {', '.join(LIKE)}")
    ] = None,
) -> None:
    """Write a recipe for a folder of data."""
    from gristmill.pipeline.cli.upkeep import start_recipe

    console().print(escape(start_recipe(folder, recipe, like)))


def demo(
    out: Annotated[Path, typer.Option("--out", help="output folder of the demo")] = Path("demo"),
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="worker processes; default: one per core")
    ] = None,
) -> None:
    """Generate a small crawl with known answers, run everything on it offline, and check the result."""
    from gristmill.kernels.base import portable

    compiled = portable.choose()  # before anything imports numba
    from gristmill.pipeline.cli.kernel_packs import unpack
    from gristmill.pipeline.demo.check import check
    from gristmill.pipeline.demo.check_shards import check_shards
    from gristmill.pipeline.demo.crawl import ROW_LENGTH, write_crawl
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.progress.terminal import final_table, ui_for
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.run import run

    crawl, folder = out / "crawl", str(out / "run")
    crawl.mkdir(parents=True, exist_ok=True)
    show, log = console(), console(stderr=True)
    log.print(f"making a crawl of planted duplicates, bad pages and secrets in {escape(str(crawl))}")
    if compiled:
        unpack(compiled, hashlib.sha256(compiled).hexdigest())
    truth = write_crawl(crawl)
    if compiled:
        log.print("running it, by the kernels that came with the package")
    else:
        log.print("running it; on a new machine kernels are compiled first, which takes a minute once")
    with ui_for(False, log) as ui:
        summary = run(recipes.load(crawl / "demo.yaml"), folder, Where(workers), ui)
    show.print(final_table(summary.record))
    findings = [*check(out / "run", truth), *check_shards(out / "run", ROW_LENGTH)]
    wrong = [finding for finding in findings if not finding.ok]
    for finding in wrong:
        show.print(
            f"[red]not so[/red]  {escape(finding.what)}: {escape(str(finding.found))}, expected "
            f"{escape(str(finding.expected))}"
        )
    show.print(
        f"{len(findings) - len(wrong)} of {len(findings)} facts of the crawl came out as they were planted: what is "
        "spam, copied,\nforeign or damaged went, each for its reason, and shards give back every text"
    )
    show.print(f"report: {escape(cli_report.address(folder))}")
    if wrong:
        raise GristmillError("the demo's result is not what was planted in it")
    lines = [(f"gristmill {command.format(run=shlex.quote(folder))}", about) for command, about in NEXT]
    show.print("next:")
    for command, about in lines:
        show.print(f"  {escape(command)}\n    [dim]{about}[/dim]", soft_wrap=True)


class Kind(StrEnum):
    RULE = "rule"
    MEASURE = "measure"
    REWRITE = "rewrite"


def new(
    what: Annotated[str, typer.Argument(help="stage", show_default=False)],
    name: Annotated[str, typer.Argument(help="its name in recipes: my_rule", show_default=False)],
    kind: Annotated[
        Kind, typer.Option("--kind", help="rule: drops documents; measure: adds a signal; rewrite: changes text")
    ] = Kind.RULE,
    folder: Annotated[Path, typer.Option("--folder", help="where to write it")] = Path(),
) -> None:
    """Write a stage of your own with a test of it, to be changed."""
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
"""A rule of our own: what it drops, and why."""

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
"""A signal of our own, for rules and for the report."""

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
    Kind.REWRITE: '''\
"""A change of text of our own."""

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
    Kind.REWRITE: """\
from my_stage import MyStage


def test_it_changes_text() -> None:
    assert MyStage()([{"text": "one  \\ntwo\\t"}]) == [{"text": "one\\ntwo"}]
""",
}
