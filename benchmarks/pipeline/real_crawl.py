"""Pack real HTML pages into a crawl of WARC files: Debian's documentation packages, or pages from Parquet files.

    python -m benchmarks.pipeline.real_crawl debian .bench/debian [--pages 4000] [--seed 0]
    python -m benchmarks.pipeline.real_crawl parquet .bench/pages FILE... [--pages 4000] [--seed 0]

`debian` downloads the packages below with apt-get, takes their HTML files without installing anything, and writes
FOLDER/crawl (FOLDER/crawl-N with --pages N). `parquet` reads the column `html` of each file, with `url` if there is one.
Left out and counted: byte-identical copies, pages below 512 bytes (redirects), above 5 MiB (where Common Crawl cuts). A
package gives at most --most pages, so that API references do not drown the rest. The order is that of a hash of seed
and URL, so every file is a mixture and --pages N is a random sample. Same packages, same seed: same bytes.
Prints one JSON line; the packages' versions are in FOLDER/crawl.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from gristmill.pipeline.demo.crawl import compress, digest, warc

PACKAGES = """
    rust-doc openjdk-21-doc openjdk-17-doc erlang-doc linux-doc-6.1 scala-doc sagemath-doc ghc-doc libstdc++-12-doc
    cppreference-doc-en-html qtbase5-doc-html postgresql-doc-15 python3.11-doc racket-doc libboost1.74-doc singular-doc
    groovy-doc twisted-doc python-pandas-doc python-scipy-doc python-astropy-doc python-statsmodels-doc python-sympy-doc
    python-django-doc nodejs-doc pike8.0-doc dpdk-doc csound-doc crystal-doc
    derby-doc llvm-16-doc db5.3-doc lazarus-doc-2.2 git-doc octave-doc maxima-doc postfix-doc tomcat10-docs
    ada-reference-manual-2020 debian-handbook installation-guide-amd64 apache2-doc mate-user-guide groonga-doc
    lilypond-doc-html lilypond-doc-html-de lilypond-doc-html-es lilypond-doc-html-fr lilypond-doc-html-it
    lilypond-doc-html-ja gimp-help-en gimp-help-de gimp-help-ru gnucash-docs libreoffice-help-en-us
    libreoffice-help-de libreoffice-help-es libreoffice-help-fr libreoffice-help-ja libreoffice-help-ru
    debian-reference-en debian-reference-de debian-reference-es debian-reference-fr debian-reference-it
    debian-reference-ja debian-reference-pt debian-reference-zh-cn developers-reference maint-guide-de maint-guide-es
    maint-guide-fr maint-guide-ja maint-guide-ru maint-guide-zh-cn
    aptitude-doc-en aptitude-doc-es aptitude-doc-fr aptitude-doc-ja aptitude-doc-ru
"""
PAGE = re.compile(r"\.x?html?(\.[a-z]{2}([-_.][A-Za-z0-9-]+)?)?$")  # Apache's manual: index.html.fr.utf8
SMALLEST, LARGEST = 512, 5 << 20


@dataclass(frozen=True)
class Page:
    """A page that can be read when its turn comes: a crawl is larger than memory."""

    url: str
    read: Callable[[], bytes]
    size: int
    source: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("debian", "parquet"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--pages", type=int, help="a random sample of so many pages; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=6000, help="pages of one package (default: 6000)")
    parser.add_argument("--megabytes", type=int, default=200, help="compressed size of a file, at most about this")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.source == "debian":
        found, versions = debian_pages(given.folder)
    else:
        found, versions = parquet_pages(given.files), {path.name: digest(path.read_bytes()) for path in given.files}
    out = given.folder / ("crawl" if given.pages is None else f"crawl-{given.pages}")
    chosen, left_out = choose(found, given.seed, given.most, given.pages)
    sizes = pack(chosen, out, given.megabytes << 20)
    counts = {
        "what": f"a crawl of real pages ({given.source})",
        "pages": len(chosen),
        "left_out": dict(left_out),
        "seed": given.seed,
        "sizes": {"html_bytes": sum(page.size for page in chosen), "warc_bytes": sum(sizes), "files": len(sizes)},
    }
    sources = Counter(page.source for page in chosen)
    out.with_suffix(".json").write_text(
        json.dumps(counts | {"versions": versions, "pages_by_source": dict(sources.most_common())}, indent=1)
    )
    print(json.dumps(counts))


def debian_pages(folder: Path) -> tuple[list[Page], dict[str, str]]:
    """Every HTML file of every package that the configured mirror has, and the packages' versions."""
    archives, unpacked = folder / "packages", folder / "unpacked"
    archives.mkdir(exist_ok=True)
    pages, versions = [], {}
    for package in PACKAGES.split():
        archive = next(archives.glob(f"{package}_*.deb"), None) or download(package, archives)
        if archive is None:
            versions[package] = "not in this release"
            continue
        versions[package] = archive.name.split("_")[1].replace("%3a", ":")
        root = unpacked / package
        if not root.exists():
            unpack(archive, root)
        for path in sorted(root.rglob("*")):
            if PAGE.search(path.name) and path.is_file() and not path.is_symlink():
                url = f"https://{package.replace('+', 'x')}.example/{quote(path.relative_to(root).as_posix())}"
                pages.append(Page(url, path.read_bytes, path.stat().st_size, package))
    return pages, versions


