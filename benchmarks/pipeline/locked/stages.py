"""The stages that no shipped recipe has, in few recipes: on texts, on all documents, on pages, with models, from a crawl
on a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.pipeline.locked.inputs import crawl, documents, judge, own, texts, write_source
from benchmarks.pipeline.locked.lock import Lock
from tests.classifiers.llm.llm_server import LanguageServer, Reply
from tests.classifiers.static_models import static_model
from tests.pipeline.inputs.false_crawl import DUMP, make_crawl, serving
from tests.pipeline.run.test_opt_out_run import CRAWL as RESERVED
from tests.stages.pdf.made_pdfs import SCAN, column, pdf, prose
from tests.stages.settings_of_edits import PAGE, by_prompt
from tests.stages.settings_of_judges import by_picture, by_word, labeller
from tests.stages.settings_of_maps import BENCH, buckets, sketches
from tests.stages.settings_shown import Lab

ON_TEXTS = """
name: on_texts
parts: {files: 1}
sources:
  a: {jsonl: {path: HERE/texts/a}}
  b: {parquet: {path: HERE/texts/b}, stages: [sample: {rate: 0.8}]}
  c: {arrow: {path: HERE/texts/c}, join: language}
stages:
  - url_rules: {blocked_hosts_file: HERE/hosts.txt, soft_words_file: HERE/soft.txt, soft_word_threshold: 1}
  - opt_out: {domains_file: HERE/domains.txt}
  - language: {top: 2}
  - paragraph_languages
  - repair
  - boilerplate: {more_lines: [see also]}
  - bad_words: {words_path: HERE/bad.txt}
  - few_bad_words: {at_most: 2}
  - from_meta: {numbers: {edu: edu_score}, texts: [topic, format]}
  - keep_labels: {signal: format, keep: [article, forum], drop: []}
  - keep_where: {signal: edu, at_least: 0.2}
  - few_replacement_characters: {max_share: 0.001}
  - c4_lines: {terminal_punctuation: false}
  - c4_quality: {min_sentences: 1}
  - benchmark_overlap: {benchmarks_path: HERE/bench, benchmarks: [{name: b, path: b.jsonl, fields: [q, short]}], ngram: 8, shortest: 3}
  - decontaminate: {at_least: 0.9, min_ngrams: 1}
  - cut_contamination: {benchmarks_path: HERE/bench, benchmarks: [{name: b, path: b.jsonl, fields: [q]}], ngram: 8}
  - datatrove: {block: "datatrove.pipeline.filters:RegexFilter", settings: {regex_exp: deprecated}}
  - nemo: {filter: "blocks_of_ours:Marked", files: {words_file: HERE/marked.txt}}
  - datasketch_index: {index_path: HERE/known.parquet, threshold: 0.6}
  - datatrove_index: {index_path: HERE/known, shingles: gristmill}
  - judge: {judge_path: JUDGE, prefix: own_}
  - label: {judge_path: LABELLER, least_chance: 0.5, fewest_words: 10, any_language: true}
  - keep_labels: {name: good_ones, signal: kind, drop: [bad]}
  - difficulty
  - text_signals: {units: uax29}
  - dolma_gopher: {min_alphabetic_words: 0.5}
  - threshold: {by: own_quality, keep: 0.8}
  - personal_data: {style: fake}
  - write
  - write: {name: lean, signals: false, without: [topic]}
"""
ON_ALL = """
name: on_all
parts: {files: 1}
sources:
  a: {jsonl: {path: HERE/all/a}}
  b: {jsonl: {path: HERE/all/b}}
  c: {wet: {path: HERE/all/c}}
stages:
  - from_meta: {numbers: {edu: edu_score}, texts: [topic, format]}
  - url_dedup: {sources: [b], prefer: [source, longest]}
  - exact_dedup
  - simhash_dedup: {distance: 6, blocks: 8}
  - minhash_dedup: {prefer: [best, longest], best: edu}
  - site_boilerplate: {min_pages: 3, min_share: 0.05, min_words: 1}
  - paragraph_dedup: {min_words: 4, min_left: 4}
  - substring_dedup: {tokens: 30}
  - bloom_dedup
  - language
  - embed: {model_path: HERE/static}
  - semantic_clusters: {clusters: 6}
  - semantic_dedup: {threshold: 0.98}
  - quantile_buckets: {by: [edu], buckets: 5, tiers: {low: 2, high: 5}}
  - write: {vectors: true}
  - tokenize: {vocab_size: 500}
  - cap_domains: {by: [topic], share: 0.2}
  - mix: {by: [topic, quality_tier], method: unimax, budget: 40_000, max_epochs: 4, least_tokens: 500}
  - order: {by: edu, schedule: {interleaved: {passes: 2}}, within: [topic]}
  - pack: {row_length: [256, 512], by: [topic], window_tokens: 8192}
