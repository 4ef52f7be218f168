"""A small run that loses its driver or a worker to kill -9 at a random moment, and ends with the same bytes as one that
was left alone."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

from tests.pipeline.run.killed_runs import KILLS, Case, Moment, file_count, make_case, survivors

SLICE = 1
FILES, TEXTS = 3, 40
STAGES = """\
  - exact_dedup
  - sample: {rate: 0.9}
  - write
  - tokenize: {vocab_size: 300}
  - pack: {row_length: 64, window_tokens: 2048}
"""


@functools.cache
def undisturbed(folder: Path) -> tuple[Case, float, int]:
    """A recipe, the seconds that it takes and the files that it makes; the run is in `folder`/undisturbed."""
    rng = random.Random(0)
    texts = [" ".join(f"word{rng.randrange(200)}" for _ in range(rng.randrange(20, 80))) for _ in range(FILES * TEXTS)]
    (folder / "crawl").mkdir(parents=True)
    for at in range(FILES):
        chosen = [*texts[at::FILES], *rng.sample(texts, 5)]
        (folder / "crawl" / f"{at}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in chosen))
    case = make_case(folder / "crawl", folder, 1, STAGES)
    seconds = case.finish(folder / "undisturbed")
    if len(survivors(folder / "undisturbed")) < FILES * TEXTS / 2:
        raise RuntimeError("the undisturbed run wrote too little to compare")
    return case, seconds, file_count(folder / "undisturbed")


def case(number: int, rng: random.Random, folder: Path) -> dict[str, float]:
    shared = folder.parent / "shared"
    run, seconds, files = undisturbed(shared)
    what, share = rng.choice(sorted(KILLS)), rng.uniform(0.05, 0.95)
    outcome = KILLS[what](
        run, folder / "out", Moment(share * seconds, round(share * files)), shared / "undisturbed", rng
    )
    if outcome.differences:
        raise AssertionError(
            f"{what} killed after {outcome.moment} s: {len(outcome.differences)} differences: {outcome.differences[:5]}"
        )
    return {f"{what}_killed": 1, "hit": outcome.hit, "files_compared": files}
