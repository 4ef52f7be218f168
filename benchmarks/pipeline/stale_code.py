"""What an upgrade redoes: kernels are edited in a copy of the product, and packages get other versions.

    python -m benchmarks.pipeline.stale_code [--kernels 10]

For each kernel one JSON line: which of the stages that come with Gristmill, and which of six users' stages, have another
fingerprint after the edit, against those that reach the kernel by a plain walk over import statements (`reached_from`),
and how many users' segments `gristmill plan` redoes. Then one line on packages: what `plan` says of six recipes when
packages that they do not use are installed or upgraded, and of the recipes that use one.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
ROOMS = ("mixing", "shards", "trainer", "classifiers", "stages", "pipeline", "recipes")
COMMAND = "from gristmill.pipeline.cli.app import command; command()"
FINGERPRINTS = """
import json
from gristmill.pipeline.store.storage import digest
from gristmill.pipeline.recipe.fingerprint import code_of_class
from gristmill.stages import HOMES
print(json.dumps({name: digest(code_of_class(home)) for name, home in HOMES.items()}))
"""
KERNELS = (
    "words/token_rules", "words/sentences", "html/tags", "html/text", "lines/lines", "urls/urls", "duplicates/minhash",
    "language/language", "repair/mojibake", "rows/pack", "personal_data/phones", "base/unicode", "bpe/pieces",
    "language/pooled_terms",
)  # fmt: skip
# Lists of names, and modules that only show results or that no run goes by.
DECIDES_NOTHING = re.compile(
    r"gristmill|gristmill\.stages|gristmill\.stages\.(formatting|.*\bfigures|local_flow|frames)"
)
IN_A_STRING = re.compile(r"gristmill(\.\w+)+(:\w+)?")

CLASS = """
from typing import ClassVar
import pyarrow as pa
from gristmill.stages import Annotate
{imports}

class Mine(Annotate):
    adds: ClassVar = ("mine",)

    def annotate(self, batch):
        return {{"mine": pa.array([{value} for text in batch["text"].to_pylist()], pa.int64())}}
"""
# How users' stages reach our code: what they import, what they count, and the modules of ours where that begins.
USERS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "by_name": (
        "from gristmill.kernels.words import token_rules",
        "len(token_rules.tokens_plain(text))",
        ["gristmill.kernels.words.token_rules"],
    ),
    "lazily": (
        "from gristmill import extract",
        "len(extract(text).text) if text.startswith('<html') else 0",
        ["gristmill.stages.extract.engines"],
    ),
    "by_class": (
        "from gristmill.stages import Repair",
        "len(Repair().name or text)",
        ["gristmill.stages.text.repair"],
    ),
    "by_helper": ("import counting", "counting.count(text)", ["gristmill.kernels.urls.urls"]),
    "by_string": (
        "from importlib import import_module",
        "import_module('gristmill.kernels.language.pooled_terms').__name__.count('.')",
        ["gristmill.kernels.language.pooled_terms"],
    ),
    "by_none": ("", "len(text)", []),
}
HELPERS = {
    "counting/__init__.py": "from .words import count\n",
    "counting/words.py": "def count(text):\n    from counting_urls import LIMIT\n    return min(LIMIT, len(text))\n",
    "counting_urls.py": "from gristmill.kernels.urls import urls\nLIMIT = 100 if urls.__name__ else 0\n",
}


def copy_product(folder: Path) -> Path:
    """A folder for PYTHONPATH: kernels are copied, so that they can be edited, and all else is linked to."""
    product = folder / "gristmill"
    product.mkdir(parents=True)
    shutil.copy(CHECKOUT / "gristmill" / "__init__.py", product)
    shutil.copytree(CHECKOUT / "kernels", product / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for room in ROOMS:
        (product / room).symlink_to(CHECKOUT / room)
    return folder


def write_users_stages(folder: Path) -> str:
    """Files of stages with their helpers; returns the sources of a recipe that has one segment for each."""
    for name, (imports, value, _) in USERS.items():
        (folder / f"{name}.py").write_text(CLASS.format(imports=imports, value=value))
    for helper, source in HELPERS.items():
        (folder / helper).parent.mkdir(exist_ok=True)
        (folder / helper).write_text(source)
    (folder / "texts.jsonl").write_text('{"text": "one two three"}\n{"text": "four"}\n')
    return "".join(
        f"  {name}: {{jsonl: {{path: texts.jsonl}}, stages: [{{'{name}.py:Mine': {{name: mine_{name}}}}}]}}\n"
        for name in USERS
    )


def python(code: str, *arguments: object, path: Iterable[Path]) -> str:
    """What a program prints, with folders before all else on Python's path."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(done.stderr + done.stdout)
    return done.stdout


