"""Blocks of DataTrove and NeMo Curator, and a user's own that extend theirs, decide in a stage as they do alone; and
nothing that they remember or draw reaches the next document."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.pipeline.recipe import fingerprint
from gristmill.pipeline.recipe.registry import spec_of
from gristmill.stages import Datatrove, Nemo
from gristmill.stages.others import blocks
from gristmill.stages.stage import Applied, CannotRun, Stage

FILTERS, FORMATTERS = "datatrove.pipeline.filters", "datatrove.pipeline.formatters"
TEXTS = [
    "A mill by the river.",
    "----\nA bad dog\n====",
    "",
    "Write to a@corp.example.com or b@corp.example.com, please.",
]


def table(*texts: str | None, **columns: Any) -> pa.RecordBatch:
    uids = columns.pop("uid", list(range(1, len(texts) + 1)))
    return pa.record_batch({"uid": pa.array(uids, pa.uint64()), "text": pa.array(texts, pa.string()), **columns})


def fates(applied: Applied) -> list[tuple[str | None, str | None]]:
    verdict = applied.verdict
    return [(verdict.reason(row), verdict.details.get(row)) for row in range(len(verdict))]


def alone(block: Any, texts: list[str]) -> list[tuple[str, str | None]]:
    """What DataTrove's own `run` makes of documents: the text of each that stays."""
    from datatrove.data import Document

    documents = [Document(text=text, id=str(row)) for row, text in enumerate(texts)]
    return [(document.id, document.text) for document in block.run(iter(documents))]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("RegexFilter", {"regex_exp": "dog|mill"}),
        ("C4ParagraphFilter", {}),
        ("C4QualityFilter", {"split_paragraph": True, "min_num_sentences": -1, "min_words_per_line": 2}),
        ("SymbolLinesFormatter", {}),
        ("SymbolLinesFormatter", {"symbols_to_remove": ["-"], "replace_char": "#"}),
        ("FTFYFormatter", {"uncurl_quotes": True}),
        ("PIIFormatter", {}),
    ],
)
def test_a_block_of_datatrove_decides_and_writes_as_it_does_alone(name: str, settings: dict[str, Any]) -> None:
    import datatrove.pipeline.filters as filters
    import datatrove.pipeline.formatters as formatters

    texts = [
        *TEXTS,
        *("a" * 300 + "\n" + "b" * 250 + "\n" + "c" * n for n in (199, 200)),
        "\u201cIt\u00e2\u20ac\u2122s \u201cquoted\u201d.\nAnd so on [3].\n{",
    ]
    address = f"{FILTERS if hasattr(filters, name) else FORMATTERS}:{name}"
    done = Datatrove(block=address, settings=settings).checked(table(*texts))
    kept = done.batch.filter(pa.array(done.verdict.kept))
    found = [(str(uid - 1), text) for uid, text in zip(kept["uid"].to_pylist(), kept["text"].to_pylist(), strict=True)]
    kind = getattr(filters, name, None) or getattr(formatters, name)
    assert found == alone(kind(**settings), texts)
    assert len(found) > 0 and (len(found) < len(texts) or [text for _, text in found] != texts)


def test_reasons_are_the_blocks_own() -> None:
    ours = Datatrove(block="blocks_of_ours:Broken")
    assert fates(ours.checked(table("bad", "good", "very bad"))) == [
        ("bad_n", "bad_3"),
        (None, None),
        ("bad_n", "bad_8"),
    ]
    c4 = Datatrove(block=f"{FILTERS}:C4ParagraphFilter")
    assert fates(c4.checked(table("short"))) == [("c4_paragraph_filter", "< 3 paragraphs")]
    lorem = Datatrove(block=f"{FILTERS}:C4QualityFilter", settings={"filter_no_terminal_punct": False})
    assert fates(lorem.checked(table("A line of lorem ipsum in it", "a { that is open"))) == [
        ("lorem_ipsum", None),
        ("curly_bracket", None),
    ]


def test_what_a_block_notes_of_a_document_is_kept(tmp_path: Any) -> None:
    (tmp_path / "w").write_text("mill")
    stage = Datatrove(
        block="blocks_of_ours:Listed", settings={"note": "found"}, files={"words_file": str(tmp_path / "w")}
    )
    batch = table("mill", "dog", meta=pa.array(['{"a": 1}', None], pa.string()), url=["https://a.example/", None])
    done = stage.checked(batch)
    assert [json.loads(meta) for meta in done.batch["meta"].to_pylist()] == [{"a": 1, "found": 1.0}, {"found": 0.0}]
    assert fates(done)[1] == ("listed", "only 1 words, none listed")


