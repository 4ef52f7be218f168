"""What the publishers of a pipeline report of their own run of it, in the recipe that follows it: a run's report lays
its own figures beside these, and an alarm sounds where a step is far off.

Only figures that somebody published belong here, each with where it stands; what nobody published stays empty. They
change no result.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gristmill.kernels.common.settings import Settings

Share = Annotated[float, Field(ge=0, le=1)]


class PublishedStep(Settings):
    """One step, named as the recipe names its stage."""

    dropped: Annotated[Share, Field(description="share of its input documents that the step dropped")]
    source: Annotated[str, Field(description="where the figure stands; that of `published` unless given")] = ""


class Published(Settings):
    """The figures of a whole pipeline."""

    source: Annotated[str, Field(description="where the figures stand", min_length=1)]
    of: Annotated[str, Field(description="what they are of: the data set, the dump, the language")] = ""
    documents: Annotated[int | None, Field(description="in the published data set", gt=0)] = None
    tokens: Annotated[int | None, Field(description="in the published data set", gt=0)] = None
    input_share: Annotated[
        float | None,
        Field(
            description=(
                "the share of the publisher's input that this run reads; without it documents and tokens in all are"
                " not compared, but tokens a document are"
            ),
            gt=0,
        ),
    ] = None
    steps: dict[str, PublishedStep] = Field(default_factory=dict, description="by the name of a stage of this recipe")