def reasons(recipe: Path, out: Path, path: Iterable[Path]) -> dict[str, str]:
    """By segment, what `gristmill plan` says: up to date, or why not."""
    planned = json.loads(python(COMMAND, "plan", recipe, "--out", out, "--json", path=path))
    return {segment["name"]: segment["why"] for segment in planned}


def release(folder: Path, package: str, version: str) -> None:
    """Make a version of a package look installed, for who has the folder on its path."""
    facts = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def reached_from(modules: Iterable[str], root: Path) -> set[str]:
    """Modules of the product that these import, at any depth and wherever in a file, or name in a string."""
    seen: set[str] = set()
    waiting = [*modules]
    while waiting:
        module = waiting.pop()
        if module not in seen and (file := file_below(root, module)) is not None:
            seen.add(module)
            waiting += named_in(file)
    return seen


@cache
def named_in(file: Path) -> tuple[str, ...]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and IN_A_STRING.fullmatch(node.value):
            names.append(node.value.partition(":")[0])
    return tuple(name for name in names if DECIDES_NOTHING.fullmatch(name) is None)


def file_below(root: Path, module: str) -> Path | None:
    place = root.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def check_kernel(kernel: str, root: Path, before: Mapping[str, str], recipe: Path) -> dict[str, object]:
    """What an edit of a kernel touches, and what it should."""
    from gristmill.stages import HOMES

    file = root / "gristmill" / "kernels" / f"{kernel}.py"
    source, module = file.read_text(), f"gristmill.kernels.{kernel.replace('/', '.')}"
    begin = time.perf_counter()
    file.write_text(f"{source}\nEDITED = 1\n")
    try:
        after = json.loads(python(FINGERPRINTS, path=[root]))
        why = reasons(recipe, recipe.parent / "out", [root, recipe.parent])
    finally:
        file.write_text(source)
    touched = {name for name in before if before[name] != after[name]}
    reach = {name for name, home in HOMES.items() if module in reached_from([home], root)}
    redone = {name for name in USERS if why[name] != "up to date"}
    reach_of_users = {
        name
        for name, (_, _, begins) in USERS.items()
        if module in reached_from([*begins, "gristmill.stages.stage"], root)
    }
    name = f"kernels/{kernel}.py"
    return {
        "what": "an edited kernel",
        "kernel": name,
        "stages_redone": len(touched),
        "stages_that_reach_it": len(reach),
        "of_stages": len(HOMES),
        "wrongly_kept": sorted(reach - touched),
        "wrongly_redone": sorted(touched - reach),
        "users_segments_redone": sorted(redone),
        "users_wrongly_kept": sorted(reach_of_users - redone),
        "users_wrongly_redone": sorted(redone - reach_of_users),
        "named_by_plan": all(why[user] == f"changed: {name}" for user in redone),
        "seconds": round(time.perf_counter() - begin, 1),
    }


# --- packages ---------------------------------------------------------------------------------------------------------

# By recipe: its sources, its stages, and the packages by which it works, of those below.
RECIPES: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "pages": ("{crawl: {warc: {path: 'crawl/*.warc.gz'}, stages: [extract]}}", "[text_signals, gopher_quality, write]", []),
    "rules": ("{texts: {jsonl: {path: many.jsonl}}}", "[language, gopher_quality, fineweb_quality, sample: {rate: 0.9}, write]", []),
    "dedup": ("{texts: {jsonl: {path: many.jsonl}}}", "[exact_dedup, minhash_dedup, write]", []),
    "judge": ("{texts: {jsonl: {path: many.jsonl}}}", "[judge: {judge_path: judge}, keep_where: {signal: good, at_least: 0}, write]", []),
    "tokens": ("{texts: {jsonl: {path: many.jsonl}}}", "[tokenize: {vocab_size: 300}, pack: {row_length: 64}]", []),
    "cleaned": (
        "{texts: {jsonl: {path: many.jsonl}}}",
        "[repair, personal_data, paragraph_dedup, tokenize: {vocab_size: 300}, mix: {method: proportional}, write]",
        [],
    ),
    "files": ("{files: {pdf: {path: pages}, stages: [extract]}}", "[write]", ["pypdfium2"]),
    "by_trafilatura": ("{pages: {html: {path: pages}, stages: [extract: {engine: trafilatura}]}}", "[write]", ["trafilatura"]),
    "by_datatrove": (
        "{texts: {jsonl: {path: many.jsonl}}}",
        "[datatrove: {block: 'datatrove.pipeline.filters:SamplerFilter', settings: {rate: 0.5}}, write]",
        ["datatrove"],
    ),
}  # fmt: skip
PACKAGES = (
    "trafilatura",
    "pypdfium2",
    "torch",
    "transformers",
    "scikit-learn",
    "skops",
    "datatrove",
    "vllm",
    "floret",
    "pillow",
)


