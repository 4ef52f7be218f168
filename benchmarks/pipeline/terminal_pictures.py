#!/usr/bin/env python3
"""Pictures of what commands print, as a terminal of 80, 120 and 200 columns shows it.

    python -m benchmarks.pipeline.terminal_pictures PICTURES [--only run,plan] [--widths 80,120,200] [--work FOLDER]

Needs pyte (a terminal) and pillow, from PyPI, beside gristmill. A demo is run first, in WORK; then every command runs
in a pseudo-terminal, and the screen is drawn as PICTURES/NAME-WIDTH.png. `run-middle` is the screen of a run while it
works. One JSON line each: lines, the longest, and how many lines the terminal had to wrap.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.pipeline.cli.app import COMMANDS, GROUPS

FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSansMono{}.ttf"
SIZE = 15
PAPER, INK = "#16181d", "#d8dbe2"
COLORS = {
    "black": "#5c6370", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b", "yellow": "#e5c07b",
    "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#abb2bf", "default": INK,
}  # fmt: skip
TALL = 400  # lines of a terminal that forgets nothing
LIVE = 32  # lines of one in which a run is looked at


@dataclass(frozen=True)
class Shot:
    """A command, and when its screen is taken: at its end, or when a run has been at work for some seconds."""

    name: str
    command: list[str]
    middle: float | None = None


def shots(work: Path) -> Iterator[Shot]:
    """Commands in the order in which they leave things for each other."""
    run = "demo/run"
    yield Shot("bare", [])
    yield Shot("help", ["--help"])
    for name in (*COMMANDS, *GROUPS):
        yield Shot(f"help-{name.replace(' ', '-')}", [*name.split(), "--help"])
    yield Shot("demo", ["demo", "--out", "another-demo"])
    yield Shot("plan", ["plan", "demo/crawl/demo.yaml", "--out", "demo/run"])
    yield Shot("plan-new", ["plan", "demo/crawl/demo.yaml", "--out", "out/none"])
    yield Shot("run-middle", ["run", "big.yaml", "--out", "out/middle", "--workers", "2"], 12.0)
    yield Shot("run", ["run", "demo/crawl/demo.yaml", "--out", "out/whole"])
    yield Shot("run-again", ["run", "demo/crawl/demo.yaml", "--out", "out/whole"])
    yield Shot("run-limit", ["run", "demo/crawl/demo.yaml", "--out", "out/some", "--limit", "100"])
    yield Shot("inspect", ["inspect", run])
    yield Shot("inspect-stage", ["inspect", run, "gopher_quality"])
    yield Shot("inspect-global", ["inspect", run, "minhash_dedup"])
    yield Shot("inspect-reader", ["inspect", run, "crawl"])
    yield Shot("inspect-reason", ["inspect", run, "gopher_quality", "--reason", "too_few_words"])
    yield Shot("inspect-url", ["inspect", run, "--url", url_in(work / run)])
    yield Shot("tune", ["tune", run, "gopher_quality.min_words=80"])
    yield Shot("report", ["report", run])
    yield Shot("report-two", ["report", run, "out/whole"])
    yield Shot("estimate", ["estimate", "demo/crawl/demo.yaml", "--sample", "50%", "--workers", "8"])
    yield Shot("find", ["inspect", run, "--text", "the"])
    yield Shot("verify", ["maintain", "verify", run])
    yield Shot("clean", ["maintain", "clean", run, "--dry-run"])
    yield Shot("summary", ["report", run, "--for", "eu"])
    yield Shot("doctor", ["doctor"])
    yield Shot("new", ["new", "stage", "my_rule", "--folder", "stages-of-mine"])
    yield Shot("new-again", ["new", "stage", "my_rule", "--folder", "stages-of-mine"])
    yield Shot("init", ["init", "demo/crawl", "--recipe", "mine.yaml"])
    yield Shot("init-again", ["init", "demo/crawl", "--recipe", "mine.yaml"])
    yield Shot("error-typo", ["run", "typo.yaml"])
    yield Shot("error-file", ["run", "nowhere.yaml"])
    yield Shot("error-stage", ["run", "stage.yaml"])
    yield Shot("error-setting", ["run", "setting.yaml"])
    yield Shot("error-input", ["run", "input.yaml"])
    yield Shot("error-option", ["run", "demo/crawl/demo.yaml", "--worker", "2"])
    yield Shot("error-command", ["rnu"])
    yield Shot("error-run", ["inspect", "nowhere"])
    yield Shot("error-tune", ["tune", run, "gopher_quality.min_word=80"])


MISTAKES = {
    "typo": "name: typo\nsources: {a: {warc: {path: demo/crawl}}}\nstages:\n  - extract\n  - gopher_quality: {min_word: 5}\n",
    "stage": "name: stage\nsources: {a: {warc: {path: demo/crawl}}}\nstages: [extract, gopher_qualty]\n",
    "setting": "name: setting\nsources: {a: {warc: {path: demo/crawl}}}\nstages: [extract, sample: {rate: 7}]\n",
    "input": "name: input\nsources: {a: {warc: {path: nowhere}}}\nstages: [extract, write]\n",
}


def url_in(run: Path) -> str:
    import pyarrow.parquet as pq

    return next(
        url
        for path in sorted(run.glob("stages/gopher_quality/rejects/*.parquet"))
        for url in pq.read_table(path, columns=["url"])["url"].to_pylist()
    )


def prepare(work: Path) -> None:
    """What the commands work on: a finished demo, a larger crawl, and recipes with mistakes."""
    from gristmill.pipeline.demo.crawl import write_crawl

    for name, text in MISTAKES.items():
        (work / f"{name}.yaml").write_text(text, encoding="utf-8")
    if not (work / "demo/run/report.html").exists():
        subprocess.run([*GRISTMILL, "demo"], cwd=work, check=True, stdout=subprocess.DEVNULL)
    (work / "big").mkdir(exist_ok=True)
    for seed in range(8) if not any((work / "big").iterdir()) else ():
        write_crawl(work / "one", seed)
        for path in (work / "one").glob("*.warc.gz"):
            path.rename(work / f"big/{seed}-{path.name}")
    recipe = (work / "demo/crawl/demo.yaml").read_text(encoding="utf-8")
    recipe = recipe.replace('"./*.warc.gz"', '"./big/*.warc.gz"').replace("sources:", "parts: {files: 1}\nsources:", 1)
    (work / "big.yaml").write_text(recipe, encoding="utf-8")
    for old in ("out", "another-demo", "stages-of-mine"):
        shutil.rmtree(work / old, ignore_errors=True)
    (work / "mine.yaml").unlink(missing_ok=True)


GRISTMILL = [str(Path(sys.executable).with_name("gristmill"))]


def screen_of(shot: Shot, width: int, height: int, work: Path, variables: dict[str, str]) -> Any:
    """The terminal after a command, or while it works."""
    import pyte

    screen = pyte.Screen(width, height)
    stream = pyte.ByteStream(screen)
    driver, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [*GRISTMILL, *shot.command], cwd=work, stdin=terminal, stdout=terminal, stderr=terminal,
        env={**environment, "TERM": "xterm-256color", **variables}, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    start = time.monotonic()
    while shot.middle is None or time.monotonic() - start < shot.middle:
        if not select.select([driver], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(driver, 1 << 16)
        except OSError:
            break
        if not data:
            break
        stream.feed(data)
    if process.poll() is None and shot.middle is not None:
        process.send_signal(signal.SIGINT)
        with_rest(driver)
    process.wait()
    os.close(driver)
    return screen


def with_rest(driver: int) -> None:
    """Read what a process says while it ends, so that it can."""
    while True:
        try:
            if not os.read(driver, 1 << 16):
                return
        except OSError:
            return


def lines_of(screen: Any) -> list[str]:
    lines = [line.rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def draw(screen: Any, lines: int, path: Path) -> None:
    """The first lines of a screen as a picture."""
    from PIL import Image, ImageDraw, ImageFont

    plain, bold = (ImageFont.truetype(FONT.format(name), SIZE) for name in ("", "-Bold"))
    wide, high = plain.getlength("M"), SIZE + 5
    picture = Image.new("RGB", (round(wide * screen.columns) + 16, high * max(1, lines) + 16), PAPER)
    pen = ImageDraw.Draw(picture)
    for row in range(lines):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            x, y = 8 + column * wide, 8 + row * high
            ink, paper = color(cell.fg), PAPER if cell.bg == "default" else color(cell.bg)
            if cell.reverse:
                ink, paper = paper, ink
            if paper != PAPER:
                pen.rectangle((x, y, x + wide, y + high), fill=paper)
            if cell.data.strip():
                pen.text((x, y), cell.data, font=bold if cell.bold else plain, fill=ink)
    pen.line((picture.width - 6, 0, picture.width - 6, picture.height), fill="#3a3f4b")  # where the terminal ends
    picture.save(path)


def color(name: str) -> str:
    return f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else COLORS.get(name.removeprefix("bright"), INK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--only", help="names of pictures, or how they begin")
    parser.add_argument("--widths", default="80,120,200")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--plain", action="store_true", help="with NO_COLOR=1")
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp(prefix="terminal-"))
    work.mkdir(parents=True, exist_ok=True)
    given.pictures.mkdir(parents=True, exist_ok=True)
    wanted = tuple(given.only.split(",")) if given.only else ("",)
    for width in map(int, given.widths.split(",")):
        prepare(work)
        for shot in shots(work):
            if not shot.name.startswith(wanted):
                continue
            height = LIVE if shot.middle is not None else TALL
            screen = screen_of(shot, width, height, work, {"NO_COLOR": "1"} if given.plain else {})
            lines = lines_of(screen)
            draw(screen, len(lines), given.pictures / f"{shot.name}-{width}.png")
            (given.pictures / f"{shot.name}-{width}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            longest = max(map(len, lines), default=0)
            print(json.dumps({"what": shot.name, "width": width, "lines": len(lines), "longest": longest}), flush=True)
    if given.work is None:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
