"""A crawl with planted templates, and with all that repeats on a site and is yet main text."""

from __future__ import annotations

import random
from typing import Any

WORDS = [
    "mill",
    "river",
    "stone",
    "wheel",
    "grain",
    "water",
    "flour",
    "miller",
    "bridge",
    "meadow",
    "horse",
    "market",
    "winter",
    "summer",
    "garden",
    "kitchen",
]


def prose(dice: random.Random, words: int) -> str:
    return " ".join(f"{dice.choice(WORDS)}{dice.randrange(400)}" for _ in range(words))


def menu(dice: random.Random, lines: int) -> list[str]:
    return [prose(dice, dice.randint(1, 2)) for _ in range(lines)]


def recipe(dice: random.Random, site: dict[str, Any]) -> list[str]:
    """Headings on every page, ingredients and steps out of few that many pages share."""
    pantry = [f"{n} {unit} {what}" for n in (1, 2) for unit in ("cup", "tsp") for what in ("salt", "sugar", "flour", "oil", "milk")]  # fmt: skip
    steps = [prose(dice, dice.randint(9, 20)) for _ in range(4)]
    return ["Ingredients", *dice.sample(pantry, 6), prose(dice, 3), "Method", *steps, "Serves four"]


def forum(dice: random.Random, site: dict[str, Any]) -> list[str]:
    """Posts; on some pages the moderator quotes a rule."""
    posts = [prose(dice, dice.randint(5, 30)) for _ in range(5)]
    if dice.random() < 0.2:
        posts.insert(dice.randint(1, 4), dice.choice(site["rules"]))
    return [line for post in posts for line in (f"user {dice.randrange(10**6)} wrote", post, "Reply")]


def law(dice: random.Random, site: dict[str, Any]) -> list[str]:
    """Sections of their own, with a clause between them that every third act has."""
    sections = [f"Section {n} {prose(dice, 25)}" for n in range(4)]
    if dice.random() < 0.3:
        sections.insert(2, site["clause"])
    return sections


def poem(dice: random.Random, site: dict[str, Any]) -> list[str]:
    """Stanzas with a refrain, which three poems share."""
    refrain = dice.choice(site["refrains"])
    return [line for _ in range(4) for line in (*(prose(dice, 6) for _ in range(4)), refrain)]


def product(dice: random.Random, site: dict[str, Any]) -> list[str]:
    """A table with the same head everywhere and values that many products share."""
    rows = [f"{name} | {dice.choice(('black', 'white', 'steel', 'oak'))}" for name in ("Colour", "Frame", "Handle")]
    dice.shuffle(rows)
    return [prose(dice, 30), "Property | Value", *rows, f"Weight | {dice.randrange(10**4)} g", prose(dice, 20)]


KINDS = (recipe, forum, law, poem, product)


def planted(sites: int, pages: tuple[int, int] = (4, 30), seed: int = 0) -> list[dict[str, Any]]:
    """Documents with `url`, `text`, `main` (what is the page's own) and `kind`."""
    dice, rows = random.Random(seed), []
    for number in range(sites):
        count = dice.randint(*pages)
        facts = {
            "rules": [prose(dice, 12) for _ in range(6)],
            "clause": prose(dice, 30),
            "refrains": [prose(dice, 7) for _ in range(max(2, count // 3))],
        }
        kind = KINDS[number % len(KINDS)]
        top, bottom = menu(dice, dice.randint(5, 9)), [*menu(dice, 4), f"Copyright of {prose(dice, 9)}"]
        notice, headlines = prose(dice, 14), [prose(dice, 9) for _ in range(count + 5)]
        for page in range(count):
            main = kind(dice, facts)
            middle = dice.randint(1, len(main) - 1)
            text = [*top, prose(dice, 5), *main[:middle], notice, *main[middle:]]
            text += ["Latest", *headlines[page : page + 5], *bottom]
            url = f"https://{dice.choice(('www', 'm', 'old'))}.site{number}.co.uk/{page}"
            rows.append({"url": url, "text": "\n".join(text), "main": main, "kind": kind.__name__})
    for row in rows:
        row["uid"] = dice.getrandbits(64)
    return rows