def test_a_block_sees_what_is_known_of_the_document() -> None:
    stage = Datatrove(block="blocks_of_ours:Told")
    given = table(
        "x",
        url=["https://a.example/"],
        date=["2026-01-01"],
        language=["de"],
        language_score=[0.5],
        id=["7"],
        meta=['{"m": 2}'],
    )
    [meta] = stage.checked(given).batch["meta"].to_pylist()
    assert json.loads(meta)["told"] == [
        "7", {"date": "2026-01-01", "language": "de", "language_score": 0.5, "m": 2, "url": "https://a.example/"},
    ]  # fmt: skip


def test_a_filter_of_batches_gets_batches() -> None:
    done = Datatrove(block="blocks_of_ours:InBatches").checked(table(*["good", "bad"] * 4))
    assert done.verdict.kept.tolist() == [True, False] * 4


def test_an_extractor_reads_pages_and_leaves_texts_alone() -> None:
    pages = [b"<html><p>one</p>", b"<html><p></p>", None, None, "<p>caf\u00e9</p>".encode("cp1252")]
    given = table(
        None, None, "a text", None, None, html=pa.array(pages, pa.binary()), charset=pa.array([None] * 5, pa.string())
    )
    stage = Datatrove(block="blocks_of_ours:FirstParagraph")
    done = stage.checked(given)
    assert done.batch["text"].to_pylist() == ["one", "", "a text", None, "caf\u00e9"]
    assert [reason for reason, _ in fates(done)] == [None, "no_text", None, "no_text_in_source", None]
    assert not {"html", "charset"} & {*done.batch.schema.names}
    assert "html" in stage.needs and "html" not in Datatrove(block="blocks_of_ours:Broken").needs


def test_draws_follow_from_the_document_and_the_settings() -> None:
    """Not from the documents before it, nor from a generator that was seeded by the clock; and Python's own generators
    are left as they were."""
    texts = [f"text {n}" for n in range(64)]
    before = random.getstate(), np.random.get_state()[1].tolist()
    whole = Datatrove(block="blocks_of_ours:Dice").checked(table(*texts))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    backwards = Datatrove(block="blocks_of_ours:Dice").checked(table(*texts[::-1], uid=[*range(64, 0, -1)]))
    assert whole.batch["meta"].to_pylist() == backwards.batch["meta"].to_pylist()[::-1]
    draws = [tuple(json.loads(meta)["draws"]) for meta in whole.batch["meta"].to_pylist()]
    assert len({*draws}) == 64 and 16 < sum(whole.verdict.kept) < 48
    seeded = Datatrove(block="blocks_of_ours:Dice", settings={"seed": 5}).checked(table(*texts))
    assert whole.batch["meta"].to_pylist() != seeded.batch["meta"].to_pylist()
    sampled = Datatrove(block=f"{FILTERS}:SamplerFilter", settings={"rate": 0.25}).checked(
        table(*texts * 8, uid=[*range(512)])
    )
    assert 96 <= sum(sampled.verdict.kept) <= 160


def test_nothing_is_remembered_from_one_document_to_the_next() -> None:
    stage = Datatrove(block=f"{FORMATTERS}:PIIFormatter")
    masked = [stage.checked(table(text)).batch["text"][0].as_py() for text in TEXTS]
    assert stage.checked(table(*TEXTS)).batch["text"].to_pylist() == masked
    assert masked[3].count("email@example.com") == 1 and masked[3].count("firstname.lastname@example.org") == 1


@pytest.mark.parametrize("text", ["first", "second"])
def test_trafilatura_forgets_other_pages(text: str) -> None:
    pytest.importorskip("trafilatura")
    sentence = (
        f"The {text} mill by the river had stood for three hundred years when the flood came and took its wheel. "
    )
    page = f"<html><body><article><h1>The mill</h1>{f'<p>{sentence * 3}</p>'}</article></body></html>".encode()
    given = table(*[None] * 6, html=pa.array([page] * 6, pa.binary()), charset=pa.array([None] * 6, pa.string()))
    done = Datatrove(block="datatrove.pipeline.extractors:Trafilatura").checked(given)
    assert len({*done.batch["text"].to_pylist()}) == 1 and sentence.strip() in done.batch["text"][5].as_py()


def test_nemo_keeps_what_its_filter_keeps() -> None:
    stage = Nemo(filter="nemo_curator.stages.text.filters.heuristic:WordCountFilter", settings={"min_words": 3})
    verdict = stage.checked(table("one two", "one two three", "")).verdict
    assert [(verdict.reason(row), verdict.details.get(row)) for row in range(3)] == [
        ("word_count_filter", "scored 2"), (None, None), ("word_count_filter", "scored 0"),
    ]  # fmt: skip
    share = Nemo(filter="nemo_curator.stages.text.filters.heuristic:MeanWordLengthFilter")
    assert fates(share.checked(table("a bb a")))[0] == ("mean_word_length_filter", "scored 1.333")


