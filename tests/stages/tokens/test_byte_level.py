"""Kernels give the ids of the package, for every tokenizer that they take; the others, and texts that they cannot take,
are the package's."""

from __future__ import annotations

import json
import threading
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings, strategies as st
from test_tokenize import CORPUS, GAPS, GPT2, GPT4, SPECIALS, TRAINED, WORDS, column, like, unigram
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from gristmill.kernels.base.unicode import POINTS
from gristmill.kernels.bpe.piece_memo import PieceMemo
from gristmill.stages.tokens import byte_level
from gristmill.stages.tokens.byte_level import ByteLevel, Unfit, classes
from gristmill.stages.tokens.encoding import TextEncoder
from gristmill.stages.tokens.training import trained

DATA = Path(__file__).parents[4] / "shared" / "data"
MARKS = (
    GPT4.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+")
    .replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
    .replace(r"{1,3}", "")
)


def with_whole_tokens() -> str:
    """As Llama 3: a piece that is a token is that token, whatever merging gives."""
    settings = json.loads(like(GPT4))
    vocab, model = settings["model"]["vocab"], settings["model"]
    for token in (
        "Ġwheel",
        "mill",
        "!?Ċ",
        "xyz",
        "10",
        "ſ".encode().decode("latin-1").replace("\xc5", "Å").replace("\xbf", "¿"),
        "a" * 40,
    ):
        vocab.setdefault(token, len(vocab))
    model["ignore_merges"] = True
    return json.dumps(settings)


def with_added_tokens() -> str:
    tokenizer = Tokenizer.from_str(like(GPT4.replace("{1,3}", ""), normalizers.NFC()))
    tokenizer.add_tokens(["<tool>", "<|x|>", AddedToken(".*+", lstrip=True), AddedToken("mills", single_word=True)])
    return tokenizer.to_str()


FAMILIES = {
    "ours": TRAINED,
    "ours, digits alone": trained(CORPUS, 500, 1, SPECIALS),
    "ours, three digits": trained(CORPUS, 500, 3, SPECIALS),
    "gpt2": like(None),
    "gpt2 as a pattern": like(GPT2),
    "gpt4": like(GPT4),
    "llama3": with_whole_tokens(),
    "qwen2": like(GPT4.replace("{1,3}", ""), normalizers.NFC()),
    "qwen3, with added tokens": with_added_tokens(),
    "qwen3.5": like(MARKS, normalizers.NFC()),
}
ODD = [
    *"aAzZſKéßŉ水한각\u1100\u1161\u11a8я\u0301\u0323\u0e34\u093f\u09be\u200d🙂①²٣7 \t\n\r\x0b\x0c\x1c\x85\u00a0\u2003\u2028\u3000\u200b\x00'’-.!_\ue000\u212b\u0958\ufb1d\U00031350\U0010ffff",
    *[
        "'s",
        "'S",
        "'ll",
        "'Re",
        "'vE",
        "'ſ",
        "'d",
        "\r\n",
        "  ",
        " '",
        "x" * 70,
        "-" * 70,
        " " * 70,
        "\n" * 70,
        "7" * 70,
        "xyz",
        "a" * 40,
    ],
    *["<tool>", "<|x|>", ".*+", "mills", *SPECIALS],
]
texts = st.lists(
    st.one_of(st.lists(st.sampled_from([*WORDS, *GAPS, *ODD]), max_size=60).map("".join), st.text(max_size=40)),
    max_size=4,
)


@cache
def encoder_for(family: str) -> TextEncoder:
    encoder = TextEncoder(FAMILIES[family])
    assert encoder.by == "kernels" and encoder.kernels is not None
    encoder.kernels.memo = PieceMemo(256, 1024)
    return encoder


def of_package(encoder: TextEncoder, texts: list[str]) -> list[list[int]]:
    return [found.ids for found in encoder.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def of_ours(encoder: TextEncoder, texts: pa.ChunkedArray) -> list[list[int]]:
    found = encoder.encode(texts)
    assert found.ids.dtype == encoder.dtype and not found.special.any()
    return [found.ids[a:b].tolist() for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True)]


