"""The reference of `kernels/personal_data/spans.py`: the same shapes said in regular expressions and Python integers,
one document at a time."""

from __future__ import annotations

import ipaddress
import re

from gristmill.kernels.personal_data.spans import IBAN_LENGTHS, KINDS

Span = tuple[int, int, str]

WIDE = rb"(?:[\xc3-\xdf][\x80-\xff]|[\xe0\xe1\xe4-\xed][\x80-\xff]{2}|\xe3[\x81-\xff][\x80-\xff])"
FILES = {b"png", b"jpg", b"jpeg", b"gif", b"svg", b"webp", b"css", b"js", b"html", b"php"}
VERSIONS = {b"version", b"ver", b"v", b"release", b"build", b"firmware", b"driver", b"section", b"chapter", b"versions"}
CUES = {
    b"tel", b"phone", b"elephone", b"fax", b"mobile", b"mob", b"cell", b"call", b"whatsapp", b"ph", b"telefon", b"telefono", b"fono",
    b"handy", b"gsm", b"tlf",
}  # fmt: skip
CUE_OF_ANOTHER_SCRIPT = re.compile(
    r"(?:電話|电话|手机|手機|携帯|传真|傳真|전화|ефон|факс|(?<![\x80-\U0010ffff])(?:[Тт]ел|ТЕЛ|моб))\Z"
)
# IANA special-purpose registries, February 2025, and multicast.
RESERVED = [
    ipaddress.ip_network(net)
    for net in [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
    ]
]
SEPARATOR = rb"(?:[ ()-]|\xc2\xa0|\xe2\x80[\x90-\x93])"
GAP = re.compile(rb"(?: / |[./]|" + SEPARATOR + rb"{1,3})(?=\d)")
NOT_BEFORE = rb"(?<![A-Za-z0-9+,\-./_=#$&%])"
NOT_AFTER = rb"(?:(?=[xX]\d)|(?![A-Za-z0-9_%@])(?![-./,:][A-Za-z0-9]))"
KEYS = {
    "A": rb"(?<![A-Za-z0-9_-])(?:AIza[\w-]{35}(?![\w-])|(?:AKIA|ASIA)[A-Z0-9]{16}(?!\w))",
    "_": rb"(?<![A-Za-z0-9_-])(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_\w{22,255}|(?:sk_live|sk_test|rk_live)_[A-Za-z0-9]{16,255}"
    rb"|hf_(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*[a-z])[A-Za-z0-9]{30,40}|npm_[A-Za-z0-9]{36}|dop_v1_[A-Za-z0-9]{64})(?!\w)",
    "-": rb"(?<![A-Za-z0-9_-])(?:sk-(?=[\w-]*\d)(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{32,255}"
    rb"|sk-(?=(?:[\w-]*[_-])?(?=(?:[A-Za-z]*\d){3})(?=(?:\d*[A-Za-z]){3})[A-Za-z0-9]{20})[\w-]{20,255}|xox[A-Za-z]-(?=\d)[\w-]{20,255}"
    rb"|glpat-[\w-]{20,64}|pypi-AgE[\w-]{50,1024})(?![\w-])",
    "J": rb"(?<![A-Za-z0-9_.-])eyJ[\w-]{9,}\.eyJ[\w-]{8,}\.[\w-]{15,}",
    "G": rb"(?<![A-Za-z0-9_-])SG\.[\w-]{22}\.[\w-]{43}(?![\w-])",
    "pem": rb"(?<!-)-----BEGIN (?=.{0,37}PRIVATE KEY-----)[A-Z ]{0,37}-----(?:(?!-----).)*-----END [^-]{0,37}-----",
}  # fmt: skip
PATTERNS = {name: re.compile(pattern, re.DOTALL | re.ASCII) for name, pattern in KEYS.items()}
BACK = {"A": 0, "_": 7, "-": 6, "J": 2, "G": 1}


def spans_plain(text: bytes, wanted: tuple[str, ...] = KINDS) -> list[Span]:
    """(start, end, kind) of each span."""
    found: list[Span] = []
    free = i = 0
    while i < len(text):
        span = _at(text, i, free, wanted)
        if span is None:
            i += 1
            continue
        earlier = [other for other in found if other[0] < span[0]]
        while (
            span and earlier and earlier[-1][1] > span[0]
        ):  # an address that begins inside of what was found before it
            span = _email(text, i, earlier[-1][1])
            earlier = [other for other in found if span and other[0] < span[0]]
        if span is None:
            i += 1
            continue
        found = [*earlier, span]
        i = free = span[1]
    return found


