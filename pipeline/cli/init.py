"""`gristmill init`: a recipe for a folder of files."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline.cli.command import START, Command
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

if TYPE_CHECKING:
    from gristmill.stages.stage import Reader

LIKE = (
    "dclm", "dclm_full", "decontaminate", "dolma", "fineweb", "fineweb2", "gristmill", "mix_academic", "mix_code",
    "mix_general_web", "mix_reasoning", "multilingual", "nemotron_cc", "refinedweb", "web_cells", "web_code", "web_math",
)  # fmt: skip
MIX = "mix_"  # recipes of several sources, with weights
RECIPES = Path(__file__).parents[2] / "recipes"
NO_CODE = shutil.ignore_patterns("__pycache__")
OF_SOURCES = re.compile(r"^sources:\n  \w+:\n    \w+: \{path: [^\n]*\}\nstages:", re.MULTILINE)  # one, its reader alone
OF_EXTRACTION = re.compile(r"^ +- extract(?:: [^\n]*)?\n", re.MULTILINE)
SOURCE = re.compile(r"^  (\w+):[^\n]*\n    \w+: \{path: [^\n]*\}\n(?:    [^\n]*\n)*", re.MULTILINE)  # one of several
BUDGET = re.compile(r"^( +)(budget: [\d_]+ +# tokens of the training run)$", re.MULTILINE)
OF_OTHER_USE = ("cc", "site_files")  # readers of WARC files too: by name from afar, and of what sites say of their use
RULES = """\
  # Lines that begin with "# -" are switched off: each drops documents or changes texts, which is for you to decide.
  # Take one "# " away at a time; `gristmill report` and `gristmill tune` show what each takes.
  # - keep_languages: {languages: [en], at_least: 0.65}   # before rules that were made for English
  # - gopher_repetition
  # - gopher_quality
  # - personal_data                      # masks addresses and numbers
"""
DUPLICATES = """\
  - exact_dedup
  # - minhash_dedup: {threshold: 0.8}    # near-duplicates; compares all documents with each other
  - write
"""
SHARDS = """\
  # - tokenize: {tokenizer: train}       # shards for training, once the documents are as you want them
  # - pack: {row_length: 2048}
