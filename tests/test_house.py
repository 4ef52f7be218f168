"""The house rules that a machine can hold: floors, circles, first lines, size of files, and our name beside others'."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("kernels", "mixing", "shards", "trainer", "classifiers", "stages", "pipeline")  # from the ground up
LONGEST = 450


def modules(root: Path) -> dict[str, Path]:
    """Our files by dotted name; a package goes by its folder's."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for floor in FLOORS
        for path in sorted((root / floor).rglob("*.py"))
    }


def imports(name: str, files: dict[str, Path]) -> set[str]:
    """The modules of ours that a module imports, wherever in it the import stands."""
    path = files[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    wanted: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            wanted |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base for alias in node.names}
    found = set()
    for target in wanted:
        while target and target not in files:  # a name inside a module, or a module not written yet
            target = target.rpartition(".")[0]
        found.add(target)
    return found - {"", name}


def broken(root: Path) -> list[str]:
    """Imports that go up a floor, and circles between files."""
    files = modules(root)
    edges = {name: imports(name, files) for name in files}
    out = []
    for name, targets in edges.items():
        here = FLOORS.index(name.split(".")[0])
        out += [f"{name} imports {t}, a floor above" for t in sorted(targets) if FLOORS.index(t.split(".")[0]) > here]
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            out.append("circle: " + " -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for target in sorted(edges[name]):
                # A package and its own modules may know each other: the package's first line is what they share.
                if not (name.startswith(target + ".") or target.startswith(name + ".")):
                    visit(target, [*path, name])
            done.add(name)

    for name in files:
        visit(name, [])
    return out


def test_imports_go_down_and_never_in_circles() -> None:
    assert len(modules(ROOT)) >= 4
    assert broken(ROOT) == []


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"stages/a.py": "import pipeline.b", "pipeline/b.py": ""}, ["stages.a imports pipeline.b, a floor above"]),
        (
            {"kernels/a.py": "def f():\n    from stages import b", "stages/b.py": ""},
            ["kernels.a imports stages.b, a floor above"],
        ),
        (
            {"stages/a.py": "from .b import x", "stages/b.py": "from stages import a"},
            ["circle: stages.a -> stages.b -> stages.a"],
        ),
        (
            {
                "pipeline/a.py": "from stages.b import x\nimport json",
                "stages/b.py": "from kernels import c",
                "kernels/c.py": "",
            },
            [],
        ),
    ],
)
def test_a_broken_house_is_seen(files: dict[str, str], wrong: list[str], tmp_path: Path) -> None:
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(source)
    assert broken(tmp_path) == wrong


def test_every_module_says_what_it_is_for() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules(ROOT).items()}
    assert len(sources) >= 4
    assert [
        name for name, source in sources.items() if source.count("\n") > 5 and not ast.get_docstring(ast.parse(source))
    ] == []


def test_every_file_is_read_in_one_sitting() -> None:
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in modules(ROOT).items()}
    assert len(lines) >= 4
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_no_law_is_an_assert() -> None:
    """`python -O` leaves asserts out, and their failure says nothing to who reads it."""
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules(ROOT).items()}
    assert len(trees) >= 4
    assert [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ] == []


def test_transformers_does_not_take_our_kernels_for_its_own() -> None:
    """It looks for a package named `kernels` and compares versions; ours must stay outside what it accepts."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    if not (ROOT / "kernels" / "__init__.py").exists():
        pytest.skip("there is no kernels/ yet")
    code = "import kernels, transformers.utils as u; print(kernels.__file__); print(u.is_kernels_available())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    where, available = done.stdout.split()[-2:]
    assert Path(where).is_relative_to(ROOT)
    assert available == "False"
