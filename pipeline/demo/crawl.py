"""A small crawl with a known truth: `gristmill demo` runs on it, offline, and the result is held against what was
planted.

Two WARC files, gzip per record, written by hand: the same bytes for the same seed and the same Python. Planted are
copies (whole pages, and articles inside another site's navigation), near copies, other languages and charsets, spam, a
page that attacks the report, and records that are no documents: requests, metadata, redirects, pages not found,
pictures, revisits, empty pages, and one gzip member with damaged bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import uuid
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gristmill.pipeline.demo.pages import NAVIGATION, SITES, page
from gristmill.pipeline.demo.texts import (
    SENTENCES,
    Article,
    edited,
    foreign_article,
    injection_article,
    keyword_spam,
    library_articles,
    link_farm,
)

DATE = "2026-01-01T00:00:00Z"
FILES = ("demo-00000.warc.gz", "demo-00001.warc.gz")
ARTICLES, EXACT, NEAR, SPAM, EACH_LANGUAGE = 220, 20, 15, 10, 5
CHARSETS = {
    "de": "iso-8859-1",
    "el": "iso-8859-7",
    "ja": "shift_jis",
    "ru": "windows-1251",
}  # one page in each of these
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))

ROW_LENGTH = 1024
RECIPE = f"""\
name: demo
sources:
  crawl: {{warc: {{path: "./*.warc.gz"}}}}
stages:
  - extract
  - keep_languages: {{languages: [en], at_least: 0.2}}   # short reference pages, of which the model is not very sure
  - gopher_repetition
  - gopher_quality
  - exact_dedup
  - minhash_dedup: {{threshold: 0.7}}   # articles of a hundred words, where one changed word is in five of the n-grams
  - write
  - tokenize: {{vocab_size: 4096}}   # trained on what is left; a demo has few words
  - order: {{by: mtld, schedule: {{warm_up: {{share: 0.1}}}}}}   # a little from easy to hard, then shuffled
  - pack: {{row_length: {ROW_LENGTH}, license: cc0-1.0}}
