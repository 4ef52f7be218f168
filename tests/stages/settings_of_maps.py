"""Every setting of the stages that see a batch at a time, and of readers, with a value that changes what they do."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.crawls.listing import crawl_of, unpacked
from gristmill.pipeline.crawls.remote import stretches_of
from gristmill.pipeline.inputs.files import list_at
from gristmill.stages import Cc, TextSignals
from gristmill.stages.others.indexes import shingles_of
from gristmill.stages.others.signatures import datasketch_places, datatrove_places, lean_minhashes, signatures_of
from gristmill.stages.stage import Reader, Stage
from tests.pipeline.inputs.false_crawl import DUMP, make_crawl, write_list
from tests.stages.pdf.made_pdfs import SCAN, column, pdf, prose
from tests.stages.settings_shown import Change, Elsewhere, Lab, Subject, batch_of, to

# --- readers
#   -----------------------------------------------------------------------------------------------------------

ROWS = [
    {"text": "one", "body": "two", "id": "7", "key": "8", "url": "https://a.example/1", "link": "https://a.example/2", "date": "2024-01-01", "seen": "2025-01-01",
     "metadata": {"url": "https://a.example/3"}},
]  # fmt: skip
WITHOUT_URL = [{"text": "one", "id": "7", "metadata": {"url": "https://a.example/3"}}]


def files_found(lab: Lab, stage: Stage, given: Any) -> list[str]:
    assert isinstance(stage, Reader)
    return (
        [file.path for file in list_at(stage.path, lab.folder, stage.suffixes, "a").files]
        if isinstance(stage.path, str)
        else []
    )


def path_change(suffix: str) -> Change:
    return to(lambda lab: Path(lab.file(f"other/b{suffix}", "")).name and f"other/b{suffix}", see=files_found, path=lambda lab: lab.file(f"in/a{suffix}", "") and f"in/a{suffix}")  # fmt: skip


def row_reader(name: str, suffix: str, packed: Any, **more: Change | Elsewhere) -> Subject:
    return Subject(
        name,
        {
            **more,
            "path": path_change(suffix),
            "layout": to("plain", given=(packed(WITHOUT_URL), f"a{suffix}")),
            "text": to("body"),
            "html": to("body"),
            "id": to("key"),
            "url": to("link"),
            "date": to("seen"),
            "keep": to(["key"]),
            "max_record_bytes": to(2),
        },
        given=(packed(ROWS), f"a{suffix}"),
        base={"path": "x"},
    )


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def as_arrow(rows: list[dict[str, Any]]) -> bytes:
    table, out = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as file:
        file.write_table(table)
    return out.getvalue()


def record(kind: str, body: bytes, **extra: str) -> bytes:
    lines = [
        f"WARC-Type: {kind}",
        "WARC-Record-ID: <urn:uuid:1>",
        "WARC-Target-URI: https://a.example/",
        "WARC-Date: 2026-01-01T00:00:00Z",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in extra.items()]
    return (
        ("WARC/1.0\r\n" + "\r\n".join([*lines, f"Content-Length: {len(body)}"]) + "\r\n\r\n").encode()
        + body
        + b"\r\n\r\n"
    )


def archive(name: str, suffix: str, kind: str, body: bytes, content: str, **more: Change) -> Subject:
    data = record(kind, body, Content_Type=content) + record(kind, body, Content_Type=content, WARC_Truncated="length")
    changes = {"path": path_change(suffix), "max_record_bytes": to(20), "keep_truncated": to(False), **more}
    return Subject(name, changes, given=(data, f"a{suffix}"), base={"path": "x"})


HTTP = "application/http; msgtype=response"


def crawl_found(lab: Lab, stage: Stage, given: Any) -> Any:
    """What is listed of the false crawls of the lab, and how it is fetched."""
    assert isinstance(stage, Cc)
    root = Path(stage.root)
    if not root.exists():
        crawl = make_crawl(root, files=2, records=10)
        crawl_files = [root / "crawl-data" / dump for dump in (DUMP, "CC-MAIN-2024-18")]
        shutil.copytree(*crawl_files)
        write_list(root, "crawl-data/CC-MAIN-2024-18/warc", crawl.files[:1])
        for name in crawl.files if "other" in stage.root else ():
            (root / name).write_bytes(b"")
    files = crawl_of(stage, lab.folder, "a").files
    return [
        (
            file.name,
            file.size,
            stretches_of(file.size, 0, None, unpacked(file.records), stage.gap) if file.records else "",
        )
        for file in files
    ]


def of_crawls() -> Subject:
    """Two files of a dump in a folder of the lab."""
    fetching = "tests/pipeline/inputs/test_common_crawl.py"
    found: dict[str, Any] = {"see": crawl_found, "root": lambda lab: str(lab.folder / "cc")}
    asking = found | {"index": {"mime": ["text/html", "application/pdf"]}}
    paced = Elsewhere(f"{fetching}::test_requests_a_second_are_bounded")
    tries = Elsewhere(f"{fetching}::test_a_server_that_brings_nothing_ends_the_run")
    bounded = Elsewhere(f"{fetching}::test_the_cache_is_bounded")
    page = gzip.compress(record("response", PAGE, Content_Type=HTTP), mtime=0)
    text = gzip.compress(record("conversion", b"A text.", Content_Type="text/plain") + record("response", PAGE, Content_Type=HTTP), mtime=0)  # fmt: skip
    note = gzip.compress(record("response", NOTE, Content_Type=HTTP), mtime=0)
    paper = gzip.compress(record("response", PAPER, Content_Type=HTTP), mtime=0)
    reserved = gzip.compress(record("response", RESERVED, Content_Type=HTTP), mtime=0)
    cut = gzip.compress(record("response", PAGE, Content_Type=HTTP, WARC_Truncated="length"), mtime=0)
    changes: dict[str, Change | Elsewhere] = {
        "path": to("*-00001.*", **found),
        "dump": to("CC-MAIN-2024-18", **found),
        "kind": to("wet", given=(text, "a.warc.wet.gz")),
        "root": to(lambda lab: str(lab.folder / "cc-other"), **found),
        "sample": to(0.5, **found),
        "index": to({"hosts": ["a.one.example"]}, **found),
        "index.languages": to(["deu"], **asking),
        "index.hosts": to(["a.one.example"], **asking),
        "index.domains": to(["one.example"], **asking),
        "index.mime": to(["application/pdf"], **asking),
        "gap": to(0, **asking),
        "cache": bounded,
        "cache_bytes": bounded,
        "limits": paced,
        "limits.requests": paced,
        "limits.tries": tries,
        "limits.pause": Elsewhere(f"{fetching}::test_pauses_grow_and_a_server_that_says_nothing_is_left"),
        "limits.timeout": Elsewhere(f"{fetching}::test_pauses_grow_and_a_server_that_says_nothing_is_left"),
        "max_record_bytes": to(20),
        "keep_truncated": to(False, given=(cut, "a.warc.gz")),
        "keep_plain_text": to(True, given=(note, "a.warc.gz")),
        "keep_pdf": to(True, given=(paper, "a.warc.gz")),
        "keep_headers": to(True, given=(reserved, "a.warc.gz")),
    }
    return Subject("Cc", changes, given=(page, "a.warc.gz"), base={"dump": DUMP})


NOTE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nA note of some words."
PAPER = b"HTTP/1.1 200 OK\r\nContent-Type: application/pdf\r\n\r\n" + pdf([[]])
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html><p>A page of some words.</p></html>"
RESERVED = PAGE.replace(b"OK", b"OK\r\nX-Robots-Tag: noai")
OTHERS = "tests/pipeline/interchange/test_documents_of_others.py"
ATTRIBUTES = f"{OTHERS}::test_dolma_gets_documents_and_attributes_and_a_recipe_reads_both"
MEMORY = Elsewhere(
    "tests/end_to_end/test_stages_with_memory.py::"
    "test_a_block_that_may_remember_gives_the_same_with_any_number_of_workers_and_batch_sizes"
)
READERS = [
    row_reader("Jsonl", ".jsonl", as_jsonl, attributes=Elsewhere(ATTRIBUTES)),
    row_reader("Parquet", ".parquet", as_parquet),
    row_reader("Arrow", ".arrow", as_arrow),
    Subject(
        "Plain",
        {"path": path_change(".txt"), "charset": to("cp1251"), "max_record_bytes": to(2)},
        given=("Gr\u00fc\u00dfe".encode(), "a.txt"),
        base={"path": "x"},
    ),
    Subject(
        "Html",
        {"path": path_change(".html"), "base_url": to("https://a.example/"), "max_record_bytes": to(2)},
        given=(b"<html><p>A page of some words.</p></html>", "a.html"),
        base={"path": "x"},
    ),
    archive(
        "Warc",
        ".warc",
        "response",
        PAGE,
        HTTP,
        keep_plain_text=to(True, given=(record("response", NOTE, Content_Type=HTTP), "a.warc")),
        keep_pdf=to(True, given=(record("response", PAPER, Content_Type=HTTP), "a.warc")),
        keep_headers=to(
            True,
            given=(record("response", RESERVED, Content_Type=HTTP), "a.warc"),
        ),
    ),
    Subject(
        "Pdf",
        {"path": path_change(".pdf"), "base_url": to("https://a.example/"), "max_record_bytes": to(2)},
        given=(pdf([[]]), "a.pdf"),
        base={"path": "x"},
    ),
    of_crawls(),
    archive("Wet", ".warc.wet", "conversion", b"A text of some words.", "text/plain"),
]


def papers(lab: Lab) -> pa.Table:
    """A PDF file that takes some tenths of a second."""
    return paper([column(prose(600, n), 72, 800, 80, 9)[0] for n in range(12)])


def scans(lab: Lab) -> pa.Table:
    return paper([column(prose(80), 72, 740)[0], SCAN])


def paper(pages: list[Any]) -> pa.Table:
    texts = {name: pa.array([None], pa.string()) for name in ("charset", "text", "url", "meta")}
    return pa.table({"html": pa.array([pdf(pages)], pa.binary()), **texts})


# --- text
#   --------------------------------------------------------------------------------------------------------------

RICH = """# The #mill stands by the river, and the miller of the mill is there with his dog that barks...
- The wheel turns with the water of the river and the stones grind the corn of the farmers...
\u2022 be