"""


@dataclass(frozen=True)
class Found:
    """The files of a folder."""

    readers: Counter[str]  # files by the reader that knows them
    endings: Counter[str]
    passed_over: list[str]


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
    from gristmill.pipeline.inputs.files import by_ending, endings_in_words

    shipped = shipped_recipe(like) if like is not None else None
    if recipe.exists():
        raise RecipeError(f"{recipe}: is there already; give another name with --recipe")
    found = look_through(folder)
    pages = {name for name, reader in readers().items() if reader.pages}
    of_pages = pages & found.readers.keys()
    the_one = "crawl" if of_pages or "wet" in found.readers else "documents"
    names = {name: the_one if len(found.readers) == 1 else f"{name}_files" for name in found.readers}
    mixed = of_pages != found.readers.keys()  # texts have nothing to extract: each source of pages extracts for itself
    own = {
        name: "extract" if len(of_pages) == 1 else f"extract: {{name: extract_{names[name]}}}"
        for name in of_pages
        if mixed
    }
    path = written_path(folder, recipe)
    sources = "\n".join(
        f"  {names[name]}:\n    {name}: {{path: {path}}}" + (f"\n    stages: [{own[name]}]" if name in own else "")
        for name in sorted(found.readers)
    )
    first = "  - extract\n" if of_pages and not mixed else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("._-")[:100] or "run"
    text, note = f"name: {name}\nsources:\n{sources}\nstages:\n{first}{RULES}{DUPLICATES}{SHARDS}", ""
    if shipped is not None and shipped.stem.startswith(MIX):
        text, note = with_folders(shipped, folder, recipe, pages)
    elif shipped is not None:
        text = with_sources(shipped, sources, bool(first))
        for tables in (path for path in shipped.parent.iterdir() if path.is_dir() and f"{path.name}/" in text):
            shutil.copytree(tables, recipe.parent / tables.name, dirs_exist_ok=True, ignore=NO_CODE)
    recipe.write_text(text, encoding="utf-8")
    counted = ", ".join(f"{n:,} {suffix}" for suffix, n in found.endings.most_common())
    if found.passed_over:
        note += f"\nPassed over: {endings_in_words(by_ending(found.passed_over))}, which no reader knows."
    return (
        f"{recipe} is written for {counted} in {folder.resolve()}.{note}\nTry it: gristmill run {recipe} --limit 1000"
    )


def look_through(folder: Path) -> Found:
    """The files below a folder, by the reader that knows their ending; RecipeError where no reader knows any."""
    from gristmill.pipeline.inputs.files import list_at

    if not folder.is_dir():
        raise RecipeError(f"{folder}: no such folder")
    known = [(suffix, name) for name, reader in readers().items() for suffix in reader.suffixes]
    there = list_at(str(folder.resolve()), Path(), tuple(suffix for suffix, _ in known), "init")
    found = Found(Counter(), Counter(), list(there.passed_over))
    for file in there.files:
        # the longest ending that a reader knows decides: pages.warc.gz is a crawl, not a compressed text
        able = [(suffix, name) for suffix, name in known if file.address.lower().endswith(suffix)]
        suffix, name = max(able, key=lambda pair: len(pair[0]))
        found.readers[name] += 1
        found.endings[suffix] += 1
    return found


def readers() -> dict[str, type[Reader]]:
    """By name, those that files are told apart by."""
    from gristmill.pipeline.recipe import registry
    from gristmill.stages.stage import Reader

    kinds = {kind.recipe_name(): kind for kind in registry.built_in().values() if issubclass(kind, Reader)}
    return {name: kind for name, kind in kinds.items() if name not in OF_OTHER_USE}


def written_path(folder: Path, recipe: Path) -> str:
    """Relative where the folder lies beside the recipe: the two can then be moved together."""
    here, there = recipe.resolve().parent, folder.resolve()
    return json.dumps(str(there.relative_to(here) if there.is_relative_to(here) else there), ensure_ascii=False)


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
    text = OF_SOURCES.sub(lambda _: f"sources:\n{sources}\nstages:", shipped.read_text(encoding="utf-8"))
    return text if pages else OF_EXTRACTION.sub("", text)


def with_folders(shipped: Path, folder: Path, recipe: Path, pages: Collection[str]) -> tuple[str, str]:
    """A shipped mix on the folders of its sources' names, and what to say of it. A folder without any of them is all
    web. Sources that have no folder are left out, and mixed in proportion are the others."""
    text = shipped.read_text(encoding="utf-8")
    blocks = {match[1]: match[0] for match in SOURCE.finditer(text)}
    folders = {name: folder / name for name in blocks if (folder / name).is_dir()}
    folders = folders or {next(name for name, block in blocks.items() if OF_EXTRACTION.search(block)): folder}
    for name, block in blocks.items():
        if name not in folders:
            text = without_source(text.replace(block, ""), name)
            continue
        kinds = look_through(folders[name]).readers
        if len(kinds) > 1:
            raise RecipeError(
                f"{folders[name]}: files for {' and '.join(sorted(kinds))}; a source of a mix has one kind"
            )
        [reader] = kinds
        line = f"    {reader}: {{path: {written_path(folders[name], recipe)}}}\n"
        head, _, *rest = block.splitlines(keepends=True)
        mine = "".join([head, line, *rest])
        if reader not in pages:
            mine = OF_EXTRACTION.sub("", mine)
        elif not OF_EXTRACTION.search(mine):
            mine += "    stages: [extract]\n"
        text = text.replace(block, mine)
    text = BUDGET.sub(r"\1# \2; all that is there unless given", text)
    missing = [name for name in blocks if name not in folders]
    note = f"\nSources: {', '.join(folders)}."
    if missing:
        note += f" Left out, for {folder} has no folder of their names: {', '.join(missing)}."
    return text, note


def without_source(text: str, name: str) -> str:
    """Take a source out of weights and lists."""
    entry = rf"\b{name}(?:: [\d.]+)?"
    text = re.sub(rf"^ +{entry}\n", "", text, flags=re.MULTILINE)
    return re.sub(rf"(?<=[\[{{ ]){entry}, |, {entry}(?=[\]}}])", "", text)


COMMAND = Command(init, START, ("init data/", "init data/ --like fineweb"))
