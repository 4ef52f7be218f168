"""`gristmill doctor`: what this machine can run."""

from __future__ import annotations

import importlib.util
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.pipeline.cli.command import START, Command
from gristmill.pipeline.screen import console, say

if TYPE_CHECKING:
    from rich.console import Group

    from gristmill.pipeline.tables import TerminalTable

OPTIONAL = {
    "trafilatura": ("extract: {engine: trafilatura}", ".[trafilatura]"),
    "datatrove": ("blocks of DataTrove", ".[datatrove]"),
    "nemo_curator": ("filters of NeMo Curator", "nemo_curator"),
    "uvicorn": ("exploring a run in the browser", ".[explore]"),
    "s3fs": ("s3:// addresses", ".[cluster]"),
    "gcsfs": ("gs:// addresses", ".[cluster]"),
    "huggingface_hub": ("hf:// addresses", ".[cluster]"),
    "dask_jobqueue": ("--cluster slurm.yaml", ".[cluster]"),
    "scipy": ("verdicts of ablations", ".[gpu]"),
    "bokeh": ("Dask's dashboard while a run works", ".[dashboard]"),
    "torch": ("neural judges and training", ".[gpu]"),
    "pynvml": ("the energy of GPUs", ".[gpu]"),
    "flash_attn": ("the fastest training on Hopper GPUs", ".[hopper]"),
    "vllm": ("scoring by a language model", ".[llm]"),
}
OF_GPUS = ("pynvml", "flash_attn")
# Packages that some blocks need beside their library, which imports without them.
BESIDE = {"datatrove": ("spacy", "tldextract", "fasteners", "ahocorasick", "ftfy")}


def doctor() -> None:
    """Show what this machine can run, and what to do next."""
    show = console()
    show.print(examine())
    for step in next_steps(Path()):
        say(show, step)


def examine() -> Group:
    """What this machine has, and what is missing for what."""
    from rich.console import Group
    from rich.text import Text

    from gristmill.pipeline.tables import TerminalTable

    rows = []
    gpus = gpu_names()
    for module, (what, extra) in OPTIONAL.items():
        missing = [each for each in (module, *BESIDE.get(module, ())) if importlib.util.find_spec(each) is None]
        some = f"some need {', '.join(missing)}: " if missing and module not in missing else ""
        ready = "ready" if gpus or module not in OF_GPUS else "no GPU here"
        answer, style = (f"{some}pip install '{extra}'", "yellow") if missing else (ready, "")
        rows.append((Text(what, style=style), Text(answer, style=style)))
    note = ".[...]: in Gristmill's checkout" if any(".[" in answer.plain for _, answer in rows) else ""
    optional = TerminalTable.of("What it can do", ("", ""), rows, words=2, note=note)
    return Group(this_machine(gpus), Text(), optional, Text())


def this_machine(gpus: Sequence[str]) -> TerminalTable:
    import psutil

    from gristmill.pipeline.processes import cores_here, describe_nodes, nodes_here
    from gristmill.pipeline.recipe import registry
    from gristmill.pipeline.tables import TerminalTable

    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    rows = [
        ("gristmill", version("gristmill")),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("cores", f"{cores_here()} usable"),
        ("memory nodes", describe_nodes(nodes_here())),
        ("memory", f"{memory.available / 1e9:,.1f} GB free of {memory.total / 1e9:,.1f} GB"),
        ("disk here", f"{disk.free / 1e9:,.1f} GB free"),
        ("gpus", ", ".join(gpus) or "none that the driver names (nvidia-smi)"),
        ("stages of packages", ", ".join(registry.installed()) or "none"),
    ]
    return TerminalTable.of("This machine", ("", ""), rows, words=2)


def gpu_names() -> list[str]:
    """From the driver, for torch takes seconds to ask."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.split("\n")[:-1] if answer.returncode == 0 else []


def next_steps(folder: Path) -> list[str]:
    """What a person would do here, by what lies in the folder."""
    recipes = sorted(path for path in folder.glob("*.y*ml") if is_recipe(path))
    runs = sorted(path.parent for path in folder.glob("out/*/run.json"))
    if runs:
        return [f"next: gristmill inspect {shlex.quote(str(runs[0]))}"]
    if recipes:
        return [f"next: gristmill run {shlex.quote(str(recipes[0]))} --limit 1000"]
    return ["next: gristmill demo, or gristmill init FOLDER for files of your own"]


def is_recipe(path: Path) -> bool:
    """Has it the sections of a recipe? Files of other tools have `stages:` too."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return all(re.search(rf"^{section}:", text, re.MULTILINE) for section in ("sources", "stages"))


COMMAND = Command(doctor, START, ("doctor",))
