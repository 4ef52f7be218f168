"""What Gristmill makes of small inputs, as digests: taken before code moves, held against afterwards.

    python -m benchmarks.pipeline.locked take FILE [--only GROUP] [--workers N] [--values FOLDER] [--crawl FOLDER]
    python -m benchmarks.pipeline.locked hold FILE [--only GROUP] [--workers N] [--values FOLDER] [--crawl FOLDER]

`hold` prints each result that differs and ends with exit code 1 if there is one. `--values` writes every value whole
into a folder, so that a diff of two such folders says what a digest does not. `take` with `--only` replaces the results
of its groups in FILE and leaves the others. Groups:

    shipped    every recipe of recipes/, with judges that are trained here
    stages     the stages that these leave out, with servers on loopback for crawls and language models
    subjects   every stage by itself with each setting changed, from the tables of tests/stages
    door       `import gristmill`: recipes in code, tables, what a run says of itself, shards and judges
    keeps      each `keep`, then another threshold and another measure in the same folder; `--limit` and `--sample`
    looks      what `plan`, `inspect`, `tune`, `report`, `export`, `maintain verify` and `init` say
    months     three months that share saved indexes
    forgets    a takedown: receipts, what is left, `verify`, the next run
    failures   exit codes, mistakes, a failed run and how it goes on, `--strict`, `--budget`, damaged inputs

Of each run: counts and reasons by stage and source, what `inspect` says of a stage, rejects row by row, files of sinks
and shards by their bytes, rows of sinks, stored signals by column and uid, verdicts with every rule that a document
fails, alarms, and what the report has chapters of. Every stage of the registry is in a run of a group or in `UNLOCKED`
with the reason; a take of all groups fails otherwise.

What may differ, and is left out or replaced:

- names of folders and files below OUT other than those of sinks, rejects, shards and the report, and hashes in all names
- names of segments and nodes in what `plan` prints and in run.json; how stages are spread over nodes
- time, memory, bytes moved between stages and on disk, versions, the machine
- fingerprints and checksums
- after `forget`: the next run may make parts again, and documents that were dropped as repeats of a forgotten one may
  come back, if the receipt lists them
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.pipeline.locked.lock import BLOCKS, ROOT, Lock
from gristmill import stages

GROUPS = ("shipped", "stages", "subjects", "door", "keeps", "looks", "months", "forgets", "failures")
UNLOCKED: dict[str, str] = {}  # a stage's name: why no group has it
SHOWN = 100


def take(groups: list[str], asked: argparse.Namespace) -> dict[str, str]:
    """Results of groups. Each works in a folder of its own."""
    found: dict[str, str] = {}
    run: set[str] = set()
    for group in groups:
        began, used = time.monotonic(), cpu_seconds()
        with tempfile.TemporaryDirectory() as name:
            lock = Lock(group, Path(name).resolve(), asked.workers, asked.values, asked.crawl)
            import_module(f"benchmarks.pipeline.locked.{group}").take(lock)
        found |= lock.found
        run |= lock.stages
        figures = f"{time.monotonic() - began:.0f} s, {cpu_seconds() - used:.0f} s of CPU"
        print(f"{group}: {len(lock.found):,} results, {figures}", file=sys.stderr)
    if missing := sorted(unlocked(run)) if groups == [*GROUPS] else []:
        raise SystemExit(f"no group runs {', '.join(missing)}: add them to a recipe, or to UNLOCKED with the reason")
    return found


def unlocked(run: set[str]) -> Iterator[str]:
    """Stages of the registry that no run had."""
    for name in stages.HOMES:
        called = getattr(stages, name).recipe_name()
        if called not in run and called not in UNLOCKED:
            yield called


def cpu_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def of_groups(results: dict[str, str], groups: list[str]) -> dict[str, str]:
    return {name: value for name, value in results.items() if name.partition("/")[0] in groups}


def main() -> None:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.pipeline.locked",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("what", choices=["take", "hold"])
    options.add_argument("file", type=Path)
    options.add_argument("--only", action="append", choices=GROUPS, help="a group; may be repeated")
    options.add_argument("--workers", type=int, default=1, help="processes of each run; no result depends on it")
    options.add_argument("--values", type=Path, help="a folder for whole values")
    options.add_argument("--crawl", type=Path, help="a folder with WARC files, for the demo's recipe too")
    asked = options.parse_args()
    if asked.values is not None:
        asked.values.mkdir(parents=True, exist_ok=True)
    sys.path[1:1] = BLOCKS
    os.environ["COLUMNS"] = "200"
    given = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *BLOCKS, *filter(None, [given])])
    groups = [group for group in GROUPS if group in (asked.only or GROUPS)]
    now = take(groups, asked)
    before = json.loads(asked.file.read_text()) if asked.file.exists() else {}
    if asked.what == "take":
        others = of_groups(before, [group for group in GROUPS if group not in groups])
        asked.file.write_text(json.dumps(dict(sorted((others | now).items())), indent=1, ensure_ascii=False))
        before = now
    before = of_groups(before, groups)
    differ = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
    for name in differ[:SHOWN]:
        print(f"{name}:\n  before {before.get(name, 'not there')}\n  now    {now.get(name, 'not there')}")
    print(json.dumps({"what": "locked", "groups": groups, "results": len(now), "differ": len(differ)}))
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
