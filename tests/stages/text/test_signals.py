"""Signals are defined on every text, and do not depend on layout, order or on what else is asked for."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings as how, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.text.signals import SIGNALS, TextSignals

ODD = [
    "",
    " ",
    "\n\n \t",
    "a",
    "。",
    "😀👍🏽❤️",
    "שלום עולם, זה טקסט",
    "\0\0a\0 \0",
    "\u0301\u0301",
    "\u200d\ufeff",
    "###",
    "…",
    "- \n- \n",
    "a" * 5000,
    "日本語のテキスト。",
    None,
]
UNITS = ("whitespace", "uax29", "datatrove")


def signals(texts, kind=None, **settings):
    batch = pa.record_batch({"text": pa.array(texts, kind or pa.string())})
    return {name: values.to_pylist() for name, values in TextSignals(**settings).annotate(batch).items()}


@pytest.mark.parametrize("units", UNITS)
def test_every_text_has_every_signal(units):
    found = signals(ODD, units=units)
    assert list(found) == list(SIGNALS) == list(TextSignals.adds)
    nulls = [text for text, length in zip(ODD, found["mean_word_length"], strict=True) if length is None]
    assert nulls == ["日本語のテキスト。"]  # a character is a syllable, or more
    for name, values in found.items():
        assert len(values) == len(ODD), name
        if name == "mean_word_length":
            values = [value for value in values if value is not None]
        assert None not in values, name
        if name != "main_script":
            assert np.isfinite(np.array(values, float)).all() and min(values) >= 0, name
        if name.endswith("_share"):
            assert max(values) <= 1, name


def test_values_on_a_small_text():
    text = "The cat — the END...\n\n• and that is it\nThe cat — the END... \n12345 # {x} www.a.org"
    found = {name: values[0] for name, values in signals([text]).items()}
    assert (found["lines"], found["paragraphs"], found["newlines"], found["characters"]) == (4, 2, 4, len(text))
    assert found["words"] == found["units"] == 15
    assert found["duplicate_line_share"] == 1 / 4 and found["duplicate_line_character_share"] == 20 / len(text)
    assert found["duplicate_line_share_of_line_characters"] == 20 / (len(text) - 4)
    assert (
        found["bullet_line_share"] == 1 / 4
        and found["ellipsis_line_share"] == 1 / 2
        and found["terminal_line_share"] == 1 / 2
    )
    assert found["hash_ratio"] == 1 / 15 and found["ellipsis_ratio"] == 2 / 15 and found["newlines_per_word"] == 4 / 15
    assert found["stop_words"] == 3 and found["curly_brackets"] == 2 and found["link_words"] == 1
    assert (
        found["alphabetic_word_share"] == 14 / 15 and found["main_script"] == "Latin" and found["short_line_share"] == 1
    )
    assert found["top_2gram_share"] > 0 and found["duplicate_5gram_share"] == 0


def test_no_script_without_spaces_is_one_word():
    texts = {
        "zh": "我们今天在公园里散步然后回家吃饭",
        "ja": "私たちは今日公園を散歩してから家に帰ります",
        "th": "วันนี้เราเดินเล่นในสวนสาธารณะแล้วกลับบ้าน",
        "km": "ថ្ងៃនេះយើងដើរលេងក្នុងសួន",
        "lo": "ມື້ນີ້ພວກເຮົາຍ່າງຫຼິ້ນ",
        "my": "ယနေ့ကျွန်ုပ်တို့လမ်းလျှောက်",
    }
    assert min(signals(list(texts.values()), only=("words",))["words"]) >= 4


@given(
    texts=st.lists(st.one_of(st.none(), st.text(max_size=60)), max_size=6),
    start=st.integers(0, 3),
    units=st.sampled_from(UNITS),
)
@how(max_examples=40)
def test_layout_order_and_neighbours_never_matter(texts, start, units):
    settings = {"units": units}
    whole = signals(texts, **settings)
    assert signals(texts, pa.large_string(), **settings) == whole == signals(texts, pa.string_view(), **settings)
    batch = pa.record_batch({"text": pa.array(texts, pa.string())}).slice(start)
    assert {n: v.to_pylist() for n, v in TextSignals(**settings).annotate(batch).items()} == {
        n: v[start:] for n, v in whole.items()
    }
    assert {n: v[::-1] for n, v in signals(texts[::-1], **settings).items()} == whole
    assert all(signals([text], **settings) == {n: [v[i]] for n, v in whole.items()} for i, text in enumerate(texts))


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_alone_is_the_same(name):
    assert signals(ODD, only=(name,)) == {name: signals(ODD)[name]}


def test_stop_words_go_by_language(tmp_path):
    texts = ["der Hund und die Katze"] * 5
    batch = pa.record_batch({"text": pa.array(texts), "language": pa.array(["de", "deu_Latn", "en", None, "xx"])})
    counted = TextSignals(only=("stop_words",)).annotate(batch)["stop_words"].to_pylist()
    assert counted == [3, 3, 0, 0, 0]
    assert TextSignals(only=("stop_words",), language="de").annotate(batch)["stop_words"].to_pylist() == [3, 3, 0, 3, 0]
    (tmp_path / "words.yaml").write_text("xx: [Hund, Katze]\n", "utf-8")
    own = TextSignals(only=("stop_words",), stop_words_file=str(tmp_path / "words.yaml"))
    assert own.annotate(batch)["stop_words"].to_pylist() == [3, 3, 0, 0, 2]


def test_stop_words_that_nobody_would_find_are_refused(tmp_path):
    words = tmp_path / "words.yaml"
    for content, message in [("no: [og, det]", "quote `no`"), ("de: og", "list of words"), ("a: [", "cannot be read")]:
        words.write_text(content, "utf-8")
        with pytest.raises(SettingsError, match=message):
            TextSignals(stop_words_file=str(words))
    with pytest.raises(SettingsError, match="No such file"):
        TextSignals(stop_words_file=str(tmp_path / "absent.yaml"))
    with pytest.raises(SettingsError, match=r"no stop words for 'english'.*there are en, "):
        TextSignals(language="english")
    words.write_text("'no': [xyz]\nyo: [ati, ni]\n", "utf-8")
    batch = pa.record_batch({"text": ["xyz ati ni"] * 2, "language": ["no", None]})
    own = TextSignals(stop_words_file=str(words), language="yo", only=("stop_words",))
    assert own.annotate(batch)["stop_words"].to_pylist() == [1, 2]


def test_an_unknown_signal_is_refused_with_the_nearest_name():
    with pytest.raises(SettingsError, match="did you mean 'mean_word_length'"):
        TextSignals(only=("mean_word_lenght",))


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "a b\n" * 1_000_000,
        "word " * 2_000_000,
        "(" * 3_000_000,
        "." * 3_000_000,
        "a'" * 2_000_000,
        "é-" * 2_000_000,
        "\n" * 3_000_000,
        "a@b." * 1_000_000,
    ],
    ids=["one line", "a million lines", "one word", "brackets", "dots", "quotes", "hyphens", "newlines", "addresses"],
)
@pytest.mark.parametrize("units", UNITS)
def test_time_is_linear(text, units):
    stage = TextSignals(units=units)
    stage.prepare()
    start = time.perf_counter()
    stage.annotate(pa.record_batch({"text": pa.array([text])}))
    assert time.perf_counter() - start < 20
