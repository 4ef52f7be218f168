"""Line rules: each kernel equals its reference on anything, reads no byte out of bounds, and takes time linear in the
text."""

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_array, text_column
from gristmill.kernels.base.unicode import properties
from gristmill.kernels.lines.boilerplate import WHOLE, WITHIN, boilerplate_lines, boilerplate_lines_plain
from gristmill.kernels.lines.c4 import JAVASCRIPT, LOREM_IPSUM, POLICY, c4_lines, c4_lines_plain
from gristmill.kernels.lines.phrase_blocks import blocks_of
from gristmill.kernels.lines.phrases import (
    count_phrases,
    lower_case,
    phrase_as_line,
    phrase_within,
    scan_words_plain,
    trie,
)
from gristmill.kernels.lines.refinedweb import (
    ANYWHERE,
    COUNTER,
    PREFIX,
    SUFFIX,
    refinedweb_lines,
    refinedweb_lines_plain,
)

C4 = {"lorem ipsum": LOREM_IPSUM, "javascript": JAVASCRIPT, "use cookies": POLICY, "куки": POLICY}
REFINED = {
    "likes": COUNTER,
    "like": COUNTER,
    "items in cart": ANYWHERE,
    "in": ANYWHERE,
    "read more...": SUFFIX,
    "sign-in": PREFIX,
    "ещё": SUFFIX,
}
BOILER = {
    phrase_as_line("Read more"): WHOLE, phrase_as_line("likes"): WHOLE, phrase_as_line("更多"): WHOLE, phrase_within("use cookies"): WITHIN,
    phrase_within("Куки"): WITHIN, phrase_within("餅乾"): WITHIN,
}  # fmt: skip
WORDS = {phrase_within(phrase): 1 for phrase in ("bad", "bad word", "x-y", "女の子", "😀", "straße", "плохо")}

pieces = st.one_of(
    st.text(max_size=4),
    st.sampled_from(
        ["\n", "\n\n", "\r\n", " ", "\u3000", "\u2028", "\x85", "[1]", "[edit]", "[citation needed]", "[", "]", "{", ".", "...", '"', "lorem ipsum",
         "Javascript", "use cooKies", "КУКИ", "Items in Cart", "Read more...", "read  MORE", "Sign-in", "ЕЩЁ", "3", "1,204", "2.5k", " likes", "LIKE",
         "女", "の", "子", "更多", "餅乾", "word", "bad", "x y", "😀", "STRASSE", "\u200b", "\u0301", "плохо", "İ", "K", "aaaaaaaaaaaa"]
    ),
)  # fmt: skip
documents = st.lists(st.lists(pieces, max_size=25).map("".join), max_size=4)


def columns(texts, kind):
    """A column with something before and after it in its buffers."""
    return text_column(pa.array(["x y. z", *texts, "Z"], kind).slice(1, len(texts)))


def arrays(offsets, *shape):
    return (
        np.zeros(max(int(offsets[-1] - offsets[0]), 1), np.uint8),
        np.zeros(len(offsets), np.int64),
        np.zeros((len(offsets) - 1, *shape), np.int64),
    )


def run_c4(data, offsets, marks="", citations=True, max_word_length=10, min_words=3):
    out, ends, counts = arrays(offsets, 4)
    c4_lines(data, offsets, np.array([ord(m) for m in marks], np.int64), citations, max_word_length, min_words,
             properties(), lower_case(), *trie(C4), *blocks_of(*trie(C4)[1:]), out, ends, counts)  # fmt: skip
    return list(zip(text_array(out, ends, pa.array([""] * (len(ends) - 1))).to_pylist(), counts.tolist(), strict=True))


def run_refined(data, offsets, max_upper=0.5, max_digits=0.999999, min_words=2, short_words=10):
    out, ends, counts = arrays(offsets, 4)
    refinedweb_lines(
        data,
        offsets,
        max_upper,
        max_digits,
        min_words,
        short_words,
        properties(),
        lower_case(),
        *trie(REFINED),
        out,
        ends,
        counts,
    )
    return list(zip(text_array(out, ends, pa.array([""] * (len(ends) - 1))).to_pylist(), counts.tolist(), strict=True))


def run_boilerplate(data, offsets, max_words=8):
    out, ends, counts = arrays(offsets)
    boilerplate_lines(data, offsets, max_words, properties(), lower_case(), *trie(BOILER), out, ends, counts)
    return list(zip(text_array(out, ends, pa.array([""] * (len(ends) - 1))).to_pylist(), counts.tolist(), strict=True))


