"""Neural judges: an encoder and one or more heads on it; scored on packed tokens, on GPUs in bf16 or fp8, on CPUs in
float32 or int8.

Loads classifiers of the FineWeb-Edu kind (Penedo et al. 2024) from their Hugging Face folders.
classifiers/neural/training.py trains.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from gristmill.classifiers.artifact import read_json
from gristmill.classifiers.card import Head, Json, JudgeCard, JudgeError
from gristmill.classifiers.judge import Judge, Scores

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise JudgeError("a neural judge needs torch and safetensors: pip install 'gristmill[gpu]'") from error

from gristmill.classifiers.neural.coded_linear import CodedProjection
from gristmill.classifiers.neural.encoder import Encoder, EncoderShape, PackedTexts, Projection
from gristmill.classifiers.neural.encoder_weights import read_config, read_encoder
from gristmill.classifiers.neural.fast_linear import InferencePrecision, fuse, prepare_inference
from gristmill.classifiers.neural.scoring import Pace, in_order, run_steps, steps_of
from gristmill.classifiers.neural.text_tokens import Ahead, TextTokenizer, read_tokenizer, tokenise
from gristmill.trainer.step.precision import usual_precision

WEIGHTS, TOKENIZER, SHAPE = "weights.safetensors", "tokenizer.json", "config.json"
EDUCATIONAL = Head(
    "educational_value",
    "regression",
    (),
    "how useful the text is for teaching, from none (0) to excellent (5)",
    0.0,
    5.0,
)
IN_PLACE = Ahead()
ON_CPU = Pace(step_tokens=1024, window_steps=32, under_way=0)  # activations stay in the cache
TOLERANCE: dict[InferencePrecision, float] = {"float32": 1e-3, "bf16": 3e-2, "fp8": 6e-2, "int8": 6e-2, "sparse": 3e-2}
LONGEST = 512  # tokens read, where nothing else is said


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


def _apply_link(logits: Tensor, kind: str, width: int, low: float, high: float) -> Tensor:
    if kind == "probability":
        return logits.sigmoid()
    if kind in ("classes", "labels"):
        return logits.softmax(-1)
    return (low + (high - low) * logits).clamp(low, high)


@dataclass(frozen=True)
class NeuralJudge(Judge):
    """`network` holds float32 weights; `engine` is the network as it infers on `device` in `precision`."""

    card: JudgeCard  # type: ignore[misc]
    network: Network
    tokenizer: TextTokenizer
    engine: Network
    device: str = "cpu"
    precision: InferencePrecision = "float32"
    pace: Pace = ON_CPU
    ahead: Ahead = IN_PLACE

    needs: ClassVar[tuple[str, ...]] = (WEIGHTS, TOKENIZER, SHAPE)

    def at(
        self,
        device: str,
        precision: InferencePrecision | None = None,
        pace: Pace | None = None,
        ahead: Ahead | None = None,
    ) -> NeuralJudge:
        """The same judge elsewhere: "cuda:1", in "bf16" (usual there), "fp8", "int8" or "sparse"; on "cpu" in "int8"
        (usual for a judge whose weights are codes) or "float32" (for all others)."""
        where = torch.device(device)
        precision = precision or ("int8" if self.coded and where.type == "cpu" else usual_precision(where))
        if precision == "fp8" and where.type == "cuda" and not _has_fp8(where):
            raise JudgeError(f"fp8 does not run on {device}: it is for GPUs of compute capability 8.9 and up")
        pace = pace or (Pace() if where.type == "cuda" else ON_CPU)
        ahead = ahead or (_beside_a_gpu() if where.type == "cuda" else Ahead())
        engine = copy.deepcopy(self.network).to(where).eval().requires_grad_(False)
        prepare_inference(engine.encoder, precision)
        if where.type == "cuda":
            fuse(engine.encoder)
        if pace.compiled:
            engine.encoder.compile_for(pace.step_tokens)
        return replace(self, engine=engine, device=device, precision=precision, pace=pace, ahead=ahead)

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Scores:
        chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
        parts = [np.empty((0, self._width), np.float32), *self._answers(chunks)]
        return self._by_head(np.concatenate(parts))

    def _answers(self, batches: Iterable[pa.Array]) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
        sizes: list[int] = []

        def counted() -> Iterator[pa.Array]:
            for batch in batches:
                sizes.append(len(batch))
                yield batch

        steps = steps_of(tokenise(counted(), self.tokenizer, self.ahead), self.pace)
        results = run_steps(steps, self.engine.answers, torch.device(self.device), self.pace, self.tokenizer.most)
        return in_order(results, sizes, self._width)

    @property
    def coded(self) -> bool:
        """Are its weights stored as codes?"""
        return any(isinstance(module, CodedProjection) for module in self.network.modules())

    @property
    def _width(self) -> int:
        return sum(head.width for head in self.card.heads)

    def _by_head(self, answers: np.ndarray[Any, np.dtype[np.float32]]) -> Scores:
        ends = np.cumsum([head.width for head in self.card.heads])
        parts = np.split(answers, ends[:-1], axis=1)
        return {
            head.name: np.ascontiguousarray(part if head.multiclass else part[:, 0])
            for head, part in zip(self.card.heads, parts, strict=True)
        }

    def golden_tolerance(self) -> float:
        return TOLERANCE[self.precision]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """The golden scores are those of the float32 weights on the CPU, whatever this judge runs on."""
        Judge.save(self if (self.device, self.precision) == ("cpu", "float32") else self.at("cpu", "float32"), folder)

    def write(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in self.network.state_dict().items()},
            folder / WEIGHTS,
        )
        (folder / TOKENIZER).write_text(self.tokenizer.json, encoding="utf-8")
        facts = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self.network.encoder.shape).items()
        }
        (folder / SHAPE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, card: JudgeCard, device: str) -> Self:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        network = Network(Encoder(_shape_in(folder)), card.heads)
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
        most = card.preprocessing.get("tokens")
        if isinstance(most, bool) or not isinstance(most, int) or not 0 < most <= network.encoder.shape.positions:
            raise JudgeError(
                f"preprocessing: {most!r} tokens of a text, where the encoder takes 1 to "
                f"{network.encoder.shape.positions}"
            )
        return cls(
            card, network, check_fit(read_tokenizer(folder / TOKENIZER, most), network.encoder.shape), network
        ).at(device)


def neural_judge(card: JudgeCard, network: Network, tokenizer: TextTokenizer, device: str = "cpu") -> NeuralJudge:
    """Of a network that was trained or loaded."""
    network = network.to("cpu").eval()
    return NeuralJudge(card, network, check_fit(tokenizer, network.encoder.shape), network).at(device)


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


def from_transformers(
    folder: str | os.PathLike[str],
    heads: tuple[Head, ...] = (EDUCATIONAL,),
    device: str = "cpu",
    attribution: tuple[str, ...] = (),
) -> NeuralJudge:
    """A classifier of the transformers kind (`BertForSequenceClassification`, RoBERTa, ModernBERT) with one head:
    FineWeb-Edu's as it is published."""
    where = Path(folder)
    config = read_config(where)
    encoder, rest = read_encoder(where)
    name = "classifier.out_proj" if "classifier.out_proj.weight" in rest else "classifier"
    weight, bias = rest.get(f"{name}.weight"), rest.get(f"{name}.bias")
    if weight is None or bias is None or len(heads) != 1:
        raise JudgeError(
            f"{where}: one head is read from a classifier's weight and bias; train heads on an encoder that has none"
        )
    head = heads[0]
    if head.kind == "probability" and len(weight) == 2:  # softmax of two is the sigmoid of their difference
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    if len(weight) != head.width:
        raise JudgeError(f"{where}: the classifier has {len(weight)} outputs, and head {head.name} needs {head.width}")
    network = Network(encoder, heads)
    span = head.high - head.low if head.kind == "regression" else 1.0
    low = head.low if head.kind == "regression" else 0.0
    network.heads.load_state_dict({"weight": weight / span, "bias": (bias - low) / span})
    most = min(LONGEST, encoder.shape.positions)
    tokenizer = read_tokenizer(where / TOKENIZER, most)
    loaded = {"from": str(config.get("_name_or_path") or where.name), "kind": str(config.get("architectures"))}
    card = JudgeCard(
        "neural", heads, preprocessing_of(most), training=loaded, versions=versions(), attribution=attribution
    )
    return neural_judge(card, network, tokenizer, device)


def preprocessing_of(most: int) -> Json:
    return {"tokens": most, "special_tokens_in_texts": "are text"}


def versions() -> Json:
    return {name: version(name) for name in ("torch", "tokenizers", "safetensors")}


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


def _beside_a_gpu() -> Ahead:
    cores = os.cpu_count() or 1
    return Ahead(workers=min(4, cores), processes=min(14, cores - 2) if cores > 3 else 0)


def _has_fp8(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 9)