def by_kernels(encoder: TextEncoder, texts: list[str]) -> list[bool]:
    """Which texts the package is not asked for."""
    assert encoder.kernels is not None
    rows = pa.array(texts, pa.large_string())
    return encoder.kernels.can(pa.chunked_array([rows]), byte_level.text_column(rows)).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None)
@given(texts)
@example([" <tool>a", "a.*+", "\u1100\u1161", "A\u030a", "the mills 's ſ 'ſ 'ſong 'LLama 'Vex"])
def test_ids_are_those_of_the_package(family, texts):
    encoder = encoder_for(family)
    wanted = of_package(encoder, texts)
    assert of_ours(encoder, column(texts)) == wanted
    assert of_ours(encoder, pa.chunked_array([pa.array(["a", *texts, None], pa.string())[1:]])) == [*wanted, []]


POINTS_THERE_ARE = [chr(point) for point in range(POINTS) if not 0xD800 <= point < 0xE000]


@pytest.mark.parametrize("family", ["ours", "gpt2"])
def test_every_character_there_is(family):
    encoder = encoder_for(family)
    texts = [between.join(POINTS_THERE_ARE[i : i + 4096]) for i in range(0, 1 << 18, 4096) for between in ("", "a ")]
    texts += ["".join(POINTS_THERE_ARE[i : i + 4096]) for i in range(1 << 18, POINTS, 4096)]
    assert len(texts) > 300
    assert of_ours(encoder, column(texts)) == of_package(encoder, texts)


@pytest.mark.parametrize("behind", ["", "\u0301", "\u0323", "\u09be", "\u1161", "\u11a8", "\u093c"])
def test_what_is_held_to_be_normal_is_so_to_the_package(behind):
    texts = [f"a{c}{behind}a" for c in POINTS_THERE_ARE]
    able = by_kernels(encoder_for("qwen2"), texts)
    kept = "".join(text for text, is_able in zip(texts, able, strict=True) if is_able)
    assert normalizers.NFC().normalize_str(kept) == kept and len(kept) > 100_000
    assert sum(able) < len(texts)


def test_what_is_a_letter_is_what_the_package_has_as_one():
    assert classes().dtype == np.uint8 and (classes() & byte_level.LETTER != 0).sum() > 130_000
    letters = pre_tokenizers.Split(Regex(r"\p{L}"), "removed", invert=True)
    for point in (0x41, 0x558, 0x30000, 0x323B0, 0xE000, 0x1E030):
        assert bool(letters.pre_tokenize_str(chr(point))) == bool(classes()[point] & byte_level.LETTER)


@pytest.mark.parametrize("family", ["ours", "gpt2", "llama3", "qwen2"])
@pytest.mark.parametrize("file", ["prose", "rule_verdicts", "languages"])
def test_ids_of_real_texts_are_those_of_the_package(family, file):
    path = DATA / f"{file}.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    texts = pq.read_table(path, columns=["text"])["text"].to_pylist()
    if file == "rule_verdicts" and family != "ours":
        texts = texts[::16]
    encoder = encoder_for_real(family)
    found = encoder.encode(column(texts))
    assert encoder.by == "kernels" and len(found.ids) > 100_000
    for start in range(0, len(texts), 256):
        for i, ids in enumerate(of_package(encoder, texts[start : start + 256]), start):
            assert found.ids[found.offsets[i] : found.offsets[i + 1]].tolist() == ids, f"text {i}"


@cache
def encoder_for_real(family: str) -> TextEncoder:
    """The family's rules, with a vocabulary learnt of these texts."""
    texts = [
        text
        for file in ("prose", "languages")
        for text in pq.read_table(DATA / f"{file}.parquet")["text"].to_pylist()[::20]
    ]
    settings, learnt = json.loads(FAMILIES[family]), json.loads(trained(texts, 8000, 2, SPECIALS))
    settings["model"] |= {name: learnt["model"][name] for name in ("vocab", "merges")}
    return TextEncoder(json.dumps(settings))


