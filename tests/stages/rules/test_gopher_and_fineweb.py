"""Rules decide on stored signals alone, name one reason each, and can differ by language."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages import FinewebQuality, GopherQuality, GopherRepetition, TextSignals
from gristmill.stages.stage import Signals

PROSE = " ".join(
    f"The thing{a} of the house{b} stood {c}, and that is what people have to remember with care."
    for a, b, c in zip("abcdefgh", "ijklmnop", "qrstuvwx", strict=True)
)


def reasons(rule, texts, languages=None, **settings):
    columns = {"text": pa.array(texts)} | ({"language": pa.array(languages)} if languages else {})
    only = tuple(name for name in rule.needs if name != "language")
    batch = TextSignals(only=only, **settings).apply(pa.record_batch(columns)).batch
    verdict = rule.verdict(Signals(batch.drop_columns(["text"])))
    return [verdict.reason(row) for row in range(len(texts))]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PROSE, None),
        ("", "too_few_words"),
        ("The few words of a text.", "too_few_words"),
        ("the and " * 50_001, "too_many_words"),
        ("a b of to " * 20, "words_too_short"),
        ("extraordinarily " * 60, "words_too_long"),
        (PROSE + " #" * 20, "too_many_hashes"),
        (PROSE + " ..." * 20, "too_many_ellipses"),
        (PROSE.replace("The", "\n- The"), "too_many_bullet_lines"),
        ("\n".join(f"The line that we have with number {n} ..." for n in "abcdefghijkl"), "too_many_ellipsis_lines"),
        (PROSE + " 12345" * 60, "too_few_alphabetic_words"),
        ("Hund Katze Maus " * 30, "too_few_stop_words"),
    ],
)
def test_gopher_quality_names_one_reason(text, reason):
    rule = GopherQuality(max_ellipsis_ratio=0.2 if reason == "too_many_ellipsis_lines" else 0.1)
    assert reasons(rule, [text]) == [reason]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PROSE.replace("The ", ""), "top_3gram"),
        ("four words, all new", None),
        ("", "empty"),
        (" \n\n ", "empty"),
        ("same\n\nsame\n\nother", "duplicate_paragraphs"),
        (
            "a long line that comes twice here\n\nb\n\na long line that comes twice here\n\nc\n\nd\n\ne",
            "duplicate_paragraph_characters",
        ),
        ("same\nsame\nother", "duplicate_lines"),
        (
            "a long line that comes twice here\nb\na long line that comes twice here\nc\nd\ne",
            "duplicate_line_characters",
        ),
        ("one two one two three", "top_2gram"),
        ("alpha beta gamma delta epsilon x y z alpha beta gamma delta epsilon u v w q r s t", "duplicate_5grams"),
    ],
)
def test_gopher_repetition_names_one_reason(text, reason):
    rule = (
        GopherRepetition()
        if reason != "duplicate_5grams"
        else GopherRepetition(max_top_2gram_share=1, max_top_3gram_share=1, max_top_4gram_share=1)
    )
    assert reasons(rule, [text]) == [reason]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A line that ends as a line of prose should end.\n" * 1, None),
        ("", "empty"),
        ("\n".join(f"menu entry {n} of the page that goes on" for n in range(20)), "too_few_terminal_lines"),
        ("\n".join(f"short {n}." for n in range(20)), "too_many_short_lines"),
        (
            "A line that ends as a line of prose should end.\nA line that ends as a line of prose should end.\n",
            "duplicate_line_characters",
        ),
        ("\n".join(f"averyveryverylongwordwithoutanyspaceinit{n}." for n in range(20)), "too_many_newlines"),
    ],
)
def test_fineweb_names_one_reason(text, reason):
    assert reasons(FinewebQuality(), [text]) == [reason]


def test_every_threshold_can_be_left_out():
    assert reasons(GopherQuality(**dict.fromkeys(GopherQuality.fields())), ["", "#", "a"]) == [None] * 3


def test_thresholds_by_language(tmp_path):
    path = tmp_path / "thresholds.yaml"
    path.write_text("de: {min_words: 3, min_stop_words: 1, min_mean_word_length: 2}\nzh: {min_words: null}\n", "utf-8")
    rule = GopherQuality(thresholds_file=str(path))
    assert "language" in rule.needs and "language" not in GopherQuality().needs
    found = reasons(rule, ["der Hund und die Katze"] * 4 + ["我们今天"], ["de", "deu_Latn", "en", None, "zh"])
    assert found == [None, None, "too_few_words", "too_few_words", "too_few_stop_words"]


@pytest.mark.parametrize("units", ["uax29", "whitespace", "datatrove"])
def test_the_length_of_words_is_not_tested_where_a_character_is_a_syllable(units):
    texts = {
        "zh": "今天天气很好，我们去公园散步吧。2015年3月5日",
        "ja": "今日は天気がいいので公園を散歩しましょう。コンピューター",
        "ko": "오늘 날씨가 좋아서 공원에 산책하러 갔습니다",
        "th": "วันนี้อากาศดีมากเราไปเดินเล่นที่สวนสาธารณะกันเถอะ",
        "mixed": "a b c d 今天天气很好我们去公园散步吧",
        "digits": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 天",
    }
    batch = pa.RecordBatch.from_pydict({"text": [*texts.values(), "an ox is in it", "a 天 b c d e f g"]})
    signals = TextSignals(units=units, only=["mean_word_length"]).annotate(batch)["mean_word_length"].to_pylist()
    assert signals[:5] == [None] * 5 and None not in signals[5:]


def test_no_chinese_or_japanese_text_has_words_that_are_too_short():
    path = Path(__file__).resolve().parents[4] / "shared/data/languages.parquet"
    if not path.is_file():
        pytest.skip(f"no {path}")
    table = pq.read_table(path)
    texts = table.filter(pc.is_in(table["language"], pa.array(["zh", "ja"])))["text"].to_pylist()
    assert len(texts) > 1000
    found = reasons(GopherQuality(min_words=0, min_stop_words=0, min_alphabetic_word_share=0), texts)
    assert not {"words_too_short", "words_too_long"} & {*found}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("de: {min_word: 3}", "de: .*min_word"),
        ("de: 3", "expected fields"),
        ("- a", "expected a table"),
        ("de: {min_words: many}", "min_words"),
        ("no: {min_words: 3}", "quote `no`"),
        ("deu: {min_words: 3}", "GlotLID 'deu' and a script"),
        ("german: {min_words: 3}", "lid.176 says 'de'"),
        ("DE: {min_words: 3}", "did you mean 'de'"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(tmp_path, content, message):
    (tmp_path / "t.yaml").write_text(content, "utf-8")
    with pytest.raises(SettingsError, match=f"(?s){message}"):
        GopherQuality(thresholds_file=str(tmp_path / "t.yaml"))
    with pytest.raises(SettingsError, match="No such file"):
        GopherQuality(thresholds_file=str(tmp_path / "absent.yaml"))


def test_a_share_that_is_just_the_limit_stays() -> None:
    """In float32 0.1 and 0.3 are a little more than they are, and 0.8 a little less or more."""
    signals = {name: pa.array([9, 9], pa.float32()) for name in GopherQuality().needs}
    signals |= {"words": pa.array([60, 60]), "stop_words": pa.array([5, 5])}
    for name, limit in (("hash_ratio", 0.1), ("ellipsis_line_share", 0.3), ("bullet_line_share", 0.9)):
        at = {n: pa.array([0.0, 0.0], pa.float32()) for n in signals if n.endswith(("ratio", "share"))}
        at |= {"alphabetic_word_share": pa.array([0.8, 0.8], pa.float32())}
        at |= {name: pa.array([limit, limit + 1e-4], pa.float32())}
        verdict = GopherQuality().checked(pa.record_batch(signals | at)).verdict
        assert verdict.every_reason(0) == [] and len(verdict.every_reason(1)) == 1, name
