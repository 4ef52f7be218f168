#!/usr/bin/env python3
"""Gradients between hosts: bytes over their link, seconds an update and losses, flat beside replicas.

    python -m benchmarks.training.hosts [--ranks 8] [--mbit 100] [--updates 30] [--tiny]
    torchrun --nproc-per-node 2 -m benchmarks.training.hosts [--replicas 2]          # GPUs, over NCCL

The first command (root on Linux; iproute2) makes two network namespaces, joined by a pair of veth that `tc` slows to
--mbit, and starts half of the ranks in each, over gloo. Bytes are the kernel's count of what left both ends. Where
namespaces cannot be made, ranks run side by side and no bytes are told. Under torchrun it measures the link that is
there; on two GPUs of one host each is a replica. All ways train the same decoder on the same documents; `difference` is
the largest relative one of a loss from those of the first way, `weights` the root mean square difference of weights at
the end over that of the first way from the start.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training.speed import say
from gristmill.trainer.model.attention import fastest
from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.packed import PackedTokens, pack_documents
from gristmill.trainer.model.shapes import DecoderShape, shape_named
from gristmill.trainer.parallel.ranks import RankGroup, join_ranks
from gristmill.trainer.parallel.spread import spread
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step.optim import AdamW

ADAMW = AdamW(rate=1e-3, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8)
TINY = DecoderShape(256, 32, 2, 4, 2, 64, tied=True)
SMALL = DecoderShape(1024, 192, 4, 4, 2, 512, tied=True)
DEVICE = "slow"  # of both ends of the link
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# zero, and whether hosts are replicas
WAYS = [(1, False), (1, True), (3, False), (3, True)]


# --- hosts -----------------------------------------------------------------------------------------------------------


@contextmanager
def two_hosts(mbit: float) -> Iterator[list[str] | None]:
    """Names of two network namespaces with one slow link; None: they cannot be made here."""
    names = [f"host{os.getpid()}{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", DEVICE, "netns", names[0], "type", "veth", "peer", "name", DEVICE, "netns", names[1])
            for name, address in zip(names, ADDRESSES, strict=True):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)
                for device in ("lo", DEVICE):
                    ip("-n", name, "link", "set", device, "up")
                rate = ["rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms"]
                slowed = ["tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", "tbf", *rate]
                subprocess.run(slowed, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def start(ranks: int, hosts: list[str] | None, arguments: list[str]) -> int:
    """The worst exit code of all ranks, half of them on each host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        side = rank * 2 // ranks
        where = ["ip", "netns", "exec", hosts[side]] if hosts else []
        environment = os.environ | {
            "RANK": f"{rank}", "WORLD_SIZE": f"{ranks}", "LOCAL_RANK": f"{rank % (ranks // 2)}",
            "LOCAL_WORLD_SIZE": f"{ranks // 2}", "MASTER_PORT": f"{port}", "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": ADDRESSES[0] if hosts else "127.0.0.1", "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        if hosts:
            environment["GLOO_SOCKET_IFNAME"] = DEVICE
        command = [*where, sys.executable, "-m", "benchmarks.training.hosts", *arguments]
        processes.append(subprocess.Popen(command, env=environment))
    return max(process.wait() for process in processes)


def sent() -> int:
    """Bytes that left this host by the slow link."""
    counter = Path(f"/sys/class/net/{DEVICE}/statistics/tx_bytes")
    return int(counter.read_text()) if counter.exists() else 0


# --- what each rank does ---------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, args: argparse.Namespace, ranks: RankGroup, device: torch.device) -> None:
        self.ranks, self.device = ranks, device
        self.shape = TINY if args.tiny else shape_named("350m", 16_384) if device.type == "cuda" else SMALL
        self.updates, self.replicas = args.updates or (4 if args.tiny else 30), args.replicas
        self.longest = 1500 if device.type == "cuda" else 60
        self.losses: list[float] = []
        self.begun: torch.Tensor | None = None
        self.ended: torch.Tensor | None = None

    def pieces(self, update: int) -> PackedTokens:
        """This rank's documents; frequent tokens, each often followed by its double, so that there is much to learn."""
        random = np.random.default_rng([update, self.ranks.rank])
        vocabulary = self.shape.vocabulary
        documents = []
        for length in random.integers(8, self.longest, 8):
            ids = (vocabulary * random.random(length) ** 3).astype(int)
            follows = random.random(length) < 0.8
            for at in range(1, length):
                ids[at] = (2 * ids[at - 1] + 1) % vocabulary if follows[at] else ids[at]
            documents.append(ids.tolist())
        return pack_documents(documents)

    def measure(self, zero: int, replicated: bool) -> None:
        precision: Any = "bf16" if self.device.type == "cuda" else "float32"
        replicas = self.replicas if replicated else 1
        model = initialise(Decoder(self.shape, fastest(self.device)), 0)
        begun = torch.cat([p.detach().flatten() for p in model.parameters()])
        training = Training(
            1, self.ranks.count, optimizer=ADAMW, precision=precision, zero=zero, replicas=replicas, compile=False
        )
        stepper = spread(model, training, self.ranks, self.device)
        losses, seconds, counted_bytes = [], [], []
        for update in range(self.updates):
            packed = self.pieces(update)
            counted = sum(self.ranks.gather(packed.counted))
            before, began = sent(), time.perf_counter()
            loss = stepper.loss(packed.to(self.device)) / counted
            stepper.backward(loss, last=True)
            stepper.step(min(1.0, (1 + update) / 10))
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self.ranks.wait()
            seconds.append(time.perf_counter() - began)
            here = sent() - before
            by_rank = self.ranks.gather(here)  # ranks of a host read the same counter
            counted_bytes.append(by_rank[0] + by_rank[-1])
            losses.append(float(self.ranks.total(loss.detach().float())))
        weights = stepper.weights()
        if not self.ranks.first:
            return
        ended = torch.cat([weights[name].flatten() for name, _ in stepper.model.named_parameters()])
        if not self.losses:
            self.losses, self.begun, self.ended = losses, begun, ended
        assert self.begun is not None and self.ended is not None
        difference = max(abs(a / b - 1) for a, b in zip(losses, self.losses, strict=True))
        moved = float((self.ended - self.begun).square().mean().sqrt())
        say(
            "hosts", ranks=self.ranks.count, zero=zero, replicas=replicas,
            parameters=self.shape.parameters, seconds=round(statistics.median(seconds[1:]), 3),
            megabytes=round(statistics.median(counted_bytes) / 1e6, 2) or None, loss=round(losses[-1], 5),
            difference=float(f"{difference:.2e}"),
            weights=float(f"{float((ended - self.ended).square().mean().sqrt()) / moved:.2e}"),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8, help="of both hosts together")
    parser.add_argument("--mbit", type=float, default=100, help="a second, of the link between hosts, each way")
    parser.add_argument("--updates", type=int, help="of each way; 30, with --tiny 4")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if "RANK" in os.environ:
        with join_ranks() as (ranks, device):
            bench = Bench(args, ranks, device)
            for way in WAYS:
                bench.measure(*way)
        return
    ranks = 4 if args.tiny else args.ranks
    with two_hosts(args.mbit) as hosts:
        say("machine", hosts=2, ranks=ranks, mbit=args.mbit if hosts else None, torch=torch.__version__)
        worst = start(ranks, hosts, sys.argv[1:])
    raise SystemExit(worst)


if __name__ == "__main__":
    main()
