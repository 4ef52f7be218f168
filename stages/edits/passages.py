"""Documents in passages that a prompt can hold: whole lines, or whole paragraphs where that is possible."""

from __future__ import annotations

from collections.abc import Sequence

BYTES_A_TOKEN = 4


def size_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def passages_of_lines(lines: Sequence[str], tokens: int) -> list[range]:
    """Rows of lines that together have about so many tokens; a longer line stands alone."""
    most, passages, start, held = tokens * BYTES_A_TOKEN, list[range](), 0, 0
    for row, line in enumerate(lines):
        size = size_of(line) + 1
        if held and held + size > most:
            passages.append(range(start, row))
            start, held = row, 0
        held += size
    return [*passages, range(start, len(lines))] if start < len(lines) else passages


def passages_of(text: str, tokens: int) -> list[str]:
    """Cut between paragraphs, else between lines, else between sentences, else between words."""
    most = tokens * BYTES_A_TOKEN
    return [passage.strip() for passage in joined(text, ("\n\n", "\n", ". ", "。", " "), most) if passage.strip()]


def joined(text: str, between: Sequence[str], most: int) -> list[str]:
    if size_of(text) <= most:
        return [text]
    if not between:
        return [text[at : at + most // BYTES_A_TOKEN] for at in range(0, len(text), max(1, most // BYTES_A_TOKEN))]
    pieces, passages, held = text.split(between[0]), list[str](), ""
    for row, piece in enumerate(pieces):
        piece = piece if row == len(pieces) - 1 else piece + between[0]
        if size_of(held) + size_of(piece) <= most:
            held += piece
            continue
        if held:
            passages.append(held)
        *whole, held = joined(piece, between[1:], most) if size_of(piece) > most else [piece]
        passages += whole
    return [*passages, held] if held else passages