def _at(text: bytes, i: int, free: int, wanted: tuple[str, ...]) -> Span | None:
    anchor = chr(text[i])
    options: list[Span | None] = []
    if anchor in "0123456789" and not text[max(i - 1, 0) : i].isdigit():
        options = [_iban(text, i, free) if "iban" in wanted else None]
        if i >= free:
            options += [
                _card(text, i, free) if "card" in wanted else None,
                _social_security(text, i) if "ssn" in wanted else None,
            ]
            options += [_ip4(text, i) if "ip" in wanted else None]
            options += [_national(text, i) if "phone" in wanted else None]
    elif anchor == "@" and "email" in wanted:
        options = [_email(text, i)]
    elif anchor == ":":
        options = [_ip6(text, i, free) if "ip" in wanted else None, _credentials(text, i) if "key" in wanted else None]
    elif anchor == "+" and "phone" in wanted:
        options = [_international(text, i)]
    elif anchor == "(" and "phone" in wanted:
        options = [_national(text, i)]
    elif anchor in BACK and "key" in wanted:
        options = [_key(text, i, anchor, free)]
    return next((span for span in options if span), None)


def word_before(text: bytes, i: int) -> tuple[bytes, int]:
    fill = re.search(rb"\xef\xbc\x9a\Z|[ :.()#]{0,4}\Z", text[max(i - 4, 0) : i])
    end = i - len(fill[0]) if fill else i
    word = re.search(rb"[A-Za-z]{0,8}\Z", text[max(end - 8, 0) : end])
    return (word[0].lower(), end - len(word[0])) if word else (b"", end)


def _email(text: bytes, at: int, free: int = 0) -> Span | None:
    first = at
    while first > free and at - first < 64:
        before = text[free:first]
        if re.search(rb"[A-Za-z0-9_%'~]\Z", before[-1:]) or (
            before[-1:] in (b".", b"-", b"+") and before[-1:] != text[first : first + 1]
        ):
            first -= 1
        elif re.search(rb"[\xc3-\xd4][\x80-\xbf]\Z", before[-2:]):
            first -= 2
        else:
            break
    while first < at and re.match(rb"[^A-Za-z0-9_\x80-\xff]", text[first : first + 1]):
        first += 1
    if first == at or text[first:at] == b"git":
        return None
    domain = re.match(rb"(?:(?:[A-Za-z0-9-]|" + WIDE + rb")+\.?)*", text[at + 1 : at + 1 + 253])
    stop, place = 0, at + 1
    for number, label in enumerate(domain[0].split(b".") if domain else []):
        if not label:
            break
        if number:
            head = re.match(rb"[A-Za-z0-9]*", label)
            name = head[0] if head else b""
            after = text[place + len(name) : place + len(name) + 1] if place + len(name) < at + 1 + 253 else b""
            if re.fullmatch(rb"[A-Za-z]{2,63}", name) and after != b"_":
                stop = 0 if name.lower() in FILES else place + len(name)
            if name != label and (label[0] >= 128 or (len(label) > 4 and label[:4].lower() == b"xn--")):
                stop = place + len(label)
        place += len(label) + 1
    return (first, stop, "email") if stop else None


def _ip4(text: bytes, i: int) -> Span | None:
    end = rb"(?![A-Za-z0-9_])(?![.-][A-Za-z0-9])"
    found = re.compile(rb"(?<![.\-_A-Za-z0-9])\d{1,3}(?:\.\d{1,3}){3}" + end).match(text, i)
    if not found or sum(map(len, found[0].split(b"."))) < 7 or _is_version(text, i):
        return None
    return (i, found.end(), "ip") if _public(found[0]) else None


def _is_version(text: bytes, i: int) -> bool:
    between = re.search(rb"[ \"'=]{0,4}\Z", text[max(i - 4, 0) : i])
    word = word_before(text, i - len(between[0]) if between else i)[0]
    return word in VERSIONS or word.endswith(b"version")


def _ip6(text: bytes, colon: int, free: int) -> Span | None:
    first = colon - 4
    found = (
        re.compile(rb"(?<![A-Za-z0-9:._\-])[23][0-9A-Fa-f]{3}(?=:)[0-9A-Fa-f:]*").match(text, first)
        if first >= free
        else None
    )
    if not found:
        return None
    token = found[0][:-1] if found[0].endswith(b":") and not found[0].endswith(b"::") else found[0]
    rest = text[first + len(token) :]
    if re.match(rb"[A-Za-z0-9_]|:[A-Za-z0-9:]", rest) or len([g for g in token.split(b":") if g]) < 3:
        return None
    return (first, first + len(token), "ip") if _public(token) else None


