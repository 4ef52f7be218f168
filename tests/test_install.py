"""Installed as a wheel or as an editable install, gristmill has one name, and works beside packages of others that are
named as its folders are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_house import FLOORS, ROOT

pytestmark = pytest.mark.run

ROOMS = [floor for floor in FLOORS if floor != "gristmill"]
TEXTS = ["The first text stays as it is.", "The second text stays as well.", "The first text stays as it is."]
RECIPE = """\
name: small
sources:
  texts:
    jsonl: {path: in}
stages:
  - exact_dedup
  - write
"""
PYTHON = """
import gristmill, pyarrow as pa
summary = gristmill.run("recipe.yaml", "out")
[dedup] = [stage for stage in summary.record["stages"] if stage["name"] == "exact_dedup"]
print(dedup["kept"], gristmill.stages.ExactDedup()(pa.table({"text": ["a", "a", "b"]})).num_rows, gristmill.__file__)
"""


def call(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_checkout(folder: Path) -> Path:
    """A build writes into the folder that it builds."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for name in (*FLOORS, "recipes"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def build_wheel(source: Path, folder: Path) -> Path:
    call(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"),
        *("-w", folder, source),
        cwd=folder,
    )
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


def test_a_checkout_that_lost_its_links_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """pip unpacks a .zip of the repository with small text files in the place of links, and so does Git on Windows."""
    for name in ("source", "wheel"):
        (tmp_path / name).mkdir()
    source = copy_checkout(tmp_path / "source")
    links = [path for path in (source / "gristmill").iterdir() if path.is_symlink()]
    assert len(links) == len(FLOORS)
    for link in links:
        target = str(link.readlink())
        link.unlink()
        link.write_text(target)
    again = build_wheel(source, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {(each.filename, each.CRC) for each in one.infolist()} == {
            (each.filename, each.CRC) for each in other.infolist()
        }


def test_the_wheel_has_one_name_and_all_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        listed = [archive.read(name) for name in archive.namelist() if name.endswith("/top_level.txt")]
    assert {name.split("/")[0] for name in packed} == {"gristmill"} and listed == [b"gristmill\n"]
    kept = {
        ("" if floor == "gristmill" else "gristmill/") + path.relative_to(ROOT).as_posix()
        for floor in (*FLOORS, "recipes")
        for path in (ROOT / floor).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == kept
    assert {Path(name).suffix for name in packed} >= {".py", ".html", ".css", ".js", ".npz", ".typed"}


def environment(folder: Path) -> Path:
    """A virtual environment that sees the packages of this one, without the gristmill that is installed here: site does
    not read the `.pth` files of folders that a `.pth` file names."""
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    assert others
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in others))
    (packages / "kernels").mkdir()  # a package of this name is on PyPI
    (packages / "kernels" / "__init__.py").write_text('__version__ = "0.9.0"\n')
    return folder / "bin"


def folder_of_another_project(folder: Path) -> Path:
    """It has packages of the names of our folders, and they must not be imported."""
    for room in ROOMS:
        (folder / room).mkdir(parents=True)
        (folder / room / "__init__.py").write_text(f"raise ImportError('the other {room} was imported')\n")
    (folder / "in").mkdir()
    (folder / "in" / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_it_runs_beside_packages_named_like_its_folders(kind: str, source: Path, wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "venv")
    call(
        *(sys.executable, "-m", "pip", "--python", programs / "python", "install", "-q"),
        *("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"),
        *([wheel] if kind == "wheel" else ["-e", source]),
        cwd=tmp_path,
    )
    here = folder_of_another_project(tmp_path / "project")
    assert call(programs / "gristmill", "--version", cwd=here) == f"gristmill {version('gristmill')}\n"
    call(programs / "gristmill", "run", "recipe.yaml", "--out", "out", "--workers", "1", cwd=here)
    tables = [pq.read_table(path) for path in (here / "out" / "write").glob("*.parquet")]
    assert sorted(text for table in tables for text in table["text"].to_pylist()) == sorted(set(TEXTS))
    if kind == "wheel":
        said = call(programs / "gristmill", "demo", "--workers", "1", cwd=here)
        assert "not so" not in said and (here / "demo" / "run" / "report.html").is_file()
    call(programs / "gristmill", "init", "in", "--recipe", "mine.yaml", cwd=here)
    call(programs / "gristmill", "run", "mine.yaml", "--out", "mine", "--workers", "1", cwd=here)
    assert (here / "mine" / "report.html").is_file()
    call(programs / "gristmill", "init", "in", "--like", "fineweb", "--recipe", "like.yaml", cwd=here)
    assert "name: fineweb\n" in (here / "like.yaml").read_text()
    kept, alone, place = call(programs / "python", "-c", PYTHON, cwd=here).split()[-3:]
    assert (kept, alone) == ("2", "2")
    assert Path(place).is_relative_to(tmp_path / "venv" if kind == "wheel" else source)
    assert call(programs / "python", "-c", "import kernels; print(kernels.__version__)", cwd=tmp_path) == "0.9.0\n"