def test_texts_that_a_normalizer_changes_are_the_packages():
    texts = ["mill é", "mill e\u0301", "\u212b", "पनचक्की", "\U0001fae9\u0378", "mill"]
    assert by_kernels(encoder_for("qwen2"), texts) == [True, False, False, True, False, True]
    assert by_kernels(encoder_for("gpt4"), texts) == [True] * 6
    assert by_kernels(encoder_for("qwen3, with added tokens"), ["a <tool>", "<tool", "a.*+", "abc", "mills"]) == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_whole_tokens_stand_where_merges_are_ignored():
    encoder = encoder_for("llama3")
    vocab = json.loads(FAMILIES["llama3"])["model"]["vocab"]
    assert of_ours(encoder, column(["xyz", "a" * 40, "xyzz"])) == [
        [vocab["xyz"]],
        [vocab["a" * 40]],
        of_package(encoder, ["xyzz"])[0],
    ]
    assert len(of_package(encoder_for("gpt4"), ["xyz"])[0]) > 1


def test_a_special_token_that_is_a_piece_is_text():
    """Where merges are ignored even the kernels would give the id of a special token that is a word."""
    settings = json.loads(with_whole_tokens())
    settings["model"]["vocab"] |= {"stop": 9000}
    settings["added_tokens"].append({**settings["added_tokens"][0], "id": 9000, "content": "stop"})
    encoder = TextEncoder(json.dumps(settings))
    assert encoder.by == "kernels" and of_package(encoder, ["stop"]) == [[9000]]
    texts = ["the mill", "stop", "the stopping", "mill stone"]
    wanted = encoder.by_package(texts)
    found = encoder.encode(column(texts))
    assert found.ids.tolist() == wanted.ids.tolist() and 9000 not in found.ids
    assert found.offsets.tolist() == wanted.offsets.tolist() and not found.special.any()


def with_too_many_tokens() -> str:
    tokenizer = Tokenizer.from_str(TRAINED)
    tokenizer.add_tokens([f"{i * 7919 % 65537:x}" * 40 for i in range(20_000)])
    return tokenizer.to_str()


def changed(**changes: Any) -> str:
    settings = json.loads(TRAINED)
    for name, value in changes.items():
        place = settings if name in settings else settings["model"]
        assert name in place
        place[name] = value
    return json.dumps(settings)


def without_bytes() -> str:
    settings = json.loads(TRAINED)
    del settings["model"]["vocab"]["Ā"]
    return json.dumps(settings)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (changed(dropout=0.1), "dropout"),
        (changed(normalizer={"type": "Lowercase"}), "normalizer"),
        (changed(normalizer={"type": "NFKC"}), "normalizer"),
        (
            changed(
                pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
            ),
            "pre-tokenizer",
        ),
        (changed(pre_tokenizer=None), "pre-tokenizer"),
        (like(r"\p{L}+|\s"), "pre-tokenizer"),
        (without_bytes(), "no token for some bytes"),
        (unigram(), "pre-tokenizer"),
        pytest.param(None, "too many to look for", id="too many"),
    ],
)
def test_other_tokenizers_are_the_packages(tokenizer, reason):
    encoder = TextEncoder(tokenizer or with_too_many_tokens())  # seconds: not when tests are collected
    assert encoder.kernels is None and encoder.by.startswith("tokenizers (") and reason in encoder.by
    texts = ["mill pail", "", "alp"]
    if reason != "dropout":
        assert of_ours(encoder, column(texts)) == of_package(encoder, texts)


def test_one_difference_on_the_sample_sends_all_to_the_package(monkeypatch):
    for letter, message in (("ß", "on a sample its ids are others"), ("i", "other letters in ASCII")):
        wrong = classes().copy()
        wrong[ord(letter)] = 0
        monkeypatch.setattr(byte_level, "classes", lambda wrong=wrong: wrong)
        with pytest.raises(Unfit, match=message):
            ByteLevel(TextEncoder(TRAINED).tokenizer)


def test_threads_share_a_memo():
    encoder, results = encoder_for("ours"), {}
    wanted = {i: of_package(encoder, CORPUS[i::4]) for i in range(4)}

    def work(i: int) -> None:
        results[i] = [of_ours(encoder, column(CORPUS[i::4])) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(found == [wanted[i]] * 20 for i, found in results.items())


def test_what_python_does_not_know_of_unicode_is_not_held_to_be_normal():
    table = byte_level._normal_to_all()
    unknown = [point for point in range(POINTS) if unicodedata.category(chr(point)) == "Cn"]
    assert (
        len(unknown) > 100_000
        and (table[unknown] & byte_level.CHANGES).all()
        and not table[ord("a")] & byte_level.CHANGES
    )
