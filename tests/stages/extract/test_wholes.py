"""What the choice of blocks leaves out by itself and takes for what stands around it, whatever the model is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.choice import mend
from gristmill.stages.extract.gristmill import SegmentedPage, look_at

SENTENCE = "The miller opens the sluice in the morning, and the stones turn until the evening."
CELLS = "<tr><td>Year<td>Sacks</tr><tr><td>1812<td>940</tr><tr><td>1813<td>1,020</tr>"


def looked_at(body: str) -> tuple[SegmentedPage, list[str]]:
    seen = look_at(f"<html><body>{body}</body></html>".encode())
    text, edges = seen.page.text.tobytes().decode(), seen.page.start.tolist()
    return seen, [text[a:b].strip() for a, b in itertools.pairwise(edges)]


def mended(seen: SegmentedPage, chosen: Array, probability: float) -> Array:
    """The choice with what belongs to it, where all other blocks are so probable."""
    page, probabilities = seen.page, np.where(chosen, 0.9, probability).astype(np.float32)
    kept: Array = mend(
        chosen, probabilities, page.tag, page.parent, page.element, page.text, page.start, seen.measured.counts,
        seen.measured.rows, seen.measured.tree.heading,
    )  # fmt: skip
    return kept


def sentences(texts: list[str]) -> Array:
    return np.array([text == SENTENCE for text in texts])


def test_headings_between_chosen_blocks_of_one_container_are_kept() -> None:
    around = f"<p>{SENTENCE}</p><h3>In spring</h3><p>{SENTENCE}</p><h3>More stories</h3>"
    seen, texts = looked_at(f"<article>{around}</article><div><div><div><div><div><p>{SENTENCE}</p>" + "</div>" * 5)
    kept = mended(seen, sentences(texts), 0.2)
    assert [text for text, keep in zip(texts, kept, strict=True) if keep] == [SENTENCE, "In spring", SENTENCE, SENTENCE]
    assert len(texts) == 5


@pytest.mark.parametrize(
    ("table", "probability", "is_kept"),
    [
        (CELLS, 0.2, True),
        (CELLS, 0.1, False),
        (CELLS.replace("<td>", "<td><a href=/x>"), 0.2, False),
        (CELLS.replace("<tr><td>1813<td>1,020</tr>", ""), 0.2, False),
        (CELLS + f"<tr><td><table>{CELLS}</table></tr>", 0.2, False),
    ],
)
def test_tables_of_data_after_chosen_blocks_are_kept(table: str, probability: float, is_kept: bool) -> None:
    seen, texts = looked_at(f"<article><p>{SENTENCE}</p><figure><table>{table}</table></figure></article>")
    chosen = sentences(texts)
    assert chosen.sum() == 1 and len(texts) > 4
    kept = mended(seen, chosen, probability)
    outer = [text in ("Year", "1812", "940") for text in texts]
    assert kept[outer].all() == is_kept and kept[outer].any() == is_kept


def test_a_table_of_another_container_is_not_taken() -> None:
    seen, texts = looked_at(
        f"<main><article><div><div><p>{SENTENCE}</p></div></div></article></main>"
        f"<aside><div><div><div><table>{CELLS}</table></div></div></div></aside>"
    )
    chosen = sentences(texts)
    kept = mended(seen, chosen, 0.2)
    assert kept.sum() == 1 and len(texts) == 7
