"""The features of kernels/blocks/features.py again, in plain Python: slow, by name,
without shared sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.base.unicode import (
    DIGIT,
    LETTER,
    LOWER,
    MARK,
    NUMBER,
    PUNCTUATION,
    SYMBOL,
    TERMINAL,
    UPPER,
    properties,
)
from gristmill.kernels.blocks import features as said
from gristmill.kernels.blocks.columns import BESIDE, BIT_NAMES, FEATURES, KIND, KINDS, KNOWN, LEVELS
from gristmill.kernels.blocks.features import CONTEXT, FAR, HEADING_OF_TAG, LOOK_UP, PROSE, STEPS
from gristmill.kernels.html.names import TAGS

Said = dict[str, Any]


def words_in(text: str, table: Any) -> list[str]:
    """Words with ASCII letters in lower case."""
    joined = "".join(c if table[ord(c)] & (LETTER | MARK | NUMBER) or c == "_" else " " for c in text)
    return ["".join(c.lower() if c.isascii() else c for c in word) for word in joined.split(" ") if word]


def triples_in(words: list[str]) -> list[tuple[str, ...]]:
    return list(zip(words, words[1:], words[2:], strict=False))


def measure_plain(text: str, title: set[str], meta: set[tuple[str, ...]], json: set[tuple[str, ...]]) -> Said:
    """One row of `counts`, by name."""
    table = properties()
    kinds = [kind_of(c, int(table[ord(c)])) for c in text]
    words, triples = words_in(text, table), triples_in(words_in(text, table))
    last = said.OTHER
    for c, kind in zip(text, kinds, strict=True):
        if not (
            kind == said.PUNCTUATED and c != "_" and last == said.ENDS_SENTENCE
        ):  # a quote that closes after the full stop
            last = kind

    def having(bit: int) -> int:
        return sum(1 for c in text if table[ord(c)] & bit)

    return {
        "characters": len(text), "words": len(words), "letters": having(LETTER),
        "upper": sum(1 for c in text if table[ord(c)] & LETTER and table[ord(c)] & UPPER), "digits": having(DIGIT),
        "punctuation": having(PUNCTUATION), "terminals": having(TERMINAL), "commas": sum(c in ",;、，،" for c in text),
        "symbols": having(SYMBOL), "lines": 1 + text.count("\n"), "last": last, "first": kinds[0] if kinds else said.OTHER,
        "triples": len(triples), "in_json": sum(t in json for t in triples), "in_meta": sum(t in meta for t in triples),
        "in_title": sum(w in title for w in words),
    }  # fmt: skip


def kind_of(c: str, bits: int) -> int:
    if bits & LETTER:
        return said.CAPITAL if bits & UPPER else said.SMALL if bits & LOWER else said.CASELESS
    if bits & DIGIT:
        return said.DIGITAL
    if bits & PUNCTUATION:
        return said.ENDS_SENTENCE if bits & TERMINAL else said.COLON if c in ":：" else said.PUNCTUATED
    return said.OTHER


class Around:
    """What features ask of a page: sums over blocks, ancestors, groups."""

    def __init__(self, page: Any, counts: list[Said], texts: list[str], known: int) -> None:
        self.page, self.counts, self.texts, self.known = page, counts, texts, known
        self.tag, self.parent, self.element = page.tag.tolist(), page.parent.tolist(), page.element.tolist()
        self.linked = [min(a, c["characters"]) for a, c in zip(page.linked.tolist(), counts, strict=True)]
        self.blocks = range(len(self.element))
        self.up = [self.chain(e) for e in range(len(self.tag))]  # each element and its ancestors
        self.inside = [[b for b in self.blocks if e in self.up[self.element[b]]] for e in range(len(self.tag))]
        alike = page.alike.tolist()
        self.path = [tuple(alike[a] for a in reversed(chain)) for chain in self.up]
        self.group = [
            [
                o
                for o in range(len(self.tag))
                if self.inside[o] and self.parent[o] == self.parent[e] and alike[o] == alike[e]
            ]
            for e in range(len(self.tag))
        ]
        self.heading = [
            next((int(h) for a in self.up[e][:4] if (h := HEADING_OF_TAG[self.tag[a]])), 0) for e in self.element
        ]
        self.core, self.bulk = self.down(self.prose), self.down(self.characters)

    def chain(self, e: int) -> list[int]:
        found = []
        while e >= 0:
            found.append(e)
            e = self.parent[e]
        return found

    def down(self, weigh: Any) -> list[int]:
        found, all_of_it = [0], weigh(self.inside[0])
        while all_of_it:
            below = [e for e in range(len(self.tag)) if self.parent[e] == found[-1]]
            best = max(below, key=lambda e: weigh(self.inside[e]), default=-1)
            if best < 0 or 2 * weigh(self.inside[best]) < all_of_it:
                break
            found.append(best)
        return found

    def total(self, name: str, blocks: Any) -> int:
        return sum(self.counts[b][name] for b in blocks)

    def characters(self, blocks: Any) -> int:
        return self.total("characters", blocks)

    def links(self, blocks: Any) -> int:
        return sum(self.linked[b] for b in blocks)

    def is_prose(self, b: int) -> bool:
        c = self.counts[b]
        return c["characters"] >= PROSE and c["terminals"] > 0 and 2 * self.linked[b] < c["characters"]

    def prose(self, blocks: Any) -> int:
        return self.characters([b for b in blocks if self.is_prose(b)])

    def groups_of(self, elements: list[int]) -> list[int]:
        return sorted({b for e in elements for b in self.inside[e]})

    def branches(self, b: int) -> list[int]:
        """The containers of a block that hold more than the one before."""
        found: list[int] = []
        for e in self.up[self.element[b]][:LOOK_UP]:
            if not found or len(self.inside[e]) > len(self.inside[found[-1]]):
                found.append(e)
        return found

    def container(self, b: int, level: int) -> list[int]:
        found = self.branches(b)
        return self.inside[found[level]] if level < len(found) else list(self.blocks)


def over(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def features_plain(around: Around) -> list[Said]:
    return [
        own(around, b) | placed(around, b) | headed(around, b) | beside(around, b) | overall(around)
        for b in around.blocks
    ]


def own(a: Around, b: int) -> Said:
    c = a.counts[b]
    n = c["characters"]
    shares = {
        f"{name}_share": over(c[counted], n)
        for name, counted in (("letter", "letters"), ("digit", "digits"), ("punctuation", "punctuation"))
    }
    more = {
        f"{name}_share": over(c[counted], n)
        for name, counted in (("terminal", "terminals"), ("comma", "commas"), ("symbol", "symbols"))
    }
    return shares | more | {
        "characters": n, "words": c["words"], "link_share": over(a.linked[b], n), "upper_share": over(c["upper"], c["letters"]),
        "word_length": over(c["letters"] + c["digits"], c["words"]), "last": c["last"], "first": c["first"], "lines": c["lines"],
        "json_share": over(c["in_json"], c["triples"]), "meta_share": over(c["in_meta"], c["triples"]),
        "title_share": over(c["in_title"], c["words"]), "copies": a.texts.count(a.texts[b]), "copy": a.texts[:b].count(a.texts[b]),
    }  # fmt: skip


def placed(a: Around, b: int) -> Said:
    n, everything, total = len(a.blocks), list(a.blocks), a.characters(a.blocks)
    above = a.up[a.element[b]][:LOOK_UP]
    said_of: Said = {
        "index_share": over(b, n), "before_share": over(a.characters(range(b)), total), "block_count": n, "page_characters": total,
        "page_link_share": over(a.links(everything), total), "depth": len(above),
    }  # fmt: skip
    for bit, name in enumerate(BIT_NAMES):
        said_of[f"to_{name}"] = next((d for d, e in enumerate(above) if int(a.page.bits[e]) >> bit & 1), FAR)
    for kind, names in enumerate(KINDS):
        said_of[f"to_<{names[0]}>"] = next((d for d, e in enumerate(above) if KIND.get(TAGS[a.tag[e]]) == kind), FAR)
    for level in LEVELS:
        held = a.container(b, level)
        mass = a.characters(held)
        said_of |= {
            f"share_{level}_up": over(mass, total), f"link_share_{level}_up": over(a.links(held), mass),
            f"punctuation_{level}_up": over(a.total("punctuation", held), mass), f"per_block_{level}_up": over(mass, len(held)),
            f"terminals_{level}_up": over(a.total("terminals", held), mass),
        }  # fmt: skip
    return said_of | repeated(a, b, above, total) | cored(a, b, above, total)


def repeated(a: Around, b: int, above: list[int], total: int) -> Said:
    like = [o for o in a.blocks if a.path[a.element[o]] == a.path[a.element[b]]]
    mass = a.characters(like)
    said_of: Said = {
        "alike_blocks": len(like), "alike_share": over(len(like), len(a.blocks)), "alike_length": over(mass, len(like)),
        "alike_link_share": over(a.links(like), mass), "alike_terminals": over(a.total("terminals", like), mass),
    }  # fmt: skip
    names = (
        "siblings",
        "sibling_index",
        "sibling_level",
        "siblings_share",
        "siblings_length",
        "siblings_link_share",
        "sibling_length_ratio",
    )
    said_of |= dict.fromkeys(
        (*names, "most_siblings_share", "most_siblings", "most_siblings_level", "most_siblings_link_share"), 0
    )
    many = [(level, e, a.characters(a.groups_of(a.group[e]))) for level, e in enumerate(above) if len(a.group[e]) >= 3]
    if many:
        level, e, mass = many[0]
        length = mass / len(a.group[e])
        links = over(a.links(a.groups_of(a.group[e])), mass)
        values = (len(a.group[e]), over(a.group[e].index(e), len(a.group[e])), level, over(mass, total), length, links)
        said_of |= dict(zip(names, (*values, over(a.characters(a.inside[e]), length)), strict=True))
        level, e, mass = max(many, key=lambda one: one[2])
        said_of |= {
            "most_siblings_share": over(mass, total), "most_siblings": len(a.group[e]), "most_siblings_level": level,
            "most_siblings_link_share": over(a.links(a.groups_of(a.group[e])), mass),
        }  # fmt: skip
    return said_of


def cored(a: Around, b: int, above: list[int], total: int) -> Said:
    def joins(chain: list[int]) -> tuple[int, int, int]:
        for steps, e in enumerate(above):
            if e in chain:
                return steps, len(chain) - 1 - chain.index(e), above[max(steps - 1, 0)]
        return FAR, FAR, above[0]

    steps, join, off = joins(a.core)
    bulk_steps, bulk_join, _ = joins(a.bulk)
    inside = [o for o in a.blocks if a.core[-1] in a.up[a.element[o]][:LOOK_UP]]
    position = min(b - inside[0], 0) + max(b - inside[-1], 0) if inside else 0
    branch, siblings = a.inside[off], a.groups_of(a.group[off])
    prose = a.prose(a.blocks)
    return {
        "core_steps": steps, "core_join": join, "core_share": over(a.characters(a.inside[a.core[-1]]), total),
        "core_position": position / len(a.blocks), "branch_share": over(a.characters(branch), total),
        "branch_link_share": over(a.links(branch), a.characters(branch)),
        "branch_terminals": over(a.total("terminals", branch), a.characters(branch)),
        "branch_per_block": over(a.characters(branch), len(branch)), "branch_siblings": len(a.group[off]),
        "branch_siblings_share": over(a.characters(siblings), total), "bulk_steps": bulk_steps, "bulk_join": bulk_join,
        "bulk_share": over(a.characters(a.inside[a.bulk[-1]]), total), "prose_before": over(a.prose(range(b)), prose),
        "prose_after": over(prose - a.prose(range(b + 1)), prose),
    }  # fmt: skip


def headed(a: Around, b: int) -> Said:
    total = a.characters(a.blocks)
    before = [o for o in range(b) if a.heading[o]]
    after = [o for o in a.blocks if o > b and a.heading[o]]
    last = before[-1] if before else -1

    def distance(to: int) -> float:
        ahead = a.characters(range(to, b)) if b >= to else -a.characters(range(b, to))
        return ahead / total if total > 0 else 0.0

    h1 = next((o for o in a.blocks if a.heading[o] == 1), -1)
    worth = [
        over(c["in_title"] ** 2, c["words"]) * (2 if a.heading[o] else 1)
        if c["in_title"] > 1 or c["in_title"] == c["words"]
        else 0
        for o, c in enumerate(a.counts)
    ]
    best = max(worth)
    titled = worth.index(best) if best > 0 else -1
    return {
        "heading": a.heading[b], "last_heading": a.heading[last] if before else 0, "since_heading": a.characters(range(last + 1, b)),
        "blocks_since_heading": b - last, "until_heading": a.characters(range(b + 1, after[0] if after else len(a.blocks))),
        "from_h1": distance(h1) if h1 >= 0 else 2, "blocks_from_h1": b - h1 if h1 >= 0 else 10_000,
        "from_title": distance(titled) if titled >= 0 else 2, "blocks_from_title": b - titled if titled >= 0 else 10_000,
    }  # fmt: skip


def beside(a: Around, b: int) -> Said:
    said_of: Said = {}
    names = ("characters", "link_share", "terminal_share", "punctuation_share", "upper_share", "digit_share")
    for d in (-3, -2, -1, 1, 2, 3):
        other = own(a, b + d) if b + d in a.blocks else dict.fromkeys(names, -1)
        said_of |= {f"{what}_{d:+d}": other[name] for what, name in zip(BESIDE, names, strict=True)}
    for name, d in (("like_previous", -1), ("like_next", 1)):
        said_of[name] = b + d in a.blocks and a.path[a.element[b + d]] == a.path[a.element[b]]
    for reach in (4, 12):
        near = [o for o in a.blocks if abs(o - b) <= reach]
        mass = a.characters(near)
        said_of |= {
            f"length_within_{reach}": over(mass, len(near)), f"link_within_{reach}": over(a.links(near), mass),
            f"terminals_within_{reach}": over(a.total("terminals", near), mass),
            f"punctuation_within_{reach}": over(a.total("punctuation", near), mass),
        }  # fmt: skip
    return said_of


def overall(a: Around) -> Said:
    total = a.characters(a.blocks)

    def within(kind: str) -> float:
        return over(
            a.characters(
                [
                    b
                    for b in a.blocks
                    if any(KIND.get(TAGS[a.tag[e]]) == KIND[kind] for e in a.up[a.element[b]][:LOOK_UP])
                ]
            ),
            total,
        )

    names = (("articles", "article"), ("mains", "main"), ("forms", "form"), ("h1s", "h1"))
    return {f"says_{name}": a.known >> k & 1 for k, name in enumerate(KNOWN)} | {what: a.tag.count(TAGS.index(tag)) for what, tag in names} | {
        "elements": len(a.tag), "headings": sum(h > 0 for h in a.heading), "paragraph_share": within("p"), "item_share": within("li"),
        "cell_share": within("td"), "terminal_density": over(a.total("terminals", a.blocks), total),
        "json_covered": over(a.characters([b for b, c in enumerate(a.counts) if 2 * c["in_json"] > c["triples"]]), total),
        "long_blocks": sum(c["characters"] >= 2 * PROSE for c in a.counts),
    }  # fmt: skip


def context_plain(a: Around, first: list[float]) -> list[Said]:
    def mean(blocks: Any) -> float:
        return over(sum(a.counts[b]["characters"] * first[b] for b in blocks), a.characters(blocks))

    n = len(a.blocks)
    sections = [b for b in a.blocks if b == 0 or (a.heading[b] and not a.heading[b - 1])]
    sure = [b for b in a.blocks if first[b] > 0.5]
    rows = []
    for b in a.blocks:
        section = max(s for s in sections if s <= b)
        ends = [*sections, n][sections.index(section) + 1]
        last = sections[sections.index(section) - 1] if section else None
        beside_it = {f"said_{d:+d}": first[b + d] if 0 <= b + d < n else -1 for d in (-2, -1, 1, 2)}
        group = next(
            (e for e in a.up[a.element[b]][:LOOK_UP] if len(a.inside[e]) < len(a.inside[max(a.parent[e], 0)])), None
        )
        step = int(first[b] * STEPS)
        rows.append(
            {"said": first[b]} | beside_it | {f"said_{level}_up": mean(a.container(b, level)) for level in LEVELS} | {
                "said_within_4": mean([o for o in a.blocks if abs(o - b) <= 4]), "said_within_12": mean([o for o in a.blocks if abs(o - b) <= 12]),
                "said_alike": mean([o for o in a.blocks if a.path[a.element[o]] == a.path[a.element[b]]]),
                "said_siblings": mean(a.groups_of(a.group[group])) if group is not None else -1, "said_page": mean(a.blocks),
                "said_section": mean(range(section, ends)), "said_last_section": mean(range(last, section)) if last is not None else -1,
                "rank": over(a.characters([o for o in a.blocks if int(first[o] * STEPS) > step]), a.characters(a.blocks)),
                "after_first": b - sure[0] if sure else 10_000, "before_last": sure[-1] - b if sure else 10_000,
            }
        )  # fmt: skip
    return rows


def as_rows(said_of: list[Said], names: tuple[str, ...] = FEATURES) -> np.ndarray[Any, Any]:
    return np.array([[row[name] for name in names] for row in said_of], np.float32).reshape(len(said_of), len(names))


__all__ = ["CONTEXT", "Around", "as_rows", "context_plain", "features_plain", "measure_plain", "triples_in", "words_in"]
