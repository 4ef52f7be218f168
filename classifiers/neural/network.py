"""The network of a neural judge: an encoder and one linear map for all heads, as torch runs it."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import asdict
from pathlib import Path

from gristmill.classifiers.artifact import read_json
from gristmill.classifiers.card import Head, JudgeError
from gristmill.kernels.common.extras import install

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise JudgeError(f"a neural judge needs torch and safetensors: {install('gpu')}") from error

from gristmill.classifiers.neural.coded_linear import CodedProjection
from gristmill.classifiers.neural.encoder import Encoder, EncoderShape, PackedTexts, Projection
from gristmill.classifiers.neural.fast_linear import InferencePrecision, fuse, prepare_inference
from gristmill.classifiers.neural.scoring import Pace
from gristmill.classifiers.neural.text_tokens import TextTokenizer
from gristmill.trainer.step.precision import usual_precision

WEIGHTS, SHAPE = "weights.safetensors", "config.json"
HOPPER = (9, 0)  # compute capability
# What an H200 measured, BERT-base's shape, full rows of 512 (docs/neural_judge.md).
SLOWER_THAN_BF16 = {
    "int8": "0.57 times the speed of bf16 on an H200",
    "sparse": "0.66 times the speed of bf16 on an H200",
}
ON_CPU = Pace(step_tokens=1024, window_steps=32, under_way=0)  # activations stay in the cache


class Network(nn.Module):
    """The trunk and all heads as one linear map. A regression answers in shares of its head's range."""

    def __init__(self, encoder: Encoder, heads: tuple[Head, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.Linear(encoder.shape.width, sum(head.width for head in heads))
        self.kinds = [(head.kind, head.width, head.low, head.high) for head in heads]

    def forward(self, packed: PackedTexts) -> Tensor:
        """float32_NK before the links: log-odds, or shares of a range."""
        vectors = self.encoder(packed)
        with torch.autocast(vectors.device.type, enabled=False):
            logits: Tensor = self.heads(vectors.float())
        return logits

    @torch.inference_mode()
    def answers(self, packed: PackedTexts) -> Tensor:
        """float32_NK: P(good), the classes' probabilities, or the value of a regression, head by head."""
        logits = self(packed).split([width for _, width, _, _ in self.kinds], -1)
        return torch.cat([_apply_link(part, *kind) for part, kind in zip(logits, self.kinds, strict=True)], -1)

    @property
    def coded(self) -> bool:
        """Are its weights stored as codes?"""
        return any(isinstance(module, CodedProjection) for module in self.modules())


def _apply_link(logits: Tensor, kind: str, width: int, low: float, high: float) -> Tensor:
    if kind == "probability":
        return logits.sigmoid()
    if kind in ("classes", "labels"):
        return logits.softmax(-1)
    return (low + (high - low) * logits).clamp(low, high)


def check_fit(tokenizer: TextTokenizer, shape: EncoderShape) -> TextTokenizer:
    """Refuses a tokenizer that makes ids which the encoder has no row for, or more of them."""
    if tokenizer.vocabulary > shape.vocabulary:
        raise JudgeError(
            f"the wrong tokenizer: it makes ids up to {tokenizer.vocabulary - 1:,}, and the encoder knows "
            f"{shape.vocabulary:,} of them"
        )
    if tokenizer.most > shape.positions:
        raise JudgeError(
            f"the tokenizer cuts texts at {tokenizer.most:,} tokens, where the encoder takes {shape.positions:,} at "
            "the most"
        )
    return tokenizer


def write_network(network: Network, folder: Path) -> None:
    """Its weights and the shape of its encoder."""
    from safetensors.torch import save_file

    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}, folder / WEIGHTS
    )
    facts = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(network.encoder.shape).items()
    }
    (folder / SHAPE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")


def read_network(folder: Path, heads: tuple[Head, ...]) -> Network:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    network = Network(Encoder(_shape_in(folder)), heads)
    try:
        weights = load_file(folder / WEIGHTS)
        _make_room_for_codes(network, weights)
        network.load_state_dict(weights)
    except (SafetensorError, RuntimeError) as error:
        raise JudgeError(
            f"{WEIGHTS} does not fit {SHAPE} and the heads: {str(error).splitlines()[-1].strip()}"
        ) from error
    if not all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values()):
        raise JudgeError(f"{WEIGHTS} has numbers that are not finite")
    return network


def precision_on(
    network: Network, device: torch.device, wanted: InferencePrecision | None, pace: Pace
) -> InferencePrecision:
    """The precision that is wanted, or the fastest there; a slow one that is wanted says how slow it is."""
    if wanted is None:
        if device.type == "cuda":
            return "fp8" if fp8_is_faster(network.encoder.shape, device, pace) else "bf16"
        return "int8" if network.coded else usual_precision(device)
    if device.type == "cuda":
        if wanted == "fp8" and not _has_fp8(device):
            raise JudgeError(f"fp8 does not run on {device}: it is for GPUs of compute capability 8.9 and up")
        if wanted in SLOWER_THAN_BF16:
            warnings.warn(f"precision {wanted}: {SLOWER_THAN_BF16[wanted]}", stacklevel=3)
    return wanted


def fp8_is_faster(shape: EncoderShape, device: torch.device, pace: Pace) -> bool:
    """As measured on an H200, 65,536 tokens a step, fp8 to bf16: BERT's shape at width 1024 1.08; at 768 1.35 compiled
    and 0.94 otherwise; at 384 0.81 and 0.78 (docs/neural_judge.md). Earlier GPUs were not measured."""
    if shape.family != "bert" or torch.cuda.get_device_capability(device) < HOPPER:
        return False
    return shape.width >= (768 if pace.compiled else 1024)


def engine_of(network: Network, device: torch.device, precision: InferencePrecision, pace: Pace) -> Network:
    """A copy that infers on a device."""
    engine = copy.deepcopy(network).to(device).eval().requires_grad_(False)
    prepare_inference(engine.encoder, precision)
    if device.type == "cuda":
        fuse(engine.encoder)
    if pace.compiled:
        engine.encoder.compile_for(pace.step_tokens)
    return engine


def _shape_in(folder: Path) -> EncoderShape:
    facts = read_json(folder / SHAPE)
    try:
        return EncoderShape(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
        )
    except (TypeError, ValueError) as error:
        raise JudgeError(f"{SHAPE}: {error}") from error


def _make_room_for_codes(network: Network, weights: dict[str, Tensor]) -> None:
    """Linear maps whose weights a file has as codes."""
    modules = dict(network.named_modules())
    for name, tensor in weights.items():
        plain = modules.get(name.removesuffix(".codes"))
        if name.endswith(".codes") and type(plain) is Projection:
            coded = CodedProjection.like(plain, four_bits=tensor.dtype == torch.uint8)
            if tensor.dtype != coded.codes.dtype:
                raise JudgeError(f"{WEIGHTS}: {name} is of {tensor.dtype}; codes are int8, or two in a byte of uint8")
            network.set_submodule(name.removesuffix(".codes"), coded)


def _has_fp8(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 9)
