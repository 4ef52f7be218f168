"""A page's formulas as LaTeX before it is cut into blocks: MathML, what KaTeX and MathJax leave, images of TeX, powers.

Each formula becomes `<math alttext="...">`, which the segmenter writes between `$` or `$$`. A page without any is
returned as it is, after a few searches for bytes. MathML that states its TeX (`alttext`, an annotation) is left to the
segmenter. At most `MOST` bytes of MathML are converted on a page; the rest keeps its letters.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote, unquote_plus

from gristmill.kernels.html import hints as hint
from gristmill.kernels.html.hints import Hints, hints_of
from gristmill.stages.extract.asciimath import from_ascii
from gristmill.stages.extract.chtml import mathml_of
from gristmill.stages.extract.code import scripts
from gristmill.stages.extract.mathml import latex_of

MOST = 2_000_000
LONGEST_TEX = 20_000
INSIDE = rb"(?:[^<>\"']++|\"[^\"]*\"|'[^']*')*+"
MATH = re.compile(rb"(?i)<(?:\w{1,9}:)?math(?=[\s>/])(" + INSIDE + rb")>")
MATH_ENDS = re.compile(rb"(?i)</(?:\w{1,9}:)?math\s*>")
ALTTEXT = re.compile(rb"(?i)\salttext\s*=\s*(?:\"[^\"]*[^\s\"]|'[^']*[^\s'])")
DISPLAYED = re.compile(rb"(?i)\s(?:display\s*=\s*[\"']?(?:block|true)|mode\s*=\s*[\"']?display)")
ANNOTATION = re.compile(rb"(?i)<(?:\w{1,9}:)?annotation\s[^<>]*?encoding\s*=\s*[\"']?([\w/+.-]+)[^<>]*>\s*([^<]*?)\s*<")
TEX_ANNOTATIONS = frozenset([b"application/x-tex", b"tex", b"latex", b"application/x-latex", b"text/x-latex", b"x-tex"])
ONLY_NUMBER = re.compile(r"[\d.,\s]*")
ELEMENT = re.compile(rb"<(?:span|div|p)\b(" + INSIDE + rb")>")
PAINTED = re.compile(rb"(?i)\sdata-mathml\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
STATED = re.compile(rb"(?i)\sdata-(?:math|latex|tex|tex-source|formula|expr)\s*=\s*(?:\"([^\"]+)\"|'([^']+)')")
SAYS_MATH = re.compile(rb"(?i)class\s*=\s*[\"']?[^\"'>]*(?:math|katex|latex|\btex\b|equation|formula)")
CONTAINER = re.compile(rb"<mjx-container\b(" + INSIDE + rb")>")
SCRIPT = re.compile(rb"<script\b(" + INSIDE + rb")>")
IMAGE = re.compile(rb"<(?:img|IMG)\b(" + INSIDE + rb")>")
IMAGE_HINT = re.compile(rb"(?i)latex|tex|math|%5c|formula|alt\s*=\s*[\"'][^\"']{0,40}\\\w|alt\s*=\s*[\"']\s*\$")
VALUE = re.compile(
    rb"(?i)\s(alt|src|class|data-src|data-latex|data-tex|title)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))"
)
ADDRESS = re.compile(
    r"latex\.php\?(?:.*&)?latex=(?P<php>[^&]+)|"
    r"(?:codecogs\.com/(?:[\w.-]+/)*[\w.]*|latex(?:\.php|\.cgi)|mathtex\.cgi|mimetex\.cgi|tex\.cgi)\?(?:latex=)?(?P<query>.+)|"
    r"cht=tx&(?:.*&)?chl=(?P<chart>[^&]+)|"
    r"/(?:equation\?tex|render/math\?math|math\.now\.sh\?(?:from|inline))=(?P<equation>[^&]+)|"
    r"(?:/formula|upmath\.me/(?:svg|png)|/math/render/(?:svg|png)|/tex)/(?P<path>[^/?#]*(?:%5C|\\)[^?#]*)",
    re.IGNORECASE,
)  # fmt: skip
LOOKS = re.compile(
    r"\\(?:frac|dfrac|tfrac|sqrt|sum|int|prod|lim|left|right|begin|end|mathbb|mathrm|mathcal|mathbf|text|alpha|beta|"
    r"gamma|delta|epsilon|theta|lambda|mu|pi|sigma|phi|omega|infty|partial|times|cdot|leq?|geq?|neq|in|to|rightarrow|"
    r"displaystyle|quad|vec|hat|bar|overline|binom|forall|exists|log|sin|cos|ldots|dots|pm)(?![a-zA-Z])"
    r"|(?:^|[\s\w)])[\^_]\{[^{}]+\}"
)
DOLLARS = re.compile(r"^\s*(?:\$\$?|\\[(\[])(.*?)(?:\$\$?|\\[)\]])\s*$", re.DOTALL)
POWER = re.compile(rb"(<sup\b[^<>]*>)((?:<(?:i|em|b|var|span)\b[^<>]*>|</(?:i|em|b|var|span)>|[^<>]){1,60}?)</sup>")
BASE = re.compile(
    rb"((?:\A|[^A-Za-z0-9&])[A-Za-z]|[^A-Za-z&](?:[cmkd]?m|km|ft|in|sec|mi|yd)|\)|[0-9])((?:</(?:i|em|b|var|span)>)*)\Z"
)
EXPONENT = re.compile(
    r"[-−–+]?\d{1,3}|[-−–]?[nkmxtijpqNT]|[-−–]?(?:[a-zA-Z]|\d{1,3})\s?[-−–+*/]\s?(?:[a-zA-Z]|\d{1,3})|[-−–]?\d[a-z]|T|-1|∗|\*"
)
MARK = re.compile(rb"(?i)(?:ref|note|cite|fn)")
SUPERSCRIPT = re.compile(
    rb"<sup\b([^<>]*)>((?:<(?:i|em|b|span)\b[^<>]*>)*(?:<a\b[^<>]*>)?)\s*"
    rb"(?:((?:-|\xe2\x88\x92)?\d{1,3})|[a-z*]|\xe2\x80[\xa0\xa1])\s*(?:</(?:a|i|em|b|span)>)*</sup>"
)
AFTER_NUMBER = re.compile(rb"\d((?:</(?:i|em|b|var|span)>)*)(<a\b[^<>]*>)?\Z")
TO_NOTE = re.compile(
    rb"(?i)<a\b(?=[^<>]*\bhref\s*=\s*[\"']?[^\s\"'#>]*#|[^<>]*\b(?:class|rel|id)\s*=[^<>]*(?:ref|note|cite|fn))"
)
FRAME = re.compile(rb"<span\b[^<>]*?\bid\s*=\s*[\"']?MathJax-Element-\d+-Frame\b[^<>]*>")


def with_formulas(data: bytes, hints: Hints) -> bytes:
    """The page with every formula that the segmenter cannot read written as one that it can; `hints` as of
    `hints_of`."""
    bits, before = hints.bits, data
    if bits & hint.MJX:
        data = replaced(data, CONTAINER, b"</mjx-container>", painted_math)
    if bits & hint.STATED:
        data = with_stated(data)
    if bits & hint.SCRIPT and (b"math/mml" in data or b"math/asciimath" in data):
        data = replaced(data, SCRIPT, b"</script>", script_math)
    if bits & hint.SCRIPT and b"math/tex" in data:
        data = FRAME.sub(b'<span class="MathJax_Preview">', data)  # drawn beside its source
    if bits & hint.MATH:
        data = with_mathml(data)
    if bits & (hint.IMAGE | hint.SUP):
        data = with_images_and_powers(data, hints if data is before else hints_of(data))
    return data


def with_images_and_powers(data: bytes, hints: Hints) -> bytes:
    parts, done = [], 0
    for place, bit in hints.of(hint.IMAGE | hint.SUP):
        if place < done:
            continue
        if bit == hint.SUP and (mark := around_mark(data, place)):
            end, opening, closing = mark
            parts += [data[done:place], opening, data[place:end], closing]
            done = end
            continue
        found = (IMAGE if bit == hint.IMAGE else POWER).match(data, place)
        if found is None:
            continue
        new = image(found) if bit == hint.IMAGE else power(found)
        if new != found[0]:
            parts += [data[done:place], new]
            done = found.end()
    return b"".join([*parts, data[done:]]) if parts else data


def element(tex: str, displayed: bool) -> bytes:
    tex = html.escape(" ".join(tex.split()))
    return f'<math{" display=block" if displayed else ""} alttext="{tex}"></math>'.encode("utf-8", "replace")


def replaced(
    data: bytes, opening: re.Pattern[bytes], ends: bytes, change: Callable[[bytes, bytes], bytes | None]
) -> bytes:
    """The page with `change(attributes, content)` in the place of each such element; None leaves it."""
    parts, done = [], 0
    while (found := opening.search(data, done)) is not None:
        end = data.find(ends, found.end())
        if end < 0:
            break
        new = change(found[1], data[found.end() : end])
        stop = end + len(ends)
        parts += [data[done : found.start()], data[found.start() : stop] if new is None else new]
        done = stop
    return b"".join([*parts, data[done:]])


def painted_math(attrs: bytes, content: bytes) -> bytes | None:
    """A formula as MathJax 3 and 4 draw it in HTML, where no MathML stands beside it."""
    if b"<math" in content or b"<mjx-math" not in content:
        return None
    tex = latex_of(mathml_of(content.decode("utf-8", "replace")))
    return element(tex, bool(DISPLAYED.search(attrs))) if tex else None


def script_math(attrs: bytes, content: bytes) -> bytes | None:
    """<script type="math/mml"> or "math/asciimath" of MathJax 2; that of TeX is the segmenter's."""
    tex: str | None = None
    if b"math/mml" in attrs:
        tex = latex_of(content.decode("utf-8", "replace"))
    elif b"math/asciimath" in attrs:
        tex = from_ascii(html.unescape(content.decode("utf-8", "replace")))
    return element(tex, b"display" in attrs or bool(DISPLAYED.search(content[:200]))) if tex else None