def _public(address: bytes) -> bool:
    try:
        value = ipaddress.ip_address(address.decode())
    except ValueError:
        return False
    return not any(value in net for net in RESERVED)


def _card(text: bytes, i: int, free: int) -> Span | None:
    ends = rb"(?![A-Za-z0-9_])(?![-./][A-Za-z0-9])"
    best = 0
    for shape in (
        rb"\d{13,19}",
        rb"4 4 4 4",
        rb"4-4-4-4",
        rb"4 4 4 4 3",
        rb"4-4-4-4-3",
        rb"4 6 5",
        rb"4-6-5",
        rb"4 6 4",
        rb"4-6-4",
    ):
        pattern = shape if b"{" in shape else re.sub(rb"\d", lambda size: rb"\d{" + size[0] + rb"}", shape)
        found = re.compile(rb"(?<![A-Za-z0-9\-./_+=#&])" + pattern + rb"(?!\d)" + ends).match(text, i)
        if not found:
            continue
        digits = re.sub(rb"\D", b"", found[0]).decode()
        if luhn(digits) and _issued(digits) and not (len(digits) != 15 and shape.endswith(b"5")):
            separator = shape[1:2] if b"{" not in shape else b""
            before, after = text[max(i - 2, free) : i], text[found.end() : found.end() + 5]
            if separator and (
                re.fullmatch(rb"\d" + separator, before) or re.fullmatch(separator + rb"\d.\d\d", after, re.DOTALL)
            ):
                return None
            best = max(best, found.end())
    return (i, best, "card") if best else None


NAMED = re.compile(rb"(?<![a-z])(?:ssns?(?![a-z])|ss#|social security)", re.IGNORECASE)


def _social_security(text: bytes, i: int) -> Span | None:
    found = re.compile(
        rb"(?<![A-Za-z0-9+_./-])(?!000|666|9)\d{3}([ -])(?!00)\d\d\1(?!0000)\d{4}(?![A-Za-z0-9_]|[-./][A-Za-z0-9])"
    ).match(text, i)
    before = NAMED.search(text, max(i - 48, 0), i) if found else None
    return (i, found.end(), "ssn") if found and before else None


USER_INFO = rb"[A-Za-z0-9!$%&*+.=_~-]"


def _credentials(text: bytes, colon: int) -> Span | None:
    pattern = rb"(?<=[A-Za-z])://(" + USER_INFO + rb"{0,64}:" + USER_INFO + rb"{1,255})@(?=[A-Za-z0-9\[])"
    found = re.compile(pattern).match(text, colon)
    return (*found.span(1), "key") if found else None


def luhn(digits: str) -> bool:
    return sum(sum(divmod(int(d) * (1 + place % 2), 10)) for place, d in enumerate(reversed(digits))) % 10 == 0


def _issued(digits: str) -> bool:
    size, two, three, four = len(digits), int(digits[:2]), int(digits[:3]), int(digits[:4])
    maestro = four in (5018, 5020, 5038, 5893, 6304, 6759, 6761, 6762, 6763)
    if size in (14, 15):
        return (300 <= three <= 305 or two in (36, 38, 39)) if size == 14 else two in (34, 37)
    if size == 13:
        return maestro
    if size == 16 and (51 <= two <= 55 or 2221 <= four <= 2720):
        return True
    visa = digits[0] == "4" and size in (16, 19)
    return visa or four == 6011 or 644 <= three <= 649 or two in (62, 65) or 3528 <= four <= 3589 or maestro


