"""Document filters of NeMo Curator as a rule, with the verdicts that `ScoreFilter` gives (docs/coming_from.md)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from gristmill.stages.others.blocks import BlockAddress, Draws, Library, OtherBlock, Result, drop_by_result
from gristmill.stages.stage import Rule, Signals, Verdict

NEMO = Library(
    "NeMo Curator",
    "nemo_curator",
    "pip install nemo_curator",
    ("nemo_curator.stages.text.filters.doc_filter:DocumentFilter",),
    ("model_check_or_download", "load_model", "load_tokenizer"),  # as `ScoreFilter` does
)


class Nemo(OtherBlock, Rule):
    """Keep the documents that a `DocumentFilter` of NeMo Curator keeps; yours too, if it extends that class.

    The reason is the filter's class; the detail is the score. A document on which it raises is quarantined.
    """

    filter: Annotated[
        BlockAddress,
        Field(description="its module and class: nemo_curator.stages.text.filters.heuristic:WordCountFilter"),
    ]

    library: ClassVar[Library] = NEMO
    needs: ClassVar[tuple[str, ...]] = ("uid", "text")

    @property
    def address(self) -> str:
        return self.filter

    def verdict(self, signals: Signals) -> Verdict:
        block = self.built()
        texts = signals.column("text").to_pylist()
        results: dict[int, Result] = {}
        with Draws(block, self.model_dump_json(include={"filter", "settings"})).apart() as draws:
            for row, (text, uid) in enumerate(zip(texts, signals.column("uid").to_pylist(), strict=True)):
                draws.seed(uid)
                with self.looking_at(uid):
                    score = block.score_document(text or "")
                    results[row] = bool(block.keep_document(score)), shown(score)
        return drop_by_result(Verdict.keep(len(texts)), results, self.kind)


def shown(score: Any) -> str:
    return f"scored {score:.4g}" if isinstance(score, float) else f"scored {score}"