def with_stated(data: bytes) -> bytes:
    """Elements that state their formula in an attribute: MathJax 2's `data-mathml`, `data-math` and the like."""
    has_source = b"math/tex" in data or b"math/mml" in data  # beside what is drawn

    def drawn(tag: re.Match[bytes], found: re.Match[bytes]) -> bytes:
        source = html.unescape((found[1] or found[2] or b"").decode("utf-8", "replace"))
        tex = None if has_source else latex_of(source)
        hidden = b'<span class="MathJax_Preview">'
        if tex:
            return element(tex, bool(DISPLAYED.search(source[:200].encode()))) + hidden
        return hidden if has_source else tag[0]

    def stated(tag: re.Match[bytes]) -> bytes:
        if drawing := PAINTED.search(tag[1]):
            return drawn(tag, drawing)
        found = STATED.search(tag[1])
        if found is None or not SAYS_MATH.search(tag[1]):
            return tag[0]
        near = data[tag.end() : tag.end() + 300]
        if b"<math" in near or b"math/tex" in near:
            return tag[0]
        source = html.unescape((found[1] or found[2]).decode("utf-8", "replace"))
        return element(bare(source), b"math-block" in tag[0] or b"display" in tag[0]) + tag[0]

    return ELEMENT.sub(stated, data)


