"""A process that is given a pack of compiled kernels compiles nothing; a pack that is not the announced one is refused."""

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
from gristmill.pipeline.cli import kernel_packs
from gristmill.pipeline.errors import RunFailed

pytestmark = pytest.mark.run

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("kernels", "mixing", "shards", "trainer", "classifiers", "stages", "pipeline")
# how many functions of ours a process compiles for a stage, and where the stage is installed
PREPARE = """
import hashlib, json, sys
from pathlib import Path
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, happening): compiled.append(happening.data["dispatcher"].py_func.__module__)
    def on_end(self, happening): pass
event.register("numba:compile", Listener())
from gristmill import stages
from gristmill.pipeline.cli import kernel_packs
if len(sys.argv) > 2:
    kernel_packs.unpack(Path(sys.argv[1]).read_bytes(), sys.argv[2])
stages.Boilerplate().prepare()
content = kernel_packs.packed()
if len(sys.argv) == 2:
    Path(sys.argv[1]).write_bytes(content)
print(json.dumps([len([name for name in compiled if name.startswith("gristmill")]), stages.__file__,
                  hashlib.sha256(content).hexdigest(), kernel_packs.kind()]))
"""

# the same by kernels that came with the package
BROUGHT = """
import sys
from pathlib import Path
from gristmill.kernels.base import portable
portable.FOLDER = Path(sys.argv.pop())
content = portable.choose()
print(bool(content), file=sys.stderr)
if content:
    sys.argv += [str(portable.file()), __import__("hashlib").sha256(content).hexdigest()]
else:
    sys.argv.append("own.tar.zst")
"""


def prepared(cache: Path, *args: str, **environ: str) -> list[Any]:
    """What a process says that has this cache: functions compiled, where it is installed, sha256 of its pack, kind."""
    command = [sys.executable, "-c", PREPARE, *args]
    environ = {**os.environ, "GRISTMILL_CACHE": str(cache), **environ}
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, cwd=cache.parent)
    said: list[Any] = json.loads(answer.stdout)
    return said


def test_a_pack_of_another_install_leaves_nothing_to_compile(tmp_path: Path) -> None:
    pack = tmp_path / "pack.tar.zst"
    compiled_first, home, sha256, kind = prepared(tmp_path / "first", str(pack))
    assert compiled_first > 5 and pack.stat().st_size > 10_000
    for name in FLOORS:
        shutil.copytree(ROOT / name, tmp_path / "moved/gristmill" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "gristmill/__init__.py", tmp_path / "moved/gristmill")
    again = prepared(tmp_path / "second", str(pack), sha256, PYTHONPATH=str(tmp_path / "moved"))
    assert again[:2] == [0, str(tmp_path / "moved/gristmill/stages/__init__.py")] and again[3] == kind
    assert again[1] != home
    assert prepared(tmp_path / "third", NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")[3] != kind


def test_kernels_that_came_with_the_package_leave_nothing_to_compile(tmp_path: Path) -> None:
    brought = tmp_path / "compiled"
    brought.mkdir()
    pack = brought / portable.file().name
    first, _, _, kind = prepared(tmp_path / "first", str(pack), **portable.ENVIRONMENT)
    assert first > 5

    def with_package(cache: str, **environ: str) -> tuple[Any, str]:
        done = subprocess.run(
            [sys.executable, "-c", BROUGHT + PREPARE, str(brought)], capture_output=True, text=True, check=True,
            env={**os.environ, "GRISTMILL_CACHE": str(tmp_path / cache), **environ}, cwd=tmp_path,
        )  # fmt: skip
        return json.loads(done.stdout), done.stderr.split()[-1]

    (count, _, _, found), chosen = with_package("second")
    assert (count, found, chosen) == (0, kind, "True")
    pack.rename(brought / "cpython-399-numba-9.tar.zst")  # for another Python
    (count, _, _, found), chosen = with_package("third")
    assert (count, chosen) == (first, "False") and found != kind


def test_portable_kernels_are_for_processors_that_run_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(portable, "FOLDER", tmp_path)
    portable.file().write_bytes(b"kernels")
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: dict.fromkeys(portable.FEATURES[1:], True))
    assert portable.choose() is None and not os.environ
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: dict.fromkeys(portable.FEATURES, True))
    assert portable.choose() == b"kernels" and os.environ == portable.ENVIRONMENT


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
    monkeypatch.setattr(kernel_packs, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


GOOD = f"kernels-{'0' * 16}/lines.cut-12.py311.nbi"


def test_a_pack_is_used_whole_and_only_if_it_is_the_announced_one(cache: Path) -> None:
    content, sha256 = pack_of(GOOD, "table-x.npy")
    with pytest.raises(RunFailed, match="not the one that was announced"):
        kernel_packs.unpack(content + b" ", sha256)
    assert list(cache.rglob("*.nb*")) == []
    assert kernel_packs.unpack(content, sha256) == kernel_packs.unpack(content, sha256) == 1
    assert [path.relative_to(cache).as_posix() for path in cache.rglob("*.nb*")] == [f"packs/{sha256[:16]}/{GOOD}"]
    assert [path.name for path in cache.rglob("*.npy")] == ["table-x.npy"] and (cache / "table-x.npy").is_file()


@pytest.mark.parametrize("name", ["../out.nbi", "/tmp/out.nbi", "kernels-0/x.nbi", f"kernels-{'0' * 16}/x.py"])
def test_a_pack_with_anything_else_in_it_is_refused(cache: Path, name: str) -> None:
    with pytest.raises(RunFailed, match="holds something else"):
        kernel_packs.unpack(*pack_of(GOOD, name))
    assert [path for path in cache.parent.rglob("*") if path.is_file()] == []
