"""Small services around a run: `init`, `doctor`, `clean`."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil
from rich.console import Group
from rich.text import Text

from gristmill.kernels.common.settings import Settings, nearest
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import as_bytes
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
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.processes import cores_here, describe_nodes, nodes_here
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.yaml_lines import load_with_lines
from gristmill.pipeline.run.record import stages_of, unused_results
from gristmill.pipeline.store.journal import READERS, Journal
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.storage import Store, hash_of_object
from gristmill.pipeline.tables import Grid
from gristmill.stages.stage import Reader

OPTIONAL = {
    "trafilatura": ("extract: {engine: trafilatura}", "gristmill[trafilatura]"),
    "datatrove": ("blocks of DataTrove", "gristmill[datatrove]"),
    "nemo_curator": ("filters of NeMo Curator", "nemo_curator"),
    "uvicorn": ("exploring a run in the browser", "gristmill[explore]"),
    "s3fs": ("s3:// addresses", "gristmill[cluster]"),
    "gcsfs": ("gs:// addresses", "gristmill[cluster]"),
    "huggingface_hub": ("hf:// addresses", "gristmill[cluster]"),
    "dask_jobqueue": ("--cluster slurm.yaml", "gristmill[cluster]"),
    "scipy": ("verdicts of ablations", "gristmill[gpu]"),
    "bokeh": ("Dask's dashboard while a run works", "gristmill[dashboard]"),
    "torch": ("neural judges and training", "gristmill[gpu]"),
    "pynvml": ("the energy of GPUs", "gristmill[gpu]"),
    "flash_attn": ("the fastest training on Hopper GPUs", "gristmill[hopper]"),
    "vllm": ("scoring by a language model", "gristmill[llm]"),
}

OF_GPUS = ("pynvml", "flash_attn")
# Packages that some blocks need beside their library, which imports without them.
BESIDE = {"datatrove": ("spacy", "tldextract", "fasteners", "ahocorasick", "ftfy")}

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


def examine() -> Group:
    """What this machine has, and what is missing for what."""
    optional = Grid("What it can do", ("", ""), words=2)
    gpus = gpu_names()
    for module, (what, extra) in OPTIONAL.items():
        missing = [each for each in (module, *BESIDE.get(module, ())) if importlib.util.find_spec(each) is None]
        some = f"some need {', '.join(missing)}: " if missing and module not in missing else ""
        ready = "ready" if gpus or module not in OF_GPUS else "no GPU here"
        optional.add_row(what, f"{some}pip install '{extra}'" if missing else ready, style="yellow" if missing else "")
    stages = Grid("Stages", ("",), words=1)
    stages.add_row(", ".join(registry.built_in()))
    return Group(this_machine(gpus), Text(), optional, Text(), stages, Text())


def this_machine(gpus: Sequence[str]) -> Grid:
    table = Grid("This machine", ("", ""), words=2)
    table.add_row("gristmill", version("gristmill"))
    table.add_row("python", f"{platform.python_version()} on {platform.platform()}")
    table.add_row("cores", f"{cores_here()} usable")
    table.add_row("memory nodes", describe_nodes(nodes_here()))
    memory = psutil.virtual_memory()
    table.add_row("memory", f"{memory.available / 1e9:,.1f} GB free of {memory.total / 1e9:,.1f} GB")
    disk = shutil.disk_usage(Path.cwd())
    table.add_row("disk here", f"{disk.free / 1e9:,.1f} GB free")
    table.add_row("gpus", ", ".join(gpus) or "none that the driver names (nvidia-smi)")
    table.add_row("stages of packages", ", ".join(registry.installed()) or "none")
    return table


def is_recipe(path: Path) -> bool:
    """Whether a YAML file has the sections of a recipe; files of other tools have `stages:` too."""
    if not path.is_file():
        return False
    try:
        data, _ = load_with_lines(path)
    except RecipeError:
        return False
    return isinstance(data, dict) and isinstance(data.get("stages"), list) and isinstance(data.get("sources"), dict)


def next_steps(folder: Path) -> list[str]:
    """What a person would do here, by what lies in the folder."""
    recipes = sorted(path for path in folder.glob("*.y*ml") if is_recipe(path))
    runs = sorted(path.parent for path in folder.glob("out/*/run.json"))
    if runs:
        return [f"next: gristmill inspect {shlex.quote(str(runs[0]))}"]
    if recipes:
        return [f"next: gristmill run {shlex.quote(str(recipes[0]))} --limit 1000"]
    return ["next: gristmill demo, or gristmill init FOLDER for files of your own"]


def schema_of(what: str) -> JSONObject:
    """The JSON schema of recipes, or of a command's plans."""
    from gristmill.pipeline.ablate.plan import AblationPlan
    from gristmill.pipeline.judging.judge_plan import JudgePlan
    from gristmill.pipeline.judging.medu_plan import MeduPlan
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.train.plan import TrainPlan

    if what == "recipe":
        return recipes.schema()
    plans: dict[str, type[Settings]] = {
        "train": TrainPlan,
        "ablate": AblationPlan,
        "train-judge": JudgePlan,
        "medu": MeduPlan,
    }
    described = plans[what].model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Plan of gristmill {what}"}
    return {**described, **head}