def with_mathml(data: bytes) -> bytes:
    parts, done, at, spent = [], 0, 0, 0
    spans: Iterator[tuple[int, int]] | None = None
    script = (-1, -1)
    while spent < MOST and (found := MATH.search(data, at)) is not None:
        if spans is None:
            spans = scripts(data)
        while script[1] < found.start() and (following := next(spans, None)) is not None:
            script = following
        if script[0] < found.start() < script[1]:
            at = script[1]
            continue
        ends = MATH_ENDS.search(data, found.end())
        if ends is None:
            break
        at = ends.end()
        spent += at - found.start()
        new = from_mathml(found[1], data[found.end() : ends.start()])
        if new is not None:
            parts += [data[done : found.start()], new]
            done = at
    return b"".join([*parts, data[done:]])


def from_mathml(attrs: bytes, content: bytes) -> bytes | None:
    if attrs.endswith(b"/") or ALTTEXT.search(attrs):
        return None
    for encoding, source in ANNOTATION.findall(content[-LONGEST_TEX:]) if b"annotation" in content else ():
        if source and encoding.lower() == b"application/x-tex":
            return None
        if source and encoding.lower() in TEX_ANNOTATIONS:
            return element(html.unescape(source.decode("utf-8", "replace")), bool(DISPLAYED.search(attrs)))
    tex = latex_of(content.decode("utf-8", "replace"))
    if tex is None or ONLY_NUMBER.fullmatch(tex):
        return None
    return element(tex, bool(DISPLAYED.search(attrs)))


