"""Losses of documents under a decoder, as signals: for perplexity filters (`keep_where`), curricula (`order`), and
judges that learn from the losses of several models (`losses` of a judge plan).

The scoring is the trainer's own (`trainer/evaluation/evaluate.py`): a document of more tokens than `window` is read in
windows of that many, which move on by half of it. Each token is scored once, and each but those of the first window
has at least half a window before it. The last window is moved back until it is full.

On a CPU each window is a pass of its own, so losses do not depend on what else is scored. On a GPU windows are packed
without padding, and losses differ by rounding from those of other packs.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.paths import RecipePath
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.judge.figures import score_figures
from gristmill.stages.stage import Annotate, CannotRun

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from gristmill.trainer.model.model import Decoder

Before = Literal["auto", "bos", "eos", "nothing"]
TOKENIZER = "tokenizer.json"


class Opened(NamedTuple):
    decoder: Decoder
    tokenizer: Tokenizer
    before: int | None  # the token that documents begin with


class Perplexity(Annotate):
    """Score documents by a decoder of the Llama family: `bits_per_byte`, and `nats_per_token`, of which the exponential
    is the perplexity.

    The decoder is a folder that `gristmill train` or transformers wrote, in safetensors. A document without tokens has
    no loss (null). What the decoder cannot do stops the run, and no document is blamed for it.
    """

    model_path: Annotated[
        RecipePath, Field(description="the decoder's folder; what it holds counts, not where it lies")
    ]
    tokenizer_path: Annotated[
        RecipePath, Field(description="its tokenizer.json, where the decoder's folder has none")
    ] = ""
    prefix: Annotated[
        str,
        Field(
            description="before the names of the signals, where several decoders score",
            pattern=r"^([a-z][a-z0-9_]*)?$",
        ),
    ] = ""
    window: Annotated[
        int,
        Field(description="tokens that a document is read in, moving on by half; at most the decoder's context", ge=2),
    ] = 2048
    before: Annotated[
        Before,
        Field(
            description="the token before a document, from which its first is predicted, of those that config.json "
            "names; auto: bos, else nothing. After nothing a first token costs log(vocabulary)"
        ),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bf16"], Field(description="auto: bf16 on a GPU, float32 on a CPU")
    ] = "auto"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="auto: a GPU if there is one", json_schema_extra={"placement": True}),
    ] = "auto"

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = ("bits_per_byte", "nats_per_token")
    costly: ClassVar[bool] = True

    @model_validator(mode="after")
    def _is_a_decoder(self) -> Self:
        for name, path, file in (
            ("model_path", self.model_path, "config.json"),
            ("tokenizer_path", self.tokenizer_path or self.model_path, TOKENIZER),
        ):
            found = Path(path)
            if not (found.is_file() if name == "tokenizer_path" and self.tokenizer_path else (found / file).is_file()):
                raise ValueError(f"{name}: {path} {'has no ' + file if found.is_dir() else 'is not there'}")
        return self

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{name}" for name in self.adds)

    @property
    def scored_signals(self) -> tuple[str, ...]:
        return self.added

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        return StageFigures("Losses", score_figures(report)) if "scores" in report else None

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        from gristmill.trainer.evaluation.evaluate import HeldOut
        from gristmill.trainer.evaluation.scoring import STEP_TOKENS

        texts = [text or "" for text in batch.column("text").to_pylist()]
        device = on_device(self.device)
        try:
            decoder, tokenizer, before = opened(
                self.model_path, self.tokenizer_path, self.before, device, self.precision
            )
            window = min(self.window, decoder.shape.context)
            documents = HeldOut.of(texts, tokenizer, window, before=before)
            measured = documents.measured(decoder, device, STEP_TOKENS if device == "cuda" else 1)
        except Exception as error:  # of a decoder, a tokenizer or a GPU no document is to be blamed
            raise CannotRun(f"the decoder cannot score: {type(error).__name__}: {error}") from error
        without = (measured.tokens == 0) | (measured.bytes == 0)
        nats = measured.bits * math.log(2)
        losses = (measured.bits / np.maximum(measured.bytes, 1), nats / np.maximum(measured.tokens, 1))
        return {
            name: pa.array(values.astype(np.float32), mask=without)
            for name, values in zip(self.added, losses, strict=True)
        }


@lru_cache(4)
def opened(model_path: str, tokenizer_path: str, before: Before, device: str, precision: str) -> Opened:
    """Once in each process."""
    import torch
    from tokenizers import Tokenizer

    from gristmill.trainer.model.attention import fastest
    from gristmill.trainer.model.llama import load_llama
    from gristmill.trainer.model.llama_files import CONFIG, read_json

    half = precision == "bf16" or (precision == "auto" and device == "cuda")
    decoder = load_llama(
        model_path, device, torch.bfloat16 if half else torch.float32, fastest(torch.device(device))
    ).eval()
    tokenizer = Tokenizer.from_file(str(Path(tokenizer_path or model_path) / ("" if tokenizer_path else TOKENIZER)))
    return Opened(decoder, tokenizer, token_before(read_json(Path(model_path) / CONFIG), before))


def token_before(config: dict[str, Any], before: Before) -> int | None:
    if before == "nothing":
        return None
    token = config.get("eos_token_id" if before == "eos" else "bos_token_id")
    token = token[0] if isinstance(token, list) and token else token  # of several, the first ends texts
    if isinstance(token, int):
        return token
    if before == "auto":
        return None
    raise ValueError(f"before: config.json names no {before}_token_id")
