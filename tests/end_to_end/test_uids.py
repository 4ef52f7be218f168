"""A uid is found however it is written: in hex as reports have it, or as the decimal number of a table."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import GristmillError
from gristmill.stages.documents import uid_of
from tests.pipeline.explore.explore_runs import Asker, served
from tests.pipeline.runs import go, lines, save, written

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run with a document whose uid has 16 decimal digits, and that uid."""
    folder = tmp_path_factory.mktemp("uids")
    name, uid = next(
        (name, uid) for name in (f"{n}.jsonl" for n in count()) if len(str(uid := uid_of("a", name, 0))) == 16
    )
    lines(folder / "in" / name, ["The one whose uid looks like hex.", "Another one."])
    go(save(folder / "r.yaml", "name: r\nsources: {a: {jsonl: {path: in}}}\nstages: [write]\n"), folder / "out")
    assert uid in [found for found, _ in written(folder / "out")]
    return folder / "out", uid


def test_inspect_takes_a_decimal_uid_of_16_digits(run: tuple[Path, int]) -> None:
    out, uid = run
    for name in (str(uid), f"{uid:016x}", f"0x{uid:x}"):
        shown = CliRunner().invoke(app, ["inspect", str(out), "--uid", name])
        assert shown.exit_code == 0 and f"{uid:016x}" in shown.output and "looks like hex" in shown.output
    missing = CliRunner().invoke(app, ["inspect", str(out), "--uid", "1234567890123456"])
    assert isinstance(missing.exception, GristmillError)
    assert "1234567890123456 in this run" in str(missing.exception)  # as hex
    assert "000462d53c8abac0 in this run" in str(missing.exception)  # as a decimal number


def test_the_search_box_takes_a_decimal_uid_of_16_digits(run: tuple[Path, int]) -> None:
    out, uid = run
    with served(out) as server:
        asker = Asker(server)
        page = asker.get(asker.get(f"/find?q={uid}").headers["location"])
    assert page.status == 200 and "looks like hex" in page.text


def test_a_takedown_list_takes_a_decimal_uid(run: tuple[Path, int], tmp_path: Path) -> None:
    out, uid = run
    names = save(tmp_path / "list.txt", f"{uid}\n{uid_of('a', 'nowhere.jsonl', 0)}\n")
    shown = CliRunner().invoke(app, ["forget", str(out), "--list", str(names), "--dry-run"])
    assert shown.exit_code == 0, shown.exception
    assert "documents: 1" in shown.output
