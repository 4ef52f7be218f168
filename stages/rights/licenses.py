"""Which license an address or a phrase names, as SPDX writes it: `CC-BY-SA-4.0`, `CC0-1.0`, `GFDL-1.3`.

Creative Commons is read in any of its spellings; the port to a country is left out, and so is a version that nobody
states. A few other licenses of texts and data are known by their addresses.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

PARTS = r"by|nc|nd|sa"
BETWEEN = r"(?:[ ,/+&–—-]{1,3}(?:and )?)"  # parts of a name, as people write it
CC_URL = re.compile(
    rf"creativecommons\.org/(?:licen[cs]es/((?:{PARTS})(?:-(?:{PARTS}))*+|publicdomain)|publicdomain/(zero|mark))"
    r"(?![\w-])(?:/([0-9]\.[0-9]))?",
    re.IGNORECASE,
)
CC_CODE = re.compile(
    rf"\bcc(?:[ -](by(?:{BETWEEN}(?:{PARTS})\b)*+)|0)(?![\w-])(?:[ -]?v?([0-9]\.[0-9]))?", re.IGNORECASE
)  # CC BY-SA 4.0, CC BY NC 4.0, CC0 1.0
CC_NAME = re.compile(
    r"creative[ -]commons[ -](?:(?:public domain|cc0)?[ -]?(zero|public domain mark)"
    rf"|(attribution(?:{BETWEEN}(?:non[ -]?commercial|no[ -]?deriv(?:ative)?s?(?:[ -]works?)?|share[ -]?alike))*+"
    rf"|\(?(?:cc[ -])?by(?:{BETWEEN}(?:{PARTS})\b)*+(?![\w-])))"
    r"(?:[^.<>\d]{0,40}?([0-9]\.[0-9]))?",
    re.IGNORECASE,
)
# A phrase grants a license where one of these stands before it in its sentence, or `license` right behind it.
GRANTS = re.compile(
    r"\b(?:licen[cs]ed?|available|released|published|distributed|shared|provided|offered)\b[^.!?]{0,80}?"
    r"\b(?:under|by|with|via|as)\b[^.!?]{0,60}$|\b(?:under|licen[cs]e:)[^.!?]{0,40}$",
    re.IGNORECASE,
)
DENIED = re.compile(r"(?:\b(?:not|no longer|never|neither|nor|without being)|n['’]t)(?: \w+)?\s*$", re.IGNORECASE)
GRANTED = re.compile(
    r"[^.!?]{0,60}?(?:\d\.\d)?[^.!?]{0,30}?\b(?:licen[cs]ed?\b(?! (?:do|does|is|are) (?:not|no longer)\b)|\(?CC\b"
    r"|unless otherwise|applies\b)",
    re.IGNORECASE,
)
OTHERS = (
    (re.compile(r"gnu\.org/(?:copyleft|licenses)/(?:old-licenses/)?fdl(?:-(1\.[0-3]))?", re.IGNORECASE), "GFDL"),
    (re.compile(r"gnu\.org/(?:copyleft|licenses)/(?:old-licenses/)?gpl(?:-([123]\.0))?", re.IGNORECASE), "GPL"),
    (re.compile(r"apache\.org/licenses/license-(2\.0)", re.IGNORECASE), "Apache"),
    (re.compile(r"opensource\.org/licen[cs]es?/mit\b()", re.IGNORECASE), "MIT"),
    (re.compile(r"opendatacommons\.org/licenses/odbl(?:/(?:summary|(1[.-]0)))?", re.IGNORECASE), "ODbL"),
    (re.compile(r"opendatacommons\.org/licenses/by()", re.IGNORECASE), "ODC-By"),
    (
        re.compile(r"nationalarchives\.gov\.uk/doc/open-government-licence(?:/version/([123]))?", re.IGNORECASE),
        "OGL-UK",
    ),
)
OTHER = "other"  # a license is stated, and it is none of these
SEVERAL = "several"
LONGEST = 2000  # characters of an address or phrase that are looked at


def license_of_address(address: str) -> str | None:
    """The license that an address names; None where it names none that is known."""
    address = unquote(address[:LONGEST])
    if match := CC_URL.search(address):
        if match[2]:
            return spdx("zero" if match[2].lower() == "zero" else "mark", match[3])
        return spdx(match[1].lower(), match[3])
    for pattern, name in OTHERS:
        if match := pattern.search(address):
            return f"{name}-{match[1].replace('-', '.')}" if match[1] else name
    return None


def license_in_words(text: str) -> str | None:
    """The license that a phrase names, whether it grants it or not."""
    text = text[:LONGEST]
    if named := license_of_address(text):
        return named
    code, name = CC_CODE.search(text), CC_NAME.search(text)
    if name and (code is None or name.start() <= code.start()):
        if name[1]:
            return spdx("zero" if name[1].lower() == "zero" else "mark", name[3])
        return spdx(elements(name[2]), name[3])
    if code is None:
        return None
    return spdx(elements(code[1]) if code[1] else "zero", code[2])


def license_granted(before: str, phrase: str) -> str | None:
    """The license under which a text says that something is, not one that it only speaks of; `phrase` begins with its
    name, and `before` is what stands in front."""
    named = CC_NAME.match(phrase) or CC_CODE.match(phrase)
    if named is None:
        return None
    before = before[-160:]
    if grants := GRANTS.search(before):
        return None if DENIED.search(before, 0, grants.start()) else license_in_words(named[0])
    return license_in_words(named[0]) if GRANTED.match(phrase, named.end(), named.end() + 120) else None


def elements(words: str) -> str:
    """`Attribution-NonCommercial`, or `BY, NC`, as `by-nc`."""
    words = words.lower()
    if not words.startswith("attribution"):
        return "-".join(dict.fromkeys(re.findall(PARTS, words)))
    parts = [
        code
        for code, of in (("by", "attribution"), ("nc", "commercial"), ("nd", "deriv"), ("sa", "alike"))
        if of in words
    ]
    return "-".join(parts)


def spdx(kind: str, version: str | None) -> str:
    if kind == "zero":
        return "CC0-1.0"
    if kind in ("mark", "publicdomain"):
        return "CC-PDM-1.0"
    parts = kind.split("-")
    ordered = "-".join(part for part in ("by", "nc", "nd", "sa") if part in parts).upper()
    return f"CC-{ordered}-{version}" if version else f"CC-{ordered}"
