"""What a training step costs in floating-point operations, and what share of a GPU's peak that is.

A multiplication and an addition are two. Attention is counted inside documents alone and below the diagonal alone: a
document of n tokens has n (n + 1) / 2 pairs, fewer under a window. Counting whole rows instead would make packed short
documents look faster than they are. The backward pass has two matmuls for each of the forward pass. Not
counted: what is computed a second time (recomputation, and the scores that flash attention recomputes in backward), the
embedding's lookup, norms, activations, the optimiser. So this is the work that the model needs, as in PaLM (Chowdhery
et al. 2022, appendix B), not what the machine did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gristmill.trainer.model.shapes import DecoderShape

Lengths = np.ndarray[Any, np.dtype[np.integer[Any]]]

# Dense TFLOP/s by the makers' data sheets, of bf16 with sums in float32, and of fp8. The first name whose words the
# device's has counts.
PEAKS: tuple[tuple[str, float, float | None], ...] = (
    ("GB200", 2500, 5000),
    ("B200", 2250, 4500),
    ("GH200", 989, 1979),
    ("H200 NVL", 835, 1671),
    ("H200", 989, 1979),
    ("H100 PCIe", 756, 1513),
    ("H100 NVL", 835, 1671),
    ("H100", 989, 1979),
    ("H800", 989, 1979),
    ("H20", 148, 296),
    ("A100", 312, None),
    ("A800", 312, None),
    ("A40", 149.7, None),
    ("A30", 165, None),
    ("A10G", 70, None),
    ("A10", 125, None),
    ("L40S", 362, 733),
    ("L4", 121, 242),
    ("RTX 5090", 209.5, 419),
    ("RTX 4090", 165.2, 330.3),
    ("RTX 3090", 71, None),
    ("MI300X", 1307, 2615),
)


@dataclass(frozen=True)
class Flops:
    """Matmuls with weights, and those of attention, which alone grow with the length of documents."""

    matmul_forward: int
    matmul_backward: int
    attention_forward: int
    attention_backward: int

    @property
    def matmul(self) -> int:
        return self.matmul_forward + self.matmul_backward

    @property
    def attention(self) -> int:
        return self.attention_forward + self.attention_backward

    @property
    def forward(self) -> int:
        return self.matmul_forward + self.attention_forward

    @property
    def backward(self) -> int:
        return self.matmul_backward + self.attention_backward

    @property
    def total(self) -> int:
        return self.forward + self.backward

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            self.matmul_forward + other.matmul_forward,
            self.matmul_backward + other.matmul_backward,
            self.attention_forward + other.attention_forward,
            self.attention_backward + other.attention_backward,
        )


def flops_of(shape: DecoderShape, lengths: Lengths) -> Flops:
    """Of documents' pieces of these lengths. Give those of the documents alone, not of padding, which is no work that
    anyone wants."""
    lengths = np.asarray(lengths)
    matmul = 2 * weights_per_token(shape) * int(lengths.sum(dtype=np.int64))
    by_window = {window: pairs(lengths, window) for window in {shape.window(layer) for layer in range(shape.layers)}}
    seen = sum(by_window[shape.window(layer)] for layer in range(shape.layers))
    attention = 2 * 2 * shape.heads * shape.head_size * seen  # queries by keys, then weights by values
    return Flops(matmul, 2 * matmul, attention, 2 * attention)


def weights_per_token(shape: DecoderShape) -> int:
    """Entries of all matrices that each token is multiplied by, the head among them; of its own experts alone."""
    active = None if shape.experts is None else shape.experts.active
    return sum(shape.matrices(layer, active) for layer in range(shape.layers)) + shape.vocabulary * shape.hidden


def pairs(lengths: Lengths, window: int = 0) -> int:
    """Of a query and a key that it sees: itself and those before it, in a window at most so many."""
    lengths = np.asarray(lengths, dtype=np.int64)
    within = np.minimum(lengths, window) if window else lengths
    return int((within * (within + 1) // 2 + (lengths - within) * within).sum())


def peak_of(name: str, kind: Literal["bf16", "fp8"] = "bf16") -> float | None:
    """FLOP/s of a device by the name that torch.cuda.get_device_name gives; None: not known, or it has no such numbers,
    or is a part of one."""
    words = name.replace("-", " ")
    if re.search(r"\b(MIG|Laptop|Max Q)\b", words):
        return None
    for part, bf16, fp8 in PEAKS:
        if re.search(rf"\b{part}\b", words, re.IGNORECASE):
            peak = bf16 if kind == "bf16" else fp8
            return None if peak is None else peak * 1e12
    return None


def mfu(flops: Flops | int, seconds: float, peak: float | None) -> float | None:
    """Model FLOPs utilisation, 0 to 1; None where the peak is not known."""
    total = flops.total if isinstance(flops, Flops) else flops
    return None if peak is None else total / seconds / peak
