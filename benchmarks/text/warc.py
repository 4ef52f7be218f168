#!/usr/bin/env python3
"""How fast pages come out of a gzipped WARC, beside fastwarc doing the same work: one JSON line.

    python -m benchmarks.text.warc FILE.warc.gz [--times N]

Both sides inflate every record, parse its HTTP header, and hold the page's bytes with its url. Ours also makes Arrow
batches with uids, and survives damage; fastwarc is asked for the same fields and keeps them in a list.
"""

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecordType

from gristmill.stages.read.warc import Warc
from gristmill.stages.stage import Origin


def ours(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        return sum(len(reading.documents) for reading in Warc(path=str(path)).read(file, Origin("s", path.name, size)))


def fastwarc(path: Path) -> int:
    count, batch = 0, []
    with path.open("rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response, parse_http=True):
            row = (
                record.record_id,
                record.headers.get("WARC-Target-URI"),
                record.headers.get("WARC-Date"),
                record.http_content_type,
            )
            batch.append((*row, record.http_headers.status_code, record.http_charset, record.reader.read()))
            count += 1
            if len(batch) == 512:
                batch = []
    return count


def seconds(function, path: Path) -> tuple[float, int]:
    start = time.perf_counter()
    count = function(path)
    return time.perf_counter() - start, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    path = arguments.file
    timed = [(seconds(ours, path), seconds(fastwarc, path)) for _ in range(arguments.times + 1)][1:]
    if len({count for pair in timed for _, count in pair}) != 1:
        raise SystemExit("ours and fastwarc do not find the same number of pages")
    mine, peer = [a for (a, _), _ in timed], [b for _, (b, _) in timed]
    records, size = timed[0][0][1], path.stat().st_size
    result = {
        "what": "pages from a gzipped WARC, MB of file a second, one core",
        "machine": f"{platform.machine()} {platform.system()}",
        "versions": {name: version(name) for name in ("isal", "fastwarc", "pyarrow")},
        "sizes": {"bytes": size, "pages": records},
        "median": round(size / 1e6 / statistics.median(mine), 1),
        "spread": [round(size / 1e6 / max(mine), 1), round(size / 1e6 / min(mine), 1)],
        "peer": {"name": "fastwarc", "median": round(size / 1e6 / statistics.median(peer), 1)},
        "ratio": round(statistics.median(b / a for a, b in zip(mine, peer, strict=True)), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
