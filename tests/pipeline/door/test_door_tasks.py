"""The table of docs/python.md, task to call: calls that cost little are run, the others held against what they call;
each command is in it, or named as one for the shell."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import gristmill
from gristmill.pipeline.cli.app import COMMANDS
from gristmill.pipeline.door.views import View
from tests.docs.test_code_in_docs import calls_checked
from tests.pipeline.engine.here import work_here

ROOT = Path(__file__).parents[3]
# Of calls that are not run: what they want is not here.
ELSEWHERE = (
    "slurm.yaml", "OWNER/NAME", "judges/small", "labels.yaml", "medu.yaml", "train.yaml", "candidates",
)  # fmt: skip


def table() -> list[tuple[str, str, str]]:
    """Task, command and call."""
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    section = page.partition("## Every task as a call")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.+?) \| (?:`(.+?)`)? ?\| `(.+)` \|$", section, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        patch.chdir(place)
        yield place


def test_every_command_is_a_call_or_one_for_the_shell() -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    shell = re.findall(r"`(\w+)`", page.partition("stays in the shell (")[2].partition(")")[0])
    called = {command for _, command, _ in table()}
    assert {name for name in COMMANDS if name not in called} == {name for name in COMMANDS if name.split()[0] in shell}


def test_calls_do_what_the_table_says(folder: Path) -> None:
    rows = table()
    assert len(rows) > 30
    known: dict[str, Any] = {"gristmill": gristmill}
    shown = ran = 0
    for _, _, call in rows:
        if "gristmill.open_run" in call:
            shutil.copytree("out/mine", "out/other")
        if call.startswith("judge ="):
            write_judge_plan(known["run"])
        for made_up, real in (
            ("https://example.org/page", known.get("url", "")),
            ("a passage of a document", known.get("passage", "")),
        ):
            call = call.replace(made_up, real)
        if any(word in call for word in ELSEWHERE):
            assert calls_checked(
                f"import gristmill\nrun = gristmill.open_run('')\njudge = gristmill.open_judge('')\n{call}"
            )
            continue
        name, _, value = call.rpartition(" = ")
        found = known[name or "_"] = eval(value if name else call, known)
        ran += 1
        if isinstance(found, View):
            shown += 1
            assert len(repr(found)) > 20 and "<script" not in found._repr_html_()
        if call.startswith("gristmill.demo_crawl"):
            recipe = yaml.safe_load((folder / "crawl/demo.yaml").read_text())
            recipe |= {"name": "mine", "prices": {"core_hour": 0.01}}
            recipe["sources"]["crawl"]["warc"]["path"] = "crawl/*.warc.gz"
            (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
        if name == "run":
            kept = next(found.kept(columns=["url", "text"]))
            known |= {"url": kept["url"], "passage": " ".join(kept["text"].split()[:12]).replace('"', "")}
    assert ran >= 20 and shown >= 12
    assert (folder / "out/mine/report.html").is_file() and (folder / "out/other/compare.html").is_file()
    assert list((folder / "meg").iterdir()) and pq.read_table("scores.parquet").num_rows == 40
    assert known["run"].record["status"] == "done" and (folder / "out/mine/summary/eu.html").is_file()


def write_judge_plan(run: gristmill.Run) -> None:
    texts = [row["text"] for row in run.kept(columns=["text"])][:20] + [
        f"Home | Cart {i} | Best price" for i in range(20)
    ]
    labels = ["good"] * 20 + ["bad"] * 20
    rows = pa.table({"text": texts, "label": labels, "url": [f"https://h{i % 10}.org/{i}" for i in range(40)]})
    pq.write_table(rows, "texts.parquet")
    plan = {"kind": "linear", "labelled": {"files": "texts.parquet", "good": ["good"]}, "hold_out": 0.3}
    Path("judge.yaml").write_text(yaml.safe_dump(plan))
