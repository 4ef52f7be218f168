"""Settings of `gristmill judge rate`: whose documents, for which benchmarks, asked of which model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gristmill.kernels.common.settings import Settings
from gristmill.pipeline.recipe import plans
from gristmill.pipeline.recipe.plans import LoadedPlan, Paths
from gristmill.stages.judge.back_end import BackEnd

EXAMPLE = "recipes/mixing/utilities.yaml"
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MeduModel(BackEnd):
    """The language model that is asked."""

    tensor_parallel: Annotated[int, Field(ge=1, description="vllm: GPUs that share the model")] = 1

    @model_validator(mode="after")
    def _shares_its_own_gpus(self) -> Self:
        if self.tensor_parallel > 1 and (self.endpoint or self.engine != "vllm"):
            raise ValueError("`tensor_parallel` is for vllm in this process; a server has its own")
        return self


class PricesOfTokens(Settings):
    """Of a million tokens, in any currency."""

    prompt: Price
    answer: Price


class MeduPlan(Settings):
    """How useful each source is for each benchmark, as a language model sees it."""

    out: Annotated[str | None, Field(description="folder for utilities.csv, descriptions, scores and the account")] = (
        None
    )
    description: str | None = None
    sources: Annotated[dict[str, Paths], Field(default_factory=dict, description="files of each source by its name")]
    documents: Annotated[
        Paths | None, Field(description="files with a column that names each document's source, or a run's folder")
    ] = None
    by: Annotated[str, Field(description="the column that names it")] = "source"
    text: Annotated[str, Field(description="the column with the text")] = "text"
    tasks: Annotated[dict[str, Paths], Field(min_length=1, description="a benchmark's development set by its name")]
    model: MeduModel
    reading: Annotated[Literal["at_once", "reasoned", "both"], Field(description="both: and how well they agree")] = (
        "at_once"
    )
    most: Annotated[int, Field(ge=2, description="documents scored per source")] = 256
    cut: Annotated[int, Field(ge=1, description="tokens of each document that the model sees")] = 512
    max_tokens: Annotated[int, Field(ge=16, description="limit of a reasoned answer")] = 1024
    most_failures: Annotated[float, Field(ge=0, le=1, description="highest share of unreadable answers")] = 0.02
    seed: Annotated[int, Field(ge=0)] = 0
    prices: PricesOfTokens | None = None

    @property
    def named(self) -> list[tuple[str, str]]:
        """Each path of documents with its source; "": the files say it."""
        of_sources = [(name, path) for name, paths in self.sources.items() for path in paths]
        return of_sources + [("", path) for path in self.documents or ()]


def load(path: Path) -> LoadedPlan[MeduPlan]:
    """A checked plan; RecipeError says where it is wrong."""
    return checked(plans.load(path, MeduPlan, EXAMPLE))


def checked(loaded: LoadedPlan[MeduPlan]) -> LoadedPlan[MeduPlan]:
    if not loaded.plan.named:
        raise loaded.wrong((), "give `sources`, by name, or `documents`, files with a column that names the source")
    return loaded
