"""What a text claims, as far as plain code can tell: its numbers, names, negations and links."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Set

NUMBER = re.compile(r"\d+(?:[.,'’\u00a0\u202f]\d+)*")
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
REST = r"[^\s<>\"')\]]"
DOMAINS = "com|org|net|edu|gov|info|io|biz|ru|cn|xyz|top|shop|online|site|club|app|dev|ai|tv|me"
LINK = re.compile(  # with a scheme or without; addresses; names on networks
    rf"[a-z][a-z0-9+.-]*://{REST}+|(?:mailto|javascript|data|tel):{REST}+|//[\w-]+\.{REST}+|www\.{REST}+"
    rf"|[\w.+-]+@[\w-]+\.[\w.-]+|(?<![\w@])@\w{{3,}}"
    rf"|(?<![\w@.])(?:[\w-]+\.)+(?:(?:{DOMAINS})\b(?:/{REST}*)?|[a-z]{{2,24}}/{REST}+)",
    re.I,
)
SENTENCE = re.compile(r"(?<=[.!?。！？])[\"'”’)\]]*\s+|(?<=[。！？])|\n+")
MARKER = re.compile(
    r"^[\s#>*-]*(?:\*\*)?(?:(?:step|question|answer|part|point|q|a)\s*)?(\d{1,2})(?:[.):]|\s*[-–—:])(?=\D|$)", re.I
)

ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
UNITS = {word: value for value, word in enumerate(ONES.split())}
TENTHS = "twenty thirty forty fifty sixty seventy eighty ninety"
TENS = {word: 10 * value for value, word in enumerate(TENTHS.split(), 2)}
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
OTHERS = {"dozen": 12, "once": 1, "twice": 2, "thrice": 3}
RANKS = "first second third fourth fifth sixth seventh eighth ninth tenth"
ORDINALS = {word: value for value, word in enumerate(RANKS.split(), 1)}
QUIET = {"1"}  # `one` is a pronoun too

NEGATIONS = {
    "en": "not no never none nobody nothing neither nor nowhere without cannot",
    "de": "nicht kein keine keinen keiner keinem keines nie niemals nichts niemand ohne weder",
    "fr": "ne n pas jamais rien aucun aucune sans ni",
    "es": "no nunca jamás nada nadie ninguno ninguna ningún sin ni",
    "it": "non mai niente nulla nessuno nessuna senza né",
    "pt": "não nunca jamais nada ninguém nenhum nenhuma sem nem",
    "nl": "niet geen nooit niets niemand zonder noch",
    "ru": "не нет ни никогда ничего никто без",
    "pl": "nie nigdy nic nikt bez ani",
    "sv": "inte ej aldrig inget ingen inga utan",
}
ANY_LANGUAGE = "any"
WORDS_OF_NEGATION = {
    ANY_LANGUAGE: frozenset(" ".join(NEGATIONS.values()).split()),
    **{language: frozenset(words.split()) for language, words in NEGATIONS.items()},
}
DECORATION = re.compile(r"([-+<>=~])\1{2,}")
SHORTENED = re.compile(r"n['’]t$")
MONTHS = "january february march april may june july august september october november december"
DAYS = "monday tuesday wednesday thursday friday saturday sunday"
CALENDAR = frozenset(f"{MONTHS} {DAYS}".split())
ENDING_LIST = "s es n an ian ans ians ese ish al ic y ies a e i"
ENDINGS = ("", *ENDING_LIST.split())


def sentences_in(text: str) -> list[str]:
    return [sentence for sentence in SENTENCE.split(text) if sentence and sentence.strip()]


def numbers_in(text: str) -> set[str]:
    """Values, however they are written: 1,234 and 1234, 3.50 and 3.5, twelve and 12, 3 million and 3,000,000.
    Signs and units are no part of them."""
    text = unicodedata.normalize("NFKC", text)
    found = set[str]()
    pieces = [
        (match.start(), match.end(), match[0]) for match in re.finditer(rf"{NUMBER.pattern}|{WORD.pattern}", text)
    ]
    held: list[float] = []  # a number in the making
    end = -1

    def settle() -> None:
        if held:
            found.add(value_of(sum(held)))
            held.clear()

    for start, stop, piece in pieces:
        word = piece.casefold()
        joined = held and re.fullmatch(r"[\s-]+(?:and\s+)?", text[end:start]) is not None
        if word == "and" and held:
            continue
        if word in SCALES and held and joined:
            found.update(value_of(part) for part in held)
            below = sum(part for part in held if part < SCALES[word])
            kept = [part for part in held if part >= SCALES[word]]
            held[:] = [*kept, (below or 1) * SCALES[word]]
        elif piece[0].isdigit():
            settle()
            found.update(values_of_digits(piece))
            number = plain_number(piece)
            if number is not None:
                held.append(number)
        elif word in UNITS or word in TENS or word in OTHERS:
            value = UNITS.get(word, TENS.get(word, OTHERS.get(word, 0)))
            if not (joined and fits_behind(held[-1], value)):
                settle()
            held.append(value)
        else:
            settle()
        end = stop
    settle()
    return found - {""}


def fits_behind(before: float, value: int) -> bool:
    """twenty five, hundred and five; not: five six."""
    return (before in TENS.values() and 0 < value < 10) or (before >= 100 and before % 100 == 0 and value < 100)


def values_of_digits(piece: str) -> set[str]:
    """All that it may mean: 1.234 is a thousand to some, and a version or a date is its pieces too."""
    digits = "".join(str(unicodedata.digit(sign)) if sign.isdigit() else sign for sign in piece)
    parts = re.split(r"[^0-9]", digits)
    if len(parts) == 1:
        return {value_of(float(digits)) if len(digits) < 16 else digits.lstrip("0")}
    values = {canonical(digits)}
    if all(len(part) == 3 for part in parts[1:]):
        values.add("".join(parts).lstrip("0") or "0")
    return values


def canonical(digits: str) -> str:
    """One point for decimals, no grouping."""
    parts = re.split(r"[^0-9]", digits)
    signs = [sign for sign in digits if not sign.isdigit()]
    grouped = all(len(part) == 3 for part in parts[1:]) and len(parts[0]) <= 3 and parts[0] != "0"
    if grouped and len(set(signs)) == 1 and (len(parts) > 2 or signs[0] != "."):
        return "".join(parts).lstrip("0") or "0"
    if len(parts) == 2 or (len(set(signs)) > 1 and len(set(signs[:-1])) == 1):
        whole = "".join(parts[:-1]).lstrip("0") or "0"
        return f"{whole}.{parts[-1]}".rstrip("0").rstrip(".")
    return ".".join(part.lstrip("0") or "0" for part in parts)


def plain_number(piece: str) -> float | None:
    try:
        return float(canonical(piece))
    except ValueError:
        return None


def value_of(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def numbers_stated(text: str) -> set[str]:
    """Numbers that a text must have from somewhere: those of running text, without the count of a list (1. 2. 3.)."""
    found, expected = set[str](), 1
    for line in text.split("\n"):
        marker = MARKER.match(line)
        if marker and int(marker[1]) in (expected, 1, expected - 1):
            expected = int(marker[1]) + 1
            line = line[marker.end() :]
        found |= numbers_in(line)
    return found - QUIET


def numbers_known(text: str) -> set[str]:
    """Those, and all that a number may be said by: ordinals, parts of dates and of ranges."""
    found = numbers_in(text)
    found |= {str(ORDINALS[word]) for word in map(str.casefold, WORD.findall(text)) if word in ORDINALS}
    for piece in re.findall(r"\d+", unicodedata.normalize("NFKC", text)):
        found.add(piece.lstrip("0") or "0")
    for match in NUMBER.finditer(unicodedata.normalize("NFKC", text)):
        found |= values_of_digits(match[0])
    return found


def negations_in(text: str, language: str = "en") -> int:
    words = WORDS_OF_NEGATION.get(language, WORDS_OF_NEGATION["en"])
    return sum(word in words or bool(SHORTENED.search(word)) for word in map(str.casefold, WORD.findall(text)))


def signed_numbers_in(text: str) -> set[tuple[str, frozenset[str], str]]:
    """Numbers with the signs that belong to them: a minus, a currency, a comparison before, a unit behind."""
    text = DECORATION.sub(" ", unicodedata.normalize("NFKC", text).replace("\u2212", "-"))
    text = " ".join(text.split())
    found = set[tuple[str, frozenset[str], str]]()
    for match in NUMBER.finditer(text):
        before, at = "", match.start()
        while at > 0 and (is_sign(text[at - 1]) or (text[at - 1] == " " and at > 1 and is_sign(text[at - 2]))):
            at -= 1
            before = text[at] + before
        if before.startswith("-") and at > 0 and text[at - 1].isalnum():  # a hyphen, as in 10-20
            before = before[1:]
        if before.endswith(" ") and before.strip() == "-":  # a dash
            before = ""
        behind = text[match.end() : match.end() + 2].lstrip(" ")[:1]
        unit = behind if behind and (behind in "%‰°" or unicodedata.category(behind) == "Sc") else ""
        found.add((before.replace(" ", ""), frozenset(values_of_digits(match[0])), unit))
    return found


def is_sign(sign: str) -> bool:
    return sign in "-+<>=≤≥≠±≈~×÷" or unicodedata.category(sign) == "Sc"


def bare(word: str) -> str:
    """Without capitals and possessive."""
    return re.sub(r"['’]s?$", "", word).casefold().replace("’", "'")


def words_known(text: str) -> set[str]:
    return {bare(word) for word in WORD.findall(unicodedata.normalize("NFKC", text))}


def is_known(name: str, known: Set[str], initials: str) -> bool:
    """Does the source have it, or what it is derived from?"""
    word = bare(name)
    if word in known:
        return True
    if name.isupper() and 2 <= len(name) <= 6 and name in initials:
        return True
    if word in CALENDAR:
        return word[:3] in known or (word[:4] in known)
    return any(
        word[: -len(ending)] + other in known
        for ending in ENDINGS
        if ending and word.endswith(ending) and len(word) - len(ending) >= 4
        for other in ENDINGS
    ) or any(word + ending in known for ending in ENDINGS if len(word) >= 4)


def initials_of(text: str) -> str:
    """First letters of words with a capital, in order: what an acronym may be made of."""
    return "".join(word[0] for word in WORD.findall(text) if word[0].isupper())


def capitals_inside(text: str) -> tuple[list[str], int]:
    """Words with a capital inside sentences, and how many words there are: what begins a line, a sentence, a quotation
    or follows a colon has its capital from there. Lines of titles (most words with capitals) say nothing."""
    names, words = list[str](), 0
    for sentence in sentences_in(unicodedata.normalize("NFKC", text)):
        found = list(WORD.finditer(sentence))
        words += len(found)
        inside = [match for match in found[1:] if not opens(sentence, match.start())]
        if is_title(found):
            continue
        names += [
            match[0] for match in inside if match[0][0].isupper() and match[0] not in ("I", "I'm", "I've", "I'll")
        ]
    return names, words


def opens(sentence: str, at: int) -> bool:
    before = sentence[:at].rstrip(" \t")
    return bool(before) and before[-1] in ":\"“‘'([*_•|–—-…" and not sentence[at - 1 : at].isalnum()


def is_title(words: Iterable[re.Match[str]]) -> bool:
    long = [match[0] for match in words if len(match[0]) > 3]
    return len(long) > 2 and sum(word[0].isupper() for word in long) > 0.8 * len(long)


def links_in(text: str) -> set[str]:
    return {re.sub(r"^(?:https?://)?(?:www\.)?", "", link.casefold()).rstrip("./,;:") for link in LINK.findall(text)}
