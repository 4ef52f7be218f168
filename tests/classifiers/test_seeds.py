"""A training set holds what its recipe says, says what it left out, and is the same whatever the order of rows."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.judge import JudgeError
from gristmill.classifiers.metrics import auc
from gristmill.classifiers.teaching.copies import (
    COPY,
    NEAR_COPY,
    NEARLY_UNDER_TWO,
    STAYS,
    UNDER_TWO,
    USUAL,
    Alike,
    fates,
)
from gristmill.classifiers.teaching.passages import passage_of, passages
from gristmill.classifiers.teaching.seed_draws import apportion, cell_quotas, share_quotas
from gristmill.classifiers.teaching.seed_groups import hosts_of
from gristmill.classifiers.teaching.seeds import SeedRecipe, SeedSource, training_set
from gristmill.classifiers.training import HeldOutShare
from gristmill.classifiers.training_sets import held_out, labelled_texts
from tests.classifiers.labelled import BAD, GOOD, texts_of

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data files of ../shared/data are not there")

WORDS = [f"word{i}" for i in range(200)]
BASE = " ".join(WORDS)
NEAR = " ".join([*WORDS[:-3], "other", "last", "words"])
FAR = " ".join(WORDS[::-1])


def fates_of(rows: list[tuple[str, int]], stays_under: int = -1, alike: Alike = USUAL) -> list[int]:
    return fates(
        pa.array([text for text, _ in rows], pa.large_string()),
        np.array([n for _, n in rows], np.int64),
        stays_under,
        alike,
    ).tolist()


@pytest.mark.parametrize(
    ("rows", "stays_under", "expected"),
    [
        ([(BASE, 0), (BASE, 0), (FAR, 0)], -1, [STAYS, COPY, STAYS]),
        ([(BASE, 0), (NEAR, 0), (FAR, 0)], -1, [STAYS, NEAR_COPY, STAYS]),
        ([(BASE, 0), (FAR, 0), (BASE, 1)], -1, [UNDER_TWO, STAYS, UNDER_TWO]),
        ([(BASE, 0), (FAR, 0), (NEAR, 1)], -1, [NEARLY_UNDER_TWO, STAYS, NEARLY_UNDER_TWO]),
        ([(BASE, 0), (BASE, 1), (NEAR, 1)], -1, [UNDER_TWO, UNDER_TWO, NEAR_COPY]),
        ([(BASE, 0), (BASE, 1)], 0, [STAYS, UNDER_TWO]),
        ([(BASE, 0), (NEAR, 1), (NEAR, 2)], 1, [NEARLY_UNDER_TWO, STAYS, UNDER_TWO]),
        ([("!", 0), ("!", 1), ("?", 0)], -1, [UNDER_TWO, UNDER_TWO, STAYS]),
        ([], -1, []),
    ],
)
def test_what_becomes_of_a_text(rows, stays_under, expected):
    assert fates_of(rows, stays_under) == expected


def test_only_equal_texts_are_copies_where_no_similarity_is_asked():
    assert fates_of([(BASE, 0), (NEAR, 1), (BASE, 0)], alike=Alike(None)) == [STAYS, STAYS, COPY]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from(["{}", "{}.", " {}!", "«{}»"]), st.integers(0, 2)), max_size=30
    ),
    st.integers(-1, 2),
)
def test_no_text_stands_twice_and_none_goes_for_nothing(rows, stays_under):
    """Texts that differ in marks alone are alike for sure."""
    texts = [(form.format(f"Alpha beta gamma delta number{which} epsilon"), label) for which, form, label in rows]
    found = fates_of(texts, stays_under)
    labels_of: dict[int, set[int]] = {}
    for which, _, label in rows:
        labels_of.setdefault(which, set()).add(label)
    left = Counter(row[0] for row, fate in zip(rows, found, strict=True) if fate == STAYS)
    for which, labels in labels_of.items():
        stays = len(labels) == 1 or stays_under in labels
        assert left[which] == (1 if stays else 0)
    for (which, _, label), fate in zip(rows, found, strict=True):
        if fate == STAYS and len(labels_of[which]) > 1:
            assert label == stays_under


def test_a_thousand_near_copies_under_one_label_and_one_under_the_other():
    changed = [" ".join([*WORDS[:i], "changed", *WORDS[i + 1 :]]) for i in range(len(WORDS))]
    found = fates_of([(BASE, 0), (FAR, 0), *[(text, 1) for text in changed * 5], (FAR + " unlike " + BASE, 1)])
    assert found[1] == STAYS and found[-1] == STAYS and STAYS not in found[2:-1] and found[0] == NEARLY_UNDER_TWO


def test_what_stays_stays_when_asked_again():
    """Of a bucket with many texts a few pairs are compared at a time; rounds go on until there is nothing more to find."""
    random_numbers = np.random.default_rng(0)
    texts = []
    for _ in range(300):
        words = list(WORDS[:150])
        for place in random_numbers.integers(0, 150, 3):
            words[place] = f"x{random_numbers.integers(0, 3)}"
        texts.append(" ".join(words))
    rows = list(zip(texts, random_numbers.integers(0, 2, 300).tolist(), strict=True))
    stay = [row for row, fate in zip(rows, fates_of(rows), strict=True) if fate == STAYS]
    assert 100 < len(stay) < 250 and set(fates_of(stay)) == {STAYS}


def tables(seed: int = 3, each: int = 300) -> dict[str, pa.Table]:
    """Books of five works, pages of 40 hosts in two languages, a dump without urls, and a table with marks."""
    books = texts_of(GOOD, each, seed)
    pages = texts_of(BAD, each, seed + 1)
    dump = texts_of(BAD[:9] + GOOD[:3], each, seed + 2)
    marked = texts_of(GOOD + BAD, each, seed + 3)
    language = lambda i: "fr" if i % 3 == 0 else "en"  # noqa: E731
    return {
        "books": pa.table(
            {
                "text": books,
                "work": [f"work{i % 5}" for i in range(each)],
                "language": [language(i) for i in range(each)],
            }
        ),
        "pages": pa.table(
            {
                "text": pages,
                "url": [f"https://{'www.' * (i % 2)}site{i % 40}.example/{i}" for i in range(each)],
                "language": [language(i // 2) for i in range(each)],
            }
        ),
        "dump": pa.table({"text": dump, "language": ["en"] * each}),
        "marked": pa.table(
            {
                "text": marked,
                "url": [f"https://other{i % 30}.example/{i}" for i in range(each)],
                "mark": [float(i % 6) if i % 50 else None for i in range(each)],
                "language": [language(i) for i in range(each)],
            }
        ),
    }


RECIPE = SeedRecipe(
    (
        SeedSource("books", "good", 2.0),
        SeedSource("marked", "good", 1.0, at_least=4.0),
        SeedSource("pages", "bad", 1.0),
        SeedSource("dump", "bad", 1.0),
        SeedSource("marked", "bad", 0.5, below=2.0),
    )
)


def test_every_row_is_kept_or_dropped_for_a_reason():
    given_tables = tables()
    made = training_set(
        given_tables, replace(RECIPE, texts=200, balance=("language",), steps_of_length=2, window=200, shortest=20)
    )
    counts = made.report["sources"]
    assert set(counts) == set(map(str, RECIPE.sources))
    for source in RECIPE.sources:
        told = counts[str(source)]
        assert told["rows"] == given_tables[source.table].num_rows == told["kept"] + sum(told["dropped"].values())
    assert made.table.num_rows == sum(told["kept"] for told in counts.values()) > 100
    assert made.dropped.num_rows == sum(told["rows"] - told["kept"] for told in counts.values())
    assert Counter(made.dropped["reason"].to_pylist()) == sum(
        (Counter(told["dropped"]) for told in counts.values()), Counter()
    )
    pairs = list(zip(made.dropped["source"].to_pylist(), made.dropped["row"].to_pylist(), strict=True))
    pairs += list(zip(made.table["source"].to_pylist(), made.table["row"].to_pylist(), strict=True))
    assert len(pairs) == len(set(pairs)) == 5 * 300
    assert made.report["fingerprint"] == labelled_texts(made.table, group="group").fingerprint


def test_sources_have_their_shares_and_labels_are_equally_many():
    made = training_set(tables(), RECIPE)
    kept = {name: told["kept"] for name, told in made.report["sources"].items()}
    labels = made.report["labels"]
    assert labels["good"] == labels["bad"] > 150
    ratio = kept["books as good"] / kept["marked as good (mark >= 4)"]
    assert 1.99 <= ratio <= 2.01  # the label that is scarcer keeps all that its shares allow
    assert made.report["scarcest"]["good"] == "marked as good (mark >= 4)"
    assert (
        abs(kept["pages as bad"] - 2 * kept["marked as bad (mark < 2)"]) <= 2
        and abs(kept["pages as bad"] - kept["dump as bad"]) <= 1
    )
    marks = tables()["marked"]["mark"].to_pylist()
    for source, row in zip(made.table["source"].to_pylist(), made.table["row"].to_pylist(), strict=True):
        if source.startswith("marked"):
            assert marks[row] >= 4 if "good" in source else marks[row] < 2


def test_labels_are_equally_many_in_each_language():
    made = training_set(tables(), replace(RECIPE, balance=("language",), texts=150))
    counts = Counter(zip(made.table["language"].to_pylist(), made.table["label"].to_pylist(), strict=True))
    assert counts["en", "good"] == counts["en", "bad"] > 0 and counts["fr", "good"] == counts["fr", "bad"] > 0
    assert sum(counts.values()) == 150


def test_labels_need_not_be_balanced():
    made = training_set(tables(), replace(RECIPE, balance=None))
    labels = made.report["labels"]
    assert labels["bad"] != labels["good"] and "unmatched" not in str(made.report["sources"])
    smaller = training_set(tables(), replace(RECIPE, balance=None, texts=101))
    assert smaller.table.num_rows == 101
    assert abs(smaller.report["labels"]["good"] / 101 - labels["good"] / sum(labels.values())) < 0.01


def test_length_is_no_cue_where_lengths_are_matched():
    long, short = texts_of(GOOD, 400, 5), [text[: 20 + 5 * (i % 60)] for i, text in enumerate(texts_of(BAD, 400, 6))]
    both = {"long": pa.table({"text": long}), "short": pa.table({"text": short})}
    recipe = SeedRecipe((SeedSource("long", "good"), SeedSource("short", "bad")), ungrouped="text")
    told, matched = (training_set(both, replace(recipe, steps_of_length=n)) for n in (0, 6))
    assert told.report["auc_of_length"]["after"][0] > 0.6
    assert abs(matched.report["auc_of_length"]["after"][0] - 0.5) < 0.03
    assert matched.report["labels"]["good"] == matched.report["labels"]["bad"] > 100
    lengths = np.array([len(text) for text in matched.table["text"].to_pylist()])
    assert matched.report["auc_of_length"]["after"][0] == auc(
        np.array(matched.table["label"].to_pylist()) == "good", lengths
    )


def test_no_group_is_on_both_sides_and_training_sees_the_same_sides():
    made = training_set(tables(), replace(RECIPE, held_out=0.4, seed=5))
    sides: dict[str, set[bool]] = {}
    for group, side in zip(made.table["group"].to_pylist(), made.table["held_out"].to_pylist(), strict=True):
        sides.setdefault(group, set()).add(side)
    assert all(len(side) == 1 for side in sides.values()) and {True} in sides.values() and {False} in sides.values()
    assert {"host site7.example", "host other7.example", "work work2", "source dump"} <= set(sides)
    assert not any("www" in group for group in sides)
    kept = HeldOutShare(0.4, 5)
    assert (
        held_out(labelled_texts(made.table, group="group"), kept.share, kept.seed).tolist()
        == made.table["held_out"].to_pylist()
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_and_chunks_changes_nothing(seed):
    plain, drawn = tables(), random.Random(seed)
    copies = plain["books"].slice(0, 90)  # which of two that differ in marks alone stays is no matter of order either
    copies = copies.set_column(0, "text", pa.array([text + "!" for text in copies["text"].to_pylist()]))
    plain["books"] = pa.concat_tables([plain["books"], copies])
    recipe = replace(RECIPE, balance=("language",), texts=120, window=220)
    base = training_set(plain, recipe)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        mixed = {}
        for name, table in plain.items():
            order = list(range(table.num_rows))
            drawn.shuffle(order)
            shuffled = table.take(order)
            shuffled = shuffled.set_column(table.column_names.index("text"), "text", shuffled["text"].cast(kind))
            mixed[name] = pa.concat_tables([shuffled.slice(0, 77), shuffled.slice(77)])
        again = training_set(mixed, recipe)
        assert again.report["fingerprint"] == base.report["fingerprint"]
        assert again.table.drop(["row"]).equals(base.table.drop(["row"]))
    assert training_set(plain, replace(recipe, seed=1)).report["fingerprint"] != base.report["fingerprint"]


def test_copies_leave_and_are_counted():
    long = {
        "good": pa.table(
            {
                "text": [BASE, BASE, NEAR, FAR, "one more text of another kind altogether", None, "  "],
                "work": list("abcdefg"),
            }
        ),
        "bad": pa.table(
            {"text": [FAR, "some page that says buy and sell and buy", "a page on lawns"], "work": list("hij")}
        ),
    }
    recipe = SeedRecipe((SeedSource("good", "good"), SeedSource("bad", "bad")), balance=None)
    made = training_set(long, recipe)
    assert made.report["sources"]["good as good"]["dropped"] == {
        "copy": 1,
        "empty": 2,
        "near_copy": 1,
        "under_two_labels": 1,
    }
    assert made.report["sources"]["bad as bad"]["dropped"] == {"under_two_labels": 1}
    kept = training_set(long, replace(recipe, stays_under="bad"))
    assert FAR in kept.table.filter(pc.equal(kept.table["label"], "bad"))["text"].to_pylist()
    assert FAR not in kept.table.filter(pc.equal(kept.table["label"], "good"))["text"].to_pylist()


def test_only_so_many_rows_are_looked_at():
    made = training_set(
        tables(), replace(RECIPE, sources=(SeedSource("books", "good"), SeedSource("pages", "bad", most=50)))
    )
    assert made.report["sources"]["pages as bad"]["dropped"]["not_drawn"] == 250 and made.report["labels"] == {
        "good": 50,
        "bad": 50,
    }


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_marks_may_be_names(kind):
    table = tables()["marked"]
    names = pa.array([["Great", "Okay", "Useless"][i % 3] for i in range(300)]).cast(kind)
    table = table.set_column(table.column_names.index("mark"), "mark", names)
    made = training_set(
        {"m": table},
        SeedRecipe((SeedSource("m", "good", named=("Great",)), SeedSource("m", "bad", named=("Useless", "Poor")))),
    )
    assert set(made.report["sources"]) == {"m as good (Great)", "m as bad (Useless, Poor)"}
    assert {(row["label"], row["row"] % 3) for row in made.table.to_pylist()} == {("good", 0), ("bad", 2)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"sources": (SeedSource("books", "good"), SeedSource("none", "bad"))},
            "no table 'none'; there are books, pages",
        ),
        ({"sources": (SeedSource("books", "good", at_least=3), SeedSource("pages", "bad"))}, "no column 'mark'"),
        (
            {"sources": (SeedSource("books", "good"), SeedSource("marked", "bad", at_least=9))},
            r"no text of it is left \(300 mark\)",
        ),
        ({"sources": (SeedSource("books", "good"), SeedSource("marked", "bad", named=("Poor",)))}, "asks for names"),
        ({"sources": (SeedSource("books", "good"), SeedSource("dump", "bad"))}, "all its texts are of one group"),
        ({"balance": ("domain",)}, "no column 'domain'"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(change, reason):
    with pytest.raises(JudgeError, match=reason):
        training_set(tables(), replace(RECIPE, **change))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: SeedRecipe((SeedSource("a", "good"),)), "two labels or more"),
        (lambda: SeedRecipe((SeedSource("a", "good"), SeedSource("a", "good"), SeedSource("a", "bad"))), "there twice"),
        (
            lambda: SeedRecipe((SeedSource("a", "good"), SeedSource("b", "bad")), stays_under="ugly"),
            "no source has the label",
        ),
        (
            lambda: SeedRecipe((SeedSource("a", "good"), SeedSource("b", "bad")), balance=None, steps_of_length=1),
            "set balance",
        ),
        *(
            (
                lambda name=name: SeedRecipe((SeedSource("a", "good"), SeedSource("b", "bad")), balance=(name,)),
                f"a column '{name}' of its own",
            )
            for name in ("group", "label", "source", "text", "row", "held_out")
        ),
        (lambda: SeedRecipe((SeedSource("a", "good"), SeedSource("b", "bad")), texts=1), "fewer than the 2 labels"),
        (lambda: SeedRecipe((SeedSource("a", "good"), SeedSource("b", "bad")), steps_of_length=-1), "0 or more"),
        (lambda: SeedSource("a", "good", 0.0), "above 0"),
        (lambda: SeedSource("a", "good", at_least=3, below=3), "no mark is"),
        (lambda: SeedSource("a", "good", at_least=3, named=("x",)), "not both"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(make, reason):
    with pytest.raises(JudgeError, match=reason):
        make()


@given(st.text(max_size=3000), st.integers(200, 900), st.integers(0, 2**64 - 1))
@settings(max_examples=200, deadline=None)
def test_a_passage_is_a_stretch_of_the_text(text, most, draw):
    found = passage_of(text, most, draw)
    assert found in text and len(found) <= most
    assert found == text or len(text) > most


def test_passages_begin_and_end_with_words_and_come_from_all_places():
    texts = pa.array([" ".join(f"w{i}x{k}" for i in range(2000)) for k in range(40)], pa.large_string())
    found = passages(texts, 1000, 3).to_pylist()
    assert all(780 < len(text) <= 1000 for text in found)
    assert all(re.fullmatch(r"w\d+x\d+", word) for text in found for word in text.split())
    starts = [int(text.split("x")[0][1:]) for text in found]
    assert min(starts) < 400 and max(starts) > 1400
    assert passages(texts, 1000, 3).equals(
        pa.concat_arrays([passages(texts.slice(0, 7), 1000, 3), passages(texts.slice(7), 1000, 3)])
    )
    chinese = pa.array(["水" * 5000], pa.large_string())
    assert len(passages(chinese, 1000, 0)[0].as_py()) == 1000


def test_hosts_are_told_as_browsers_would():
    urls = [
        "HTTPS://user@WWW.Example.com:8080/a",
        "http://example.com",
        "https://bücher.example/x",
        "http://[2001:DB8::1]:80/",
        "",
        None,
        "/path",
    ]
    assert hosts_of(pa.array(urls)) == [
        "example.com",
        "example.com",
        "xn--bcher-kva.example",
        "[2001:db8::1]",
        "",
        "",
        "",
    ]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.data())
def test_quotas_are_whole_and_within_what_there_is(counts, data):
    shares = np.array(data.draw(st.lists(st.floats(0.01, 10), min_size=len(counts), max_size=len(counts))))
    quotas = share_quotas(np.array(counts), shares)
    assert (quotas <= counts).all() and (quotas >= 1).all()
    assert (quotas == counts).any() or (np.floor(shares) != shares).any() or len(counts) > 1
    total = data.draw(st.integers(0, sum(counts)))
    parts = apportion(np.array(counts), total)
    assert (
        parts.sum() == total
        and (parts <= counts).all()
        and np.abs(parts - np.array(counts) * total / sum(counts)).max() < 1
    )
    table = np.repeat(np.array(counts)[:, None], 3, axis=1)
    cells = cell_quotas(table, total)
    assert (cells == cells[:, :1]).all() and total - 3 < cells.sum() <= total


@needs_data
def test_real_prose_against_real_pages():
    pages = pq.read_table(DATA / "pages.parquet", columns=["page", "url"]).to_pylist()
    url = {row["page"]: row["url"] for row in pages}
    texts = pq.read_table(DATA / "rule_verdicts.parquet", columns=["page", "kind", "text"])
    texts = texts.append_column("url", pa.array([url[page] for page in texts["page"].to_pylist()]))
    given_tables = {
        "prose": pq.read_table(DATA / "prose.parquet"),
        "raw": texts.filter(pc.equal(texts["kind"], "page")),
        "main": texts.filter(pc.equal(texts["kind"], "main")),
    }
    recipe = SeedRecipe((SeedSource("prose", "good"), SeedSource("raw", "bad")))
    whole, matched = (training_set(given_tables, replace(recipe, steps_of_length=n)) for n in (0, 4))
    assert max(whole.report["auc_of_length"]["after"]) > 0.78
    assert max(matched.report["auc_of_length"]["after"]) < 0.54 and matched.table.num_rows > 500
    both = training_set(
        given_tables,
        replace(recipe, sources=(SeedSource("main", "good"), SeedSource("raw", "bad")), stays_under="good"),
    )
    told = both.report["sources"]
    assert 250 < told["raw as bad"]["dropped"]["nearly_under_two_labels"] < 400  # pages that are their main text
    assert "nearly_under_two_labels" not in told["main as good"]["dropped"]
