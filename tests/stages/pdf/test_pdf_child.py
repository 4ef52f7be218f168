"""Hostile files cost their own process and are told by a reason; the next file is read as if nothing had been."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from gristmill.stages.contract import CannotRun
from gristmill.stages.pdf import files
from gristmill.stages.pdf.document import text_of
from gristmill.stages.pdf.files import Limits, Unreadable, child_of, opened, pictures, read_pdf, render_pages
from tests.stages.pdf.made_pdfs import SCAN, column, hostile, pdf, prose

pytest.importorskip("pypdfium2")

GOOD = pdf([column(prose(80), 72, 740, width=80)[0]])


def test_every_hostile_file_is_told_and_the_next_one_read():
    told, through, files_and_reasons = {}, {}, hostile()
    for name, (data, reason) in files_and_reasons.items():
        seconds = 0.1 if reason == "pdf_too_slow" else 60.0
        try:
            through[name] = text_of(read_pdf(data, Limits(seconds, 100, 240 << 20))).text
        except Unreadable as error:
            told[name] = error.reason
        assert read_pdf(GOOD).page_count == 1
    assert text_of(read_pdf(GOOD)).text.split() == prose(80)
    assert told == {name: reason for name, (_, reason) in files_and_reasons.items() if reason}
    assert len(told) == 9 and through.keys() == {name for name, (_, reason) in files_and_reasons.items() if not reason}
    assert through["a script"] == "a few words"


def test_pages_beyond_the_limit_are_left_out():
    found = read_pdf(pdf([[(72, 700, 10, f"page {n}")] for n in range(5)]), Limits(pages=2))
    assert (found.page_count, len(found.pages)) == (5, 2) and text_of(found).pages_read == 2


def test_pages_are_drawn_with_the_longest_side_asked_for():
    pages = render_pages(pdf([SCAN, [(72, 700, 40, "large")], SCAN]), [0, 1], 200)
    assert sorted(pages) == [0, 1]
    for png in pages.values():
        assert png.startswith(b"\x89PNG") and struct.unpack(">II", png[16:24]) == (141, 200)
    assert pages[0] != pages[1]


def test_a_child_that_was_killed_is_started_again():
    read_pdf(GOOD)
    child = child_of(os.getpid())
    before = child._process
    assert before is not None
    before.kill()
    assert text_of(read_pdf(GOOD)).text.split() == prose(80)
    assert child._process is not None and child._process.pid != before.pid


def test_the_package_is_found_where_only_pythonpath_names_it():
    data = GOOD
    request = files.child.REQUEST.pack(files.child.READ, 30.0, 60.0, 1 << 30, 10, 0, 0, len(data)) + data
    command = [sys.executable, "-I", "-S", files.child.__file__, files.check_installed()]  # without site-packages
    replied = subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True, timeout=120).stdout
    status, _, _, size = files.child.REPLY.unpack_from(replied)
    assert (status, size) == (0, len(replied) - files.child.REPLY.size) and size > 0


def test_no_process_stays_when_its_worker_is_killed(tmp_path: Path):
    (tmp_path / "a.pdf").write_bytes(GOOD)
    program = (
        "import os, sys, time\nfrom pathlib import Path\nfrom gristmill.stages.pdf.files import child_of, read_pdf\n"
        f"read_pdf(Path({str(tmp_path / 'a.pdf')!r}).read_bytes())\nprint(child_of(os.getpid())._process.pid, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        assert is_alive(child)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    until = time.monotonic() + 30
    while is_alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(child)


def is_alive(process: int) -> bool:
    """A zombie that nobody waits for is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@given(st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_what_a_taken_over_child_writes_is_read_as_numbers_or_refused(written: bytes):
    for reads in (lambda: opened(written, 0.0), lambda: dict(pictures(written))):
        try:
            reads()
        except (Unreadable, struct.error, ValueError):
            continue


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotRun, match=r"pip install .\.\[pdf\]"):
        files.Child().ask(0, GOOD, Limits())
