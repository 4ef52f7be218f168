"""The notebooks of docs/notebooks: worked through, with their outputs as text, and as pages of the book.

    python docs/site/notebooks.py [NAME...]      works them through in build/notebooks and stores what they show

They are worked through in one process and one folder, in the order of WORKED, so that the run that three of them begin
with is done once; the last of these changes it. Cells are plain Python, and a cell shows what it prints and the value of its last expression, as in
Jupyter. Only text is stored: Jupyter makes the rest.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "notebooks"
ORDER = ("look_at_a_crawl", "tune_a_threshold", "train_a_judge", "mix_and_pack", "read_an_ablation")
WORKED = ("look_at_a_crawl", "train_a_judge", "mix_and_pack", "tune_a_threshold", "read_an_ablation")
MOST_LINES = 60  # of an output


def read(name: str) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return notebook


def source_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def lines_of(text: str) -> list[str]:
    """As a notebook stores a text."""
    return text.splitlines(keepends=True)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def work(name: str, folder: Path) -> list[str]:
    """What each code cell of a notebook shows, worked through in a folder."""
    module = types.ModuleType("__main__")
    shown = []
    with inside(folder):
        for number, cell in enumerate(read(name)["cells"]):
            if cell["cell_type"] == "code":
                shown.append(output_of(source_of(cell), f"{name}.ipynb, cell {number}", vars(module)))
    return shown


def output_of(source: str, called: str, names: dict[str, Any]) -> str:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, called, "exec", dont_inherit=True), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), called, "eval"), names)
    text = printed.getvalue() + ("" if value is None else f"{value!r}")
    lines = [line.rstrip() for line in text.replace(f"{Path.cwd()}/", "").splitlines()]  # wherever it was worked
    return "\n".join(
        lines if len(lines) <= MOST_LINES else [*lines[:MOST_LINES], f"… {len(lines) - MOST_LINES} more lines"]
    )


def store(name: str, shown: list[str]) -> None:
    notebook, left = read(name), iter(shown)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = next(left)
            cell["execution_count"] = None
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines_of(text)}] if text else []
    path = FOLDER / f"{name}.ipynb"
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def stored(name: str) -> list[str]:
    """What the code cells show, as it is stored."""
    cells = [cell for cell in read(name)["cells"] if cell["cell_type"] == "code"]
    return ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in cells]


def page(name: str) -> str:
    """A notebook as a page of the book."""
    parts = []
    for cell in read(name)["cells"]:
        text = source_of(cell)
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            parts.append(f"```text\n{''.join(output['text'])}\n```")
    parts.append(f'<a href="{name}.ipynb" download>Download this notebook</a> and open it in Jupyter.')
    return "\n\n".join(parts) + "\n"


def main(names: list[str]) -> None:
    for name in names or WORKED:
        store(name, work(name, ROOT / "build" / "notebooks"))
        print(f"docs/notebooks/{name}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
