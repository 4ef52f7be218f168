"""Bits per byte are those that one works out by hand, of every byte, however texts are packed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from gristmill.shards.rows import Rows
from gristmill.trainer.evaluation.evaluate import HeldOut, opening_of, windows
from gristmill.trainer.evaluation.scoring import Continuation, plain_tokenizer, score_continuations, tokenise
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import PackedTokens
from tests.trainer.tiny import TEXTS, bigram_model, bits_per_byte, byte_pairs, log_chances, random_model, words

CHANCES = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.5, 0.375, 0.125]])


def bits_alone(model: Decoder, tokens: list[int]) -> float:
    """Of all tokens but the first, by the log-probabilities of the whole text at once."""
    if len(tokens) < 2:
        return 0.0
    chances = log_chances(model, tokens)
    return -sum(float(chances[i, tokens[i + 1]]) for i in range(len(tokens) - 1)) / math.log(2)


def test_bits_are_those_worked_out_by_hand() -> None:
    tokenizer = words("a", "b", "c")
    found = bits_per_byte(
        bigram_model(CHANCES),
        ["a b b", "c", "b a"],
        tokenizer,
        8,
        before=2,
    )
    first = -math.log2(0.5) - math.log2(0.25) - math.log2(0.75)  # a after c, b after a, b after b
    assert found.bits.dtype == np.float64 and found.bits == pytest.approx([first, 3, -math.log2(0.375) + 3], abs=1e-6)
    assert found.bytes.tolist() == [5, 1, 3] and found.tokens.tolist() == [3, 1, 2]
    assert found.bits_per_byte() == pytest.approx(found.bits.sum() / 9)


def test_a_first_token_with_nothing_before_it_costs_as_much_as_any_other() -> None:
    found = bits_per_byte(bigram_model(CHANCES), ["a b b", "c", ""], words("a", "b", "c"), 8)
    assert found.bits == pytest.approx([math.log2(3) + 2 - math.log2(0.75), math.log2(3), 0], abs=1e-6)
    assert found.bytes.tolist() == [5, 1, 0]


@pytest.mark.parametrize("before", [None, 0, 1])
def test_packed_texts_cost_what_each_costs_alone(before: int | None) -> None:
    tokenizer, model = byte_pairs(), random_model()
    found = bits_per_byte(model, TEXTS, tokenizer, 256, before=before)
    plain = plain_tokenizer(tokenizer)
    for i, text in enumerate(TEXTS):
        tokens = plain.encode(text, add_special_tokens=False).ids
        first = math.log2(300) * bool(tokens) if before is None else 0
        opened = tokens if before is None else [before, *tokens]
        assert found.bits[i] == pytest.approx(first + bits_alone(model, opened), rel=1e-4), text
        alone = bits_per_byte(model, [text], tokenizer, 256, before=before)
        assert alone.bits[0] == pytest.approx(found.bits[i], rel=1e-5)
    assert found.bytes.tolist() == [len(text.encode()) for text in TEXTS] and sum(found.bytes) > 200


def test_every_byte_is_in_the_tokens_and_a_special_token_in_a_text_is_text() -> None:
    tokenizer = byte_pairs()
    given_before = tokenizer.to_str()
    plain = plain_tokenizer(tokenizer)
    for text, tokens in zip(TEXTS, tokenise(TEXTS, plain), strict=True):
        assert plain.decode(tokens.tolist(), skip_special_tokens=False) == text and 0 not in tokens
    cutting = byte_pairs()
    cutting.enable_truncation(3)
    cutting.enable_padding(length=50)
    assert [len(t) for t in tokenise(TEXTS, plain_tokenizer(cutting))] == [len(t) for t in tokenise(TEXTS, plain)]
    assert tokenizer.to_str() == given_before


def test_neither_order_nor_the_size_of_steps_changes_a_document() -> None:
    tokenizer, model = byte_pairs(), random_model()
    texts = [*TEXTS, *(text[::-1] for text in TEXTS), *TEXTS]
    found = bits_per_byte(model, texts, tokenizer, 24, before=1)
    turned = bits_per_byte(model, texts[::-1], tokenizer, 24, before=1)
    assert (found.bits == turned.bits[::-1]).all()
    assert (found.bits[: len(TEXTS)] == pytest.approx(found.bits[-len(TEXTS) :], rel=1e-5)) and (
        found.bits > 0
    ).sum() == len(texts) - 3
    for step_tokens in (1, 7, 100):
        again = bits_per_byte(model, texts, tokenizer, 24, before=1, step_tokens=step_tokens)
        assert again.bits == pytest.approx(found.bits, rel=1e-5)
    assert (HeldOut.of(texts, tokenizer, 24, before=1).measured(model, "cpu").bits == found.bits).all()


def test_what_is_packed_together_depends_on_the_texts_and_not_on_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[list[int]] = []
    hidden = Decoder.hidden

    def seen(model: Decoder, packed: PackedTokens) -> torch.Tensor:
        lines.append(packed.ids_T.tolist())
        return hidden(model, packed)

    monkeypatch.setattr(Decoder, "hidden", seen)
    texts = [f"{a}{b}{c}" for a in "xyz" for b in "xyz" for c in "xyz"]  # as long as each other
    for order in (texts, texts[::-1]):
        bits_per_byte(random_model(), order, byte_pairs(), 24, before=1, step_tokens=10)
    half = len(lines) // 2
    assert half > 5 and lines[:half] == lines[half:]


def windows_of_the_harness(tokens: list[int], most: int, context: int) -> list[tuple[list[int], list[int]]]:
    """As lm-evaluation-harness cuts a text, tokens[0] being its prefix token."""
    prefix, rest = tokens[0], tokens[1:]
    first = min(most, len(rest))
    found, done = [([prefix, *rest[: first - 1]], rest[:first])], first
    while done < len(rest):
        asked = min(len(rest) - done, most - context + 1)
        end = done + asked
        found.append((tokens[end - most : end], rest[end - asked : end]))
        done = end
    return found


@given(st.integers(2, 60), st.integers(1, 12), st.data())
def test_each_token_is_asked_for_once_with_enough_before_it(length: int, row_length: int, data: st.DataObject) -> None:
    stride = data.draw(st.one_of(st.none(), st.integers(1, row_length)))
    sequence = np.arange(length)
    pieces = list(windows(sequence, row_length, stride))
    assert np.concatenate([piece.tokens[piece.first :] for piece in pieces]).tolist() == list(range(1, length))
    step = max(1, row_length // 2) if stride is None else stride
    for number, piece in enumerate(pieces):
        assert len(piece.tokens) <= row_length + 1 and (np.diff(piece.tokens) == 1).all()
        assert (number == 0 and piece.tokens[0] == 0) or (
            piece.first >= row_length - step + 1 and len(piece.tokens) == row_length + 1
        )
        assert piece.first >= 1
    theirs = windows_of_the_harness(sequence.tolist(), row_length, row_length - step + 1)
    assert [(piece.tokens[:-1].tolist(), piece.tokens[piece.first :].tolist()) for piece in pieces] == theirs


def test_long_texts_cost_what_their_windows_cost() -> None:
    tokenizer, model = byte_pairs(), random_model()
    text = " ".join(TEXTS * 3)
    tokens = [1, *plain_tokenizer(tokenizer).encode(text, add_special_tokens=False).ids]
    for stride in (None, 5, 16):
        expected = 0.0
        for piece in windows(np.array(tokens), 16, stride):
            chances = log_chances(model, piece.tokens.tolist())
            expected -= sum(
                float(chances[i - 1, piece.tokens[i]]) for i in range(piece.first, len(piece.tokens))
            ) / math.log(2)
        found = bits_per_byte(model, [text], tokenizer, 16, before=1, stride=stride)
        assert found.bits[0] == pytest.approx(expected, rel=1e-4) and found.bytes[0] == len(text.encode())


def test_continuations_cost_what_is_asked_of_them() -> None:
    pieces = [
        Continuation(np.array([0, 0, 0]), 1),
        Continuation(np.array([1, 1, 2]), 1),
        Continuation(np.array([1, 2, 0]), 2),
        Continuation(np.array([0, 1]), 1),
    ]
    found = score_continuations(bigram_model(CHANCES), pieces, "cpu")
    assert found == pytest.approx([math.log(4), -math.log(0.75) - math.log(0.125), math.log(2), math.log(4)], abs=1e-6)


def test_half_precision_weights_still_give_float32_logits() -> None:
    tokenizer, model = byte_pairs(), random_model().to(torch.bfloat16)
    found = bits_per_byte(model, TEXTS, tokenizer, 64, before=1)
    wide = bits_per_byte(model.float(), TEXTS, tokenizer, 64, before=1)
    assert found.bits_per_byte() == pytest.approx(wide.bits_per_byte(), rel=0.02) and len(set(found.bits.round(6))) == 7


def test_what_cannot_be_measured_is_said() -> None:
    tokenizer = byte_pairs()
    with pytest.raises(ValueError, match="not in the model's vocabulary of 260"):
        bits_per_byte(random_model(260), TEXTS, tokenizer, 64)
    with pytest.raises(ValueError, match="stride"):
        bits_per_byte(random_model(), TEXTS, tokenizer, 64, stride=65)
    with pytest.raises(ValueError, match="no text to measure"):
        bits_per_byte(random_model(), [], tokenizer, 64).bits_per_byte()
    with pytest.raises(ValueError, match="must ask"):
        score_continuations(random_model(), [Continuation(np.array([1, 2]), 2)], "cpu")


def test_the_opening_of_shards_is_what_all_their_documents_begin_with() -> None:
    def rows(chunk: list[int], second: int) -> Rows:
        ids = np.array([[1, 5, 6, second, 7, 0], [8, 9, 1, 4, 4, 4]], np.uint16)
        some = np.zeros(4, np.int32)
        return Rows(
            ids,
            np.array([0, 2, 4], np.int32),
            np.array([3, 2, 2, 4], np.int32),
            some.astype(np.uint64),
            np.array(chunk, np.int32),
            some,
            some,
            some,
        )

    assert opening_of(rows([0, 0, 1, 0], 1), bos=1) == 1  # the third piece goes on with a document that began elsewhere
    assert opening_of(rows([0, 0, 0, 0], 1), bos=1) is None and opening_of(rows([0, 0, 1, 0], 3), bos=1) is None
    assert opening_of(rows([0, 0, 1, 0], 1), bos=None) is None and opening_of(rows([1, 1, 1, 1], 1), bos=1) is None


def test_a_normalizer_that_leaves_nothing_leaves_nothing_to_count() -> None:
    from tokenizers import normalizers

    tokenizer: Tokenizer = words("a", "b", "c")
    tokenizer.normalizer = normalizers.Strip()
    found = bits_per_byte(bigram_model(CHANCES), ["   ", "a"], tokenizer, 8, before=2)
    assert found.bits.tolist() == pytest.approx([0, 1], abs=1e-6) and found.bytes.tolist() == [0, 1]


def test_rows_longer_than_the_context_are_refused() -> None:
    model = random_model()
    longest = model.shape.context
    text = "a b " * longest
    with pytest.raises(ValueError, match=f"the model's context is {longest:,}"):
        bits_per_byte(model, [text], words("a", "b", "c"), longest + 1)
