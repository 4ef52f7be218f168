"""Runs of a second: a decoder of a few thousand weights on small shards, killed where a test wants.

python -m tests.trainer.tiny_runs SHARDS FOLDER KILL     KILL: "update 5", "half a file 2", "before the rename 2", or
  nothing. `torchrun` starts ranks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.shards.reader import open_shards
from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.ranks import ALONE, RankGroup, join_ranks
from gristmill.trainer.run import loop
from gristmill.trainer.run.loop import Outcome, train
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.optim import AdamW

SHAPE = DecoderShape(vocabulary=50, hidden=16, layers=2, heads=2, kv_heads=1, mlp=32, context=16, tied=True)
TRAINING = Training(
    updates=14,
    rows_per_update=8,
    rows_per_step=4,
    optimizer=AdamW(rate=0.01, weight_decay=0.1, eps=1e-3),  # rounding does not become a direction
    precision="float32",
    checkpoint_every=4,
    metrics_every=3,
)


def model(shape: DecoderShape = SHAPE) -> Decoder:
    return initialise(Decoder(shape), 1)


def loader(shards: Path, ranks: RankGroup = ALONE, **changes: Any) -> Loader:
    told: dict[str, Any] = {
        "batch_rows": 8,
        "order": Shuffled(),
        "seed": 3,
        "rank": ranks.rank,
        "world": ranks.count,
        **changes,
    }
    return Loader(open_shards(shards), **told)


def run(shards: Path, folder: Path, training: Training = TRAINING, ranks: RankGroup = ALONE, **more: Any) -> Outcome:
    reads = more.pop("loader", None) or loader(shards, ranks)
    return train(
        more.pop("model", None) or model(), reads, training, folder, device=torch.device("cpu"), ranks=ranks, **more
    )


def kill(when: str) -> None:
    """Arms this process: it ends there as if it had been shot."""
    what, _, number = when.rpartition(" ")
    seen = 0

    def due() -> bool:
        nonlocal seen
        seen += 1
        return seen == int(number)

    if what == "update":
        make = loop.TrainingRun._make_update
        loop.TrainingRun._make_update = lambda self, feed: (
            os._exit(9) if self.progress.update == int(number) else make(self, feed)
        )  # type: ignore[method-assign]
    elif what == "half a file":
        write = checkpoint.write_safetensors

        def half(path: Path, *others: Any) -> str:
            digest = write(path, *others)
            if due():
                os.truncate(path, path.stat().st_size // 2)
                os._exit(9)
            return digest

        checkpoint.write_safetensors = half
    elif what == "before the rename":
        rename = Path.rename

        def not_yet(self: Path, target: Path) -> Path:
            if self.name.startswith(".step-") and due():
                os._exit(9)
            return rename(self, target)

        Path.rename = not_yet  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 3:
        kill(sys.argv[3])
    with join_ranks("cpu") as (ranks, _):
        run(Path(sys.argv[1]), Path(sys.argv[2]), ranks=ranks)