"""


@dataclass
class Truth:
    """What the crawl holds. Records = documents + all of `skipped` + `damaged`."""

    seed: int
    records: int = 0
    documents: list[str] = field(default_factory=list)  # urls of the pages that a reader must hand over, each url once
    exact: list[list[str]] = field(
        default_factory=list
    )  # pages of one text; one of each must survive exact deduplication
    near: list[list[str]] = field(
        default_factory=list
    )  # a page, and the same with a few words changed; one of each must survive near deduplication
    skipped: dict[str, int] = field(default_factory=dict)  # records that are no documents, by the reader's reason
    damaged: int = 0
    damage: dict[str, str | int] = field(default_factory=dict)  # file, start and end of the damaged member, and its url
    first_sentences: dict[str, str] = field(default_factory=dict)  # by url: what the text of a page must contain
    navigation: list[str] = field(default_factory=lambda: list(NAVIGATION))  # what no text may contain
    languages: dict[str, str] = field(default_factory=dict)  # by url
    spam: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Truth:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class PlantedRecord:
    """One WARC record before compression, and why a reader skips it (None: it is a document)."""

    data: bytes
    reason: str | None


def write_crawl(folder: Path, seed: int = 0) -> Truth:
    """Write the crawl, its recipe `demo.yaml` and `truth.json` into the folder."""
    rng = random.Random(seed)
    truth = Truth(seed)
    # A group is what one fetch left: a page and, now and then, its request and metadata. Groups stay together.
    groups = [[response(url, html, content_type)] for url, html, content_type in pages(truth, rng)]
    for group, url in list(zip(groups, truth.documents, strict=True))[::12]:
        group.insert(0, exchange("request", url, f"GET / HTTP/1.1\r\nHost: {url.split('/')[2]}\r\n\r\n"))
        group.append(exchange("metadata", url, f"fetchTimeMs: {rng.randint(20, 900)}\r\n"))
    groups += [[record] for record in oddities(truth, rng)]
    rng.shuffle(groups)
    folder.mkdir(parents=True, exist_ok=True)
    for at, name in enumerate(FILES):
        records = [warcinfo(name), *(record for group in groups[at :: len(FILES)] for record in group)]
        members = [compress(record.data) for record in records]
        if at == 0:
            middle = len(members) // 2
            members.insert(middle, broken(truth, name, start=sum(map(len, members[:middle]))))
        (folder / name).write_bytes(b"".join(members))
        truth.records += len(members)
        skipped = Counter(record.reason for record in records if record.reason)
        truth.skipped = dict(sorted((Counter(truth.skipped) + skipped).items()))
    (folder / "demo.yaml").write_text(RECIPE, encoding="utf-8")
    truth.save(folder / "truth.json")
    return truth


def pages(truth: Truth, rng: random.Random) -> list[tuple[str, bytes, str]]:
    """Every page that is a document, as url, bytes and content type; the truth learns of each."""
    out: list[tuple[str, bytes, str]] = []
    articles = library_articles(ARTICLES)
    titles = [article.title for article in articles]

    def add(url: str, article: Article, html: bytes, content_type: str = "text/html; charset=utf-8") -> str:
        out.append((url, html, content_type))
        truth.documents.append(url)
        truth.first_sentences[url] = article.first_sentence
        truth.languages[url] = article.language
        return url

    made: list[tuple[str, Article, bytes, int]] = []
    for number, article in enumerate(articles):
        site = rng.randrange(len(SITES))
        url = f"https://{SITES[site].host}/library/{number:03d}/{slug(article.title)}"
        html = page(article, SITES[site], rng, titles)
        made.append((add(url, article, html), article, html, site))
    chosen = rng.sample(made, EXACT + NEAR)
    for number, (url, article, html, site) in enumerate(chosen[:EXACT]):
        group = [url]
        if number % 2 == 0:  # the same bytes under another address
            group += [add(f"{url}?ref={n}", article, html) for n in range(1 + number % 3)]
        if number % 2 == 1 or number % 4 == 0:  # the same article inside another site
            other = SITES[(site + 1) % len(SITES)]
            group.append(add(f"https://{other.host}/copies/{number:03d}", article, page(article, other, rng, titles)))
        truth.exact.append(group)
    for number, (url, article, _, site) in enumerate(chosen[EXACT:]):
        changed = edited(article, rng)
        truth.near.append(
            [
                url,
                add(
                    f"https://{SITES[site].host}/drafts/{number:03d}", changed, page(changed, SITES[site], rng, titles)
                ),
            ]
        )
    for language in SENTENCES:
        for number in range(EACH_LANGUAGE):
            article, site = foreign_article(language, rng), rng.randrange(len(SITES))
            charset = CHARSETS.get(language, "utf-8") if number == 0 else "utf-8"
            said = "text/html" if number == 1 else f"text/html; charset={charset}"  # some servers leave it to the page
            add(
                f"https://{SITES[site].host}/{language}/{number}",
                article,
                page(article, SITES[site], rng, titles, charset),
                said,
            )
    for number in range(SPAM):
        for kind, article in (("offers", keyword_spam(rng)), ("links", link_farm(rng))):
            site = rng.randrange(len(SITES))
            truth.spam.append(
                add(f"http://spam-{number}.example/{kind}", article, page(article, SITES[site], rng, titles))
            )
    attack = injection_article()
    add('https://forum.example/thread?q="><svg/onload=alert(3)>', attack, page(attack, SITES[0], rng, titles))
    return out


def slug(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower()).strip("-")


def oddities(truth: Truth, rng: random.Random) -> list[PlantedRecord]:
    """Records that are no documents, each with the reason for which a reader skips it."""
    html = b"<!DOCTYPE html><html><head><title>Sorry</title></head><body><h1>Sorry</h1><p>There is nothing here.</p></body></html>"
    out = []
    for number in range(12):
        status = ("404 Not Found", "404 Not Found", "410 Gone", "500 Internal Server Error")[number % 4]
        out.append(response(f"https://docs.example/gone/{number}", html, status=status, reason="http_status"))
    for number in range(8):
        status, to = ("301 Moved Permanently", "302 Found")[number % 2], rng.choice(truth.documents[:ARTICLES])
        out.append(
            response(
                f"http://docs.example/old/{number}", b"", status=status, reason="redirect", extra=f"Location: {to}\r\n"
            )
        )
    for number in range(6):
        kind, data = (
            ("image/png", PNG),
            ("image/jpeg", b"\xff\xd8\xff\xe0" + PNG),
            ("application/pdf", b"%PDF-1.7\n%demo\n"),
        )[number % 3]
        out.append(response(f"https://docs.example/static/{number}", data, kind, reason="not_html"))
    for number in range(2):
        out.append(response(f"https://notes.example/empty/{number}", b"", reason="empty_page"))
    for url in rng.sample(truth.documents[:ARTICLES], 3):
        block = b"HTTP/1.1 304 Not Modified\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
        profile = "http://netpreserve.org/warc/1.0/revisit/server-not-modified"
        headers = [
            ("WARC-Refers-To-Target-URI", url),
            ("WARC-Profile", profile),
            ("Content-Type", "application/http; msgtype=response"),
        ]
        out.append(PlantedRecord(warc("revisit", url, block, headers), "revisit"))
    return out


def response(
    url: str,
    payload: bytes,
    content_type: str = "text/html; charset=utf-8",
    status: str = "200 OK",
    reason: str | None = None,
    extra: str = "",
) -> PlantedRecord:
    http = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{extra}Content-Length: {len(payload)}\r\n\r\n"
    headers = [("WARC-Payload-Digest", digest(payload)), ("Content-Type", "application/http; msgtype=response")]
    return PlantedRecord(warc("response", url, http.encode() + payload, headers), reason)


def exchange(kind: str, url: str, block: str) -> PlantedRecord:
    content_type = "application/http; msgtype=request" if kind == "request" else "application/warc-fields"
    return PlantedRecord(warc(kind, url, block.encode(), [("Content-Type", content_type)]), "not_a_page")


def warcinfo(name: str) -> PlantedRecord:
    block = b"software: gristmill demo\r\nformat: WARC File Format 1.0\r\n"
    return PlantedRecord(
        warc("warcinfo", None, block, [("WARC-Filename", name), ("Content-Type", "application/warc-fields")]),
        "not_a_page",
    )


def warc(kind: str, url: str | None, block: bytes, headers: list[tuple[str, str]]) -> bytes:
    """A WARC 1.0 record; its id is a hash of what it is about."""
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{kind} {url or headers}")
    lines = [("WARC-Type", kind), ("WARC-Record-ID", f"<urn:uuid:{name}>"), ("WARC-Date", DATE)]
    lines += [("WARC-Target-URI", url)] if url else []
    lines += [*headers, ("WARC-Block-Digest", digest(block)), ("Content-Length", str(len(block)))]
    return (
        b"WARC/1.0\r\n"
        + "".join(f"{key}: {value}\r\n" for key, value in lines).encode()
        + b"\r\n"
        + block
        + b"\r\n\r\n"
    )


def digest(data: bytes) -> str:
    return "sha1:" + base64.b32encode(hashlib.sha1(data, usedforsecurity=False).digest()).decode()


def compress(data: bytes) -> bytes:
    """One gzip member; zlib writes no time and no name into its header."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def broken(truth: Truth, name: str, start: int) -> bytes:
    """A member whose bytes are damaged: its page is lost, its neighbours are not."""
    url = "https://docs.example/damaged"
    words = "".join(
        f"<p>Line {n} of a page that no one will read, {hashlib.sha256(bytes([n])).hexdigest()}.</p>\n"
        for n in range(100)
    )
    member = bytearray(compress(response(url, words.encode()).data))
    middle = len(member) // 2
    member[middle : middle + 64] = b"\xff" * 64
    truth.damaged += 1
    truth.damage = {"file": name, "start": start, "end": start + len(member), "url": url}
    return bytes(member)
