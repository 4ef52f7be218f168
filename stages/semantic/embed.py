"""A vector for each text, by a model: a table of tokens' vectors on the CPU, or an encoder on a GPU."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.classifiers.embedding.embedder import ENCODER, Embedder, read_embedder
from gristmill.classifiers.embedding.static import is_static
from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.common.settings import PLACEMENT
from gristmill.kernels.vectors.int8 import WIDEST
from gristmill.stages.judge.judge import unreached_by
from gristmill.stages.semantic.vectors import vector_column
from gristmill.stages.stage import Annotate, CannotRun


class Embed(Annotate):
    """Give each text a vector by a model: `embedding`, a list of 8-bit numbers.

    The model is a folder as model2vec writes it (tokenizer.json, model.safetensors), which takes no GPU, or an encoder
    of the BERT or ModernBERT family. Without a model, `corpus_embed` makes vectors from the documents themselves. A
    text without known tokens has none (null).
    """

    model_path: Annotated[RecipePath, Field(description="the model's folder; what it holds counts, not where it lies")]
    tokens: Annotated[int, Field(description="of a text so many are read at most", ge=8, le=1 << 20)] = 512
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="of an encoder; auto: a GPU if there is one", json_schema_extra=PLACEMENT),
    ] = "auto"

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = ("embedding",)
    costly: ClassVar[bool] = True

    @model_validator(mode="after")
    def _is_a_model(self) -> Self:
        if not (Path(self.model_path) / "tokenizer.json").is_file():
            raise ValueError(f"model_path: {self.model_path} is no folder of a model: it has no tokenizer.json")
        return self

    @property
    def gpu(self) -> bool:
        return self.device != "cpu" and not static_at(self.model_path)

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return (ENCODER, "torch") if static_at(self.model_path) else unreached_by("neural")

    def prepare(self) -> None:
        if static_at(self.model_path):  # torch leaves threads behind
            loaded(self.model_path, self.tokens, "cpu").vectors(pa.array(["a text"]))

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        try:
            device = "cpu" if static_at(self.model_path) else on_device(self.device)
            model = loaded(self.model_path, self.tokens, device)
        except Exception as error:  # whatever keeps a model from being loaded, no document is to be blamed
            raise CannotRun(f"the model cannot be loaded: {error}") from error
        if model.width > WIDEST:
            raise CannotRun(f"the model's vectors are {model.width:,} wide, and {WIDEST:,} is the most")
        return {"embedding": vector_column(model.vectors(batch.column("text")))}


def static_at(folder: str) -> bool:
    return is_static(Path(folder))


@lru_cache(4)
def loaded(folder: str, most: int, device: str) -> Embedder:
    """Once in each process."""
    return read_embedder(folder, most, device)