The same line stands here twice and it is to be told that it does, with the words that it has.
The same line stands here twice and it is to be told that it does, with the words that it has.

Twice.

Twice.

12 34 56"""


@cache
def measured() -> pa.Table:
    """The rich text and its signals, of which none is 0."""
    return TextSignals(units="uax29")(texts(RICH)).append_column("language", pa.array(["en"]))


def texts(*given: str | None, **columns: Any) -> pa.Table:
    return pa.table({"text": pa.array(given, pa.string()), **columns})


def signals(**values: Any) -> pa.Table:
    return pa.table({name: [value] for name, value in values.items()})


BENCH = '{"q": "Which moon of Saturn has lakes of liquid methane on it?", "key": "moon", "near": "Which moons of Jupiter may have lakes of liquid water on them?", "short": "Who wrote the Hamlet play?", "other": "A miller counts his sacks at dawn, sells a third by noon and gives one away at dusk."}\n'  # fmt: skip
QUESTION = json.loads(BENCH)["q"]
BENCHMARK: dict[str, Any] = {"name": "b", "path": "b.jsonl", "fields": ["q"]}
FILLER = (
    "The river ran low that summer and the mill stood still for weeks, which nobody in the village could remember. "
)
STORY = "The mill stood still that summer, since the river ran low, and the village bought its flour elsewhere. "
REMARK = "My grandfather worked there until the flood, and he told us of the wheel whenever it rained for a week. "
COMMENTED = (
    f"<html><head><title>The mill</title></head><body><article><h1>The mill</h1>{''.join(f'<p>{n}. {STORY * 2}</p>' for n in range(10))}"
    f"<div class='comments'>{''.join(f'<p>{n}. {REMARK * 3}</p>' for n in range(6))}</div></article></body></html>"
).encode()
BESIDE = (
    f"<html><head><title>The mill</title></head><body><nav><a href=/>Home</a></nav><article><h1>The mill</h1>{''.join(f'<p>{n}. {STORY * 2}</p>' for n in range(6))}</article>"
    f"<div class='footer'>{''.join(f'<p>{n}. {REMARK}</p>' for n in range(6))}</div></body></html>"
).encode()
CONTAMINATED = texts(FILLER * 4 + QUESTION + " " + FILLER * 4 + " Who wrote the Hamlet play?")
WITH_BENCHMARKS: dict[str, Any] = {
    "benchmarks_path": lambda lab: str(Path(lab.file("bench/b.jsonl", BENCH)).parent),
    "benchmarks": [BENCHMARK],
}


def of_benchmarks() -> dict[str, Change | Elsewhere]:
    """`ngram` 13 is more than the question's words, so that it is sought whole."""
    return {
        "benchmarks_path": to(lambda lab: str(Path(lab.file("bench2/b.jsonl", BENCH.replace("moon", "stone"))).parent)),
        "benchmarks": to([BENCHMARK | {"fields": ["other"]}]),
        "benchmarks.name": to("c"),
        "benchmarks.path": to("c.jsonl", benchmarks_path=lambda lab: lab.file("bench/b.jsonl", BENCH) and str(Path(lab.file("bench/c.jsonl", BENCH.replace("moon", "stone"))).parent)),
        "benchmarks.fields": to(["other"]),
        "benchmarks.id": to("key"),
        "ngram": to(3, given=texts(FILLER * 9 + "Which moon of Saturn was it? " + FILLER * 9)),
        "shortest": to(5, benchmarks=[BENCHMARK | {"fields": ["q", "short"]}], given=texts(FILLER * 9 + "Who wrote the Hamlet play? " + FILLER * 9)),
        "most_texts": to(1, benchmarks=[BENCHMARK | {"fields": ["q", "near"]}], ngram=3, given=texts(FILLER * 9 + "It has lakes of liquid. " + FILLER * 9)),
        "common_phrases_file": to(lambda lab: lab.file("phrases.txt", QUESTION + "\n")),
    }  # fmt: skip


