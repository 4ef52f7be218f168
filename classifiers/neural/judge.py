"""Neural judges: an encoder and one or more heads on it; scored on packed tokens, on GPUs in bf16 or fp8, on CPUs in
float32 or int8.

`published` reads classifiers of others (FineWeb-Edu's: Penedo et al. 2024), `training` trains. This module itself asks
for no torch: what a plan may say of the kind is known without it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.classifiers.card import Head, Json, JudgeCard, JudgeError
from gristmill.classifiers.judge import (
    Device,
    Epochs,
    Judge,
    KindSettings,
    Lesson,
    Log,
    Scores,
    Train,
    WrongSetting,
    module_to_train,
)
from gristmill.classifiers.neural.text_tokens import Ahead, TextTokenizer, read_tokenizer, tokenise
from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.paths import PathRole

if TYPE_CHECKING:
    from gristmill.classifiers.neural.fast_linear import InferencePrecision
    from gristmill.classifiers.neural.network import Network
    from gristmill.classifiers.neural.scoring import Pace

WEIGHTS, TOKENIZER, SHAPE = "weights.safetensors", "tokenizer.json", "config.json"
IN_PLACE = Ahead()
TOLERANCE: dict[InferencePrecision, float] = {"float32": 1e-3, "bf16": 3e-2, "fp8": 6e-2, "int8": 6e-2, "sparse": 3e-2}
LONGEST = 512  # tokens read, where nothing else is said


HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def is_hub_id(name: str) -> bool:
    return HUB_ID.fullmatch(name) is not None


class Neural(KindSettings):
    """A transformer encoder."""

    encoder: Annotated[
        str,
        PathRole(is_name=is_hub_id),
        Field(description="its folder (config.json, *.safetensors, tokenizer.json) or hub id"),
    ]
    tokens: Annotated[int, Field(ge=16, description="read of each text")] = LONGEST
    epochs: Epochs = None
    rate: Annotated[
        float | None, Field(gt=0, lt=1, description="the highest learning rate; heads have three times it. 3e-4")
    ] = None
    batch: Annotated[int, Field(ge=512, description="tokens of an update")] = 32_768
    patience: Annotated[
        int | None,
        Field(
            ge=1,
            description="evaluations (four an epoch) without a lower loss after which training stops, with the best "
            "weights; a tenth of the training groups is held out for it. Unless given all epochs are trained",
        ),
    ] = None
    precision: Annotated[
        Literal["auto", "float32", "bf16"], Field(description="of training; auto: bf16 on a GPU, else float32")
    ] = "auto"
    device: Device = "auto"
    ranks: Annotated[
        int,
        Field(ge=1, le=64, description="processes that share each update: one a GPU, or a share of the CPU's cores"),
    ] = 1

    @model_validator(mode="after")
    def _an_update_holds_a_text(self) -> Self:
        if self.batch < self.tokens:
            raise ValueError(f"batch: {self.batch:,} tokens do not hold a text of {self.tokens:,}")
        return self


def _on_cpu() -> Pace:
    from gristmill.classifiers.neural.network import ON_CPU

    return ON_CPU


@dataclass(frozen=True)
class NeuralJudge(Judge):
    """`network` holds float32 weights; `engine` is the network as it infers on `device` in `precision`."""

    card: JudgeCard  # type: ignore[misc]
    network: Network
    tokenizer: TextTokenizer
    engine: Network
    device: str = "cpu"
    precision: InferencePrecision = "float32"
    pace: Pace = field(default_factory=_on_cpu)
    ahead: Ahead = IN_PLACE

    needs: ClassVar[tuple[str, ...]] = (WEIGHTS, TOKENIZER, SHAPE)
    settings: ClassVar[type[KindSettings] | None] = Neural
    learns: ClassVar[Lesson] = "value"
    on_gpu: ClassVar[bool] = True
    packages: ClassVar[frozenset[str]] = frozenset({"flash_attn", "torch", "triton"})
    to_train: ClassVar[frozenset[str]] = frozenset({"gristmill.classifiers.neural.training", "huggingface_hub"})

    @classmethod
    def trainer(cls, settings: Neural, head: Head, seed: int, log: Log) -> Train:
        training = module_to_train("gristmill.classifiers.neural.training", "neural", "torch", "gpu")
        from gristmill.classifiers.neural.encoder_weights import read_encoder

        folder = encoder_folder(settings.encoder)
        encoder, _ = read_encoder(folder)
        tokenizer = read_tokenizer(folder / TOKENIZER, min(settings.tokens, encoder.shape.positions))
        defaults = training.NeuralRecipe()
        recipe = training.NeuralRecipe(
            seed=seed,
            epochs=settings.epochs or defaults.epochs,
            update_tokens=settings.batch,
            step_tokens=max(settings.tokens, min(defaults.step_tokens, settings.batch // settings.ranks)),
            optimizer=replace(defaults.optimizer, rate=settings.rate or defaults.optimizer.rate),
            precision=None if settings.precision == "auto" else settings.precision,
            patience=settings.patience,
        )
        device = on_device(settings.device)
        if settings.ranks > (places := places_of(device)):
            what = "GPU" if device == "cuda" else "core"
            raise WrongSetting("ranks", f"{settings.ranks} ranks, where {places} {what}{'s' * (places > 1)} are")
        train = training.OneHead(head, tokenizer, encoder, recipe, device, settings.ranks)

        def tell(facts: Json) -> None:
            figures = (
                f"{name} {value:.4g}" if type(value) is float else f"{name} {value}" for name, value in facts.items()
            )
            log(", ".join(figures))

        return lambda texts: train(texts, tell)  # type: ignore[no-any-return]

    def at(
        self,
        device: str,
        precision: InferencePrecision | None = None,
        pace: Pace | None = None,
        ahead: Ahead | None = None,
    ) -> NeuralJudge:
        """The same judge elsewhere: "cuda:1", in "bf16", "fp8" (the faster of both unless given), "int8" or "sparse";
        on "cpu" in "int8" (usual for a judge whose weights are codes) or "float32" (for all others)."""
        import torch

        from gristmill.classifiers.neural.network import ON_CPU, engine_of, precision_on
        from gristmill.classifiers.neural.scoring import Pace

        where = torch.device(device)
        pace = pace or (Pace() if where.type == "cuda" else ON_CPU)
        precision = precision_on(self.network, where, precision, pace)
        ahead = ahead or (_beside_a_gpu() if where.type == "cuda" else Ahead())
        engine = engine_of(self.network, where, precision, pace)
        return replace(self, engine=engine, device=device, precision=precision, pace=pace, ahead=ahead)

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Scores:
        import torch

        from gristmill.classifiers.neural.scoring import in_order, run_steps, steps_of

        chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
        steps = steps_of(tokenise(chunks, self.tokenizer, self.ahead), self.pace)
        results = run_steps(steps, self.engine.answers, torch.device(self.device), self.pace, self.tokenizer.most)
        return self._by_head(in_order(results, len(texts), self._width))

    @property
    def coded(self) -> bool:
        """Are its weights stored as codes?"""
        return self.network.coded

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
        from gristmill.classifiers.neural.network import write_network

        write_network(self.network, folder)
        (folder / TOKENIZER).write_text(self.tokenizer.json, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, card: JudgeCard, device: str) -> Self:
        from gristmill.classifiers.neural.network import check_fit, read_network

        network = read_network(folder, card.heads)
        most = card.preprocessing.get("tokens")
        if isinstance(most, bool) or not isinstance(most, int) or not 0 < most <= network.encoder.shape.positions:
            raise JudgeError(
                f"preprocessing: {most!r} tokens of a text, where the encoder takes 1 to "
                f"{network.encoder.shape.positions}"
            )
        tokenizer = check_fit(read_tokenizer(folder / TOKENIZER, most), network.encoder.shape)
        return cls(card, network, tokenizer, network).at(device)


def neural_judge(card: JudgeCard, network: Network, tokenizer: TextTokenizer, device: str = "cpu") -> NeuralJudge:
    """Of a network that was trained or loaded."""
    from gristmill.classifiers.neural.network import check_fit

    network = network.to("cpu").eval()
    return NeuralJudge(card, network, check_fit(tokenizer, network.encoder.shape), network).at(device)


def places_of(device: str) -> int:
    """Of how many ranks there are at most."""
    if device != "cuda":
        return os.cpu_count() or 1
    import torch

    return torch.cuda.device_count()


def encoder_folder(name: str) -> Path:
    """The folder of an encoder, or what the hub has under its name."""
    from gristmill.trainer.model.llama_config import LlamaError
    from gristmill.trainer.model.llama_files import model_folder

    try:
        return model_folder(name)
    except LlamaError as error:
        raise WrongSetting("encoder", f"there is no folder {name}: {str(error).splitlines()[0]}") from error


def preprocessing_of(most: int) -> Json:
    return {"tokens": most, "special_tokens_in_texts": "are text"}


def versions() -> Json:
    return {name: version(name) for name in ("torch", "tokenizers", "safetensors")}


def _beside_a_gpu() -> Ahead:
    cores = os.cpu_count() or 1
    return Ahead(workers=min(4, cores), processes=min(14, cores - 2) if cores > 3 else 0)
