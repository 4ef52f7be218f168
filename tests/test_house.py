"""The house rules that a machine can hold: floors, circles, first lines, and our name beside others'."""

from __future__ import annotations

import ast
import importlib.util
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = (
    "kernels",
    "mixing",
    "shards",
    "trainer",
    "classifiers",
    "stages",
    "pipeline",
    "gristmill",
)  # from the ground up


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a module's syntax tree, the module first."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    yield
    nodes_of.cache_clear()


def has_docstring(path: Path) -> bool:
    module = nodes_of(path)[0]
    return isinstance(module, ast.Module) and bool(ast.get_docstring(module))


def modules(root: Path) -> dict[str, Path]:
    """Our files by the name they are imported under; a package goes by its folder's."""
    return {
        import_name(path.relative_to(root)): path for floor in FLOORS for path in sorted((root / floor).rglob("*.py"))
    }


def import_name(path: Path) -> str:
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return name if name == "gristmill" else f"gristmill.{name}"


def floor_of(name: str) -> int:
    return FLOORS.index("gristmill" if name == "gristmill" else name.split(".")[1])


def room_of(name: str, path: Path) -> str:
    """The folder that a module lies in; the `__init__` of a floor is a door to it and belongs to no room."""
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def imports(name: str, files: dict[str, Path]) -> set[str]:
    """The modules of ours that a module imports, wherever in it the import stands."""
    path = files[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    wanted: set[str] = set()
    for node in nodes_of(path):
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
        out += [f"{name} imports {t}, a floor above" for t in sorted(targets) if floor_of(t) > floor_of(name)]
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
        (
            {"stages/a.py": "import gristmill.pipeline.b", "pipeline/b.py": ""},
            ["gristmill.stages.a imports gristmill.pipeline.b, a floor above"],
        ),
        (
            {"kernels/a.py": "def f():\n    from gristmill.stages import b", "stages/b.py": ""},
            ["gristmill.kernels.a imports gristmill.stages.b, a floor above"],
        ),
        (
            {"stages/a.py": "from .b import x", "stages/b.py": "from gristmill.stages import a"},
            ["circle: gristmill.stages.a -> gristmill.stages.b -> gristmill.stages.a"],
        ),
        (
            {
                "pipeline/a.py": "from gristmill.stages.b import x\nimport json",
                "stages/b.py": "from gristmill.kernels import c",
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


def circles_of_rooms(root: Path) -> list[str]:
    """Rooms that import each other, however far around."""
    files = modules(root)
    rooms = {name: room_of(name, path) for name, path in files.items()}
    doors = {f"gristmill.{floor}" for floor in FLOORS}
    edges: dict[str, set[str]] = {}
    for name in files:
        if name not in doors:
            edges.setdefault(rooms[name], set()).update(
                rooms[target] for target in imports(name, files) - doors if rooms[target] != rooms[name]
            )
    out: list[str] = []
    done: set[str] = set()

    def visit(room: str, path: list[str]) -> None:
        if room in path:
            out.append(" -> ".join([*path[path.index(room) :], room]))
        elif room not in done:
            for target in sorted(edges.get(room, ())):
                visit(target, [*path, room])
            done.add(room)

    for room in sorted(edges):
        visit(room, [])
    return out


def test_rooms_of_a_floor_have_an_order() -> None:
    assert circles_of_rooms(ROOT) == []


def test_rooms_that_import_each_other_are_seen(tmp_path: Path) -> None:
    for path, source in {
        "stages/a/x.py": "from gristmill.stages.b import y",
        "stages/b/y.py": "",
        "stages/b/z.py": "from gristmill.stages.a import w",
        "stages/a/w.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).parent.joinpath("__init__.py").touch()
        (tmp_path / path).write_text(source)
    assert circles_of_rooms(tmp_path) == ["gristmill.stages.a -> gristmill.stages.b -> gristmill.stages.a"]


def test_every_room_says_what_it_is_for() -> None:
    doors = {path.parent: path.parent / "__init__.py" for path in modules(ROOT).values()}
    assert len(doors) > 40
    assert [str(room) for room, door in doors.items() if not has_docstring(door)] == []


def test_every_module_says_what_it_is_for() -> None:
    files = modules(ROOT)
    assert len(files) >= 4
    assert [
        name for name, path in files.items() if path.read_bytes().count(b"\n") > 5 and not has_docstring(path)
    ] == []


def test_comments_and_docstrings_fit_in_a_line() -> None:
    looked_at, long = 0, []
    for path in sorted(modules(ROOT).values()):
        source = path.read_text(encoding="utf-8")
        lines = source.split("\n")
        too_long = {number for number, line in enumerate(lines, 1) if len(line) > 120}
        looked_at += len(lines)
        if not too_long:
            continue
        prose = {
            token.start[0]
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        for node in nodes_of(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                prose |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        long += [f"{path}:{number}" for number in sorted(prose & too_long)]
    assert looked_at > 50_000 and long == []


def test_no_law_is_an_assert() -> None:
    """`python -O` leaves asserts out, and their failure says nothing to who reads it."""
    files = modules(ROOT)
    assert len(files) >= 4
    assert [
        f"{name}:{node.lineno}"
        for name, path in files.items()
        for node in nodes_of(path)
        if isinstance(node, ast.Assert)
    ] == []


def test_transformers_does_not_take_our_kernels_for_its_own() -> None:
    """It looks for a package named `kernels`; the folder of that name at the top of a checkout is none that it accepts."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    code = "import transformers.utils as u; print(u.is_kernels_available())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"


def test_kernels_are_all_in_kernels() -> None:
    """Packs of compiled code hold those of that floor alone."""
    elsewhere = [
        f"{name}.{node.name}"
        for name, path in modules(ROOT).items()
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and any("kernel" in ast.unparse(each) for each in node.decorator_list)
        if not name.startswith("gristmill.kernels.")
    ]
    assert elsewhere == []


def test_every_import_of_ours_is_a_file_below_the_root() -> None:
    """Editors and type checkers look there, in a clone on which nothing was run: they follow no `package_dir`."""
    links = {path.name: path.readlink() for path in (ROOT / "gristmill").iterdir() if path.is_symlink()}
    assert links == {name: Path("..", name) for name in (*FLOORS[:-1], "recipes")}
    sources = [path for folder in ("tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    wanted: dict[str, Path] = {}
    for path in (*modules(ROOT).values(), *sources):
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                wanted |= {alias.name: path for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                wanted[node.module] = path
    ours = {name: path for name, path in wanted.items() if name.split(".")[0] in ("gristmill", "tests", "benchmarks")}
    places = {name: ROOT.joinpath(*name.split(".")) for name in ours}
    assert len(ours) > 500
    assert [
        f"{ours[name]}: {name}"
        for name, place in places.items()
        if not (place.is_dir() or place.with_suffix(".py").is_file())
    ] == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest would take the second for the first."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 300 and sorted(names) == sorted(set(names))
