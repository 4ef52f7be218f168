"""Which pages go for their address alone: lists of domains, hosts, urls, words and substrings, and a count of soft
words.

The order is DataTrove's (URLFilter), the name of each step RefinedWeb's (Penedo et al. 2023, G.1). No lists come with
it: they are the work of others, and a recipe names its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, overload

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.urls.lists import (
    ALLOWED,
    DOMAIN,
    HOST,
    HYPHENS_AND_DOTS,
    NOTHING,
    PREFIX,
    PUNCTUATION,
    SOFT_WORD,
    SUBSTRING,
    URL,
    WORD,
    look_up,
)  # fmt: skip
from gristmill.stages.stage import Rule, Signals, Verdict
from gristmill.stages.text.url_lists import WantedLists, mended_urls, url_lists

Files = RecipePath | list[RecipePath] | None
TAKEN_OUT = {"nothing": NOTHING, "hyphens_and_dots": HYPHENS_AND_DOTS, "punctuation": PUNCTUATION}
KINDS = {
    "allowed_domains_file": ALLOWED, "blocked_domains_file": DOMAIN, "blocked_hosts_file": HOST,
    "blocked_urls_file": URL,
    "blocked_prefixes_file": PREFIX, "blocked_words_file": WORD, "soft_words_file": SOFT_WORD,
    "blocked_substrings_file": SUBSTRING,
}  # fmt: skip


class UrlRules(Rule):
    """Drop documents by their url: listed domains, hosts, urls, words, substrings, or several soft words.

    Urls and entries are compared in one form (`kernels/urls/urls.py`): case, `www.`, ports, users, percent signs and
    punycode do not matter; the case of a path does. A list is a file of one entry a line, `#` for comments, plain,
    `.gz` or `.zst`. A document without a url is kept.
    """

    blocked_domains_file: Annotated[
        Files, Field(description="domains; each blocks all hosts below it, `xxx` a whole top-level domain")
    ] = None
    blocked_hosts_file: Annotated[Files, Field(description="hosts, exactly, with or without www.")] = None
    blocked_urls_file: Annotated[
        Files, Field(description="urls, exactly; scheme, www. and a last slash do not matter")
    ] = None
    blocked_prefixes_file: Annotated[Files, Field(description="urls with all that lies below them")] = None
    blocked_words_file: Annotated[
        Files, Field(description="words: what stands in a url between characters that are no letters or digits")
    ] = None
    soft_words_file: Annotated[Files, Field(description="words of which only several make a page unwanted")] = None
    blocked_substrings_file: Annotated[Files, Field(description="what may stand nowhere in a url")] = None
    allowed_domains_file: Annotated[Files, Field(description="domains that pass, whatever the other lists say")] = None
    ut1_file: Annotated[
        Files, Field(description="collections as UT1's: a folder or tar of CATEGORY/domains and CATEGORY/urls")
    ] = None
    ut1_categories: Annotated[tuple[str, ...], Field(description="which categories of them; none named is all")] = ()
    soft_word_threshold: Annotated[int, Field(description="so many different soft words drop a page", ge=1, le=64)] = 2
    substrings_skip: Annotated[
        Literal["nothing", "hyphens_and_dots", "punctuation"],
        Field(description="taken out before substrings are sought; DCLM takes out - and ., DataTrove all punctuation"),
    ] = "hyphens_and_dots"
    require_host: Annotated[
        bool, Field(description="also drop documents without a url, or with one that has no host")
    ] = False

    needs: ClassVar[tuple[str, ...]] = ("url",)

    @model_validator(mode="after")
    def _lists_are_there(self) -> UrlRules:
        wanted = self.wanted()
        for path in [*(path for _, path in wanted.files), *wanted.collections]:
            if not Path(path).exists():
                raise ValueError(f"no list at {path}")
        if not wanted.files and not wanted.collections and not self.require_host:
            raise ValueError("names no list, so it would keep everything; give it one, as blocked_domains_file")
        return self

    def wanted(self) -> WantedLists:
        files = tuple((kind, path) for field, kind in KINDS.items() for path in _each(getattr(self, field)))
        return WantedLists(files, tuple(_each(self.ut1_file)), self.ut1_categories, TAKEN_OUT[self.substrings_skip])

    def prepare(self) -> None:
        self(pa.table({"url": pa.array(["https://www.example.org/a-b?c#d"])}))

    def verdict(self, signals: Signals) -> Verdict:
        lists = url_lists(self.wanted())
        data, offsets = text_column(signals.column("url"))
        urls = mended_urls(data, offsets[:-1], offsets[1:])
        taken_out = TAKEN_OUT[self.substrings_skip]
        matches = look_up(
            urls, lists.sites, lists.words, lists.automaton, lists.kinds, taken_out, self.soft_word_threshold
        )
        bits = np.where(matches.bits >> ALLOWED & 1, 0, matches.bits)

        def text(a: int, b: int) -> str:
            return bytes(urls.text[a:b]).decode(errors="replace")

        def word(a: int, b: int) -> str:
            return text(a, b).lower()

        def soft(row: int) -> str:
            places = matches.soft_words[row].tolist()
            return ", ".join(word(a, b) for a, b in zip(places[::2], places[1::2], strict=True))

        reasons: list[tuple[int, str, Callable[[int], str]]] = [
            (DOMAIN, "blocked_domain", lambda row: text(matches.domains[row], urls.hosts[row])),
            (HOST, "blocked_host", lambda row: text(urls.starts[row], urls.hosts[row])),
            (URL, "blocked_url", lambda row: text(urls.starts[row], urls.keys[row])),
            (PREFIX, "blocked_prefix", lambda row: text(urls.starts[row], matches.prefixes[row])),
            (WORD, "blocked_word", lambda row: word(*matches.words[row])),
            (SOFT_WORD, "soft_words", soft),
            (SUBSTRING, "blocked_substring", lambda row: lists.pattern(matches.patterns[row])),
        ]
        verdict = Verdict.keep(len(signals))
        if self.require_host:
            verdict.drop(urls.hosts == urls.starts, "no_host")
        for kind, reason, detail in reasons:
            if lists.kinds >> kind & 1:
                verdict.drop(bits >> kind & 1 != 0, reason, Details(len(signals), detail))
        return verdict


class Details(Sequence[str]):
    """Details by row, made only for the rows that are asked for."""

    def __init__(self, rows: int, of_row: Callable[[int], str]) -> None:
        self.rows, self.of_row = rows, of_row

    def __len__(self) -> int:
        return self.rows

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        return [self.of_row(i) for i in range(*row.indices(self.rows))] if isinstance(row, slice) else self.of_row(row)


def _each(files: Files) -> list[str]:
    return [] if files is None else [files] if isinstance(files, str) else files
