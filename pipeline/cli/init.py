"""`gristmill init`: a recipe for a folder of files."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import START, Command
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

LIKE = (
    "dclm", "dclm_full", "decontaminate", "dolma", "fineweb", "fineweb2", "multilingual", "nemotron_cc", "refinedweb",
    "web_cells", "web_code", "web_math",
)  # fmt: skip  # recipes of one source
RECIPES = Path(__file__).parents[2] / "recipes"
NO_CODE = shutil.ignore_patterns("__pycache__")
# One source, and nothing but its reader.
OF_SOURCES = re.compile(r"^sources:\n  \w+:\n    \w+: \{path: [^\n]*\}\nstages:", re.MULTILINE)
OF_EXTRACTION = re.compile(r"^  - extract(?:: [^\n]*)?\n", re.MULTILINE)
OF_OTHER_USE = ("cc", "site_files")  # readers of WARC files too: by name from afar, and of what sites say of their use
RULES = """\
  # - keep_languages: {languages: [en], at_least: 0.65}
  # - gopher_repetition
  # - gopher_quality
  # - personal_data
"""
SHARDS = """\
  # - tokenize: {tokenizer: train}
  # - pack: {row_length: 2048}
"""


def init(
    folder: Annotated[Path, typer.Argument(help="the folder with your data", show_default=False)],
    recipe: Annotated[Path, typer.Option("--recipe", help="the recipe to write")] = Path("recipe.yaml"),
    like: Annotated[
        str | None, typer.Option("--like", help=f"with the steps of a shipped recipe: {', '.join(LIKE)}")
    ] = None,
) -> None:
    """Write a recipe for a folder of your files."""
    console().print(escape(start_recipe(folder, recipe, like)))


def start_recipe(folder: Path, recipe: Path, like: str | None = None) -> str:
    """Write a recipe for what lies in a folder, with plain steps or those of a recipe that is shipped; says what was
    found and what to do next."""
    from gristmill.pipeline.inputs.files import (
        LOOP,
        Folders,
        all_were_read,
        by_ending,
        endings_in_words,
        is_run,
        refuse_special,
        runs_above,
    )
    from gristmill.pipeline.recipe import registry
    from gristmill.stages.stage import Reader

    shipped = shipped_recipe(like) if like is not None else None
    if recipe.exists():
        raise RecipeError(f"{recipe}: is there already; give another name with --recipe")
    if not folder.is_dir():
        raise RecipeError(f"{folder}: no such folder")
    if is_run(str(folder), lambda path: Path(path).exists()):
        raise RecipeError(
            f"{folder}: this is the folder of a run; give the folder of its inputs, or a folder in it, such as"
            f" {folder / 'write'}"
        )
    readers = [
        kind
        for kind in registry.built_in().values()
        if issubclass(kind, Reader) and kind.recipe_name() not in OF_OTHER_USE
    ]
    endings: Counter[str] = Counter()
    files_of_reader: Counter[str] = Counter()
    root = str(folder.resolve())
    folders = Folders(root)
    files = {path: facts for path, facts in folders.find(root, detail=True).items() if facts["type"] != LOOP}
    all_were_read(folders.unread)
    of_runs = runs_above(files, root, files.__contains__)
    passed_over = []
    for address in sorted(files):
        path = Path(address)
        if address not in of_runs:
            # the longest ending that a reader knows decides: pages.warc.gz is a crawl, not a compressed text
            endings_known = [
                (suffix, r.recipe_name())
                for r in readers
                for suffix in r.suffixes
                if path.name.lower().endswith(suffix)
            ]
            if endings_known:
                refuse_special(str(folder), address, files[address])
                suffix, name = max(endings_known, key=lambda x: len(x[0]))
                files_of_reader[name] += 1
                endings[suffix] += 1
            else:
                passed_over.append(address)
    if not files_of_reader:
        there = f" (it has {endings_in_words(by_ending(passed_over))})" if passed_over else ""
        beside = " beside what runs have left" if of_runs else ""
        raise RecipeError(
            f"{folder}: no file that a reader knows{beside}{there}; readers know"
            f" {', '.join(sorted({s for r in readers for s in r.suffixes}))}"
        )
    data_folder = folder.resolve()
    is_beside = data_folder.is_relative_to(recipe.resolve().parent)  # then the two can be moved together
    written_path = data_folder.relative_to(recipe.resolve().parent) if is_beside else data_folder
    of_pages = {r.recipe_name() for r in readers if r.pages} & files_of_reader.keys()
    the_one = "crawl" if of_pages or "wet" in files_of_reader else "documents"
    names = {name: the_one if len(files_of_reader) == 1 else f"{name}_files" for name in files_of_reader}
    mixed = (
        of_pages != files_of_reader.keys()
    )  # texts have nothing to extract: each source of pages extracts for itself
    own = {
        name: "extract" if len(of_pages) == 1 else f"extract: {{name: extract_{names[name]}}}"
        for name in of_pages
        if mixed
    }
    sources = "\n".join(
        f"  {names[name]}:\n    {name}: {{path: {json.dumps(str(written_path), ensure_ascii=False)}}}"
        + (f"\n    stages: [{own[name]}]" if name in own else "")
        for name in sorted(files_of_reader)
    )
    first = "  - extract\n" if of_pages and not mixed else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("._-")[:100] or "run"
    text = f"name: {name}\nsources:\n{sources}\nstages:\n{first}{RULES}  - exact_dedup\n  - write\n{SHARDS}"
    if shipped is not None:
        text = with_sources(shipped, sources, bool(first))
        for tables in (path for path in shipped.parent.iterdir() if path.is_dir() and f"{path.name}/" in text):
            shutil.copytree(tables, recipe.parent / tables.name, dirs_exist_ok=True, ignore=NO_CODE)
    recipe.write_text(text, encoding="utf-8")
    counted = ", ".join(f"{n:,} {suffix}" for suffix, n in endings.most_common())
    not_read = (
        f"\nPassed over: {endings_in_words(by_ending(passed_over))}, which no reader knows." if passed_over else ""
    )
    return f"{recipe} is written for {counted} in {data_folder}.{not_read}\nTry it: gristmill run {recipe} --limit 1000"


def shipped_recipe(name: str) -> Path:
    """A recipe that comes with the mill, by its name."""
    from gristmill.kernels.common.settings import nearest

    there = sorted(path for path in RECIPES.glob("*.yaml"))
    found = next((path for path in there if path.stem == name), None)
    if found is None:
        names = [path.stem for path in there]
        near = nearest(name, names)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise RecipeError(f"--like {name}: no recipe of that name comes with gristmill; {hint}")
    return found


def with_sources(shipped: Path, sources: str, pages: bool) -> str:
    """A shipped recipe on other sources. Texts have nothing to extract."""
    text, replaced = OF_SOURCES.subn(lambda _: f"sources:\n{sources}\nstages:", shipped.read_text(encoding="utf-8"))
    if not replaced:
        raise RecipeError(
            f"--like {shipped.stem}: its sources are several, with weights; copy {shipped} and change them"
        )
    return text if pages else OF_EXTRACTION.sub("", text)


COMMAND = Command(init, START, ("init data/", "init data/ --like fineweb"))
