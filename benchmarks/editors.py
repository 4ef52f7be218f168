"""How many of our imports editors resolve in a fresh clone: pyright (VS Code's Pylance, Neovim, Helix, Zed) and jedi.

    npm install pyright && pip install jedi
    python -m benchmarks.editors [--pyright node_modules/.bin/pyright]

Clones the committed state of this checkout into a temporary folder and runs nothing there. pyright reads the whole clone;
jedi goes to the definition of each name that some file imports from us. Prints one JSON line for each, with what is
unresolved.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = ("gristmill", "benchmarks", "tests")
UNRESOLVED = ("reportMissingImports", "reportMissingModuleSource", "reportAttributeAccessIssue")


def by_pyright(program: str, clone: Path) -> dict[str, Any]:
    done = subprocess.run([program, "--outputjson", "-p", str(clone)], capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    unresolved = [
        f"{Path(each['file']).relative_to(clone)}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in answer["generalDiagnostics"]
        if each.get("rule") in UNRESOLVED and "import" in each["message"].lower()
        if any(f'"{name}' in each["message"] for name in OURS)
    ]
    return {"version": answer["version"], "files": answer["summary"]["filesAnalyzed"], "unresolved": unresolved}


def by_jedi(clone: Path) -> dict[str, Any]:
    import jedi

    project = jedi.Project(clone)
    statements = {statement: path for path in sorted(clone.rglob("*.py")) for statement in statements_of(path)}
    unresolved = []
    for statement, path in sorted(statements.items()):
        code = f"{statement}\n"
        found = jedi.Script(code, path=path.with_name("_new.py"), project=project).goto(
            1, len(statement) - 1, follow_imports=True
        )
        if not any(name.module_path and name.module_path.is_relative_to(clone) for name in found):
            unresolved.append(f"{path.relative_to(clone)}: {statement}")
    return {"version": jedi.__version__, "statements": len(statements), "unresolved": unresolved}


def statements_of(path: Path) -> Iterator[str]:
    """The imports of ours in a file, one name each."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in OURS)
        elif isinstance(node, ast.ImportFrom) and not node.level and str(node.module).split(".")[0] in OURS:
            yield from (f"from {node.module} import {alias.name}" for alias in node.names)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pyright", default="pyright", help="the program; '' leaves it out")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name).resolve() / "gristmill"
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        runs = {"jedi": lambda: by_jedi(clone)}
        if asked.pyright:
            runs["pyright"] = lambda: by_pyright(asked.pyright, clone)
        for tool, run in runs.items():
            begun = time.process_time()
            facts = {"what": "imports of ours in a fresh clone", "tool": tool, **run()}
            seconds = round(time.process_time() - begun, 1)
            print(json.dumps({**facts, "count": len(facts["unresolved"]), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
