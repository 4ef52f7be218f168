"""What README and docs name is there: modules, files, rooms; and house words are few."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_house import FLOORS, ROOT, modules, room_of

LOG = "docs/log.md"  # a log keeps the names of its day
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)
MODULES = modules(ROOT)
FOLDERS = "|".join([*FLOORS[:-1], "benchmarks", "recipes", "docs", "tests"])


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def names_in(module: str) -> set[str]:
    """The names at the top level of one of our modules, and the modules in it when it is a package."""
    names = {other.removeprefix(f"{module}.").split(".")[0] for other in MODULES if other.startswith(f"{module}.")}
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Dict):  # names that are imported when they are first used
            names |= {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return names


def is_there(dotted: str) -> bool:
    """A dotted name of ours: a module, or a name at the top of one (what follows it is not looked at)."""
    module = dotted
    while module not in MODULES:
        module = module.rpartition(".")[0]
    rest = dotted.removeprefix(module).lstrip(".")
    return not rest or rest.split(".")[0] in names_in(module)


def test_pages_are_found() -> None:
    assert len(PAGES) > 25 and LOG in PAGES and len(MODULES) > 300


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "tests/fixtures/README.md"])
def test_lines_of_prose_are_short(page: str) -> None:
    prose = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.split("\n") if not line.startswith(("|", "    ")) and "://" not in line]
    assert lines and [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES)
def test_code_imports_what_is_there(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL)
    for node in (node for code in blocks if "..." not in code for node in ast.walk(ast.parse(code))):
        if isinstance(node, ast.ImportFrom):
            assert node.module not in FLOORS[:-1] and str(node.module).split(".")[0] not in FLOORS[:-1]
            if str(node.module).startswith("gristmill"):
                assert all(is_there(f"{node.module}.{alias.name}") for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & set(FLOORS[:-1])


@pytest.mark.parametrize("page", [page for page in PAGES if page != LOG])
def test_names_and_files_are_there(page: str) -> None:
    text = read(page)
    dotted = set(re.findall(r"(?<![\w/])gristmill(?:\.[A-Za-z_]\w*)+", text))
    assert [name for name in sorted(dotted) if not is_there(name)] == []
    files = set(re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w/.-]+\.(?:py|md|yaml|npz|html|js|css)\b", text))
    files -= {"shards/README.md"}  # the card of a run
    assert [name for name in sorted(files) if not (ROOT / name).is_file()] == []
    programs = set(re.findall(r"-m (benchmarks(?:\.\w+)+)", text)) - {"benchmarks.ROOM.NAME"}
    paths = {name: Path(ROOT, *name.split(".")) for name in sorted(programs)}
    files = [path / "__main__.py" if path.is_dir() else path.with_suffix(".py") for path in paths.values()]
    assert [file for file in files if not file.is_file()] == []
    links = set(re.findall(r"\]\((?!https?:)([\w/.-]+\.\w+)\)", text))
    links = {name for name in links if not re.match(r"(?:\.\./)*reference/", name)}  # made as the book is built
    assert [name for name in sorted(links) if not (ROOT / page).parent.joinpath(name).is_file()] == []


def test_the_design_lists_every_room_once_and_in_order() -> None:
    listed = re.findall(r"^\| `((?:\w+)/(?:\w+)?)` \|", read("docs/design.md").split("### Rooms")[1], re.MULTILINE)
    rooms = {room_of(name, path) for name, path in MODULES.items() if name != "gristmill"}
    doors = {f"gristmill.{floor}" for floor in FLOORS if not [*(ROOT / floor).glob("[!_]*.py")]}
    expected = {room.removeprefix("gristmill.") for room in rooms - doors}
    assert sorted(name.replace("/", ".").rstrip(".") for name in listed) == sorted(expected)
    assert [listed.index(name) for name in listed] == list(range(len(listed)))


def test_house_words_are_few() -> None:
    of_code = read("CONTRIBUTING.md").split("## Words of the code")[1]
    places = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| (`[^|]+) \|$", of_code, re.MULTILINE))
    words = [*re.findall(r"^\| ([^|]+) \| [^|]+ \|$", read("docs/words.md"), re.MULTILINE)[2:], *places]
    assert 5 < len(places) < 20 < len(words) <= 40 and len(set(words)) == len(words)
    paths = re.findall(r"`([^`]+)`", " ".join(places.values()))
    assert len(paths) >= len(places) and [path for path in paths if not (ROOT / path).exists()] == []
