#!/usr/bin/env python3
"""Neural judges on one GPU: tokens a second on full rows and on real lengths, in bf16 and fp8, from disk to disk, and a
judge trained and compared.

    python -m benchmarks.judges.neural_judge make FOLDER --pages pages.parquet --verdicts rule_verdicts.parquet
      --prose prose.parquet    (once, on any machine)
    python -m benchmarks.judges.neural_judge run FOLDER [--only full,real,cpu] [--profile] [--tiny] [--steps
      32768,65536]

`make` writes lengths.npy (tokens of pages' main texts, cut at 512), texts.parquet (these texts) and labelled.parquet
(text, quality, common_words, host: prose against page texts; a number besides that a regression can learn). `run`
prints one JSON line a result; a section that fails says why and the rest goes on. Peers are measured in the same run:
transformers' BertForSequenceClassification, bf16, SDPA, batches of 256. `--tiny` is a rehearsal on a CPU. Weights of
BERT-base shape are random: they cost the same.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judges.neural_judge_data import CUT, make, say
from benchmarks.judges.neural_judge_loops import text, whole
from benchmarks.judges.neural_judge_sections import cpu, disk, train

# also: int8, sparse (of every four weights the smaller two are cut), +coarse, +varlen, +autotune (minutes of compiling)
ENGINES = "bf16+fused,fp8+fused,bf16,fp8,eager,bf16+fused+flash4,fp8+fused+flash4"


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        from gristmill.classifiers.neural.encoder import EncoderShape

        self.args, self.torch = args, torch
        self.device = torch.device("cpu" if args.tiny else args.device)
        self.seconds = 0.2 if args.tiny else 2.0
        self.base = EncoderShape("bert", 30_522, 768, 12, 12, 3072, CUT)
        self.small = EncoderShape("bert", 16_000, 384, 6, 6, 1536, CUT)
        self.engines = tuple(args.engines.split(","))
        self.steps = [int(n) for n in args.steps.split(",")]
        self.batch, self.texts_on_disk, self.epochs = 256, args.disk_texts, args.epochs
        if args.tiny:
            self.base, self.small = (
                EncoderShape("bert", 30_522, 64, 2, 2, 128, CUT),
                EncoderShape("bert", 16_000, 32, 2, 2, 64, CUT),
            )
            self.steps, self.batch, self.texts_on_disk, self.epochs = [2048], 4, 64, 0.02
        torch.manual_seed(0)
        lengths = np.load(args.folder / "lengths.npy").astype(np.int64)
        random = np.random.default_rng(0)
        self.lengths = random.choice(lengths, 40 if args.tiny else 12_000)
        say(
            "machine", device=torch.cuda.get_device_name() if self.device.type == "cuda" else platform.processor(),
            torch=torch.__version__,
            python=platform.python_version(), mean_length=float(self.lengths.mean()),
            full_share=float((self.lengths == CUT).mean()),
        )  # fmt: skip

    # -- makings

    def judge(self, shape: Any = None) -> Any:
        from gristmill.classifiers.card import Head, JudgeCard
        from gristmill.classifiers.neural.encoder import Encoder
        from gristmill.classifiers.neural.judge import neural_judge, preprocessing_of
        from gristmill.classifiers.neural.network import Network
        from gristmill.classifiers.neural.text_tokens import read_tokenizer

        head = Head("quality", "regression", (), "random", -100.0, 100.0)
        network = Network(Encoder(shape or self.base), (head,))
        return neural_judge(
            JudgeCard("neural", (head,), preprocessing_of(CUT)),
            network,
            read_tokenizer(self.args.folder / "tokenizer.json", CUT),
        )

    def peer(self) -> Any:
        from transformers import BertConfig, BertForSequenceClassification

        shape = self.base
        config = BertConfig(
            vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.inner, max_position_embeddings=CUT, num_labels=1, attn_implementation="sdpa",
        )  # fmt: skip
        return BertForSequenceClassification(config).eval().to(self.device, self.torch.bfloat16)

    def random_tokens(self, lengths: np.ndarray[Any, Any]) -> Any:
        from gristmill.classifiers.neural.text_tokens import TextTokens

        return TextTokens(
            np.random.default_rng(1).integers(1000, self.base.vocabulary, int(lengths.sum()), dtype=np.int32), lengths
        )

    def rows(self, tokens: int) -> Any:
        """Full rows on the device."""
        from gristmill.classifiers.neural.encoder import PackedTexts

        rows, torch = tokens // CUT, self.torch
        return PackedTexts(
            torch.randint(1000, self.base.vocabulary, (tokens,), device=self.device, dtype=torch.int32),
            torch.arange(CUT, device=self.device, dtype=torch.int32).repeat(rows),
            torch.arange(0, tokens + 1, CUT, device=self.device, dtype=torch.int32),
            CUT,
        )

    def timed(self, work: Callable[[int], object]) -> tuple[float, float]:
        """Seconds of one call: the median of five goes, and their spread as a share of it."""
        for i in range(2):
            work(i)
        self.wait()
        begin = time.perf_counter()
        work(0)
        self.wait()
        calls = max(1, int(self.seconds / 5 / max(1e-6, time.perf_counter() - begin)))
        found = []
        for go in range(5):
            begin = time.perf_counter()
            for i in range(calls):
                work(go * calls + i)
            self.wait()
            found.append((time.perf_counter() - begin) / calls)
        middle = statistics.median(found)
        return middle, (max(found) - min(found)) / middle

    def wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def variants(self, names: tuple[str, ...]) -> Iterator[tuple[str, Any, int]]:
        """Engines to compare: name, network ready to answer, tokens of a step. All at the last number of tokens, the
        first two at the others too."""
        import copy

        from gristmill.classifiers.neural.fast_linear import fuse, prepare_inference
        from gristmill.trainer.model.attention import attend, attend_flash4

        plain = self.judge().network
        for step in self.steps[::-1]:
            for name in names if step == self.steps[-1] else names[:2]:
                if "flash4" in name and not self.has_flash4():
                    continue
                network, precision = copy.deepcopy(plain).to(self.device), precision_of(name)
                if precision == "sparse":
                    cut_to_two_of_four(network.encoder)
                prepare_inference(network.encoder, precision)
                if "fused" in name or "gelu" in name:
                    fuse(network.encoder)
                if "gelu" in name:  # not the residual stream's sums
                    for block in network.encoder.blocks:
                        block.out.fused = block.down.fused = False
                if "flash4" in name or "varlen" in name:  # in place of our own
                    network.encoder.attend = attend_flash4 if "flash4" in name else attend
                    for block in network.encoder.blocks:
                        block.attention = None
                if "coarse" in name:  # first tokens as all others
                    network.encoder.fine = None
                if name != "eager" and not self.args.tiny:
                    network.encoder.compile_for(step, mode="max-autotune-no-cudagraphs" if "autotune" in name else None)
                yield name, network, step

    def has_flash4(self) -> bool:
        try:
            import flash_attn.cute  # noqa: F401
        except ImportError:
            return False
        return self.device.type == "cuda"

    # -- sections

    def equal(self) -> None:
        """The same weights in transformers (float32) and here."""
        import copy

        from gristmill.classifiers.neural.encoder_weights import read_encoder
        from gristmill.classifiers.neural.fast_linear import fuse, prepare_inference

        torch = self.torch
        model = self.peer().float()
        for parameter in model.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
        packed = self.rows(8 * CUT)
        with torch.inference_mode():
            model.bert.config._attn_implementation = "sdpa"
            expected = model.bert(packed.tokens_T.view(8, CUT).long()).pooler_output.float()
            theirs = model.bfloat16().bert(packed.tokens_T.view(8, CUT).long()).pooler_output.float()
            with tempfile.TemporaryDirectory() as folder:
                model.float().save_pretrained(folder)
                for precision in ("bf16", "bf16 fused", "fp8", "fp8 fused", "int8", "sparse"):
                    encoder, against = read_encoder(Path(folder))[0].to(self.device), expected
                    if precision == "sparse":  # against its own weights, of which the half is 0
                        cut_to_two_of_four(encoder)
                        against = prepare_inference(copy.deepcopy(encoder), "float32")(packed).float()
                    prepare_inference(encoder, precision_of(precision))
                    if "fused" in precision:
                        fuse(encoder)
                    ours = encoder(packed).float()
                    say(
                        "equal: pooled vectors against transformers in float32, relative norm", precision=precision,
                        ours=float((ours - against).norm() / against.norm()),
                        peer_bf16=float((theirs - expected).norm() / expected.norm()),
                    )  # fmt: skip

    def peer_on_full_rows(self) -> float:
        torch, peer = self.torch, self.peer()
        inputs = [torch.randint(1000, self.base.vocabulary, (self.batch, CUT), device=self.device) for _ in range(4)]
        with torch.inference_mode():
            took, spread = self.timed(lambda i: peer(inputs[i % 4]))
        rate = self.batch * CUT / took
        say("full rows: transformers bf16 SDPA", tokens_a_second=round(rate), spread=spread, batch=self.batch)
        return rate

    def full(self) -> None:
        """Rows all 512 long, tokens on the device."""
        rate = self.peer_on_full_rows()
        with self.torch.inference_mode():
            for name, network, step in self.variants(self.engines):
                several = [self.rows(step) for _ in range(4)]
                begin = time.perf_counter()
                network.answers(several[0])
                self.wait()
                first = time.perf_counter() - begin
                took, spread = self.timed(lambda i, network=network, several=several: network.answers(several[i % 4]))  # type: ignore[misc]
                say(
                    "full rows: ours",
                    engine=name,
                    step=step,
                    tokens_a_second=round(step / took),
                    spread=spread,
                    ratio=step / took / rate,
                    first=first,
                )
                if self.args.profile:
                    self.profile(lambda network=network, several=several: network.answers(several[1]), name, step)  # type: ignore[misc]

    def profile(self, work: Callable[[], object], name: str, step: int) -> None:
        """Milliseconds a step by kind of kernel."""
        torch = self.torch
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(3):
                work()
            self.wait()
        kinds: dict[str, float] = {}
        kernels = []
        for event in profiler.key_averages():
            took = event.self_device_time_total / 3000
            low = event.key.lower()
            attention = any(word in low for word in ("flash", "fmha", "attn", "attention"))
            product = any(word in low for word in ("gemm", "nvjet", "cutlass", "cublas", "xmma"))
            kind = "attention" if attention else "products" if product else "copies" if "mem" in low else "rest"
            kinds[kind] = kinds.get(kind, 0.0) + took
            kernels.append((took, event.count // 3, event.key[:90]))
        say("profile, ms a step", engine=name, step=step, **kinds)
        for took, count, key in sorted(kernels, reverse=True)[:9]:
            print(f"    {took:8.3f} ms {count:4d} x {key}", flush=True)

    def real(self) -> None:
        """Real lengths, tokens in the host's memory, scores back there: everything but tokenising."""
        from gristmill.classifiers.neural.scoring import Pace, run_steps, steps_of

        short = np.clip(np.random.default_rng(3).lognormal(np.log(270), 0.9, len(self.lengths)), 8, CUT).astype(
            np.int64
        )
        sets = {"pages": self.lengths, "lognormal, median 270": short}
        rates = {name: self.padded(name, lengths) for name, lengths in sets.items()}
        for engine, network, step in self.variants(self.engines[:2]):
            pace = Pace(step_tokens=step, compiled=True)
            network.answers(self.rows(step))
            for name, lengths in sets.items():
                tokens, found = self.random_tokens(lengths), []
                ends = np.cumsum(lengths)
                pieces = [
                    type(tokens)(
                        tokens.ids[ends[i] - lengths[i] : ends[min(i + CUT, len(ends)) - 1]], lengths[i : i + CUT]
                    )
                    for i in range(0, len(ends), CUT)
                ]
                for _ in range(3):
                    self.wait()
                    begin = time.perf_counter()
                    texts = sum(
                        len(result.rows)
                        for result in run_steps(steps_of(pieces, pace), network.answers, self.device, pace, CUT)
                    )
                    found.append(int(ends[-1]) / (time.perf_counter() - begin))
                    assert texts == len(lengths)
                middle = statistics.median(found)
                say(
                    "real lengths: ours", lengths=name, engine=engine, step=step, tokens_a_second=round(middle),
                    ratio=middle / rates[name],
                    spread=(max(found) - min(found)) / middle,
                )  # fmt: skip

    def padded(self, name: str, lengths: np.ndarray[Any, Any]) -> float:
        """transformers, batches as they come, each padded to its longest text; tokens a second without the padding."""
        torch, peer, tokens = self.torch, self.peer(), self.random_tokens(lengths)
        ends = np.cumsum(lengths)

        def go(first: int) -> tuple[int, Any]:
            mine = lengths[first : first + self.batch]
            ids = np.zeros((len(mine), int(mine.max())), np.int64)
            mask = np.arange(ids.shape[1]) < mine[:, None]
            ids[mask] = tokens.ids[ends[first] - mine[0] : ends[first + len(mine) - 1]]
            sent = [torch.from_numpy(array).to(self.device) for array in (ids, mask)]
            return int(mine.sum()), peer(sent[0], attention_mask=sent[1]).logits

        with torch.inference_mode():
            go(0)[1].float().cpu()
            begin = time.perf_counter()
            done = [go(first) for first in range(0, len(lengths) // (1 if self.args.tiny else 2), self.batch)]
            torch.cat([logits for _, logits in done]).float().cpu()
            rate = sum(seen for seen, _ in done) / (time.perf_counter() - begin)
        say(
            "real lengths: transformers, padded batches as they come",
            lengths=name,
            tokens_a_second=round(rate),
            mean_length=float(lengths.mean()),
        )
        return rate


def precision_of(engine: str) -> Any:
    return next((name for name in ("fp8", "int8", "sparse") if name in engine), "bf16")


def cut_to_two_of_four(encoder: Any) -> None:
    """In place, what all tokens go through."""
    from gristmill.classifiers.neural.error_compensation import largest_two
    from gristmill.classifiers.neural.fast_linear import rounded_maps

    for _, plain in rounded_maps(encoder):
        plain.weight.data = largest_two(plain.weight.data)


OTHERS = {"disk": disk, "train": train, "cpu": cpu, "text": text, "whole": whole}
SECTIONS = ("equal", "full", "real", "train", "disk")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("folder", type=Path)
    for name in ("pages", "verdicts", "prose"):
        making.add_argument(f"--{name}", type=Path, required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--only", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)}, text, whole, cpu")
    running.add_argument("--steps", default="32768,65536", help="tokens of a step, to compare")
    running.add_argument(
        "--engines", default=ENGINES, help="to compare; `real` takes the first two, and so do all steps but the last"
    )
    running.add_argument("--disk-texts", type=int, default=60_000)
    running.add_argument("--cores", type=int, default=14, help="processes or threads that tokenise")
    running.add_argument("--device", default="cuda", help="cpu is for `train`: a quarter of an hour for two epochs")
    running.add_argument("--epochs", type=float, default=8.0, help="of the judge that `train` trains")
    running.add_argument("--judge", type=Path, help="folder in which the trained judge is saved")
    running.add_argument("--profile", action="store_true")
    running.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.command == "make":
        make(args.folder, args.pages, args.verdicts, args.prose)
        return 0
    bench = Bench(args)
    failed = 0
    for name in args.only.split(","):
        begin = time.perf_counter()
        try:
            OTHERS[name](bench) if name in OTHERS else getattr(bench, name)()
        except Exception as error:  # the others shall still be measured
            failed += 1
            say(f"{name} FAILED", error=f"{type(error).__name__}: {error}"[:600])
            traceback.print_exc()
        say(f"{name}: section", seconds=time.perf_counter() - begin)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
