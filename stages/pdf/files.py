"""PDF files read and rendered in a child process (`child`) that outlives a hostile one.

What comes back depends on the file and the limits alone: each file has a fork of its own, so no file sees what an
earlier one left. Only the limit by the clock depends on the machine; it is there for files that sleep rather than
compute, and long enough for a machine with much else to do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from gristmill.kernels.common.extras import install
from gristmill.stages.contract import CannotRun
from gristmill.stages.pdf import child

INSTALL = f"PDF files are read with pypdfium2: {install('pdf')}"
CLOCK, LEAST_CLOCK = 10.0, 60.0  # times the processor's seconds, and seconds at least
GRACE = 20.0  # seconds beyond the clock's limit, until the child itself is given up
MEMORY = 1 << 30
SLOW = (signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM)

# Why a file has no text, by name; the details are for people.
ENCRYPTED, DAMAGED, TOO_SLOW, TOO_LARGE, CRASHED = (
    "pdf_encrypted",
    "pdf_damaged",
    "pdf_too_slow",
    "pdf_too_large",
    "pdf_crashed",
)
NEEDS_OCR = "needs_ocr"
MOST_UNREAD = 0.2  # of the pages of a file; beyond, it needs OCR
REASONS = (ENCRYPTED, DAMAGED, TOO_SLOW, TOO_LARGE, CRASHED, NEEDS_OCR)


class Unreadable(Exception):
    """A file of which nothing can be read."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """Of one file."""

    seconds: float = 30.0  # of processor time
    pages: int = 2_000  # the first are read, and the others left out
    memory: int = MEMORY

    @property
    def clock(self) -> float:
        return max(LEAST_CLOCK, CLOCK * self.seconds)


USUAL = Limits()


@dataclass(frozen=True)
class Page:
    """Characters (N) in the order in which the file draws them; coordinates are in points, from the lower left."""

    width: float
    height: float
    codes_N: np.ndarray[Any, np.dtype[np.uint32]]
    boxes_N4: np.ndarray[Any, np.dtype[np.float32]]  # left, top, right, bottom
    places_N2: np.ndarray[Any, np.dtype[np.float32]]  # where each stands on its line
    angles_N: np.ndarray[Any, np.dtype[np.float32]]  # radians
    unmapped_share: float = 0.0  # of characters whose code has no known meaning
    objects: int = 0  # counted where characters are few
    image_share: float = 0.0  # of the page, covered by pictures; where characters are few
    quarter_turns: int = 0  # by which a viewer turns the page, clockwise


@dataclass(frozen=True)
class Opened:
    """What a file holds; `pages` are those that were read, of `page_count`."""

    page_count: int
    facts: dict[str, str]
    pages: list[Page]
    seconds: float = field(compare=False, default=0.0)


def check_installed() -> str:
    """The folder that holds the package."""
    found = importlib.util.find_spec("pypdfium2")
    if found is None or found.origin is None:
        raise CannotRun(INSTALL)
    return str(Path(found.origin).parents[1])


class Child:
    """The process, started when it is first needed and again after it was given up. One file at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def ask(
        self, kind: int, data: bytes, limits: Limits, side: int = 0, pages: Sequence[int] = ()
    ) -> tuple[bytes, float]:
        """What the fork wrote, and its seconds of processor; raises Unreadable."""
        clock = limits.clock
        header = child.REQUEST.pack(
            kind, limits.seconds, clock, limits.memory, limits.pages, side, len(pages), len(data)
        )
        request = header + struct.pack(f"<{len(pages)}I", *pages) + data
        with self._lock:
            for again in (True, False):
                try:
                    return self._exchange(self._started(), request, limits, time.monotonic() + clock + GRACE)
                except TimeoutError as error:
                    self.close()
                    raise Unreadable(TOO_SLOW, f"no answer in {clock + GRACE:g} s by the clock") from error
                except (OSError, EOFError) as error:  # the process itself was killed, by whom nobody knows
                    self.close()
                    if not again:
                        raise Unreadable(CRASHED, "the process that read it ended, and again") from error
        raise AssertionError("either answer or error")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", child.__file__, check_installed()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], request: bytes, limits: Limits, until: float
    ) -> tuple[bytes, float]:
        requests, replies = number_of(process.stdin), number_of(process.stdout)
        view, sent = memoryview(request), 0
        while sent < len(view):
            sent += os.write(requests, view[sent : sent + (1 << 20)])
        status, peak, seconds, size = child.REPLY.unpack(received(replies, child.REPLY.size, until))
        written = received(replies, size, until)
        if os.WIFSIGNALED(status):
            raise Unreadable(*why_killed(os.WTERMSIG(status), peak, limits))
        if os.waitstatus_to_exitcode(status) != 0:
            if os.waitstatus_to_exitcode(status) == child.NO_MEMORY:
                raise Unreadable(TOO_LARGE, f"more than {limits.memory >> 20:,} MB of memory")
            raise Unreadable(CRASHED, f"its process ended with {os.waitstatus_to_exitcode(status)}")
        return written, seconds