MENU = "Read more\nMy very own phrase\nThis site uses cookies to be of use.\nThis site holds my own notice in it.\nA line of text that stays where it is."
MANY_WORDS = "Home page of the site\nThis is a long enough line of words that ends well.\nshort.\nNo end here at all\nA cited fact[1] stands in this very line.\nIt needs javascript to be seen well.\nOur cookie policy stands at this very place.\nAn " + "a" * 40 + " stands in this line.\nIs it so?"  # fmt: skip
LINES = "SHOUTED LINE OF WORDS\n12345 67890\n3 likes\nword\nSign-in to the site\nSee it all Read more...\n5 items in cart now\n4 boosts\nA plain line of text, which stays as it is.\nBye now please\nHi there you\nin my basket now"  # fmt: skip
BROKEN = "It\u00e2\u20ac\u2122s a caf\u00c3\u00a9 &amp; bar\u0007 of\u200b e\u0301clairs   and \ufb01ne things\r\n"
PERSONAL = "Write to jane.doe@mill-river.com or to 8.8.8.8, and call +1 415 555 2671."
TWO_LANGUAGES = (
    "This is a rather long English sentence, with enough letters to judge.\n"
    "Dies ist ein recht langer deutscher Satz mit genug Buchstaben zum Urteilen.\nEin kurzer Satz."
)


