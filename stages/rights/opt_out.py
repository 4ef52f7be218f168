"""Who does not want to be trained on: robots.txt as it is today or was at any date, ai.txt, trust.txt, reservations of
text and data mining, headers and tags of pages, and lists of domains and addresses.

What a site says today can be applied to pages that were crawled years ago (`as_of: latest`), which is how the open
models that honour opt-outs do it. Each kind of reservation is a reason of its own, and the report shows what each takes
of every language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field, field_validator, model_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array, Mask
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.urls.lists import DOMAIN, URL, look_up
from gristmill.stages.dedup.dates import moment
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.rights.agents import LISTS, named_agents
from gristmill.stages.rights.figures import cost_of_compliance
from gristmill.stages.rights.policies import (
    AI_TXT,
    ROBOTS,
    TDM_FILE,
    TRUST_TXT,
    MediaRobots,
    Reserved,
    Robots,
    read_policy,
)
from gristmill.stages.rights.site_table import (
    LATEST,
    SiteTable,
    addressed,
    files_of,
    host_of,
    key_of,
    moments_of,
    site_table,
)
from gristmill.stages.stage import NoSuchSignal, Rule, Signals, Verdict
from gristmill.stages.text.url_lists import WantedLists, mended_urls, url_lists

Reservation = Literal[
    "robots_txt", "content_signal", "ai_txt", "trust_txt", "tdm", "x_robots_tag", "meta_robots",
]  # fmt: skip
OF_PAGES = ("content_signal", "tdm", "x_robots_tag", "meta_robots")  # what pages and headers may
DOMAINS_LISTED, URLS_LISTED = "listed_domain", "listed_url"
REASONS = (DOMAINS_LISTED, URLS_LISTED, "robots_txt", "content_signal", "ai_txt", "trust_txt",
           "tdm_header", "tdm_meta", "tdm_file", "x_robots_tag", "meta_robots")  # fmt: skip
Files = RecipePath | list[RecipePath] | None


class OptOut(Rule):
    """Drop documents whose site or page reserves its rights against the training of models.

    Files of sites (`site_files`) say what a site wants, headers and tags what a page wants, lists what a team was asked
    for. A page that no file, header, tag or list speaks of is kept. Of what is said of text and data mining, a tag goes
    before a header and a header before a file.
    """

    site_files: Annotated[
        Files,
        Field(
            description="robots.txt, ai.txt, trust.txt and tdmrep.json of sites: JSON lines or Parquet of `url` (or "
            "`host`), `date`, `body`, or the folder that a recipe with the reader `site_files` wrote"
        ),
    ] = None
    domains_file: Annotated[Files, Field(description="domains that opted out, one a line, with all hosts below")] = None
    urls_file: Annotated[Files, Field(description="addresses that opted out, one a line")] = None
    agents: Annotated[
        tuple[str, ...],
        Field(description=f"crawlers that must be welcome; {', '.join(LISTS)} is a list of the package", min_length=1),
    ] = ("ai-2026-11",)
    star: Annotated[
        bool,
        Field(description="where a robots.txt or ai.txt does not name an agent, its rules for `*` count"),
    ] = True
    as_of: Annotated[
        str,
        Field(
            description="which of several files of a site counts: `latest`, `crawl` (as it was when the page was "
            "crawled) or a date (as it was then)"
        ),
    ] = "latest"
    reservations: Annotated[
        tuple[Reservation, ...], Field(description="what counts, beside the lists; none: only the lists do")
    ] = get_args(Reservation)
    directives: Annotated[
        tuple[Literal["noai", "noimageai", "noindex", "noarchive", "nocache", "nosnippet"], ...],
        Field(description="directives of X-Robots-Tag and robots tags that count", min_length=1),
    ] = ("noai",)
    by_language: Annotated[
        bool,
        Field(
            description="count what goes by language too; without it, a rule on files of sites and lists alone decides "
            "before pages are extracted"
        ),
    ] = True

    expect_drops: ClassVar[float] = 0.5

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        pages = ("reservations",) if set(self.reservations) & set(OF_PAGES) else ()
        return ("url", "date", *pages, *(("language",) if self.by_language else ()))

    @field_validator("as_of")
    @classmethod
    def _is_a_moment(cls, as_of: str) -> str:
        if as_of not in ("latest", "crawl") and moment(as_of) is None:
            raise ValueError(f"{as_of!r} is no date; there are also `latest` and `crawl`")
        return as_of

    @model_validator(mode="after")
    def _files_are_there(self) -> OptOut:
        for name in ("site_files", "domains_file", "urls_file"):
            for path in each(getattr(self, name)):
                if not Path(path).exists():
                    raise ValueError(f"{name}: nothing lies at {path}")
        for path in each(self.site_files):
            if not files_of(path):
                raise ValueError(f"site_files: no JSON lines or Parquet in {path}")
        if not set(self.reservations) & set(OF_PAGES) and not self._lists().files and self.site_files is None:
            raise ValueError("names no site_files and no list, so it would keep everything")
        return self

    def _lists(self) -> WantedLists:
        kinds = ((DOMAIN, self.domains_file), (URL, self.urls_file))
        return WantedLists(tuple((kind, path) for kind, files in kinds for path in each(files)))

    def prepare(self) -> None:
        if self._lists().files:
            url_lists(self._lists())
        if self.site_files is not None:
            site_table(tuple(each(self.site_files)))

    def verdict(self, signals: Signals) -> Verdict:
        masks = {reason: np.zeros(len(signals), bool) for reason in REASONS}
        details: dict[str, dict[int, str]] = {reason: {} for reason in REASONS}

        def drop(row: int, reason: str, detail: str = "") -> None:
            masks[reason][row] = True
            details[reason][row] = detail

        self._look_in_lists(signals, masks)
        urls: list[str | None] = signals.column("url").to_pylist()
        stated: list[str | None] = (
            signals.column("reservations").to_pylist() if "reservations" in self.needs else [None] * len(urls)
        )
        agents = named_agents(self.agents)
        files = site_table(tuple(each(self.site_files))) if self.site_files is not None else None
        asked = self._moments(signals) if files is not None else []
        for row, (url, said) in enumerate(zip(urls, stated, strict=True)):
            if files is not None and url:
                self._look_in_files(
                    files, addressed(url), asked[row], agents, lambda *found, row=row: drop(row, *found)
                )
            self._look_at_page(said, agents, row, masks, drop)
        verdict = Verdict.keep(len(signals))
        for reason in REASONS:
            verdict.drop(masks[reason], reason, [details[reason].get(row, "") for row in range(len(signals))])
        return verdict

    def _moments(self, signals: Signals) -> list[int]:
        if self.as_of == "crawl":
            return moments_of(signals.column("date").to_pylist())
        at = LATEST if self.as_of == "latest" else moment(self.as_of)
        return [LATEST if at is None else at] * len(signals)

    def _look_in_lists(self, signals: Signals, masks: dict[str, Mask]) -> None:
        wanted = self._lists()
        if not wanted.files:
            return
        lists = url_lists(wanted)
        data, offsets = text_column(signals.column("url"))
        matches = look_up(
            mended_urls(data, offsets[:-1], offsets[1:]), lists.sites, lists.words, lists.automaton, lists.kinds, 0, 1
        )
        # an entry of either list with a path, or with `www.`, is of another kind than its list
        bits: Array = matches.bits
        masks[URLS_LISTED] |= bits >> URL & 1 != 0
        masks[DOMAINS_LISTED] |= (bits & ~np.asarray(1 << URL, bits.dtype)) != 0

    def _look_in_files(
        self, files: SiteTable, url: str, at: int, agents: tuple[str, ...], drop: Callable[..., None]
    ) -> None:
        counts = set(self.reservations)
        host = host_of(url)
        if not host:
            return
        if {"robots_txt", "content_signal"} & counts:
            policy = self._policy(files, host, ROBOTS, at, agents)
            if isinstance(policy, Robots):
                if "robots_txt" in counts and (agent := policy.forbids(url)) is not None:
                    drop("robots_txt", agent)
                if "content_signal" in counts and policy.refuses_training(url):
                    drop("content_signal", "robots.txt")
        if "ai_txt" in counts:
            policy = self._policy(files, host, AI_TXT, at, agents)
            if isinstance(policy, MediaRobots) and (agent := policy.forbids(url)) is not None:
                drop("ai_txt", agent)
        if "trust_txt" in counts and self._policy(files, host, TRUST_TXT, at, agents) is True:
            drop("trust_txt")
        if "tdm" in counts:
            policy = self._policy(files, host, TDM_FILE, at, agents)
            if isinstance(policy, Reserved) and policy.value(url):
                drop("tdm_file")

    def _policy(
        self, files: SiteTable, host: str, kind: int, at: int, agents: tuple[str, ...]
    ) -> Robots | Reserved | bool | None:
        """A site's file of a kind; where its host has none, that of the host with or without `www.`"""
        body = files.body(key_of(host, kind), at)
        if body is None:
            other = host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
            body = files.body(key_of(other, kind), at)
        return None if body is None else read_policy(kind, body, agents, self.star)

    def _look_at_page(
        self,
        stated: str | None,
        agents: tuple[str, ...],
        row: int,
        masks: dict[str, Mask],
        drop: Callable[[int, str, str], None],
    ) -> None:
        if not stated:
            return
        said = read_reservations(stated)
        counts = set(self.reservations)
        for where, reason in (("header", "x_robots_tag"), ("meta", "meta_robots")):
            if reason not in counts:
                continue
            for what in said.get(where, ()):
                agent, _, directive = what.rpartition(":")
                if directive in self.directives and (not agent or agent in lower(agents)):
                    drop(row, reason, what)
                    break
        if "content_signal" in counts and "1" in said.get("usage_header", ()):
            drop(row, "content_signal", "Content-Usage")
        if "tdm" in counts:
            in_tag, in_header = said.get("tdm_meta"), said.get("tdm_header")
            if in_tag is not None or in_header is not None:
                masks["tdm_file"][row] = False
            if in_tag is not None:
                if "1" in in_tag:
                    drop(row, "tdm_meta", "")
            elif in_header is not None and "1" in in_header:
                drop(row, "tdm_header", "")

    def tally(self, signals: Signals, verdict: Verdict, alive: Mask) -> Mapping[str, int]:
        """Documents of each language that came, and that each reason would take on its own."""
        try:
            values, codes = signals.coded("language") if self.by_language else ([], np.zeros(0, np.int64))
        except NoSuchSignal:  # on a plain table, in a notebook
            return {}
        if not values:
            return {}
        counted: Counter[str] = Counter()
        every = [("", np.ones(len(alive), bool)), ("any", verdict.all != 0)]
        every += [(name, verdict.held(bit)) for bit, name in enumerate(verdict.reasons)]
        for reason, mask in every:
            documents = np.bincount(codes[mask & alive], minlength=len(values))
            for code in np.flatnonzero(documents).tolist():
                counted[f"{values[code] or 'unknown'}/{reason}"] += int(documents[code])
        return counted

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        return cost_of_compliance(report)


@lru_cache(1 << 12)
def read_reservations(stated: str) -> dict[str, list[str]]:
    """The signal `reservations` by where each was said."""
    said: dict[str, list[str]] = {}
    for item in stated.split(" "):
        where, _, what = item.partition("=")
        said.setdefault(where, []).append(what)
    return said


@lru_cache(16)
def lower(agents: tuple[str, ...]) -> frozenset[str]:
    return frozenset(agent.lower() for agent in agents)


def each(files: Files) -> list[str]:
    return [] if files is None else [files] if isinstance(files, str) else list(files)