def why_killed(number: int, peak: int, limits: Limits) -> tuple[str, str]:
    """A reason and its words. PDFium aborts where it gets no memory, mostly: of one large piece, of which the peak does
    not tell."""
    if number in SLOW:
        by_clock = number == signal.SIGALRM
        seconds = limits.clock if by_clock else limits.seconds
        return TOO_SLOW, f"more than {seconds:g} s {'by the clock' if by_clock else 'of processor time'}"
    if number == signal.SIGXFSZ:
        return TOO_LARGE, f"more than {child.MOST_OUTPUT >> 20:,} MB of characters"
    if number in (signal.SIGKILL, signal.SIGABRT) or peak > 0.6 * limits.memory:
        return TOO_LARGE, f"more than {limits.memory >> 20:,} MB of memory"
    return CRASHED, f"its process died of {signal.Signals(number).name}"


def number_of(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise EOFError
    return pipe.fileno()


def received(pipe: int, size: int, until: float) -> bytes:
    parts, held = [], 0
    while held < size:
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(pipe, min(size - held, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        held += len(part)
    return b"".join(parts)


@cache
def child_of(process: int) -> Child:
    """One for each process of ours; a fork of a process does not use its child."""
    return Child()


def read_pdf(data: bytes, limits: Limits = USUAL) -> Opened:
    """The characters of a file; raises Unreadable."""
    written, seconds = child_of(os.getpid()).ask(child.READ, data, limits)
    try:
        return opened(written, seconds)
    except (struct.error, ValueError) as error:  # a fork that was taken over may have written anything
        raise Unreadable(CRASHED, "its process wrote what cannot be read") from error


def render_pages(data: bytes, pages: Sequence[int], side: int, limits: Limits = USUAL) -> dict[int, bytes]:
    """PNGs of pages by their numbers, from 0; those that cannot be drawn are left out."""
    written, _ = child_of(os.getpid()).ask(child.RENDER, data, limits, side, pages)
    try:
        return dict(pictures(written))
    except (struct.error, ValueError) as error:
        raise Unreadable(CRASHED, "its process wrote what cannot be read") from error


def pictures(written: bytes) -> Iterator[tuple[int, bytes]]:
    outcome, _, count = child.HEAD.unpack_from(written)
    check(outcome)
    at = child.HEAD.size
    for _ in range(count):
        number, size = child.PICTURE.unpack_from(written, at)
        at += child.PICTURE.size
        if size:
            yield number, written[at : at + size]
        at += size


def check(outcome: int) -> None:
    if outcome == child.ENCRYPTED:
        raise Unreadable(ENCRYPTED, "it asks for a password")
    if outcome != child.OPENED:
        raise Unreadable(DAMAGED, "PDFium cannot open it")


def opened(written: bytes, seconds: float) -> Opened:
    outcome, page_count, count = child.HEAD.unpack_from(written)
    check(outcome)
    if not page_count:
        raise Unreadable(DAMAGED, "it has no pages")
    at, facts = child.HEAD.size, {}
    for name in child.FACTS:
        (size,) = struct.unpack_from("<I", written, at)
        facts[name] = written[at + 4 : at + 4 + size].decode("utf-8", "replace")
        at += 4 + size
    pages = []
    for _ in range(count):
        page, at = page_at(written, at)
        pages.append(page)
    return Opened(page_count, facts, pages, seconds)


def page_at(written: bytes, at: int) -> tuple[Page, int]:
    width, height, count, sampled, unmapped, objects, share, turned = child.PAGE.unpack_from(written, at)
    at += child.PAGE.size

    def numbers(columns: int, kind: str) -> np.ndarray[Any, Any]:
        nonlocal at
        values = np.frombuffer(written, kind, count * columns, at)
        at += 4 * count * columns
        return values

    codes = numbers(1, "<u4")
    boxes, places, angles = numbers(4, "<f4").reshape(count, 4), numbers(2, "<f4").reshape(count, 2), numbers(1, "<f4")
    quarter_turns = int(turned) % 4 if 0 <= turned < 4 else 0
    page = Page(width, height, codes, boxes, places, angles, unmapped / max(1, sampled), objects, share, quarter_turns)
    return page, at