def other_language_model(lab: Lab) -> str:
    """A model of two languages of its own."""
    from tests.classifiers.fasttext_files import small

    path = lab.folder / "own.bin"
    if not path.exists():
        small().write(path)
    return str(path)


def url_list(*lines: str) -> Any:
    return lambda lab: lab.file(f"urls-{crc32(repr(lines).encode())}.txt", "".join(f"{line}\n" for line in lines))


URL = "https://user@www.bad.example/some-words/and-more/x.html?q=soft-soft2"
TEXT = [
    Subject(
        "BadWords",
        {
            "words_path": to(lambda lab: lab.file("other.txt", "dog\nmiller\n")),
            "default_language": to("de", given=texts("The dog and the Katze sm", language=[None]), words_path=lambda lab: str(Path(lab.file("words/en.txt", "dog\n")).parent) if lab.file("words/de.txt", "Katze\nsm\n dog\n") else ""),
            "allowed": to(("dog",)),
        },
        given=texts("The dog of the miller", language=["en"]),
        base={"words_path": lambda lab: lab.file("bad.txt", "dog\nsm\n")},
    ),
    Subject("FewBadWords", {"at_most": to(3)}, given=signals(bad_words=3)),
    Subject("BenchmarkOverlap", of_benchmarks(), given=CONTAMINATED, base=WITH_BENCHMARKS),
    Subject(
        "CutContamination",
        of_benchmarks() | {
            "at_least": to(0.9, given=texts(FILLER * 4 + "Which moon of Saturn has lakes of liquid. " + FILLER * 4), ngram=3),
            "margin": to(10),
            "shortest_piece": to(2000),
            "max_pieces": to(1),
        },
        given=CONTAMINATED,
        base=WITH_BENCHMARKS,
    ),
    Subject(
        "Datatrove",
        {
            "block": to("blocks_of_ours:Broken", along={"settings": {}}),
            "settings": to({"regex_exp": "dog"}),
            "files": to(lambda lab: {"words_file": lab.file("w2", "dog")}, block="blocks_of_ours:Listed", settings={}, files=lambda lab: {"words_file": lab.file("w", "mill")}),
            "state": MEMORY,
        },
        given=texts("A mill", "A dog, a bad one", uid=[1, 2]),
        base={"block": "datatrove.pipeline.filters:RegexFilter", "settings": {"regex_exp": "mill"}},
    ),
    Subject(
        "Decontaminate",
        {"at_least": to(0.3), "min_ngrams": to(5, at_least=0.3)},
        given=signals(contamination=0.4, contaminated_by="b/0/q", contaminated_ngrams=3, contamination_start=0, contamination_end=9),
    ),
    Subject(
        "Boilerplate",
        {
            "lines": to(("nothing else",)),
            "notices": to(("nothing else",)),
            "more_lines": to(("my very own phrase",)),
            "more_notices": to(("my own notice",)),
            "notice_words": to(3),
        },
        given=texts(MENU),
    ),
    Subject(
        "Difficulty",
        {
            "only": to(("mtld",)),
            "language": to("de", given=texts(RICH, language=pa.array([None], pa.string()))),
            "common_words": to(lambda lab: lab.file("common.txt", "the\nmill\nof\n")),
            "common": to(1, common_words=lambda lab: lab.file("common.txt", "the\nmill\nof\n")),
        },
        given=texts(RICH, language=["en"]),
    ),
    Subject(
        "FromMeta",
        {"numbers": to({"grade": "q.grade"}), "texts": to({"language": "lang"})},
        base={"numbers": {"number": "n"}},
        given=texts("a", meta=['{"q": {"grade": 0.5}, "lang": "de"}']),
    ),
    Subject(
        "Language",
        {
            "model": to("lid.176"),
            "model_file": to(other_language_model),
            "shortest": to(1000),
            "top": to(2),
        },
        given=texts(TWO_LANGUAGES),
    ),
    Subject(
        "ParagraphLanguages",
        {
            "model": to("lid.176", given=texts(f"{TWO_LANGUAGES}\nSawubona, unjani namhlanje mngani wami omuhle kakhulu?")),
            "model_file": to(other_language_model),
            "shortest": to(5),
            "at_least": to(1.0),
        },
        given=texts(TWO_LANGUAGES),
    ),
    Subject(
        "PersonalData",
        {"kinds": to(("ip",)), "style": to("fake"), "seed": to(1, style="fake"), "url": to(True)},
        given=pa.table({"text": [PERSONAL] * 3, "url": ["https://a.example/?to=jane.doe%40mill-river.com"] * 3}),
    ),
    Subject(
        "Repair",
        {"mojibake": to(False), "entities": to(False), "normal_form": to("NFKC"), "controls": to(False), "zero_width": to(False), "whitespace": to(False)},
        given=texts(BROKEN),
    ),
    Subject(
        "TextSignals",
        {
            "units": to("whitespace"),
            "only": to(("words",)),
            "language": to("de"),
            "stop_words_file": to(lambda lab: lab.file("stop.yaml", "en: [mill]\n")),
            "short_line": to(1),
        },
        given=texts(RICH),
    ),
    Subject(
        "UrlRules",
        {
            "blocked_domains_file": to(url_list("bad.example")),
            "blocked_hosts_file": to(url_list("bad.example")),
            "blocked_urls_file": to(url_list("bad.example/some-words/and-more/x.html?q=soft-soft2")),
            "blocked_prefixes_file": to(url_list("bad.example/some-words")),
            "blocked_words_file": to(url_list("words")),
            "soft_words_file": to(url_list("words", "soft")),
            "blocked_substrings_file": to(url_list("mewor")),
            "allowed_domains_file": to(url_list("bad.example"), blocked_words_file=url_list("words")),
            "ut1_file": to(lambda lab: str(Path(lab.file("ut1/adult/domains", "bad.example\n")).parents[1])),
            "ut1_categories": to(("games",), ut1_file=lambda lab: str(Path(lab.file("ut1/adult/domains", "bad.example\n")).parents[1]) if lab.file("ut1/games/domains", "fun.example\n") else ""),
            "soft_word_threshold": to(3, soft_words_file=url_list("words", "soft")),
            "substrings_skip": to("nothing", blocked_substrings_file=url_list("somewords")),
            "require_host": to(True, given=pa.table({"url": pa.array([None], pa.string())})),
        },
        given=pa.table({"url": [URL]}),
        base={"blocked_hosts_file": url_list("elsewhere.example")},
    ),
    Subject(
        "Extract",
        {
            "engine": to("plain"),
            "form": to("markdown"),
            "comments": to("keep", given=pa.table({"html": pa.array([COMMENTED], pa.large_binary())} | {name: pa.array([None], pa.string()) for name in ("charset", "text", "url", "meta")})),
            "views": to(["precise"], given=pa.table({"html": pa.array([BESIDE], pa.binary())} | {name: pa.array([None], pa.string()) for name in ("charset", "text", "url", "meta")})),
            "max_nesting": to(2, engine="plain"),  # gristmill's own engine takes any
            "max_pdf_seconds": to(0.01, given=papers),
            "max_pdf_pages": to(1, given=papers),
            "max_unread_share": to(0.9, given=scans),
            "ocr_price": to(100.0, given=scans),
        },
        given=pa.table(
            {
                "html": pa.array([("<html><body><nav><a href='/'>Home</a></nav><article><div><div><h1>The mill</h1>" + f"<p>{FILLER * 3}</p><h2>Its wheel</h2><ul><li>{FILLER}</li></ul>" * 4 + "</div></div></article></body></html>").encode()], pa.large_binary()),
                "charset": pa.array([None], pa.string()),
                "text": pa.array([None], pa.string()),
                "url": ["https://a.example/"],
                "meta": pa.array([None], pa.string()),
            }
        ),
    ),
]  # fmt: skip

