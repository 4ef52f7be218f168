"""Near-deduplication of a crawl with planted copies, held against plain sets of words: what was planted and missed,
what went and should not have.

    python -m benchmarks.pipeline.planted_crawl CRAWL [--threshold 0.8]

CRAWL is a folder of WARC files with a truth.json that names copies (`exact`, `near`: pairs of urls). A planted pair
counts if the real Jaccard similarity of its extracted texts (sets of 5-grams of words as Python strings, no hashes) is
at least the threshold + 0.05. Every document that went is compared with the one that it names.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

RECIPE = "name: planted\nsources:\n  crawl: {{warc: {{path: {crawl}/*.warc.gz}}}}\nstages:\n  - extract\n  - minhash_dedup: {{threshold: {threshold}}}\n  - write\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("crawl", type=Path)
    arguments.add_argument("--threshold", type=float, default=0.8)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recipe, out = Path(folder, "r.yaml"), Path(folder, "out")
        recipe.write_text(RECIPE.format(crawl=given.crawl.resolve(), threshold=given.threshold))
        subprocess.run(
            [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--out", str(out)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        texts = {
            row["uid"]: row
            for path in out.glob("partitions/crawl/*.documents.parquet")
            for row in pq.read_table(path, columns=["uid", "url", "text"]).to_pylist()
        }
        gone = {
            row["uid"]: row
            for path in out.glob("stages/minhash_dedup/rejects/*.parquet")
            for row in pq.read_table(path).to_pylist()
        }
    by_url = {row["url"]: uid for uid, row in texts.items()}
    truth = json.loads((given.crawl / "truth.json").read_text())
    pairs = [
        (by_url[a], by_url[b]) for kind in ("exact", "near") for a, b in truth[kind] if a in by_url and b in by_url
    ]
    alike = [
        (a, b, s) for a, b in pairs if (s := jaccard(texts[a]["text"], texts[b]["text"])) >= given.threshold + 0.05
    ]
    missed = [
        {"urls": [texts[a]["url"], texts[b]["url"]], "jaccard": round(s, 4)}
        for a, b, s in alike
        if a not in gone and b not in gone
    ]
    named = [(uid, int(row["detail"].split(" like ")[1], 16)) for uid, row in gone.items()]
    wrong = [
        uid for uid, like in named if like in gone or jaccard(texts[uid]["text"], texts[like]["text"]) < given.threshold
    ]
    result: dict[str, Any] = {
        "what": "planted copies in a crawl",
        "threshold": given.threshold,
        "documents": len(texts),
        "planted": len(pairs),
    }
    result |= {
        "alike_enough": len(alike),
        "found": len(alike) - len(missed),
        "missed": missed,
        "gone": len(gone),
        "wrongly_gone": len(wrong),
    }
    print(json.dumps(result | {"versions": {"gristmill": version("gristmill")}}))


def jaccard(a: str, b: str) -> float:
    left, right = shingles(a), shingles(b)
    return len(left & right) / len(left | right) if left | right else 0.0


def shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+", text.lower())
    return {tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))} if words else set()


if __name__ == "__main__":
    main()