def write_inputs(folder: Path) -> None:
    """A small crawl, texts, a page and a PDF file, and a judge."""
    import pyarrow as pa

    import gristmill
    from gristmill.classifiers.card import Head
    from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
    from gristmill.classifiers.training_sets import LabelledTexts

    gristmill.demo_crawl(folder / "crawl")
    texts = [f"Text number {i} says {'good' if i % 2 else 'bad'} things of the river and the hill." for i in range(200)]
    (folder / "many.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    labels = pa.array([str(i % 2) for i in range(200)])
    judge = train_linear(
        LabelledTexts(pa.array(texts), labels), Head("good", "probability", ("0", "1"), "is it good"), LinearRecipe()
    )
    judge.save(folder / "judge")
    (folder / "pages").mkdir()
    (folder / "pages" / "a.html").write_text(f"<html><body><p>{' '.join(texts[:9])}</p></body></html>")
    (folder / "pages" / "a.pdf").write_bytes(PDF)


# One page with a line of text.
PDF = (
    b"%PDF-1.4\n1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj\n2 0 obj << /Type /Pages /Count 1 /Kids [3 0 R] >> endobj\n"
    b"3 0 obj << /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >> "
    b"endobj\n4 0 obj << /Length 46 >> stream\nBT /F1 12 Tf 50 700 Td (Some text of a file) Tj ET\nendstream endobj\n"
    b"5 0 obj << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> endobj\ntrailer << /Root 1 0 R >>\n%%EOF\n"
)


def check_packages(folder: Path, root: Path) -> dict[str, object]:
    """What `plan` says of recipes when each package is at version 99."""
    write_inputs(folder)
    for package in PACKAGES:
        release(folder / "upgraded", package, "99")
    said: dict[str, list[str]] = {}
    for name, (sources, stages, _) in RECIPES.items():
        recipe = folder / f"{name}.yaml"
        recipe.write_text(f"name: {name}\nsources: {sources}\nstages: {stages}\n")
        python(COMMAND, "run", recipe, "--out", folder / "out" / name, "--workers", 1, path=[root])
        why = reasons(recipe, folder / "out" / name, [folder / "upgraded", root])
        said[name] = sorted({reason for reason in why.values() if not reason.startswith("known after")})
    return {
        "what": "packages at version 99",
        "packages": PACKAGES,
        "recipes": said,
        "wrongly_redone": [name for name, (_, _, uses) in RECIPES.items() if not uses and said[name] != ["up to date"]],
        "wrongly_kept": [
            name
            for name, (_, _, uses) in RECIPES.items()
            if any(
                not any(f"{package} " in reason and reason.endswith("-> 99") for reason in said[name])
                for package in uses
            )
        ],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kernels", type=int, default=len(KERNELS))
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        root = copy_product(folder / "lib")
        users = folder / "users"
        users.mkdir()
        recipe = users / "r.yaml"
        recipe.write_text(f"name: r\nsources:\n{write_users_stages(users)}stages: [write]\n")
        python(COMMAND, "run", recipe, "--out", users / "out", "--workers", 1, path=[root, users])
        before = json.loads(python(FINGERPRINTS, path=[root]))
        for kernel in KERNELS[: options.kernels]:
            print(json.dumps(check_kernel(kernel, root, before, recipe)), flush=True)
        (folder / "packages").mkdir()
        print(json.dumps(check_packages(folder / "packages", root)), flush=True)


if __name__ == "__main__":
    main()