# --- rules
#   -------------------------------------------------------------------------------------------------------------

NEMO = "nemo_curator.stages.text.filters"
FAR = {"en": {"min_words": 10**6, "max_top_2gram_share": 0, "min_terminal_line_share": 1}}


def limits(stage: str, names: list[str]) -> Subject:
    """A rule whose limits are all off, and then each of them alone at a value that no text keeps to."""
    off: dict[str, Any] = dict.fromkeys(names)
    changes: dict[str, Change | Elsewhere] = {
        name: to(0 if name.startswith("max_") else 1 if name.endswith("_share") else 10**6) for name in names
    }
    only = next(name for name in FAR["en"] if name in names)
    by_language = to(lambda lab: lab.file(f"far-{stage}.json", json.dumps({"en": {only: FAR["en"][only]}})))
    return Subject(stage, changes | {"thresholds_file": by_language}, given=lambda lab: measured(), base=off)


KNOWN = "The miller takes what grain he is brought and gives back flour, less a tenth that he keeps for his own"


def sketches(lab: Lab, name: str, text: str) -> str:
    """Signatures of a text, as datasketch has them."""
    signatures = signatures_of(*shingles_of(pa.array([text]), 5), datasketch_places(128))
    table = pa.table({"key": ["known"], "lean_minhash": lean_minhashes(signatures)})
    pq.write_table(table, lab.folder / name)
    return str(lab.folder / name)


