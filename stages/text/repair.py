"""Text as it was meant: misread encodings, leftover entities, normal form, unseen characters, spaces. Every step is a
setting.

What each step does and leaves alone, with figures: docs/repair.md. The work is done in kernels/repair/repair.py.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import pyarrow as pa
from pydantic import Field

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.repair import characters
from gristmill.kernels.repair.normal_form import Form
from gristmill.kernels.repair.repair import Steps, repair
from gristmill.stages.stage import Applied, Rewrite, Signals, Verdict, with_columns
from gristmill.stages.text.line_text import rewritten


class Repair(Rewrite):
    """Repair mojibake and HTML entities, normalise Unicode, and clean up control characters, zero-width characters and
    whitespace.

    No document is dropped. The signals count what was repaired; `replacement_characters` counts the U+FFFD that are in
    the text afterwards: they mark what a program before this one has lost, and stay.
    """

    mojibake: Annotated[
        bool, Field(description="read UTF-8 again that was read as Windows-1252 or Latin-1, once or more")
    ] = True
    entities: Annotated[bool, Field(description="decode HTML entities, unless the text holds `<`")] = True
    normal_form: Annotated[
        Form | None, Field(description="Unicode normal form; NFKC also undoes ligatures, full width and such")
    ] = "NFC"
    controls: Annotated[bool, Field(description="remove control characters; make every line end a newline")] = True
    zero_width: Annotated[
        bool, Field(description="remove characters without width, except where they carry meaning")
    ] = True
    whitespace: Annotated[
        bool, Field(description="plain spaces, one between words, none at line ends, one empty line at most")
    ] = True

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = (
        "entities_repaired", "mojibake_repaired", "controls_removed", "zero_width_removed", "replacement_characters",
    )  # fmt: skip

    @property
    def steps(self) -> Steps:
        chosen = {
            characters.ENTITIES: self.entities,
            characters.MOJIBAKE: self.mojibake,
            characters.CONTROLS: self.controls,
            characters.ZERO_WIDTH: self.zero_width,
            characters.WHITESPACE: self.whitespace,
        }
        return Steps(sum(bit for bit, wanted in chosen.items() if wanted), self.normal_form)

    def prepare(self) -> None:
        """Compile what even the first batch needs: a text on which every step has work."""
        self.rewrite(pa.record_batch({"text": pa.array(["Ã©&nbsp;\x07  e\u0301\u200b", "plain"])}))

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        given = Signals(batch).column("text")
        repaired = repair(text_column(given), self.steps)
        counts = dict(zip(self.adds, repaired.counts, strict=True))
        if len(repaired.changed):
            return rewritten(batch, repaired.text.data, repaired.text.offsets, counts)
        return Applied(
            with_columns(batch, {name: pa.array(values) for name, values in counts.items()}), Verdict.keep(len(batch))
        )
