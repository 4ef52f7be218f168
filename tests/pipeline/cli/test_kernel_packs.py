"""Kernels that came compiled with the package; a pack of them with anything else in it is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import llvmlite.binding
import pytest
import zstandard

from gristmill.kernels.base import portable

pytestmark = pytest.mark.run

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("kernels", "mixing", "shards", "trainer", "classifiers", "stages", "pipeline")
# how many functions of ours a process compiles for a stage, and where the stage is installed
PREPARE = """
import sys
from pathlib import Path
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, happening): compiled.append(happening.data["dispatcher"].py_func.__module__)
    def on_end(self, happening): pass
event.register("numba:compile", Listener())
from gristmill import stages
from gristmill.pipeline.cli.maintain_warm import packed
stages.Boilerplate().prepare()
Path(sys.argv[1]).write_bytes(packed())
print(len([name for name in compiled if name.startswith("gristmill")]))
"""

# The same by kernels that came with the package, then by those that take over: functions compiled before and after, the
# kernels that the package's gave way to, and whether answers are equal.
BROUGHT = """
import json, sys
from pathlib import Path
from numba.core import event
from gristmill.kernels.base import portable
portable.FOLDER = Path(sys.argv[1])
compiled = []
class Listener(event.Listener):
    def on_start(self, happening): compiled.append(happening.data["dispatcher"].py_func.__module__)
    def on_end(self, happening): pass
event.register("numba:compile", Listener())
import pyarrow as pa
from gristmill import stages
from gristmill.kernels.base import compiler
stage = stages.Boilerplate()
texts = pa.record_batch({"text": pa.array(["A line of text.\\nRead more\\nAnother line.", "Share (3)\\n"])})
def answer():
    return stage.rewrite(texts).batch.to_pylist()
first = answer()
before = len([name for name in compiled if name.startswith("gristmill")])
left = [compiler.take_over()]
compiler.compile_for_this_processor()
after = len([name for name in compiled if name.startswith("gristmill")])
left.append(compiler.take_over())
print(json.dumps([before, after, left, answer() == first, len(first)]))
"""


def test_another_install_finds_what_was_compiled(tmp_path: Path) -> None:
    for name in FLOORS:
        shutil.copytree(ROOT / name, tmp_path / "moved/gristmill" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "gristmill/__init__.py", tmp_path / "moved/gristmill")
    environ = os.environ | {"GRISTMILL_CACHE": str(tmp_path / "cache"), "GRISTMILL_PORTABLE": "0"}
    program = f"{PREPARE}\nprint(stages.__file__)"
    found = []
    for more in ({}, {"PYTHONPATH": str(tmp_path / "moved")}):
        command = [sys.executable, "-c", program, str(tmp_path / "pack")]
        found += subprocess.run(
            command, env=environ | more, stdout=subprocess.PIPE, text=True, check=True, cwd=tmp_path
        ).stdout.split()
    assert int(found[0]) > 5 and found[2:] == ["0", str(tmp_path / "moved/gristmill/stages/__init__.py")]
    assert found[1] != found[3]


def test_kernels_that_came_with_the_package_serve_until_there_are_some_for_this_processor(tmp_path: Path) -> None:
    brought = tmp_path / "compiled"
    brought.mkdir()
    pack = brought / portable.file().name
    environ = {"GRISTMILL_CACHE": str(tmp_path / "first"), "GRISTMILL_PORTABLE": "0", **portable.ENVIRONMENT}
    command = [sys.executable, "-c", PREPARE, str(pack)]
    count = int(subprocess.run(command, env=os.environ | environ, stdout=subprocess.PIPE, check=True).stdout)
    assert count > 5

    def with_package(cache: str, **environ: str) -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-c", BROUGHT, str(brought)], capture_output=True, text=True, check=True,
            env={**os.environ, "GRISTMILL_CACHE": str(tmp_path / cache), **environ}, cwd=tmp_path,
        )  # fmt: skip
        facts: list[Any] = json.loads(done.stdout)
        return facts

    assert with_package("second") == [0, count, [1, 0], True, 2]
    assert with_package("second") == [0, 0, [0, 0], True, 2]  # what was compiled is found, and served first
    assert with_package("third", GRISTMILL_PORTABLE="0") == [count, count, [0, 0], True, 2]
    pack.rename(brought / "cpython-399-numba-9.tar.zst")  # for another Python
    assert with_package("fourth") == [count, count, [0, 0], True, 2]


def test_a_kernel_that_two_processes_need_is_compiled_by_one(tmp_path: Path) -> None:
    environ = {**os.environ, "GRISTMILL_CACHE": str(tmp_path / "cache"), "GRISTMILL_PORTABLE": "0"}
    both = [
        subprocess.Popen([sys.executable, "-c", PREPARE, str(tmp_path / name)], env=environ, stdout=subprocess.PIPE)
        for name in "ab"
    ]
    counts = sorted(int(process.communicate()[0]) for process in both)
    assert counts[0] <= 1 and counts[1] > 5  # to wait for the other counts as compiling, where it came to that
    assert len(list((tmp_path / "cache").rglob("*.nbc"))) == 1


def test_portable_kernels_are_for_processors_that_run_them(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "FOLDER", cache.parent)
    portable.file().write_bytes(pack_of(GOOD)[0])
    for missing, serve in ((1, False), (0, True)):
        there = dict.fromkeys(portable.FEATURES[missing:], True)
        monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda there=there: there)
        portable.serve.cache_clear()
        assert portable.serve() is serve and bool(list(cache.rglob("*.nbc"))) is serve
    portable.serve.cache_clear()


def pack_of(*names: str) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    content = zstandard.compress(buffer.getvalue())
    return content, hashlib.sha256(content).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(portable, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


GOOD = f"kernels-{'0' * 16}/lines.cut-12.0123456789abcdef.nbc"


def test_a_pack_is_unpacked_once(cache: Path) -> None:
    content, sha256 = pack_of(GOOD, "table-x.npy")
    assert portable.unpack(content, sha256) == portable.unpack(content, sha256) == 1
    assert [path.relative_to(cache).as_posix() for path in cache.rglob("*.nb*")] == [f"packs/{sha256[:16]}/{GOOD}"]
    assert [path.name for path in cache.rglob("*.npy")] == ["table-x.npy"] and (cache / "table-x.npy").is_file()


@pytest.mark.parametrize("name", ["../out.nbc", "/tmp/out.nbc", "kernels-0/x.nbc", f"kernels-{'0' * 16}/x.py"])
def test_a_pack_with_anything_else_in_it_is_refused(cache: Path, name: str) -> None:
    with pytest.raises(ValueError, match="holds something else"):
        portable.unpack(*pack_of(GOOD, name))
    assert [path for path in cache.parent.rglob("*") if path.is_file()] == []