def gpu_names() -> list[str]:
    """From the driver, for torch takes seconds to ask."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.split("\n")[:-1] if answer.returncode == 0 else []


def clean_up(
    out: str, *, shuffle: bool, partitions: bool, rejects: bool, unused: bool, dry_run: bool
) -> dict[str, int]:
    """Remove intermediates, and if asked results that the recipe no longer makes; the files that went, and their
    bytes."""
    store = Store(out)
    record = store.read_json("run.json")
    if record is None:
        raise RecipeError(f"{out}: no run is here (there is no run.json)")
    with one_run_at_a_time(store):
        present = store.files("")
        results = unused_results(present, stages_of(record["recipe"])) if unused else {}
        chosen = [path for paths in results.values() for path in paths]
        chosen += [
            path
            for path in present
            if (shuffle and path.startswith("shuffle/") and path.endswith(".arrow"))
            or (partitions and path.startswith("partitions/") and path.endswith(".parquet"))
            or (rejects and path.startswith("stages/") and "/rejects/" in path and path.endswith(".parquet"))
        ]
        if not dry_run:
            store.remove(chosen)
    return {path: present[path] for path in chosen}


def by_folder(files: dict[str, int]) -> list[str]:
    """One line for each kind of files, as they lie: partitions/crawl, stages/extract/rejects."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for path, size in files.items():
        folder = "/".join(path.split("/")[: 3 if path.startswith("stages/") else 2]) if path.count("/") > 1 else path
        counts[folder] += 1
        sizes[folder] += size
    return [f"{folder}: {n:,} file{'s' * (n > 1)}, {as_bytes(sizes[folder])}" for folder, n in sorted(counts.items())]


@dataclass(frozen=True)
class CheckedFiles:
    there: int  # files that the run is known to have written
    faults: list[str]
    damaged: list[str]  # paths of files with another content
    next_run_knows: bool  # it makes the damaged ones anew


def check_files(store: Store, read: bool = False) -> CheckedFiles:
    """Each local file of a run is read, whatever its stamp says; of an object store with `read`, but for token shards,
    which have a check of their own. Else lengths are compared."""
    journal = Journal(store, looks_only=True)
    known = journal.files
    journal.suspects = set(known)
    present = store.stamps("")
    files = {path: facts for path, facts in known.items() if path in present}
    journal.check(present)
    if read and not store.local:
        fine = sorted(files.keys() - set(journal.damaged))
        fine = [path for path in fine if not (path.startswith("shards/") and path.endswith(".arrow"))]
        with ThreadPoolExecutor(READERS) as threads:
            hashes = threads.map(lambda path: hash_of_object(store, path), fine)
            other = [path for path, found in zip(fine, hashes, strict=True) if found != files[path].checksum]
        journal.damaged = sorted([*journal.damaged, *other])
    manifests = [
        path
        for path in present
        if path.startswith("partitions/") and path.endswith("/manifest.json") and path not in journal.damaged
    ]
    written = [path for name in manifests for part in store.read_json(name)["parts"] for path in part["files"].items()]
    results = {path for name, path in written if name.startswith("sink/")}
    sinks = tuple({f"{path.split('/')[0]}/" for path in results})
    strange = {
        path for path in present if known and path.startswith(sinks) and path.endswith(".parquet")
    } - known.keys()
    gone = {*results, *journal.results} - present.keys()
    damaged_lines = journal.damaged_lines if journal.results else 0  # of a run that has ended
    faults = [
        *(f"{path}: its content is not what was written" for path in journal.damaged),
        *(f"{path}: is gone" for path in sorted(gone)),
        *(f"{path}: lies among the documents, but the run did not write it: move it away" for path in sorted(strange)),
        *([f"journal: {damaged_lines:,} lines are not what was written"] if damaged_lines else []),
        *([] if known else ["journal: is empty; what the run wrote is not known"]),
    ]
    return CheckedFiles(len(files), faults, journal.damaged, tell_the_next_run(store, journal))


def tell_the_next_run(store: Store, journal: Journal) -> bool:
    """Does it know of the damaged files? Not at object stores, whose listings tell lengths alone, and not where the
    journal cannot be written to."""
    if journal.damaged and store.local:
        try:
            with one_run_at_a_time(store):
                journal.tell_the_next_run()
        except (OSError, RunFailed):
            return False
    return store.local or not journal.damaged


def start_recipe(folder: Path, recipe: Path, like: str | None = None) -> str:
    """Write a recipe for what lies in a folder, with plain steps or those of a recipe that is shipped; says what was
    found and what to do next."""
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
