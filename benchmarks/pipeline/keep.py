"""What `keep` in a recipe saves: bytes written a document, and what a rerun then costs.

    python -m benchmarks.pipeline.keep CRAWL [--recipe recipes/fineweb.yaml]

For `keep: all`, `signals` and `nothing` of the same recipe: seconds of a first run, bytes written a document by use,
bytes left on disk, seconds of a second run with nothing to do, and of one with another threshold. Results are compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml


def seconds_of(recipe: Path, out: Path) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return round(time.perf_counter() - start, 1)


def written(out: Path) -> pa.Table:
    files = sorted(out.glob("write/*.parquet"))
    table = pa.concat_tables([pq.read_table(path) for path in files], promote_options="permissive")
    return table.select(sorted(table.column_names)).sort_by("uid")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crawl", nargs="+")
    parser.add_argument("--recipe", type=Path, default=Path("recipes/fineweb.yaml"))
    given = parser.parse_args()
    recipe = yaml.safe_load(given.recipe.read_text())
    recipe["sources"] = {"crawl": {"warc": {"path": [str(Path(path).resolve()) for path in given.crawl]}}}
    folder, results = Path(tempfile.mkdtemp()), {}
    try:
        for keep in ("all", "signals", "nothing"):
            path, out = folder / f"{keep}.yaml", folder / keep
            path.write_text(yaml.safe_dump({**recipe, "keep": keep}, sort_keys=False))
            first = seconds_of(path, out)
            record = json.loads((out / "run.json").read_text())
            documents = record["stages"][0]["kept"]
            results[keep] = written(out)
            again = seconds_of(path, out)
            stages = [{"gopher_quality": {"min_words": 80}} if s == "gopher_quality" else s for s in recipe["stages"]]
            path.write_text(yaml.safe_dump({**recipe, "keep": keep, "stages": stages}, sort_keys=False))
            line = {
                "what": f"keep: {keep}",
                "documents": documents,
                "bytes_a_document": {use: round(n / documents) for use, n in record["bytes_written"].items()},
                "left_a_document": round(record["disk_bytes"] / documents),
                "seconds": first,
                "seconds_nothing_to_do": again,
                "seconds_another_threshold": seconds_of(path, out),
                "results_equal": results[keep].equals(results["all"]),
            }
            print(json.dumps(line), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