@pytest.mark.parametrize(
    ("stage", "settings", "says"),
    [
        (Datatrove, {"block": "os.path"}, "module:Class was expected"),
        (Datatrove, {"block": "os:system"}, "os:system is no block: a class that extends BaseFilter or BaseFormatter or"),
        (Datatrove, {"block": "pathlib:Path"}, "pathlib:Path is no block"),
        (Datatrove, {"block": f"{FILTERS}.base_filter:BaseFilter"}, "BaseFilter is no block"),
        (Datatrove, {"block": "blocks_of_ours:Marked"}, "Marked is no block"),
        (Nemo, {"filter": "blocks_of_ours:Broken"}, "Broken is no block: a class that extends DocumentFilter"),
        (Datatrove, {"block": "not.there:Filter"}, "not.there cannot be imported here: No module named 'not'"),
        (Datatrove, {"block": f"{FILTERS}:GopherQualtyFilter"}, "has no GopherQualtyFilter; did you mean GopherQualityFilter?"),
        (Datatrove, {"block": "blocks_of_ours:Unfinished"}, "Unfinished is abstract: filter not written"),
        (Datatrove, {"block": "blocks_of_ours:Stream"}, "Stream has a `run` of its own"),
        (Datatrove, {"block": f"{FILTERS}:RegexFilter"}, "RegexFilter needs regex_exp"),
        (Datatrove, {"block": f"{FILTERS}:SamplerFilter", "settings": {"rte": 1}}, "SamplerFilter has no setting rte; did you mean rate?"),
        (Datatrove, {"block": f"{FILTERS}:SamplerFilter", "settings": {"exclusion_writer": "x"}}, "leave exclusion_writer out"),
        (Datatrove, {"block": f"{FILTERS}:LambdaFilter", "settings": {"filter_function": "print"}}, "is a function, which a recipe cannot"),
        (Datatrove, {"block": "blocks_of_ours:Listed", "files": {"words_file": "absent"}}, "absent: no such file"),
        (Datatrove, {"block": "blocks_of_ours:Listed", "files": {"note": "a"}, "settings": {"note": "a"}}, "note is among `settings` and"),
    ],
)  # fmt: skip
def test_what_is_no_block_is_refused_before_the_run(stage: type[Stage], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as error:
        stage(**settings)
    assert says in str(error.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks.importlib.util, "find_spec", lambda name: None)
    blocks.block_at.cache_clear()
    with pytest.raises(SettingsError, match=r"DataTrove is not installed here: pip install '\.\[datatrove\]'"):
        Datatrove(block=f"{FILTERS}:RegexFilter", settings={"regex_exp": "a"})
    blocks.block_at.cache_clear()


def test_packages_that_a_block_needs_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its class, and of the words of its language."""
    from datatrove.utils import _import_utils, word_tokenizers

    monkeypatch.setattr(_import_utils, "_is_package_available", lambda name: False)
    monkeypatch.setattr(_import_utils, "_is_distribution_available", lambda name: False)
    word_tokenizers.load_word_tokenizer.cache_clear()
    with pytest.raises(SettingsError, match="not installed here: pip install fasteners pyahocorasick tldextract"):
        Datatrove(block=f"{FILTERS}:URLFilter")
    for settings, package in (({}, "spacy"), ({"language": "kor_Hang"}, "kiwipiepy")):
        with pytest.raises(SettingsError, match=f"GopherRepetitionFilter needs .*: pip install {package}"):
            Datatrove(block=f"{FILTERS}:GopherRepetitionFilter", settings=settings)
    assert Datatrove(block=f"{FILTERS}:C4QualityFilter").called == "c4_quality_filter"  # by paragraphs: needs no words
    word_tokenizers.load_word_tokenizer.cache_clear()


def test_a_block_that_cannot_be_built_stops_the_run() -> None:
    with pytest.raises(CannotRun, match="Fussy cannot be built: ValueError: a share is at most 1"):
        Datatrove(block="blocks_of_ours:Fussy", settings={"share": 2}).prepare()


def test_a_text_that_is_none_is_an_error_of_the_document() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        Datatrove(block="blocks_of_ours:NoText").checked(table("a"))


def test_code_of_a_block_counts_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A user's block in a module of its own, and what it imports from there."""
    source = "from datatrove.pipeline.filters.base_filter import BaseFilter\n\nclass Mine(BaseFilter):\n    def filter(self, doc):\n        return {}\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    prints = []
    for answer in ("True", "True  # a remark", "False"):
        (tmp_path / "a_block_of_mine.py").write_text(source.format(answer))
        sys.modules.pop("a_block_of_mine", None)
        for cache in (blocks.block_at, fingerprint.file_of, fingerprint.source_of, fingerprint.code_of_module):
            cache.cache_clear()
        stage = Datatrove(block="a_block_of_mine:Mine")
        prints.append(fingerprint.identity_of(stage, spec_of(stage, "datatrove")).fingerprint)
    assert prints[0] == prints[1] != prints[2]
