"""How many of our imports editors resolve in a fresh clone: pyright (VS Code's Pylance, Neovim, Helix, Zed) and jedi.

    npm install pyright && pip install jedi
    python -m benchmarks.editors [--pyright node_modules/.bin/pyright]

Clones the last commit of this checkout into a temporary folder and runs nothing there. Every import of ours that some file
of the clone has, one name each, is written into one file of it: pyright must resolve them all, and jedi must go to a
definition in the clone for each. Prints one JSON line for each tool, with the imports that are unresolved.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = ("gristmill", "benchmarks", "tests")
UNRESOLVED = ("reportMissingImports", "reportAttributeAccessIssue")  # of a module, of a name in it


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pyright", default="pyright", help="the program")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name).resolve() / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        imports = sorted({line for path in clone.rglob("*.py") for line in imports_in(path)})
        (clone / "every_import.py").write_text("".join(f"{line}\n" for line in imports))
        for facts in (by_jedi(clone, imports), by_pyright(clone, imports, asked.pyright)):
            print(
                json.dumps({"what": "imports of ours in a fresh clone", "imports": len(imports), **facts}), flush=True
            )


def imports_in(path: Path) -> Iterator[str]:
    """The imports of ours in a file, one name each."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in OURS)
        elif isinstance(node, ast.ImportFrom) and not node.level and str(node.module).split(".")[0] in OURS:
            yield from (f"from {node.module} import {alias.name}" for alias in node.names)


def by_jedi(clone: Path, imports: list[str]) -> dict[str, Any]:
    import jedi

    file = clone / "every_import.py"
    script = jedi.Script(path=file, project=jedi.Project(clone))
    unresolved = []
    for number, line in enumerate(imports, 1):
        definitions = script.goto(number, len(line) - 1, follow_imports=True)
        places = {definition.module_path for definition in definitions} - {None, file}
        if not any(place.is_relative_to(clone) for place in places if place is not None):
            unresolved.append(line)
    return {"tool": "jedi", "version": jedi.__version__, "unresolved": unresolved}


def by_pyright(clone: Path, imports: list[str], program: str) -> dict[str, Any]:
    done = subprocess.run([program, "--outputjson", "every_import.py"], cwd=clone, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    lines = {each["range"]["start"]["line"] for each in answer["generalDiagnostics"] if each.get("rule") in UNRESOLVED}
    if answer["summary"]["filesAnalyzed"] != 1:
        raise SystemExit(f"pyright read {answer['summary']['filesAnalyzed']} files: {done.stderr}")
    return {"tool": "pyright", "version": answer["version"], "unresolved": [imports[line] for line in sorted(lines)]}


if __name__ == "__main__":
    main()
