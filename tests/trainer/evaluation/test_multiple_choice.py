"""Choices are judged by what the model says of them, and files of questions by line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gristmill.trainer.evaluation.multiple_choice import (
    BadQuestions,
    Question,
    answer_questions,
    encode_questions,
    read_questions,
)
from gristmill.trainer.evaluation.scoring import plain_tokenizer
from tests.trainer.tiny import bigram_model, byte_pairs, log_chances, random_model, words

CHANCES = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.5, 0.375, 0.125]])
ABC = words("a", "b", "c")
QUESTIONS = [
    Question("1", "x", "c a", (" a", " b b b", " c"), 1),
    Question("2", "x", "b", (" b", " a"), 0),
    Question("3", "y", "a", (" a a", " b"), 1),
]


def test_log_probabilities_and_accuracies_are_those_worked_out_by_hand() -> None:
    found = answer_questions(bigram_model(CHANCES), QUESTIONS, ABC, 16, "cpu")
    log = math.log
    by_hand = [[log(0.5), log(0.25) + 2 * log(0.75), log(0.25)], [log(0.75), log(0.125)], [2 * log(0.5), log(0.25)]]
    for one, expected in zip(found.log_probs, by_hand, strict=True):
        assert one.tolist() == pytest.approx(expected, abs=1e-6)
    assert [sizes.tolist() for sizes in found.bytes] == [[2, 6, 2], [2, 2], [4, 2]]
    assert [counts.tolist() for counts in found.tokens] == [[1, 3, 1], [1, 1], [2, 1]]
    assert found.correct("raw").tolist()[:2] == [False, True]
    assert found.correct("byte").tolist() == [True, True, False]  # -1.96 / 6 against -0.69 / 2
    assert found.correct("token").tolist() == [True, True, False]
    assert found.accuracy("byte") == pytest.approx(2 / 3)
    bits = [2 - 2 * math.log2(0.75), -math.log2(0.75), 2]
    assert found.answer_bits == pytest.approx(bits, abs=1e-6) and found.answer_bytes.tolist() == [6, 2, 2]
    assert found.bits_per_byte() == pytest.approx(sum(bits) / 10)


def test_packed_pairs_are_scored_as_each_alone_and_long_contexts_lose_their_beginning() -> None:
    tokenizer, model = byte_pairs(), random_model()
    plain = plain_tokenizer(tokenizer)
    questions = [
        Question("1", "x", "the cat sat on the", (" mat", " log and the dog"), 0),
        Question("2", "x", "the dog " * 9, ("sat", "goes on"), 1),
        Question("3", "x", "größer", (" 猫", " 🙂"), 1),
    ]
    for before, row_length in ((None, 64), (1, 64), (1, 12)):
        found = answer_questions(model, questions, tokenizer, row_length, "cpu", before=before)
        for question, log_probs in zip(questions, found.log_probs, strict=True):
            for choice, log_prob in zip(question.choices, log_probs, strict=True):
                whole = plain.encode(question.context + choice, add_special_tokens=False).ids
                cut = len(plain.encode(question.context.rstrip(), add_special_tokens=False).ids)
                asked = len(whole) - cut
                tokens = ([] if before is None else [before]) + whole
                tokens = tokens[-(row_length + 1) :]
                chances = log_chances(model, tokens)
                expected = sum(float(chances[i - 1, tokens[i]]) for i in range(len(tokens) - asked, len(tokens)))
                assert log_prob == pytest.approx(expected, rel=1e-4)
    again = answer_questions(model, questions[::-1], tokenizer, 64, "cpu", before=1, step_tokens=9)
    first = answer_questions(model, questions, tokenizer, 64, "cpu", before=1)
    assert np.concatenate(again.log_probs[::-1]) == pytest.approx(np.concatenate(first.log_probs), rel=1e-5)


def test_spaces_at_a_contexts_end_go_to_the_choice() -> None:
    spaced, joined = (
        encode_questions([Question("1", "x", context, (choice, "x"), 0)], byte_pairs(), 64)[0]
        for context, choice in (("the cat sat on the ", "mat"), ("the cat sat on the", " mat"))
    )
    assert spaced.tokens.tolist() == joined.tokens.tolist() and spaced.asked == joined.asked > 0


def test_a_choice_that_grows_into_its_contexts_last_token_is_not_free() -> None:
    plain = plain_tokenizer(byte_pairs())
    context, whole = plain.encode("th", add_special_tokens=False).ids, plain.encode("the", add_special_tokens=False).ids
    assert len(whole) <= len(context)  # one token of "the" swallows those of "th"
    pair, _ = encode_questions([Question("1", "x", "th", ("e", "x"), 0)], byte_pairs(), 64, 1)
    assert pair.asked == len(whole) >= 1 and pair.tokens.tolist() == [1, *whole]


def test_without_a_context_the_first_token_is_given_what_stands_before_it_or_nothing() -> None:
    question = Question("1", "x", "", ("a", "b b"), 0)
    found = answer_questions(bigram_model(CHANCES), [question], ABC, 16, "cpu")
    assert found.log_probs[0].tolist() == pytest.approx([-math.log(3), -math.log(3) + math.log(0.75)], abs=1e-6)
    found = answer_questions(bigram_model(CHANCES), [question], ABC, 16, "cpu", before=2)
    assert found.log_probs[0].tolist() == pytest.approx([math.log(0.5), math.log(0.375) + math.log(0.75)], abs=1e-6)


def test_questions_that_cannot_be_asked_are_named() -> None:
    with pytest.raises(BadQuestions, match=r"question '1': choice ' b b b' has 3 tokens, more than the 2"):
        answer_questions(bigram_model(CHANCES), QUESTIONS, ABC, 2, "cpu")
    with pytest.raises(BadQuestions, match="adds no token"):
        answer_questions(bigram_model(CHANCES), [Question("9", "x", "a", ("  ", " b"), 0)], ABC, 16, "cpu")


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


GOOD = {"id": "1", "domain": "x", "context": "c", "choices": [" a", " b"], "answer": 1}


def test_a_file_of_questions_is_read(tmp_path: Path) -> None:
    found = read_questions(write(tmp_path / "q.jsonl", GOOD, "", {**GOOD, "id": "2", "context": "猫"}))
    assert found == [Question("1", "x", "c", (" a", " b"), 1), Question("2", "x", "猫", (" a", " b"), 1)]


def test_a_file_of_questions_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_questions(path) == [Question("1", "x", "c", (" a", " b"), 1)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{oops", "not JSON"),
        ([1], "an object with id, domain"),
        ({**GOOD, "contxt": ""}, "question.contxt: no such field; did you mean context"),
        ({"id": "7"}, "question.domain: Field required"),
        ({**GOOD, "id": 7}, "question.id: Input should be a valid string, not 7"),
        ({**GOOD, "choices": [" a"]}, "question.choices: .* at least 2 items"),
        ({**GOOD, "choices": [" a", ""]}, "question.choices.1: .* at least 1 character"),
        ({**GOOD, "choices": [" a", " a"]}, "the same text"),
        ({**GOOD, "answer": 2}, "from 0 to 1"),
        ({**GOOD, "answer": True}, "question.answer: Input should be a valid integer"),
        (GOOD, "that of line 1 too"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(BadQuestions, match=said) as error:
        read_questions(write(tmp_path / "q.jsonl", GOOD, line))
    assert str(error.value).startswith(f"{tmp_path / 'q.jsonl'}:2: ")


def test_a_file_without_questions_or_not_in_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadQuestions, match="no questions"):
        read_questions(write(tmp_path / "q.jsonl", "", " "))
    (tmp_path / "q.jsonl").write_bytes(b'{"id": "\xff"}')
    with pytest.raises(BadQuestions, match=r":1: not UTF-8"):
        read_questions(tmp_path / "q.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"id": "1", "domain": "d", "context": "a", "choices": ["\\ud800", "b"], "answer": 0}',
            "question.choices.0: Input should be a valid string, unable to parse raw data as a unicode string",
        ),
        ("[" * 100_000, "lists inside of lists"),
    ],
)
def test_what_no_tokenizer_reads_is_refused_by_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "quiz.jsonl").write_text(line + "\n")
    with pytest.raises(BadQuestions, match=f"quiz.jsonl:1: .*{message}"):
        read_questions(tmp_path / "quiz.jsonl")
