"""RefinedWeb's line rules in DCLM's order, and the document that goes when too much of it went."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gristmill.stages.rules.refinedweb import RefinedwebLines, RefinedwebQuality


def lines(text: str | None, **settings):
    done = RefinedwebLines(**settings).apply(pa.record_batch({"text": pa.array([text], pa.string())}))
    left = done.batch["text"][0].as_py() if done.verdict.reason(0) is None else ""
    return left, [done.batch[name][0].as_py() for name in RefinedwebLines.adds]


@pytest.mark.parametrize(
    "line",
    [
        "BUY NOW HERE",
        "1234567890",
        "3 likes",
        "• 1,204 Views!",
        "2.5k followers",
        "(12 Comments)",
        "Menu",
        "items in cart",
        "Sign-in",
        "read more...",
    ],
)
def test_lines_that_go(line):
    assert lines(f"Some words stay.\n{line}\nAnd some more.") == (
        "Some words stay.\nAnd some more.",
        [1, 0, pytest.approx(words_of(line) / (6 + words_of(line)))],
    )


def words_of(line: str) -> int:
    return len(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "Half IS UP",
        "12 345",
        "3 likes were given",
        "likes 3",
        "Two words",
        "Please sign-in",
        "Read more... and on",
        "你好世界",
        "I read more",
    ],
)
def test_lines_that_stay(line):
    assert lines(f"\n  {line}  \n\n") == (f"\n  {line}  \n\n", [0, 0, 0.0])


def test_short_lines_lose_phrases_and_long_ones_do_not():
    assert lines("There are 3 items in cart now")[0] == "There are 3 now"
    assert lines("The story goes on Read More...")[0] == lines("The story goes on read more…")[0] == "The story goes on"
    assert lines("Sign-in to see it all")[:2] == ("to see it all", [0, 1, 0.2])
    long = "This line of text has eleven words and ends so: read more..."
    assert lines(long) == (long, [0, 0, 0.0]) and lines(long, short_line=12)[0] == long.removesuffix(" read more...")


def test_settings_in_other_languages():
    assert lines("Привет всем, читать ДАЛЕЕ", endings=("читать далее",))[0] == "Привет всем,"
    assert lines("12 лайков", counted=("лайков",))[0] == ""
    assert lines("HALF up", max_upper_share=0.6)[0] == "HALF up"
    assert lines("One\nTwo", min_words=1)[0] == "One\nTwo"


def test_documents_go_when_more_than_a_twentieth_of_their_words_went():
    words = " ".join(["word"] * 19)
    batch = pa.record_batch({"text": [f"{words}\nmenu", f"{words}\n12 likes", "MENU", "", None]})
    done = RefinedwebLines().apply(batch)
    verdict = RefinedwebQuality().apply(done.batch).verdict
    assert [verdict.reason(row) for row in range(5)] == [
        None,
        "too_many_words_removed",
        "too_many_words_removed",
        None,
        None,
    ]
    assert done.verdict.reason(2) == "nothing_left" and done.batch["text"].to_pylist() == [
        words,
        words,
        "MENU",
        "",
        None,
    ]


@pytest.mark.parametrize("text", ["", " \n\t", "a", "😀😀 😀", "שלום עולם", "\0\0 \0", "\u0301\u0301 x", "\r\n\r\n"])
def test_odd_texts_have_defined_signals(text):
    table = RefinedwebLines().apply(pa.record_batch({"text": pa.array([text], pa.string())})).batch
    assert 0 <= table["refinedweb_words_removed_share"][0].as_py() <= 1 and table["text"].null_count == 0


def test_batches_and_slices_do_not_matter():
    texts = ["One two. \nMENU", "", None, "3 likes", "Sign-in here"] * 3
    whole = RefinedwebLines()(pa.table({"text": pa.array(texts, pa.string())})).to_pylist()
    other = pa.table({"text": pa.array(["before", *texts], pa.string_view()).slice(1)})
    assert [row for k in range(15) for row in RefinedwebLines()(other.slice(k, 1)).to_pylist()] == whole
