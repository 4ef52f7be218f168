#!/usr/bin/env python3
"""How fast texts are measured for a curriculum and documents are placed, on one core: one JSON line a result.

    python -m benchmarks.text.difficulty [PROSE.parquet] [--times N]

From an Arrow column to signals, all together and each alone; beside textstat and lexicalrichness, where they are
installed, on a sample of the same texts. Seconds are those of the processor, so that neighbours on the machine do not
count.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from gristmill.mixing.curriculum.curriculum import Anneal, Ascending, Interleaved, Random, Stages, WarmUp
from gristmill.mixing.curriculum.pacing import Pacing, Steps
from gristmill.mixing.curriculum.ranks import Ranks
from gristmill.stages.text.common_words import learn_common_words
from gristmill.stages.text.difficulty import SIGNALS, Difficulty

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "prose.parquet"
SCHEDULES = (Random(), Stages(), Ascending(), WarmUp(), Interleaved(), Anneal(), Pacing(), Steps())
DOCUMENTS = 1_000_000


def seconds(work: Callable[[], Any], times: int) -> list[float]:
    work()
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return found


def tell(what: str, took: list[float], amount: float, unit: str, **more: Any) -> None:
    speeds = sorted(amount / second for second in took)
    median = statistics.median(speeds)
    print(
        json.dumps(
            {
                "what": what, "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 used",
                "versions": {name: version(name) for name in ("numpy", "numba",
                "pyarrow")} | {"python": platform.python_version()},
                "unit": unit, "median": round(median, 2), "spread": [round(speeds[0], 2), round(speeds[-1], 2)], **more,
            }
        ), flush=True,
    )  # fmt: skip


def textstat_flesch() -> Callable[[str], Any] | None:
    try:
        import textstat  # type: ignore[import-not-found]
    except ImportError:
        return None
    return lambda text: (textstat.flesch_reading_ease(text), textstat.flesch_kincaid_grade(text))


def richness_mtld() -> Callable[[str], Any] | None:
    try:
        from lexicalrichness import LexicalRichness  # type: ignore[import-not-found]
    except ImportError:
        return None
    return lambda text: LexicalRichness(text).mtld(threshold=0.72)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="?", type=Path, default=DATA)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    if not given.texts.exists():
        raise SystemExit(f"no {given.texts}; name a Parquet file with a column `text`")
    batch = pq.read_table(given.texts, columns=["text"]).combine_chunks().to_batches()[0]
    size = sum(len(text.encode()) for text in batch["text"].to_pylist()) / 1e6
    sizes = {"documents": len(batch), "megabytes": round(size, 1)}

    words = Path(os.environ.get("TMPDIR", "/tmp")) / f"common-{os.getpid()}.npz"
    np.savez(words, hashes=learn_common_words([batch["text"]]))
    try:
        ours = {}
        for name, only in (("all but zlib_share", SIGNALS[:6] + SIGNALS[7:]), *((name, (name,)) for name in SIGNALS)):
            stage = Difficulty(common_words=str(words), only=only)
            took = seconds(lambda stage=stage: stage.annotate(batch), given.times)  # type: ignore[misc]
            tell(name, took, size, "MB/s", sizes=sizes)
            ours[name] = size / statistics.median(took)
    finally:
        words.unlink()

    sample = [text for text in batch["text"].to_pylist()[::20] if text]
    sample_size = sum(len(text.encode()) for text in sample) / 1e6
    for name, peer, make in (
        ("flesch_reading_ease", "textstat", textstat_flesch),
        ("mtld", "lexicalrichness", richness_mtld),
    ):
        theirs = make()
        if theirs is not None:
            took = seconds(lambda theirs=theirs: [theirs(text) for text in sample], 1)  # type: ignore[misc]
            tell(
                f"{name} of {peer}",
                took,
                sample_size,
                "MB/s",
                peer=f"{peer} {peer_version(peer)}",
                ratio=round(ours[name] / (sample_size / took[0]), 1),
            )

    rng = np.random.default_rng(0)
    values, rank, chance = rng.normal(size=DOCUMENTS), rng.random(DOCUMENTS), rng.random(DOCUMENTS)
    tell(
        "ranks learned",
        seconds(lambda: Ranks.of(values, chance + 1), given.times),
        DOCUMENTS / 1e6,
        "million documents/s",
    )
    ranks = Ranks.of(values, chance + 1)
    tell(
        "ranked",
        seconds(lambda: ranks.rank(values, chance), given.times),
        DOCUMENTS / 1e6,
        "million documents/s",
        sizes={"knots": len(ranks.values)},
    )
    for schedule in SCHEDULES:
        took = seconds(lambda schedule=schedule: schedule.places(rank, chance), given.times)  # type: ignore[misc]
        tell(f"placed by {schedule!r}", took, DOCUMENTS / 1e6, "million documents/s")


def peer_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of unknown version"


if __name__ == "__main__":
    main()
