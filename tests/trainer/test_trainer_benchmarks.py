"""The benchmarks of training run on a CPU too, at sizes that say nothing about speed: every section ends and none
fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def said(command: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [line for line in lines if "failed" in line]
    return lines


def test_layouts_do_what_one_rank_does() -> None:
    lines = said([*TORCHRUN, "-m", "benchmarks.training.ranks", "--tiny", "--only", "smoke,memory", "--ways", "full/3"])
    beside = [(line.get("way", {}).get("precision"), line["off"]) for line in lines if "off" in line]
    exact = [off for precision, off in beside if precision == "float32"]
    assert (len(beside), len(exact)) == (31, 18)
    assert max(off for _, off in beside) < 1e-3 and max(exact) < 1e-6
    assert [(line["recompute"], line["zero"]) for line in lines if "predicted_gib" in line] == [("full", 3)]


def test_every_layout_is_measured_beside_others() -> None:
    wanted = "one,one+full,zero 2,zero 3,tensor,context+full+zero 1,1f1b,interleaved,zb1p,zbv,auto"
    lines = said([*TORCHRUN, "-m", "benchmarks.training.layouts", "--tiny", "--ways", wanted, "--updates", "4"])
    ways = [line["way"] for line in lines if "tokens_per_second" in line]
    assert ways == wanted.split(",") and sum("loss" in line for line in lines) == len(ways)
    assert max(line["off"] for line in lines if "off" in line) < 1e-4


def test_runs_are_the_same_bits() -> None:
    lines = said([sys.executable, "-m", "benchmarks.training.exact", "--tiny"])
    assert [line["same_bits"] for line in lines if "same_bits" in line] == [True, True]
    assert [(line["exit"], line["checkpoints"]) for line in lines if line["what"] == "shot"] == [
        (9, ["step-00000004"])
    ] * 2
    assert [line["within"] for line in lines if "within" in line] == [True]
    assert [line["went_on"] for line in lines if "went_on" in line] == [True]
    assert sum(line["what"] == "ended" for line in lines) == 6


def test_curves_of_fp8_lie_beside_those_of_bf16() -> None:
    lines = said([sys.executable, "-m", "benchmarks.training.fp8", "--tiny", "--no-repeat"])
    curves = [line for line in lines if line["what"] == "curve"]
    assert [len(curve["losses"]) for curve in curves] == [6, 6]
    assert abs(curves[1]["largest_difference"]) < 0.01


def test_a_mixture_is_measured_beside_a_dense_decoder() -> None:
    lines = said([sys.executable, "-m", "benchmarks.training.experts", "--tiny"])
    assert [(line["experts"], line["tokens_per_second"] > 0) for line in lines if line["what"] == "ours"] == [
        (None, True),
        (8, True),
    ]
    assert [line["ratio"] > 0 for line in lines if "ratio" in line] == [True]
    assert [line["tokens_per_second"] > 0 for line in lines if line["what"] == "transformers"] == [True]
    loads = [(line["router"], line["dropped"]) for line in lines if line["what"] == "load"]
    assert loads == [("sigmoid", 0), ("softmax", 0)]


def test_every_kernel_is_measured() -> None:
    sections = [
        "rms_norm",
        "rotary",
        "swiglu",
        "gated_mlp",
        "products",
        "cross_entropy",
        "linear_cross_entropy",
        "adamw",
    ]
    lines = said([sys.executable, "-m", "benchmarks.training.gpu_kernels", "--tiny", "--only", *sections])
    assert [line["what"].partition(": section ")[2] for line in lines if "seconds" in line] == sections


def test_replicas_learn_the_same_and_send_less() -> None:
    """Bytes are counted where network namespaces can be made."""
    lines = said([sys.executable, "-m", "benchmarks.training.hosts", "--tiny"])
    ways = {(line["zero"], line["gradients"], line["feedback"]): line for line in lines if line["what"] == "hosts"}
    assert len(ways) == 8
    assert all(line["difference"] < (1e-6 if way[1] in ("flat", "float32") else 1e-3) for way, line in ways.items())
    for zero in (0, 3):
        flat, whole, narrow = (ways[zero, gradients, True]["megabytes"] for gradients in ("flat", "float32", "int8"))
        assert flat is None or flat > 1.3 * whole > 3 * narrow


def test_layouts_that_share_no_layer_add_nothing_of_their_own_in_bf16() -> None:
    """Of two ranks and of one, with the same rows to a pass: the same losses, to the last bit."""
    ways = "zero 0,zero 1,zero 2,zero 3,1f1b,mixture"
    curves = [*TORCHRUN, "-m", "benchmarks.training.curves", "--tiny", "--precision", "bf16", "--only", "dense,sparse"]
    found = {line["way"]: line for line in said([*curves, "--ways", ways]) if line["what"] == "curve"}
    assert [found.pop(way)["nearest"] for way in ("zero 0", "zero 1", "zero 2", "zero 3", "mixture")] == [0.0] * 5
    assert 0 < found["1f1b"]["nearest"] < 1e-4


def test_curves_of_layouts_and_of_changes_between_them() -> None:
    lines = said([*TORCHRUN, "-m", "benchmarks.training.curves", "--tiny", "--only", "switches"])
    assert [(line["way"], line["updates"]) for line in lines if line["what"] == "curve"] == [
        ("zero 3, after 2 context, after 3 1f1b", 10),
        ("tensor, after 2 zbv, after 5 zero 1", 10),
        ("interleaved, after 8 zero 2, after 9 context", 10),
        ("zb1p, after 7 zero 0, after 8 tensor", 10),
    ]
    assert max(line["largest"] for line in lines if line["what"] == "curve") < 1e-4
