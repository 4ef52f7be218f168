"""The card tells what the run knows, in a form that a hub reads, and nothing from outside becomes markup in it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import example, given, strategies as st
from markdown_it import MarkdownIt

from gristmill.shards.card import Facts, configs, dataset_card, size_category, with_configs
from gristmill.shards.card_text import fenced, front_matter, link, number, one_line, plain, share

FACTS: Facts = {
    "title": "A set",
    "summary": "Made of two sources.",
    "license": "ODC-By",
    "license_url": "https://example.org/odc",
    "languages": ["en", "no"],
    "tags": ["small"],
    "sources": [
        {
            "name": "web",
            "url": "https://example.org/a?b=1&c=2",
            "license_source": "odc-by",
            "documents": 900,
            "tokens": 750_000,
            "weight": 0.75,
            "epochs": 1.0,
        },
        {"name": "books", "documents": 100, "tokens": 250_000, "weight": 0.25, "epochs": 2.5},
    ],
    "stages": [
        {"name": "warc", "docs_in": 5000, "kept": 5000, "dropped": {}, "quarantined": 0},
        {
            "name": "gopher_quality",
            "docs_in": 5000,
            "kept": 1200,
            "dropped": {"word_length": 800, "too_few_words": 3000},
            "quarantined": 0,
        },
        {"name": "near_dedup", "docs_in": 1200, "kept": 1000, "dropped": {"near_duplicate": 199}, "quarantined": 1},
    ],
    "tokenizer": {
        "name": "trained",
        "hash": "ab",
        "vocabulary": 32_768,
        "bos": None,
        "eos": 2,
        "pad": 0,
        "bytes_per_token": {"en": 4.2},
    },
    "packing": [
        {
            "row_length": 2048,
            "path": "2048/*.arrow",
            "rows": 490,
            "tokens": 1_000_000,
            "padding": 3520,
            "documents": 1000,
            "pieces": 1010,
            "shards": 2,
            "bytes": 2_100_000,
            "packer": "best_fit",
            "seed": 3,
            "fingerprint": "cd",
        },
        {"row_length": 4096, "path": "4096/*.arrow", "rows": 250, "tokens": 1_000_000, "padding": 24_000},
    ],
    "recipe": "stages:\n  - mix: {tokens: 1M}\n",
    "versions": {"gristmill": "0.1.0"},
    "fingerprint": "ef",
    "command": "gristmill run recipe.yaml",
}
HOSTILE = [
    "<script>alert(1)</script>",
    "a | b | c",
    "x\n---\nlicense: mit",
    "x\n\n# Heading",
    "[click](javascript:alert(1))",
    "![x](https://example.org/x.png)",
    "`code` ``more``",
    "**bold** _it_ ~~gone~~ $x$ ^up^ ==mark==",
    "&lt;b&gt; &amp;",
    "\\",
    "ends in \\",
    "\\|",
    "- item",
    "1. item",
    "1) item",
    "+ item",
    "> quote",
    "```\nfence",
    "www.example.org https://example.org <https://example.org> me@example.org",
    "@someone #1 :smile:",
    "{{ jinja }} {% raw %}",
    "a\u202egnp.exe",
    "zero\u200bwidth \ufeff \x00 \x1b[31m",
    "\ud800",
    "null",
    "no",
    "!!python/object/apply:os.system [x]",
    "*anchor &a",
    "'\"",
    "",
    "   ",
]


def parts(card: str) -> tuple[Any, list[Any]]:
    assert card.startswith("---\n")
    front, body = card[4:].split("\n---\n", 1)
    return yaml.safe_load(front), MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(
        body
    )


def shape(tokens: list[Any]) -> list[Any]:
    """What kinds of things there are, and text apart."""
    kinds = ("text", "text_special", "softbreak")
    return [(token.type, token.tag, [c.type for c in token.children or () if c.type not in kinds]) for token in tokens]


def cells(tokens: list[Any]) -> list[str]:
    return ["".join(c.content for c in token.children) for token in tokens if token.type == "inline"]


def test_the_front_matter_is_what_a_hub_expects() -> None:
    front, _ = parts(dataset_card(FACTS))
    assert front == {
        "pretty_name": "A set",
        "license": "odc-by",
        "license_link": "https://example.org/odc",
        "language": ["en", "no"],
        "task_categories": ["text-generation"],
        "size_categories": ["n<1K"],
        "tags": ["gristmill", "pretraining", "tokenized", "small"],
        "configs": [
            {"config_name": "2048", "data_files": [{"split": "train", "path": "2048/*.arrow"}], "default": True},
            {"config_name": "4096", "data_files": [{"split": "train", "path": "4096/*.arrow"}]},
        ],
    }


def test_the_tables_tell_sources_funnel_and_packing() -> None:
    _, tokens = parts(dataset_card(FACTS))
    found = cells(tokens)
    for row in (
        ["web", "odc-by", "900", "750,000", "75.00%", "75.00%", "1"],
        ["books", "not stated", "100", "250,000", "25.00%", "25.00%", "2.5"],
        ["gopher_quality", "5,000", "1,200", "24.00%", "too_few_words 3,000 (60.00%), word_length 800 (16.00%)", "0"],
        ["near_dedup", "1,200", "1,000", "83.33%", "near_duplicate 199 (16.58%)", "1"],
        ["2,048", "best_fit", "490", "99.65%", "3,520 (0.35%)", "1,000", "10", "2", "2,100,000"],
    ):
        assert any(found[i : i + len(row)] == row for i in range(len(found))), row
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings == [
        "A set",
        "License",
        "Sources and mix",
        "Filters and deduplication",
        "Tokenizer",
        "Packing",
        "Loading",
        "Made again",
    ]
    fences = {token.info: token.content for token in tokens if token.type == "fence"}
    assert fences["yaml"] == "stages:\n  - mix: {tokens: 1M}\n"
    assert all(compile(token.content, "card", "exec") for token in tokens if token.info == "python")


def test_licenses_that_pages_state_have_a_column_of_their_own() -> None:
    counts = {f"CC-BY-{number}.0": number for number in range(1, 10)}
    sources = [{"name": "web", "documents": 45, "tokens": 9, "license_stated": counts}, {"name": "books"}]
    _, tokens = parts(dataset_card({"sources": sources}))  # type: ignore[typeddict-item]
    found = cells(tokens)
    assert "licenses that pages state" in found
    stated = next(cell for cell in found if cell.startswith("CC-BY-9.0"))
    assert stated.startswith("CC-BY-9.0 9 (20.00%), CC-BY-8.0 8 (17.78%), ")
    assert stated.endswith(", CC-BY-2.0 2 (4.44%), 1 more")
    assert found[-1] == "–"


def test_a_card_of_nothing_invents_nothing() -> None:
    front, tokens = parts(dataset_card({}))
    assert (
        front["license"] == "unknown"
        and "configs" not in front
        and "size_categories" not in front
        and "language" not in front
    )
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings == ["Token shards", "License"]


def test_a_license_that_the_hub_does_not_know_has_a_name_of_its_own() -> None:
    front, _ = parts(dataset_card({"license": "Our Own 1.0"}))
    assert (front["license"], front["license_name"]) == ("other", "Our Own 1.0")


@pytest.mark.parametrize(
    ("rows", "name"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**9, "1B<n<10B"), (10**12, "n>1T")]
)
def test_size_categories(rows: int, name: str) -> None:
    assert size_category(rows) == name


def everywhere(name: str) -> Facts:
    """All text of the facts, and all that should be text, made of one name."""
    facts: Any = copy.deepcopy(FACTS)
    for key in ("title", "summary", "license", "recipe", "fingerprint", "command"):
        facts[key] = name
    del facts["license_url"]
    facts["languages"] = facts["tags"] = facts["task_categories"] = [name]
    facts["sources"] = [
        {"name": name, "url": name, "license_source": name, "documents": name, "epochs": name, "tokens": 1}
    ]
    facts["stages"] = [{"name": name, "docs_in": 10, "kept": 1, "dropped": {name: 9}, "quarantined": name}]
    facts["tokenizer"] |= {"name": name, "hash": name, "bytes_per_token": {name: name}}
    for packing in facts["packing"]:
        packing |= {"packer": name, "fingerprint": name, "shards": name}
    facts["versions"] = {name: name}
    return facts  # type: ignore[no-any-return]


@given(
    st.text(max_size=40) | st.text(st.sampled_from("\\`*_[](){}<>|#-+.!&;:/@~$=^'\"\n\r\t 1ahtps\u202e"), max_size=30)
)
@pytest.mark.parametrize("where", ["source", "reason", "title", "summary"])
def test_any_text_stays_text(where: str, name: str) -> None:
    facts: Any = copy.deepcopy(FACTS)
    calm: Any = copy.deepcopy(FACTS)
    for told, text in ((facts, name), (calm, "calm")):
        if where == "source":
            told["sources"][1]["name"] = text
        elif where == "reason":
            told["stages"][2]["dropped"] = {text: 1}
        else:
            told[where] = text
    _, tokens = parts(dataset_card(facts))
    _, expected = parts(dataset_card(calm))
    if one_line(name):
        assert shape(tokens) == shape(expected)
        assert [cell.replace("calm", one_line(name)) for cell in cells(expected)] == cells(tokens)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_everywhere_makes_no_markup(name: str) -> None:
    card = dataset_card(everywhere(name))
    card.encode()  # no lone surrogates
    front, tokens = parts(card)
    _, calm = parts(dataset_card(everywhere("calm")))
    kinds, calm_kinds = (
        {kind for outer, _, inner in shape(found) for kind in (outer, *inner)} for found in (tokens, calm)
    )
    assert kinds <= calm_kinds
    if name:  # what is empty is left out
        tables = [
            [kind for kind, _, _ in shape(found) if kind.startswith(("tr", "th", "td"))] for found in (tokens, calm)
        ]
        assert tables[0] == tables[1]
    assert set(front) <= {
        "pretty_name",
        "license",
        "license_name",
        "license_link",
        "language",
        "task_categories",
        "size_categories",
        "tags",
        "configs",
    }
    assert all(type(value) is str for value in (*front["language"], *front["tags"], front["license"]))
    assert front["configs"] == configs(FACTS["packing"])


@given(st.text(max_size=60))
@example("```\n````\n`````")
@example("\r\n---\r\n")
def test_a_fenced_block_ends_where_it_should(value: str) -> None:
    tokens = MarkdownIt("commonmark").parse(fenced(value, "yaml") + "\n\nafter")
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=30) | st.lists(st.text(max_size=10)), max_size=4)
)
def test_front_matter_reads_back_whatever_is_in_it(values: dict[str, Any]) -> None:
    text = front_matter(values)
    front, body = text[4:].rsplit("---\n", 1)
    assert body == "" and "\n---" not in front.rstrip("\n")
    expected = {
        one_line(k): [one_line(x) for x in v] if isinstance(v, list) else one_line(v) for k, v in values.items()
    }
    assert yaml.safe_load(front) == expected


@pytest.mark.parametrize(
    ("address", "markdown"),
    [
        ("https://example.org/a_b?x=1&y=(2)", "[n](<https://example.org/a_b?x=1&amp;y=%282%29>)"),
        ("https://example.org/a>b <c", "[n](<https://example.org/a%3Eb%20%3Cc>)"),
        ("javascript:alert(1)", r"n (javascript\:alert(1))"),
        ("javascript://example.org/%0aalert(1)", r"n (javascript\://example.org/%0aalert(1))"),
        ("data:text/html,x", r"n (data\:text/html,x)"),
        ("https://", r"n (https\://)"),
        ("https://[", r"n (https\://\[)"),
        ("//example.org", "n (//example.org)"),
        ("", "n"),
    ],
)
def test_only_addresses_of_the_web_become_links(address: str, markdown: str) -> None:
    assert link("n", address) == markdown


def test_html_is_shown_and_not_meant() -> None:
    assert plain("<b>&amp;</b>") == "&lt;b&gt;&amp;amp;&lt;/b&gt;"


def test_a_joiner_between_letters_is_text_and_a_turned_line_is_not() -> None:
    assert plain("می\u200cخواهم") == "می\u200cخواهم"
    assert plain("a\u202eb") == "a\ufffdb"


def test_numbers() -> None:
    assert [number(1234567), number(0.123456), number(2.0), number("5|6"), number(True)] == [
        "1,234,567",
        "0.1235",
        "2",
        r"5\|6",
        "True",
    ]
    assert share(1, 3) == "33.33%" and share(1, 0) == "–"


def test_a_card_takes_other_places_and_keeps_the_rest() -> None:
    card = dataset_card(FACTS)
    made = configs([{"row_length": 8, "path": "8/*.arrow"}])
    moved = with_configs(card, made)
    front, _ = parts(moved)
    assert front == {**parts(card)[0], "configs": made}
    assert moved.split("\n---\n", 1)[1] == card.split("\n---\n", 1)[1]
    assert with_configs("# Bare\n", made).endswith("---\n# Bare\n")
    assert with_configs(moved, made) == moved