"""
ON_VECTORS = """
name: on_vectors
parts: {files: 1}
sources: {a: {jsonl: {path: HERE/all/a}}, c: {wet: {path: HERE/all/c}}, plain: {plain: {path: HERE/plain}}}
stages:
  - corpus_embed: {width: 16}
  - semantic_clusters: {clusters: 5, largest: 60, called_after: topic}
  - semantic_dedup: {threshold: 0.95, cluster: topic}
  - sample: {rate: 0.9, seed: 3}
  - write
"""
GATHER = """
name: gather
parts: {files: 1}
sources: {files: {site_files: {path: HERE/reserved}}, others: {site_files: {path: CRAWL}}}
stages: [write]
"""
ON_PAGES = """
name: on_pages
parts: {files: 1}
sources:
  reserved: {warc: {path: HERE/reserved, keep_headers: true}}
  demo: {warc: {path: CRAWL}}
  html: {html: {path: HERE/files, base_url: https://files.example/}}
  pdf: {pdf: {path: HERE/files, base_url: https://files.example/}}
stages:
  - page_terms
  - extract: {views: [full, precise], form: markdown}
  - opt_out: {site_files: HERE/runs/gather/write, domains_file: HERE/domains.txt}
  - keep_licenses: {licenses: [CC-BY-*], unstated: true}
  - language
  - text_signals
  - gopher_quality: {min_words: 20}
  - one_view: {prefer: [precise, full]}
  - exact_dedup
  - write
"""
WITH_MODELS = """
name: with_models
parts: {files: 1}
sources:
  pages: {jsonl: {path: HERE/models}, join: llm_score}
  scans: {pdf: {path: HERE/scans}}
stages:
  - ocr: {model: eyes, endpoint: URL, most_failures: 1.0, longest_side: 64, cache_path: HERE/answers/ocr}
  - extract
  - llm_score: {model: m, rubric: "Is it useful?", endpoint: URL, most_failures: 1.0, cache_path: HERE/answers/score}
  - llm_label: {model: m, taxonomy: topic, fewest_words: 3, endpoint: URL, most_failures: 1.0, cache_path: HERE/answers/label}
  - refine: {model: editor, endpoint: URL, most_failures: 1.0, cache_path: HERE/answers/refine}
  - rephrase: {model: editor, styles: [wiki, summary], endpoint: URL, most_failures: 1.0, cache_path: HERE/answers/rephrase}
  - exact_dedup
  - write
"""
FROM_A_SERVER = """
name: from_a_server
sources:
  whole: {cc: {dump: DUMP, root: URL, cache: HERE/cache, path: "*-00000.*"}}
  some: {cc: {dump: DUMP, root: URL, cache: HERE/cache, index: {languages: [deu]}}}
  text: {cc: {dump: DUMP, kind: wet, root: URL, cache: HERE/cache}, join: text_signals}
stages:
  - extract
  - text_signals
  - gopher_quality: {min_words: 20, min_stop_words: 1}
  - exact_dedup
  - write
"""


def take(lock: Lock) -> None:
    on_texts(lock)
    on_all(lock)
    on_pages(lock)
    with_models(lock)
    from_a_server(lock)


def on_texts(lock: Lock) -> None:
    here, lab = lock.folder, Lab(lock.folder)
    given = list(texts(here))
    question, short = (json.loads(BENCH)[name] for name in ("q", "short"))
    rows = documents(given[:200], 1)
    for number, row in enumerate(rows):
        row["text"] += [
            "",
            f" {question}",
            f"\n{short}",
            " Write to jane.doe@mill-river.com soon.\nSee also",
            " damn hell damn hell",
        ][number % 5]
    write_source(here / "texts/a", rows, "jsonl")
    write_source(here / "texts/b", documents(own(tuple(given[200:]), "b"), 2), "parquet")
    write_source(here / "texts/c", documents(own(tuple(given[:80]), "c"), 3), "arrow")
    lab.file("bench/b.jsonl", BENCH)
    lab.file("bad.txt", "damn\nhell\n")
    lab.file("marked.txt", "the\nreturn\n")
    lab.file("hosts.txt", "a.p.example\n")
    lab.file("soft.txt", "7\n13\n")
    lab.file("domains.txt", "q.example\nlisted-domain.example\n")
    sketches(lab, "known.parquet", given[5])
    buckets(lab, "known", given[45])
    text = ON_TEXTS.replace("JUDGE", str(judge(here, "code"))).replace("LABELLER", labeller(here, "labeller", 1))
    lock.run("on_texts", lock.recipe("on_texts", text))


def on_all(lock: Lock) -> None:
    here, given = lock.folder, texts(lock.folder)
    head = [f"{text}\nHome page of the site\nAll rights are reserved by us" for text in given[:150]]
    write_source(here / "all/a", documents(head, 4), "jsonl", 3)
    write_source(here / "all/b", documents([*given[100:220], *own(given[:60], "b")], 5), "jsonl")
    write_source(here / "all/c", documents([*given[:20], *own(given[60:160], "c")], 6), "wet")
    (here / "plain").mkdir()
    for number, text in enumerate(given[200:210]):
        (here / f"plain/{number}.txt").write_text(f"{text}\n{number}")
    static_model(here / "static", 1)
    lock.run("on_all", lock.recipe("on_all", ON_ALL))
    lock.run("on_vectors", lock.recipe("on_vectors", ON_VECTORS))


def on_pages(lock: Lock) -> None:
    here, pages = lock.folder, str(crawl(lock.folder))
    (here / "reserved").mkdir()
    (here / "reserved/a.warc").write_bytes(b"".join(RESERVED))
    (here / "files").mkdir()
    for number, text in enumerate(texts(here)[:6]):
        paragraphs = "".join(f"<p>{line}</p>" for line in text.split("\n"))
        (here / f"files/{number}.html").write_text(f"<html><body><article>{paragraphs}</article></body></html>")
        (here / f"files/{number}.pdf").write_bytes(pdf([column(prose(300, number), 72, 740)[0]]))
    lock.run("gather", lock.recipe("gather", GATHER.replace("CRAWL", pages)))
    lock.run("on_pages", lock.recipe("on_pages", ON_PAGES.replace("CRAWL", pages)))


def answer(path: str, body: Reply) -> Reply:
    """A language model's, which hangs on the request alone."""
    rules = {"eyes": by_picture, "editor": by_prompt}
    return rules.get(body["model"], by_word)(path, body)


@contextmanager
def a_model() -> Iterator[LanguageServer]:
    with LanguageServer(answer) as server:
        yield server


def with_models(lock: Lock) -> None:
    here = lock.folder
    once = list(dict.fromkeys(texts(here)))[:20]  # a text that comes twice at a time is asked for once or twice
    rows = documents([*once, PAGE, "a lens bends light because the glass is round", "unanswerable " * 9], 7)
    write_source(here / "models", rows, "jsonl")
    (here / "scans").mkdir()
    (here / "scans/0.pdf").write_bytes(pdf([SCAN, column(prose(200), 72, 740)[0]]))
    (here / "scans/1.pdf").write_bytes(pdf([column(prose(200, 1), 72, 740)[0]]))
    with a_model() as server:
        lock.run("with_models", lock.recipe("with_models", WITH_MODELS.replace("URL", server.url)))
        lock.note("with_models/asked", sorted(server.asked.items()))


def from_a_server(lock: Lock) -> None:
    make_crawl(lock.folder / "dumps", files=3, records=15)
    with serving(lock.folder / "dumps") as server:
        text = FROM_A_SERVER.replace("URL", server.address).replace("DUMP", DUMP)
        lock.run("from_a_server", lock.recipe("from_a_server", text))
        lock.note("from_a_server/fetched", sorted({name for name, _, _ in server.asked}))
