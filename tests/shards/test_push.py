"""Data sets to and from a Hugging Face hub, against a false one of this machine."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from gristmill.shards.export.push import groups, hashes_of
from tests.shards.false_hub import Hub, environment, false_hub

pytestmark = pytest.mark.run

pytest.importorskip("huggingface_hub")
ROOT = Path(__file__).parents[2]
BYTES_OF_TEST = 5000


@pytest.fixture
def hub() -> Iterator[Hub]:
    with false_hub() as hub:
        yield hub


def gristmill(hub: Hub, home: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    known = environment(hub.address) | {"HF_HOME": str(home), "PYTHONPATH": str(ROOT)} | more
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", *map(str, words)]
    return subprocess.run(command, env=os.environ | known, capture_output=True, text=True, check=False)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """On one line."""
    assert "Traceback" not in done.stderr, done.stderr
    return " ".join((done.stdout + done.stderr).split())


def filled(folder: Path) -> Path:
    chance = random.Random(0)
    for name, size in (("data/a.parquet", 5000), ("data/b.parquet", 6000), ("small.txt", 20), (".hidden", 9)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(chance.randbytes(size))
    (folder / "README.md").write_text("---\nlicense: odc-by\n---\n# A card\n")
    return folder


def test_a_folder_is_pushed_once_and_what_changed_again(tmp_path: Path, hub: Hub) -> None:
    folder = filled(tmp_path / "out")
    first = gristmill(hub, tmp_path / "home", "export", folder, "me/corpus", "--to", "hub")
    assert first.returncode == 0 and "4 files, 0.0 MB; 4 were sent in 1 commits, 0 were there" in said(first), said(
        first
    )
    there = hub.sets["me/corpus"]["main"]
    assert there == {
        name: (folder / name).read_bytes() for name in ("README.md", "data/a.parquet", "data/b.parquet", "small.txt")
    }
    assert hub.private["me/corpus"] and len(hub.objects) == 2
    (folder / "data/b.parquet").write_bytes(b"x" * 7000)
    again = gristmill(hub, tmp_path / "home", "export", folder, "me/corpus", "--to", "hub")
    assert "1 were sent in 1 commits, 3 were there" in said(again) and hub.commits[1:] == [["data/b.parquet"]]
    assert there["data/b.parquet"] == b"x" * 7000


def test_a_hub_that_refuses_is_told_in_one_line(tmp_path: Path, hub: Hub) -> None:
    folder = filled(tmp_path / "out")
    refused = gristmill(hub, tmp_path / "home", "export", folder, "me/corpus", "--to", "hub", HF_TOKEN="hf_wrong")
    assert refused.returncode == 1 and "me/corpus: the hub refuses it: " in said(refused) and not hub.sets
    wrong = gristmill(hub, tmp_path / "home", "export", folder, "a/b/c/d", "--to", "hub")
    assert wrong.returncode == 1 and "a/b/c/d: " in said(wrong)
    hub.refuse = [("/commit/", 400)]
    cut = gristmill(hub, tmp_path / "home", "export", folder, "me/corpus", "--to", "hub", "--revision", "try")
    assert cut.returncode == 1 and not hub.commits
    assert (
        gristmill(hub, tmp_path / "home", "export", folder, "me/corpus", "--to", "hub", "--revision", "try").returncode
        == 0
    )
    assert len(hub.sets["me/corpus"]["try"]) == 4 and not hub.sets["me/corpus"]["main"]


def test_files_go_in_groups_and_the_card_last() -> None:
    ours = {name: hashes_of(b"x" * size) for name, size in (("README.md", 1), ("a", 2), ("b", 3))}
    assert list(groups(ours, ours)) == [["a", "b", "README.md"]]
    many = {f"{number:03d}": hashes_of(b"") for number in range(150)} | {"README.md": hashes_of(b"")}
    assert [len(group) for group in groups(many, many)] == [100, 51] and list(groups(many, many))[-1][-1] == "README.md"


def test_a_run_reads_from_a_hub_and_is_pushed_to_one(tmp_path: Path, hub: Hub) -> None:
    lines = [f'{{"text": "document {number} of a hub, which is none", "id": "{number}"}}\n' for number in range(200)]
    hub.add("them/pages", {"data/a.jsonl": "".join(lines[:120]).encode(), "data/b.jsonl": "".join(lines[120:]).encode(), "README.md": b"# Pages\n"})  # fmt: skip
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: from-a-hub\nsources:\n  pages: {jsonl: {path: 'hf://datasets/them/pages/data'}}\nstages: [exact_dedup, write]\n"
    )
    done = gristmill(hub, tmp_path / "home", "run", recipe, "--out", tmp_path / "out", "--workers", "1")
    assert done.returncode == 0, said(done)
    before = len(hub.log)
    again = gristmill(hub, tmp_path / "home", "run", recipe, "--out", tmp_path / "out", "--workers", "1")
    assert again.returncode == 0 and not [line for line in hub.log[before:] if "resolve" in line]  # known by its hash
    pushed = gristmill(hub, tmp_path / "home", "export", tmp_path / "out", "me/kept", "--to", "hub", "--public")
    assert pushed.returncode == 0, said(pushed)
    there = hub.sets["me/kept"]["main"]
    assert sorted(path.partition("/")[0] for path in there) == ["README.md", *["write"] * (len(there) - 1)]
    front = yaml.safe_load(there["README.md"].decode().split("---")[1])
    assert front["configs"][0]["data_files"] == [{"split": "train", "path": "write/*.parquet"}]
    assert b"200" in there["README.md"] and not hub.private["me/kept"]
    (tmp_path / "back").mkdir()
    for path, data in there.items():
        if path.endswith(".parquet"):
            (tmp_path / "back" / Path(path).name).write_bytes(data)
    assert sorted(pq.read_table(tmp_path / "back").column("id").to_pylist(), key=int) == [str(n) for n in range(200)]
