"""docs/record.md lists the files that a record enters, in order, with their sizes."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.pipeline.trace_record import files_in, jumps_in, trace_of

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| \[`([\w/]+\.py)`\]\([^)]*\) \| (\d+) \|", re.MULTILINE)
CLOSE = 0.15  # of a file's length, or twenty lines


def test_the_page_has_the_files_that_a_record_enters_in_their_order() -> None:
    listed = ROW.findall((ROOT / "docs/record.md").read_text())
    trace = trace_of("pages")
    assert [name for name, _ in listed] == list(files_in(trace.calls)) and len(listed) > 20
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name, _ in listed}
    assert [
        (name, said, lengths[name])
        for name, said in listed
        if abs(int(said) - lengths[name]) > max(20, CLOSE * lengths[name])
    ] == []


def test_a_record_does_not_wander() -> None:
    """What was reached stays reached; fewer is better. Twenty jumps make blocks and columns of a batch, not of each
    record."""
    trace = trace_of("pages")
    assert len(files_in(trace.calls)) <= 36
    assert jumps_in(trace.calls) <= 255
    assert len(trace.path) <= 8
