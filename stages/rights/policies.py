"""What the files of a site say of a page: robots.txt, ai.txt, trust.txt, tdmrep.json.

robots.txt and ai.txt are read by `protego` (RFC 9309 with what sites write in fact); Content-Signal and Content-Usage,
which it does not know, here. Files are crawled text: their size is bounded, what cannot be read reserves nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from urllib.parse import quote, urlsplit

from protego import Protego

from gristmill.stages.read.site_files import SITE_PATHS

ROBOTS, AI_TXT, TRUST_TXT, TDM_FILE = range(4)
KINDS = {"robots.txt": ROBOTS, "ai.txt": AI_TXT, "trust.txt": TRUST_TXT, "tdmrep.json": TDM_FILE}
PATHS = {path: KINDS[path.rpartition("/")[2]] for path in SITE_PATHS}
LARGEST = 500 << 10  # bytes of a file that are read, as RFC 9309 asks of crawlers
MOST_RULES = 2000  # of tdmrep.json
AGENT_LINE = re.compile(r"^[ \t]*user-?[ ]?agent[ \t]*:?[ \t]*([^#\r\n]*)", re.IGNORECASE | re.MULTILINE)
LINE = re.compile(r"^[ \t]*([a-z-]{3,20}| ?user agent)[ \t]*:[ \t]*([^#]*)", re.IGNORECASE)
VERSION = re.compile(r"^([ \t]*user-?[ ]?agent[ \t]*:?[ \t]*[a-z*_-]+)/[\w.+-]*", re.IGNORECASE | re.MULTILINE)
TRAINING = re.compile(r"(?:^|[,;\s])(?:ai-train|train-ai|bots-train-ai)\s*=\s*\"?(no?|y|yes)\b", re.IGNORECASE)
CODED = re.compile(r"%([0-9A-Fa-f]{2})")
PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")  # are the same percent-coded
PRINTABLE = "".join(map(chr, range(33, 127)))
TRUST_LINE = re.compile(r"^[ \t]*datatrainingallowed[ \t]*=[ \t]*(\w+)", re.IGNORECASE | re.MULTILINE)
REMEMBERED = 4096  # files that a process holds parsed


class Robots:
    """A robots.txt or ai.txt, asked for some agents."""

    def __init__(self, body: str, agents: Sequence[str], star: bool) -> None:
        self.rules = Protego.parse(body)
        named = {name.replace("*", "").strip().lower() for name in AGENT_LINE.findall(body)} - {""}
        own = [agent for agent in agents if any(name in agent.lower() for name in named)]
        rest = [agent for agent in agents if agent not in own]
        # all agents that it does not name go by the same rules, those for `*`
        self.ask = own + (rest[:1] if star else [])
        self.signals = self.on_training(body, [agent.lower() for agent in own], star, bool(rest))

    @staticmethod
    def on_training(body: str, own: list[str], star: bool, rest: bool) -> list[list[tuple[str, bool]]]:
        """For each agent, what Content-Signal or Content-Usage says of training: paths (`/` where none is named), and
        whether it refuses. An agent of whose group nothing is said goes by the group `*`."""
        group: list[str] = []
        last, found = "", list[tuple[list[str], str, bool]]()
        for line in body.splitlines():
            match = LINE.match(line)
            if match is None:
                continue
            name, value = match[1].lower(), match[2].strip()
            if name in ("user-agent", "useragent"):
                group = [*(group if last == name else []), value.lower()]
            elif name in ("content-signal", "content-usage") and (said := TRAINING.search(value)):
                path = as_compared(value.split()[0]) if value.startswith("/") else "/"
                found.append((group, path, said[1].lower().startswith("n")))
            last = name
        for_all = [(path, no) for group, path, no in found if not group]
        others = [(path, no) for group, path, no in found if star and "*" in group]
        of_agents = [[(path, no) for group, path, no in found if any(n and n in agent for n in group)] for agent in own]
        return [for_all + (rules or others) for rules in (*of_agents, *([others] if rest or not own else []))]

    def forbids(self, url: str) -> str | None:
        """The agent that may not fetch the page; None if all may."""
        for agent in self.ask:
            try:
                if not self.rules.can_fetch(url, agent):
                    return agent
            except ValueError:  # an address that is none
                return None
        return None

    def refuses_training(self, url: str) -> bool:
        """Of the paths that match the longest decides; of two as long, the one that refuses."""
        if not any(self.signals):
            return False
        path = as_compared(path_of(url))
        matching = [[(len(start), no) for start, no in rules if path.startswith(start)] for rules in self.signals]
        return any(max(each)[1] for each in matching if each)


class MediaRobots(Robots):
    """An ai.txt: its patterns are of kinds of files too, and a page without an ending is HTML."""

    def forbids(self, url: str) -> str | None:
        agent = super().forbids(url)
        path = path_of(url).partition("?")[0]
        if agent is None and "." not in path.rsplit("/", 1)[-1]:
            scheme_and_host = url.split("/", 3)[:3]
            agent = super().forbids("/".join(scheme_and_host) + path.rstrip("/") + "/page.html")
        return agent


class Reserved:
    """A tdmrep.json: for which paths text and data mining is reserved. The longest pattern that matches decides, as in
    robots.txt; of two as long, the one that reserves."""

    def __init__(self, body: str) -> None:
        self.rules: list[tuple[Callable[[str], bool], int, bool]] = []
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            return
        for rule in (given if isinstance(given, list) else [given])[:MOST_RULES]:
            if not isinstance(rule, dict) or not isinstance(rule.get("location"), str):
                continue
            value = rule.get("tdm-reservation")
            if value in (0, 1, "0", "1") and not isinstance(value, bool):
                location = as_compared(rule["location"])
                self.rules.append((pattern(location), len(location), int(value) == 1))

    def value(self, url: str) -> bool | None:
        """Reserved, free, or nothing said."""
        path = as_compared(path_of(url))
        matching = [(length, reserved) for matches, length, reserved in self.rules if matches(path)]
        return max(matching)[1] if matching else None


def pattern(location: str) -> Callable[[str], bool]:
    """A location with `*` and `$` as in robots.txt, matched in one pass."""
    if not location.startswith(("/", "*")):
        location = f"/{location}"
    anchored = location.endswith("$")
    first, *parts = (location[:-1] if anchored else location).split("*")

    def matches(path: str) -> bool:
        if not path.startswith(first):
            return False
        at = len(first)
        for number, part in enumerate(parts):
            if anchored and number == len(parts) - 1:
                return path.endswith(part) and len(path) - len(part) >= at
            at = path.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return not anchored or bool(parts) or at == len(path)

    return matches


def as_compared(path: str) -> str:
    """Percent encoding as RFC 9309 compares it: letters and digits plain, all else that is coded in capitals."""

    def plain(found: re.Match[str]) -> str:
        letter = chr(int(found[1], 16))
        return letter if letter in PLAIN else found[0].upper()

    return quote(CODED.sub(plain, path), PRINTABLE, errors="replace")


def path_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "/"
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def training_refused(body: str) -> bool:
    """A trust.txt that says `datatrainingallowed=no`; of several lines the last counts."""
    said = TRUST_LINE.findall(body)
    return bool(said) and said[-1].lower() == "no"


@lru_cache(REMEMBERED)
def read_policy(kind: int, body: bytes, agents: tuple[str, ...], star: bool) -> Robots | Reserved | bool:
    """A file as the class of its kind; a trust.txt as whether it refuses training."""
    text = body[:LARGEST].decode("utf-8", "replace").removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # RFC 9309 has all three ends of lines
    if kind == TDM_FILE:
        return Reserved(text)
    if kind == TRUST_TXT:
        return training_refused(text)
    return (Robots if kind == ROBOTS else MediaRobots)(VERSION.sub(r"\1", text), agents, star)