def _iban(text: bytes, i: int, free: int) -> Span | None:
    lengths = {entry[:2]: int(entry[2:]) for entry in IBAN_LENGTHS.split()}
    country = text[i - 2 : i].decode("latin-1") if i >= 2 else ""
    if i - 2 < free or country not in lengths or re.search(rb"[A-Za-z0-9_]\Z", text[max(i - 3, 0) : i - 2]):
        return None
    left = lengths[country] - 4
    spaced = rb"(?: [A-Z0-9]{4}){%d}" % (left // 4) + (rb" [A-Z0-9]{%d}" % (left % 4) if left % 4 else b"")
    found = re.compile(rb"[A-Z]{2}\d\d(?:[A-Z0-9]{%d}|%s)(?![A-Za-z0-9_])" % (left, spaced)).match(text, i - 2)
    if not found:
        return None
    code = found[0].replace(b" ", b"").decode()
    return (
        (i - 2, found.end(), "iban") if int("".join(str(int(c, 36)) for c in code[4:] + code[:4])) % 97 == 1 else None
    )


def _groups(text: bytes, i: int) -> list[tuple[int, int]]:
    """(start, end) of groups of digits from i, one gap between each two."""
    groups = []
    while (found := re.compile(rb"\d+").match(text, i)) and len(groups) < 40:
        groups.append(found.span())
        gap = GAP.match(text, found.end())
        if not gap:
            break
        i = gap.end()
    return groups


def _ends(text: bytes, i: int) -> bool:
    return re.compile(NOT_AFTER, re.DOTALL).match(text, i) is not None


def _international(text: bytes, plus: int) -> Span | None:
    if re.search(rb"[A-Za-z0-9+_]\Z", text[max(plus - 1, 0) : plus]):
        return None
    total, stop, all_digits = 0, 0, ""
    for a, b in _groups(text, plus + 1 + (text[plus + 1 : plus + 2] == b"(")):
        total += b - a
        all_digits += text[a:b].decode()
        if total > 15:
            break
        if total >= 9 and (_ends(text, b) or GAP.match(text, b)) and _country(all_digits, total):
            stop = b
    return (plus, stop, "phone") if stop else None


def _country(digits: str, total: int) -> bool:
    if digits[0] in "17":
        return total == 11 and (digits[0] == "7" or digits[1] >= "2")
    return digits[0] != "0" and digits[:2] not in ("28", "83", "89")


def _national(text: bytes, i: int) -> Span | None:
    bracket = rb"(?:" + NOT_BEFORE + rb"|(?<=[A-Za-z])(?=\())"
    one = NOT_BEFORE + rb"(?:1[ .-]|1(?=\())?"
    shapes = [
        rb"(?:" + one + rb"|" + bracket + rb")\([2-9]\d\d\)[ -]?[2-9]\d\d[ .-]\d{4}(?!\d)" + NOT_AFTER,
        one + rb"[2-9]\d\d([.-])[2-9]\d\d\1\d{4}(?!\d)" + NOT_AFTER,
        NOT_BEFORE + rb"\([1-9]\d\d\)[ -]?\d{3}-\d\d-\d\d(?!\d)" + NOT_AFTER,
        NOT_BEFORE + rb"0[1-9]([ .-]|\xc2\xa0|\xe2\x80[\x90-\x93])\d\d(?:\1\d\d){3}(?!\d)" + NOT_AFTER,
    ]
    stops = [found.end() for shape in shapes if (found := re.compile(shape, re.DOTALL).match(text, i))]
    stops.append(_bracketed(text, i) if text[i : i + 1] == b"(" else _after_cue(text, i))
    return (i, max(stops), "phone") if max(stops) else None


def _bracketed(text: bytes, i: int) -> int:
    found = re.compile(NOT_BEFORE + rb"\((0\d{1,4})\)[ -]?", re.DOTALL).match(text, i)
    total, stop = len(found[1]) if found else 99, 0
    for a, b in _groups(text, found.end()) if found else []:
        total += b - a
        if total > 12:
            break
        if total >= 9 and _ends(text, b):
            stop = b
    return stop


def _after_cue(text: bytes, i: int) -> int:
    if not re.compile(rb"(?:" + NOT_BEFORE + rb"|(?<=\.))").match(text, i):
        return 0
    word, before = word_before(text, i)
    if word in (b"no", b"nr", b"number"):
        word, before = word_before(text, before)
    sizes, stop = [], 0
    cued = word in CUES or (
        not word and CUE_OF_ANOTHER_SCRIPT.search(text[max(before - 16, 0) : before].decode("utf-8", "ignore"))
    )
    for a, b in _groups(text, i) if cued else []:
        sizes.append(b - a)
        if sum(sizes) > 12:
            break
        date = (
            len(sizes) == 3
            and sizes[1] <= 2
            and ((sizes[0] == 4 and sizes[2] <= 2) or (sizes[2] == 4 and sizes[0] <= 2))
        )
        years = re.fullmatch(rb"(?:19|20)\d\d\D+(?:19|20)\d\d", text[i:b])
        if sum(sizes) >= 7 and sum(sizes) >= 2 * len(sizes) - 1 and not date and not years and _ends(text, b):
            stop = b
    return stop


def _key(text: bytes, i: int, anchor: str, free: int) -> Span | None:
    if anchor == "-" and text[i - 1 : i] != b"-" and (found := PATTERNS["pem"].match(text, i)):
        return (i, found.end(), "key") if i >= free else None
    for back in range(BACK[anchor], -1, -1):
        first = i - back
        if first >= free and (found := PATTERNS[anchor].match(text, first)) and anchor.encode() not in text[first:i]:
            return first, found.end(), "key"
    return None