def buckets(lab: Lab, name: str, text: str) -> str:
    """Signatures of a text, as DataTrove has them."""
    [signature] = signatures_of(*shingles_of(pa.array([text]), 5), datatrove_places(112)).reshape(1, 14, 8)
    for bucket, hashes in enumerate(signature):
        lab.file(f"{name}/bucket_{bucket:03d}/00000.minhash.sig", hashes.astype("<u8").tobytes() + bytes(4))
    return str(lab.folder / name)


RULES = [
    limits("FinewebQuality", ["min_terminal_line_share", "max_short_line_share", "max_duplicate_line_characters", "max_newlines_per_word"]),
    limits(
        "GopherQuality",
        ["min_words", "max_words", "min_mean_word_length", "max_mean_word_length", "max_hash_ratio", "max_ellipsis_ratio", "max_bullet_line_share",
         "max_ellipsis_line_share", "min_alphabetic_word_share", "min_stop_words"],
    ),
    limits(
        "GopherRepetition",
        ["max_duplicate_paragraph_share", "max_duplicate_paragraph_character_share", "max_duplicate_line_share", "max_duplicate_line_character_share",
         *(f"max_top_{n}gram_share" for n in (2, 3, 4)), *(f"max_duplicate_{n}gram_share" for n in range(5, 11))],
    ),
    Subject(
        "DatasketchIndex",
        {
            "index_path": to(lambda lab: sketches(lab, "elsewhere.parquet", "Something else that stands in another set")),
            "threshold": to(0.95),
            "shingles": to("words"),
            "ngram": to(3),
        },
        given=texts(f"{KNOWN} once more", "A mill that nobody knows, with words of its own"),
        base={"index_path": lambda lab: sketches(lab, "known.parquet", KNOWN), "threshold": 0.6},
    ),
    Subject(
        "DatatroveIndex",
        {
            "index_path": to(lambda lab: buckets(lab, "elsewhere", "Something else that stands in another set")),
            "shingles": Elsewhere(f"{OTHERS}::test_datatrove_decides_the_same_from_its_own_signatures"),
            "language": Elsewhere(f"{OTHERS}::test_datatrove_decides_the_same_from_its_own_signatures"),
            "ngram": to(3),
            "rows": to(4, refuses="no records of 4 hashes"),
            "precision": to(32, refuses="no records of 8 hashes of 32 bits"),
            "seed": to(2),
        },
        given=texts(KNOWN, "A mill that nobody knows, with words of its own"),
        base={"index_path": lambda lab: buckets(lab, "known", KNOWN), "shingles": "gristmill"},
    ),
    Subject(
        "Nemo",
        {
            "filter": to(f"{NEMO}.heuristic:MeanWordLengthFilter"),
            "settings": to({"min_words": 3}),
            "files": to(lambda lab: {"words_file": lab.file("w2", "dog")}, filter="blocks_of_ours:Marked", files=lambda lab: {"words_file": lab.file("w", "mill")}),
            "state": MEMORY,
        },
        given=texts("A mill", "A dog, a bad one", uid=[1, 2]),
        base={"filter": f"{NEMO}.heuristic:WordCountFilter"},
    ),
    Subject("FewReplacementCharacters", {"max_share": to(1)}, given=signals(replacement_share=0.1)),
    Subject(
        "DolmaGopher",
        {
            "words": to({"low": 10**6}),
            "words.low": to(10**6),
            "words.high": to(1),
            "median_word_length": to({"low": 99}),
            "median_word_length.low": to(99),
            "median_word_length.high": to(1),
            "max_symbol_ratio": to(0),
            "min_alphabetic_words": to(1),
            "min_stop_words": to(999),
            "max_bullet_lines": to(0),
            "max_ellipsis_lines": to(0),
            "max_duplicate_lines": to(0),
            "max_duplicate_line_characters": to(0),
            "max_top_grams": to((0, 9, 9)),
            "max_duplicate_grams": to((9, 9, 9, 9, 9, 0)),
        },
        given=lambda lab: measured(),
        base={"words": {}, "median_word_length": {}, "max_symbol_ratio": 9, "min_alphabetic_words": 0, "min_stop_words": 0, "max_bullet_lines": 9,
              "max_ellipsis_lines": 9, "max_duplicate_lines": 9, "max_duplicate_line_characters": 9, "max_top_grams": (9, 9, 9), "max_duplicate_grams": (9,) * 6},
    ),
    Subject(
        "C4Lines",
        {
            "terminal_punctuation": to(False),
            "terminal_marks": to(("?",)),
            "max_word_length": to(20),
            "min_words": to(1),
            "citations": to(False),
            "javascript": to(("stands",)),
            "policy": to(("enough",)),
        },
        given=texts(MANY_WORDS),
    ),
    Subject(
        "C4Quality",
        {"max_lorem_ipsum": to(1), "max_curly_brackets": to(1), "min_sentences": to(3)},
        given=signals(c4_lorem_ipsum=1, c4_curly_brackets=1, c4_sentences=3),
    ),
    Subject(
        "RefinedwebLines",
        {
            "max_upper_share": to(1.0),
            "max_digit_share": to(0.5),
            "counted": to(("boosts",)),
            "min_words": to(4),
            "short_line": to(3),
            "anywhere": to(("in my basket",)),
            "endings": to(("please",)),
            "beginnings": to(("Hi",)),
        },
        given=texts(LINES),
    ),
    Subject("RefinedwebQuality", {"max_words_removed_share": to(0.5)}, given=signals(refinedweb_words_removed_share=0.2)),
    Subject(
        "KeepLanguages",
        {
            "languages": to(["de"]),
            "at_least": to(0.9),
            "thresholds": to({"en": 0.9}),
            "thresholds_file": to(lambda lab: lab.file("languages.json", '{"en": 0.9}')),
        },
        given=signals(language="en", language_score=0.8),
        base={"languages": ["en"]},
    ),
    Subject(
        "KeepWhere",
        {
            "signal": to("worse"),
            "at_least": to(0.9),
            "at_most": to(0.45),
            "alarm_above": Elsewhere("tests/stages/judge/test_keep_where.py::test_the_alarm_says_who_expects_what"),
        },
        given=signals(good=0.5, worse=0.2),
        base={"signal": "good", "at_least": 0.4},
    ),
    Subject("Sample", {"rate": to(0.1), "seed": to(1)}, given=pa.table({"uid": pa.array([n * 0x9E3779B97F4A7C15 % 2**64 for n in range(200)], pa.uint64())}), base={"rate": 0.5}),
    Subject(
        "Write",
        {"without": Elsewhere("tests/pipeline/recipe/test_sink_columns.py::test_tokens_of_a_text_that_was_masked_since_are_not_written"), "dump": to("CC-MAIN-2024-10"), "signals": to(False), "vectors": to(True)},
        given=batch_of({"uid": pa.array([1], pa.uint64()), "source": ["a"], "id": ["1"], "url": [""], "date": [""], "text": ["a"], "meta": ['{"file_path": "f"}'], "words": [3], "embedding": pa.array([[1, 2]], pa.list_(pa.int8(), 2))}),
    ),
]  # fmt: skip
