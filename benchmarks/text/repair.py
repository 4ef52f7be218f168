#!/usr/bin/env python3
"""Repair of text beside ftfy (and DataTrove's FTFYFormatter, which calls it): speed, and what becomes of mojibake. One
JSON line a result.

    python -m benchmarks.text.repair [--data ../shared/data] [--times 5] [--datatrove VENV] [--show]

Speed is from an Arrow column to a repaired Arrow column for ours, from Python strings to Python strings for the others.
ftfy is set to what both do: entities, encoding, control characters, line ends, NFC; ours does zero-width characters and
whitespace besides. The table: sentences of 75 languages are misread on purpose, and the share that comes back exactly
is counted. Sentences that either tool would change as they are, are left out there and counted apart; `--show` prints
those on which the two differ.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ftfy
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.repair.entities import WINDOWS
from gristmill.stages import Repair

PACKAGES = ("gristmill", "ftfy", "numba", "pyarrow")
ONLY_MOJIBAKE = Repair(entities=False, normal_form=None, controls=False, zero_width=False, whitespace=False)
LIKE_OURS = ftfy.TextFixerConfig(
    fix_latin_ligatures=False,
    fix_character_width=False,
    uncurl_quotes=False,
    remove_terminal_escapes=False,
    explain=False,
)
DATATROVE = """
import json, sys, time
from datatrove.pipeline.formatters import FTFYFormatter
texts = json.load(sys.stdin)
formatter = FTFYFormatter()
start = time.perf_counter()
for text in texts:
    formatter.format(text)
print(time.perf_counter() - start)
"""


def windows(text: str) -> str:
    """As browsers read Windows-1252: bytes that it does not have are C1 controls."""
    return "".join(chr(WINDOWS[b - 0x80]) if 0x80 <= b < 0xA0 else chr(b) for b in text.encode())


def latin(text: str) -> str:
    return text.encode().decode("latin-1")


MISREADINGS: dict[str, Callable[[str], str]] = {
    "Windows-1252": windows,
    "Latin-1": latin,
    "Windows-1252 with losses": lambda text: text.encode().decode("cp1252", "replace"),
    "Windows-1252 twice": lambda text: windows(windows(text)),
    "Latin-1 twice": lambda text: latin(latin(text)),
}


def ours(values: list[str], stage: Repair = ONLY_MOJIBAKE) -> list[str]:
    done: list[str] = stage(pa.table({"text": pa.array(values, pa.string())})).column("text").to_pylist()
    return done


def timed(function: Callable[[], Any], times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def report(**result: Any) -> None:
    print(
        json.dumps(
            {
                **result,
                "machine": platform.processor() or platform.machine(),
                "versions": {p: version(p) for p in PACKAGES},
            }
        ),
        flush=True,
    )


def speed(name: str, texts: list[str], times: int, datatrove: Path | None) -> None:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    batch = pa.record_batch({"text": pa.array(texts, pa.string())})
    stage = Repair()
    stage.prepare()
    mine = [megabytes / s for s in timed(lambda: stage.rewrite(batch), times)]
    common: dict[str, Any] = {
        "what": f"repair, {name}, MB/s of one core",
        "sizes": {"MB": round(megabytes, 1), "documents": len(texts)},
    }
    common |= {"median": round(statistics.median(mine), 1), "spread": [round(min(mine), 1), round(max(mine), 1)]}
    changed = sum(a != b for a, b in zip(texts, ours(texts, stage), strict=True))
    peer = megabytes / timed(lambda: [ftfy.fix_text(text, LIKE_OURS) for text in texts], 1)[0]
    report(**common, changed=changed, peer=f"ftfy {peer:.2f}", ratio=round(statistics.median(mine) / peer, 1))
    if datatrove:
        done = subprocess.run(
            [datatrove / "bin" / "python", "-c", DATATROVE],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            check=True,
        )
        peer = megabytes / float(done.stdout.split()[-1])
        report(
            **common,
            changed=changed,
            peer=f"DataTrove FTFYFormatter {peer:.2f}",
            ratio=round(statistics.median(mine) / peer, 1),
        )


def mojibake(texts: list[str], show: bool) -> None:
    mine, peer = ours(texts), [ftfy.fix_encoding(text) for text in texts]
    rows = list(zip(texts, mine, peer, strict=True))
    report(
        what="sentences changed as they are (all that ours changes came misread)", sizes={"sentences": len(texts)},
        median=sum(t != m for t, m, _ in rows),
        peer=f"ftfy {sum(t != p for t, _, p in rows)}", differ=sum(m != p for _, m, p in rows),
    )  # fmt: skip
    for text, m, p in rows:
        if show and m != p:
            print(f"  given {text!a}\n  ours  {m!a}\n  ftfy  {p!a}", file=sys.stderr)
    clean = [t for t, m, p in rows if t == m == p and not t.isascii()]
    for name, misread in MISREADINGS.items():
        sample = clean[::5]
        broken = [misread(text) for text in sample]
        back = sum(a == b for a, b in zip(sample, ours(broken), strict=True)) / len(sample)
        whole = zip(ours(sample, Repair()), ours(broken, Repair()), strict=True)
        peer_back = sum(a == ftfy.fix_encoding(b) for a, b in zip(sample, broken, strict=True)) / len(sample)
        report(
            what=f"share of sentences restored exactly, UTF-8 read as {name}", sizes={"sentences": len(sample)},
            median=round(back, 4), with_every_step=round(sum(a == b for a, b in whole) / len(sample), 4),
            peer=f"ftfy {peer_back:.4f}", ratio=round(back / peer_back, 4),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--datatrove", type=Path, help="a virtual environment with datatrove and ftfy")
    parser.add_argument("--show", action="store_true", help="print the sentences on which ours and ftfy differ")
    arguments = parser.parse_args()
    clean = [
        "plain ASCII text with nothing to repair, and words enough for a line\nanother line here.\n\nA paragraph; it "
        "goes on.\n" * 200 + "end"
    ] * 500
    speed("clean ASCII", clean, arguments.times, None)
    for name, file in (("web pages", "rule_verdicts.parquet"), ("sentences of 75 languages", "languages.parquet")):
        path = arguments.data / file
        if not path.exists():
            print(f"{path} is not here: {name} left out", file=sys.stderr)
            continue
        texts = pq.read_table(path).column("text").to_pylist()
        speed(name, texts, arguments.times, arguments.datatrove)
        if name == "web pages":
            repaired = ours(texts, Repair())
            speed("web pages once repaired", repaired, arguments.times, None)
        else:
            mojibake(texts, arguments.show)


if __name__ == "__main__":
    main()