def image(found: re.Match[bytes]) -> bytes:
    """An image of a formula, with its TeX in `alt` or in its address, as that formula."""
    if not IMAGE_HINT.search(found[1]):
        return found[0]
    values: dict[str, str] = {}
    for name, double, single, unquoted in VALUE.findall(found[0]):
        value = html.unescape((double or single or unquoted).decode("utf-8", "replace"))
        values.setdefault(name.decode().lower(), value)
    tex = values.get("data-latex") or values.get("data-tex") or in_address(values.get("src", "")) or in_address(
        values.get("data-src", "")
    )  # fmt: skip
    alt, kind = values.get("alt", "").strip(), values.get("class", "").lower()
    if not tex and alt:
        math_class = re.search(r"\b(?:la)?tex\b|mwe-math|\bmath|equation|formula|ee_img", kind)
        wrapped = DOLLARS.match(alt)
        if (
            (math_class and "\\" in alt)
            or (math_class and len(alt) < 200 and re.search(r"[\^_=]", alt))
            or "mwe-math" in kind
            or (wrapped and len(alt) < 2000 and (math_class or LOOKS.search(alt) or len(alt) < 12))
            or (len(alt) < 2000 and "\\" in alt and LOOKS.search(alt))
        ):
            tex = alt
    if not tex or len(tex) > LONGEST_TEX or beside_math(found):
        return found[0]
    displayed = "display" in kind or alt.startswith(("$$", "\\["))
    return element(bare(tex), displayed)


def beside_math(found: re.Match[bytes]) -> bool:
    """Whether the formula stands before its image too, as in Wikipedia."""
    before = found.string[max(found.start() - 300, 0) : found.start()]
    return b"</math>" in before and b"<img" not in before[before.rfind(b"</math>") :]


def in_address(address: str) -> str | None:
    found = ADDRESS.search(address)
    if not found:
        return None
    tex = next(part for part in found.groups() if part)
    if found["query"]:
        tex = re.sub(r"&(?:bg|fg|s|c|zoom|amp)=[^&]*", "", tex)
        return unquote(tex).replace("&space;", " ").replace("+", " " if "%2B" in tex else "+") or None
    return unquote(tex) if found["path"] else unquote_plus(tex)


def bare(tex: str) -> str:
    """TeX without dollars around it and the size that an image is set in."""
    tex = tex.strip()
    if found := DOLLARS.match(tex):
        tex = found[1]
    tex = re.sub(
        r"^(?:\\(?:dpi|bg)(?:\{[^{}]*\}|_\w+)\s*|\\(?:inline|large|Large|LARGE|small|huge|fn_\w+)\b\s*)+", "", tex
    )
    if tex.startswith("{\\displaystyle") and tex.endswith("}"):
        tex = tex[len("{\\displaystyle") : -1]
    return re.sub(r"^\\(?:displaystyle|textstyle)(?![a-zA-Z])", "", tex.strip()).strip()


def around_mark(data: bytes, place: int) -> tuple[int, bytes, bytes] | None:
    """Where a <sup> behind a number ends that is the mark of a note, with the brackets around it; or a power that is a
    link, with `^`. As they are, `5000<sup><a href="#n1">1</a></sup>` would be 50001."""
    found = SUPERSCRIPT.match(data, place)
    before = AFTER_NUMBER.search(data[max(place - 300, 0) : place]) if found else None
    if found is None or before is None:
        return None
    link = found[2] or before[2] or b""
    if TO_NOTE.search(link) or MARK.search(found[1]):
        return found.end(), b"[", b"]"
    return (found.end(), b"^", b"") if b"<a" in found[2] and found[3] else None


def power(found: re.Match[bytes]) -> bytes:
    """`a<sup>2</sup>` as a^2. Marks of notes, ordinals and abbreviations stay as they are."""
    before = BASE.search(found.string[max(found.start() - 40, 0) : found.start()])
    if before is None:
        return found[0]
    base, closing = before.groups()
    opening, content = found.groups()
    exponent = html.unescape(re.sub(rb"<[^<>]*>", b"", content).decode("utf-8", "replace")).strip()
    if not EXPONENT.fullmatch(exponent) or MARK.search(opening):
        return found[0]
    if base[-1:].isdigit() and exponent.strip("-−–+").isdigit():
        return opening + exponent.encode() + b"</sup>"  # the segmenter's
    if base[-1:].isdigit() and exponent in "tij*∗":
        return found[0]  # a mark
    if exponent in "*∗" or (base == b")" and exponent.isdigit() and len(exponent) > 1):
        return found[0]
    if base[-1:].isalpha() and exponent.isdigit() and exponent not in "2345678" and not closing:
        return found[0]
    inner = content if len(exponent) == 1 or exponent.strip("-−–+").isdigit() else b"{" + content + b"}"
    return b"^" + opening + inner + b"</sup>"
