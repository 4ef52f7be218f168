"""A benchmark's items are found however they are printed, only they are found, and what goes says where and why."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.pipeline.recipe import fingerprint
from gristmill.stages import BenchmarkOverlap, CutContamination, Decontaminate

PROSE = Path(__file__).parents[3].parent / "shared" / "data" / "prose.parquet"

QUESTION = (
    "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take to weave three such robes, "
    "if every fourth bolt that is bought turns out to be torn?"
)
SHORT = "Which moon of Saturn has lakes of liquid methane?"  # 8 words
WISE = "The miller's daughter counts 31 sacks at dawn, sells a third of them by noon, and gives one more away to the ferryman at dusk."
CHINESE = "小明家里有十二只鸡和七只鸭，昨天邻居又送来三只鹅，请问现在一共有多少只家禽？"
TOO_SHORT = "Who wrote Hamlet?"
FILLER = (
    "The river ran low that summer and the mill stood still for weeks, which nobody in the village could remember. "
)


@pytest.fixture
def folder(tmp_path):
    rows = [{"q": text, "a": "", "n": None} for text in (QUESTION, SHORT, WISE, CHINESE, TOO_SHORT)]
    path = tmp_path / "bench"
    path.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), path / "sums.parquet")
    return path


def settings(folder, **more):
    return {
        "benchmarks_path": str(folder),
        "benchmarks": [{"name": "sums", "path": "sums.parquet", "fields": ["q"]}],
        **more,
    }


def measured(texts, folder, **more):
    return BenchmarkOverlap(**settings(folder, **more))(pa.table({"text": pa.array(texts, pa.string())}))


PLANTED = [
    (QUESTION, "sums/0/q", 1.0),
    (FILLER + QUESTION.upper() + FILLER, "sums/0/q", 1.0),
    (FILLER + QUESTION.replace(" ", "\n\n").replace(".", " -- ").replace(",", "") + "!" + FILLER, "sums/0/q", 1.0),
    (FILLER + " ".join(QUESTION.split()[:26]) + " and so on. " + FILLER, "sums/0/q", 14 / 27),
    (FILLER + SHORT, "sums/1/q", 1.0),
    (FILLER + WISE + " " + SHORT.lower(), "sums/2/q", 1.0),  # of equal shares that of more n-grams
    ("昨天他问我：" + CHINESE + "我不知道。", "sums/3/q", 1.0),
]


@pytest.mark.parametrize("text, label, share", PLANTED)
def test_a_planted_item_is_found_with_its_share_and_place(text, label, share, folder):
    row = measured([text], folder).to_pylist()[0]
    assert (row["contaminated_by"], row["contamination"]) == (label, pytest.approx(share))
    assert row["contaminated_ngrams"] >= 1
    match = text.encode()[row["contamination_start"] : row["contamination_end"]].decode()
    item = {"sums/0/q": QUESTION, "sums/1/q": SHORT, "sums/2/q": WISE, "sums/3/q": CHINESE}[label]
    assert letters(match) == letters(item if share == 1 else " ".join(QUESTION.split()[:26]))


def letters(text):
    return "".join(character for character in text.lower() if character.isalnum())


def test_what_is_no_match(folder):
    texts = [
        "",
        None,
        FILLER * 20,
        TOO_SHORT,
        SHORT.replace("methane", "water"),
        " ".join(QUESTION.split()[:12]),
        " ".join(reversed(QUESTION.split())),
    ]
    table = measured(texts, folder)
    assert table["contamination"].to_pylist() == [0.0] * len(texts) and table["contaminated_by"].to_pylist() == [
        ""
    ] * len(texts)
    assert [table[name].to_pylist() for name in BenchmarkOverlap.adds[2:]] == [[0] * len(texts)] * 3
    assert table["text"].to_pylist() == texts


def test_the_rule_drops_by_share_or_for_any_ngram_and_says_what_and_where(folder):
    half = FILLER + " ".join(QUESTION.split()[:26]) + " and so on."
    table = measured([FILLER, half, QUESTION, SHORT], folder)
    verdict = Decontaminate().apply(table.to_batches()[0]).verdict
    assert verdict.kept.tolist() == [True, False, False, False] and verdict.reason(1) == "contaminated"
    assert verdict.details == {
        1: f"sums/0/q: 52% (14 n-grams), bytes {len(FILLER)}-{len(half) - len(' and so on.')}",
        2: f"sums/0/q: 100% (27 n-grams), bytes 0-{len(QUESTION) - 1}",
        3: f"sums/1/q: 100% (1 n-gram), bytes 0-{len(SHORT) - 1}",
    }
    assert Decontaminate(at_least=0.6)(table)["text"].to_pylist() == [FILLER, half]
    assert Decontaminate(at_least="any")(table)["text"].to_pylist() == [FILLER]
    assert Decontaminate(min_ngrams=2)(table)["text"].to_pylist() == [FILLER, SHORT]
    with pytest.raises(SettingsError, match="greater than 0"):
        Decontaminate(at_least=0)


def cut(texts, folder, **more):
    stage = CutContamination(**settings(folder, **more))
    return stage.apply(pa.record_batch({"text": pa.array(texts, pa.string())}))


def test_the_cut_takes_the_place_and_a_margin_and_keeps_the_rest(folder):
    before, after = FILLER * 4, FILLER * 4
    text = before + QUESTION + " " + after
    done = cut([text, FILLER, None], folder)
    left, right = done.batch["text"][0].as_py().split("\n\n")
    # 200 characters of the margin and of the cut word go, and the space beside it
    assert before.startswith(left) and 0 <= len(before) - 200 - len(left) < 12 and left[-1].isalnum()
    assert after.endswith(right) and 0 <= len(after) - 200 - len(right) < 12 and right[0].isalnum()
    assert done.batch["text"].to_pylist()[1:] == [FILLER, None]
    assert done.batch["contamination_cuts"].to_pylist() == [1, 0, 0]
    assert done.batch["contamination_cut_by"].to_pylist() == ["sums/0/q", "", ""]
    assert done.batch["contamination_cut_bytes"].to_pylist() == [len(text) - len(left) - len(right) - 2, 0, 0]
    assert done.verdict.kept.all()
    again = measured(done.batch["text"].to_pylist(), folder)
    assert again["contamination"].to_pylist() == [0.0] * 3


def test_a_cut_document_that_is_nothing_or_crumbs_goes_with_its_text(folder):
    crumbs = (FILLER * 9 + QUESTION + " ") * 4
    done = cut([QUESTION, crumbs, FILLER], folder, max_pieces=3)
    assert [done.verdict.reason(row) for row in range(3)] == ["nothing_left", "too_many_pieces", None]
    assert done.verdict.details == {0: "sums/0/q", 1: "sums/0/q"}
    assert done.batch["text"].to_pylist() == [QUESTION, crumbs, FILLER]
    assert cut([crumbs], folder, max_pieces=4).batch["contamination_cuts"].to_pylist() == [4]
    kept = cut(["So: " + QUESTION], folder, margin=0, shortest_piece=0).batch["text"].to_pylist()
    assert kept == ["So:\n\n?"]


def test_a_share_spares_what_has_less_of_an_item(folder):
    half = FILLER * 3 + " ".join(QUESTION.split()[:20]) + " and so on. " + FILLER * 3
    assert cut([half], folder).batch["contamination_cuts"].to_pylist() == [1]
    assert cut([half], folder, at_least=0.5).batch["text"].to_pylist() == [half]
    whole = half + QUESTION
    for texts in ([half, whole], [whole, half], [whole, whole]):  # each by its own share
        assert cut(texts, folder, at_least=0.5).batch["contamination_cuts"].to_pylist() == [
            int(text == whole) for text in texts
        ]


def test_results_do_not_hang_on_slicing_types_or_order(folder):
    texts = [text for text, *_ in PLANTED] + [FILLER, None, "", FILLER * 30_000 + SHORT]
    stages = [BenchmarkOverlap(**settings(folder)), CutContamination(**settings(folder))]
    for stage in stages:
        plain = stage.apply(pa.record_batch({"text": pa.array(texts)}))
        for kind in (pa.string(), pa.large_string(), pa.string_view()):
            around = pa.array(["x", QUESTION, *texts[::-1], "y"], kind).slice(2, len(texts))
            done = stage.apply(pa.record_batch({"text": around}))
            assert done.batch.to_pylist() == plain.batch.to_pylist()[::-1]
            assert done.verdict.kept.tolist() == plain.verdict.kept.tolist()[::-1]
        single = [
            stage.apply(pa.record_batch({"text": pa.array([text], pa.string())})).batch.to_pylist()[0] for text in texts
        ]
        assert single == plain.batch.to_pylist()


def test_what_many_texts_share_is_template(tmp_path):
    template = "The following are multiple choice questions with answers about the history of the world and its peoples"
    names = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "ra") for b in ("do", "fe", "gi", "ho", "ju")]
    rows = [{"q": f"{template}: {name}"} for name in names]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "sums.parquet")
    text = [f"{template} and more"]
    assert measured(text, tmp_path, most_texts=25)["contamination"].to_pylist() == [5 / 6]
    assert measured(text, tmp_path, most_texts=24)["contamination"].to_pylist() == [0.0]
    assert measured([f"{template} kado"], tmp_path, most_texts=24)["contamination"].to_pylist() == [1.0]


def test_common_phrases_are_no_sign(folder, tmp_path):
    phrases = tmp_path / "phrases.txt"
    phrases.write_text(f"{WISE}\n{SHORT}\n", "utf-8")
    table = measured([WISE, SHORT, QUESTION], folder, common_phrases_file=str(phrases))
    assert table["contaminated_by"].to_pylist() == ["", "", "sums/0/q"]


def test_the_account_says_what_is_not_sought(folder):
    rows = [{"q": text} for text in (QUESTION.upper(), FILLER, "short")]
    pq.write_table(pa.Table.from_pylist(rows), folder / "more.parquet")
    benchmarks = [*settings(folder)["benchmarks"], {"name": "more", "path": "more.parquet", "fields": ["q"]}]
    account = BenchmarkOverlap(**settings(folder) | {"benchmarks": benchmarks}).account()
    assert [tuple(one) for one in account] == [("sums", 5, 5, 1, 0, 0), ("more", 3, 3, 1, 1, 0)]


def test_contents_count_for_the_fingerprint_and_not_where_they_lie(folder, tmp_path):
    def mark(stage):
        return fingerprint.identity_of(stage, {"code": None}).fingerprint

    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "sums.parquet").write_bytes((folder / "sums.parquet").read_bytes())
    for kind in (BenchmarkOverlap, CutContamination):
        before = mark(kind(**settings(folder)))
        assert mark(kind(**settings(moved))) == before
        assert mark(kind(**settings(folder, ngram=12))) != before
    before = mark(BenchmarkOverlap(**settings(moved)))
    found = measured([FILLER], moved)["contamination"].to_pylist()
    pq.write_table(pa.table({"q": [FILLER]}), moved / "sums.parquet")
    assert mark(BenchmarkOverlap(**settings(moved))) != before
    assert found == [0.0] and measured([FILLER], moved)["contamination"].to_pylist() == [1.0]


@pytest.mark.skipif(
    not PROSE.exists(), reason="no ../shared/data/prose.parquet: books and articles that are no benchmark"
)
def test_books_and_articles_hold_no_benchmark(folder):
    texts = pq.read_table(PROSE)["text"].to_pylist()
    table = measured([*texts, texts[0] + QUESTION], folder)
    found = [row for row, label in enumerate(table["contaminated_by"].to_pylist()) if label]
    assert sum(map(len, texts)) > 9_000_000 and found == [len(texts)]