def download(package: str, archives: Path) -> Path | None:
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package]
    subprocess.run(command, cwd=archives, capture_output=True, check=False)
    return next(archives.glob(f"{package}_*.deb"), None)


def unpack(archive: Path, root: Path) -> None:
    """Extract into a folder that gets its name when it is complete."""
    unfinished = root.with_name(f"{root.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-deb", "-x", archive, unfinished], check=True)
    unfinished.rename(root)


def parquet_pages(files: list[Path]) -> list[Page]:
    import pyarrow.parquet as pq

    pages = []
    for path in files:
        table = pq.read_table(path)
        urls = table["url"].to_pylist() if "url" in table.column_names else [None] * len(table)
        for number, (url, html) in enumerate(zip(urls, table["html"].to_pylist(), strict=True)):
            data = html.encode() if isinstance(html, str) else html
            if data:
                url = url or f"https://{path.stem.replace('_', '-')}.example/{number}"
                pages.append(Page(url, partial(bytes, data), len(data), path.stem))
    return pages


def choose(found: Iterable[Page], seed: int, most: int, pages: int | None) -> tuple[list[Page], Counter[str]]:
    """The crawl's pages in order, and how many were left out, by reason."""
    ordered = sorted(found, key=lambda page: hashlib.sha256(f"{seed} {page.url}".encode()).digest())
    chosen: list[Page] = []
    left_out: Counter[str] = Counter()
    of_source: Counter[str] = Counter()
    seen: set[bytes] = set()
    for page in ordered:
        if not SMALLEST <= page.size <= LARGEST:
            left_out["below 512 bytes" if page.size < SMALLEST else "above 5 MiB"] += 1
        elif of_source[page.source] >= most:
            left_out["more of the same package"] += 1
        elif pages is not None and len(chosen) == pages:
            left_out["not sampled"] += 1
        elif (content := hashlib.sha256(page.read()).digest()) in seen:
            left_out["copies"] += 1
        else:
            seen.add(content)
            of_source[page.source] += 1
            chosen.append(page)
    return chosen, left_out


def pack(pages: list[Page], out: Path, largest: int) -> list[int]:
    """Write WARC files of about equal size, four or more so that two workers end together; return their sizes."""
    out.mkdir(exist_ok=True)
    for old in out.glob("*.warc.gz"):
        old.unlink()
    files = max(4, -(-sum(page.size for page in pages) // (5 * largest)))  # documentation shrinks to a fifth or less
    share, sizes = -(-len(pages) // files), []
    for number in range(files):
        with (out / f"pages-{number:05d}.warc.gz").open("wb") as file:
            for page in pages[number * share : (number + 1) * share]:
                file.write(compress(record(page)))
            sizes.append(file.tell())
    return sizes


def record(page: Page) -> bytes:
    """A response as Common Crawl writes it, its payload's type identified."""
    html = page.read()
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(html)}\r\n\r\n".encode()
    headers = [
        ("WARC-Payload-Digest", digest(html)),
        ("WARC-Identified-Payload-Type", "text/html"),
        ("Content-Type", "application/http; msgtype=response"),
    ]
    return warc("response", page.url, http + html, headers)


if __name__ == "__main__":
    main()