def run_count(data, offsets):
    _, _, counts = arrays(offsets)
    count_phrases(data, offsets, np.arange(len(counts)), properties(), lower_case(), *trie(WORDS), counts)
    return counts.tolist()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@given(
    texts=documents,
    marks=st.sampled_from(["", '.?!"']),
    citations=st.booleans(),
    longest=st.sampled_from([3, 10]),
    least=st.integers(0, 3),
)
def test_c4_lines_equal_their_plain_twin(kind, texts, marks, citations, longest, least):
    expected = [c4_lines_plain(text, marks, citations, longest, least, C4) for text in texts]
    assert run_c4(*columns(texts, kind), marks, citations, longest, least) == expected


@given(
    texts=documents,
    upper=st.sampled_from([0.2, 0.5]),
    digits=st.sampled_from([0.3, 0.999999]),
    least=st.integers(0, 3),
    short=st.integers(0, 10),
)
def test_refinedweb_lines_equal_their_plain_twin(texts, upper, digits, least, short):
    expected = [refinedweb_lines_plain(text, upper, digits, least, short, REFINED) for text in texts]
    assert run_refined(*columns(texts, pa.string()), upper, digits, least, short) == expected


@given(texts=documents, most=st.integers(0, 8))
def test_boilerplate_equals_its_plain_twin(texts, most):
    assert run_boilerplate(*columns(texts, pa.string()), most) == [
        boilerplate_lines_plain(text, most, BOILER) for text in texts
    ]


@given(texts=documents)
def test_phrases_are_counted_as_in_the_plain_twin(texts):
    assert run_count(*columns(texts, pa.string())) == [scan_words_plain(text, WORDS)[2] for text in texts]


@given(st.binary(max_size=80))
def test_any_bytes_stay_within_bounds(data):
    view = np.frombuffer(data + b"\xe2\x80", np.uint8)
    offsets = np.array([0, len(data)], np.int64)
    assert run_count(view, offsets)[0] <= len(data)
    for run in (c4_lines, refinedweb_lines, boilerplate_lines):
        out, ends, counts = arrays(offsets, *([] if run is boilerplate_lines else [4]))
        settings = {
            c4_lines: (np.zeros(0, np.int64), True, 10, 3),
            refinedweb_lines: (0.5, 0.999999, 2, 10),
            boilerplate_lines: (8,),
        }[run]
        phrases = trie({c4_lines: C4, refinedweb_lines: REFINED, boilerplate_lines: BOILER}[run])
        blocks = blocks_of(*phrases[1:]) if run is c4_lines else ()
        guarded = np.concatenate([out, np.full(64, 7, np.uint8)])
        run(view, offsets, *settings, properties(), lower_case(), *phrases, *blocks, guarded[: len(out)], ends, counts)
        assert 0 <= ends[1] <= len(data) and (guarded[len(out) :] == 7).all()


@pytest.mark.parametrize("run", [run_c4, run_refined, run_boilerplate, run_count])
@pytest.mark.parametrize(
    "text",
    ["a" * 10_000_000, "a b c\n" * 1_500_000, "use cookies " * 800_000, "[" * 5_000_000, "read more... " * 700_000, "bad " * 2_000_000,
     "女" * 3_000_000, "1" * 9_000_000, "\u200b" * 3_000_000, "\n" * 5_000_000, "3 " * 4_000_000],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_time_is_linear_in_anything(run, text):
    run(*columns([text[:50]], pa.string()))
    began = time.process_time()
    run(*columns([text], pa.string()))
    assert time.process_time() - began < 3


def test_a_phrase_is_found_as_a_reader_finds_it():
    texts = ["A bad-word, BAD!", "badly", "女の子女の子", "x y, x-Y", "ПЛОХО плохой", "😀😀", "b\u200bad", "", "bad"]
    assert run_count(*columns(texts, pa.string())) == [2, 0, 2, 2, 1, 2, 1, 0, 1]


def test_boilerplate_by_hand():
    text = "Title\nRead more…\n\nWe use cookies here.\n12 likes\n更多\nA text of which nobody will read more."
    assert run_boilerplate(*columns([text], pa.string())) == [("Title\n\nA text of which nobody will read more.", 4)]
