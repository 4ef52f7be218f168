"""Structure of a page as markup that the segmenter reads: code and formulas are rewritten before the page is cut into
blocks. A page without either is returned as it is, after one search for bytes.

Code becomes plain `<pre>`: lines, indentation and language kept, line numbers not. Rewritten are a `<pre>` that holds
elements of its own for lines or numbers; tables with a line of code in each row (GitHub, Gitea, Gitiles,
SyntaxHighlighter, highlight.js); lists with one in each item (Discuz); `<code>` and boxes of code without a `<pre>`.
Each `<pre>` says its language in `data-language`.

Formulas become `<math alttext="...">`, LaTeX that the segmenter writes between `$` or `$$`: MathML, what KaTeX and
MathJax leave, images of TeX, powers. MathML that states its TeX (`alttext`, an annotation) is left to the segmenter. At
most `MOST` bytes of MathML are converted on a page; the rest keeps its letters.
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
from gristmill.stages.extract.mathml import latex_of

INSIDE = rb"(?:[^<>\"']++|\"[^\"]*\"|'[^']*')*+"
CODE_BOX = (
    rb"class\s*=\s*[\"']?(?:[^\"'>]*[\s])?(?:block-?code|code-?block|codebox|source-?code|bbcode_code|syntaxhighlighter|"
    rb"code-container)[\s\"']"
)
_PRE = (
    rb"(pre|PRE|listing)(?=[\s>])("
    + INSIDE
    + rb")|(code|CODE)(?=[\s>])("
    + INSIDE
    + rb")|(table|TABLE)\b("
    + INSIDE
    + rb")"
)
PLACE = re.compile(rb"<(?:" + _PRE + rb"|(div)\s(?=[^<>]*" + CODE_BOX + rb")(" + INSIDE + rb"))>")
PLACE_WITHOUT_BOXES = re.compile(rb"<(?:" + _PRE + rb"|(\Z)(\Z))>")
ROWS_OF_CODE = re.compile(
    rb"[\"'\s](?:blob-code|blob-num|lines-code|lines-num|u-lineNum|FileContents-line|hljs-ln-code|js-file-line|"
    rb"line number1\b|crayon-line|highlighttable|rouge-table|lntable|linenodiv|linenos|lineno|gutter|code-line)"
)
MARKUP = r"<(/?)([a-zA-Z][\w-]*)((?:[^<>\"']++|\"[^\"]*\"|'[^']*')*+)>|([^<]+)|<"
TOKEN, TOKEN_OR_COMMENT = re.compile(MARKUP), re.compile(r"<!--(?s:.*?)-->|" + MARKUP)
LANGUAGE = re.compile(
    r"(?i)(?:\bdata-(?:lang|language|code-language|enlighter-language|codetabs-lang)\s*=\s*[\"']?\s*|\blang:|"
    r"(?:^|[\s\"'])(?:language|lang|highlight-source|highlight-text|highlight|sp|brush)[-_:]\s*)"
    r"([a-z][\w+#.-]*)"
)
NO_LANGUAGE = frozenset(
    [
        "none",
        "text",
        "plain",
        "plaintext",
        "plain-text",
        "txt",
        "true",
        "false",
        "default",
        "auto",
        "null",
        "undefined",
        "code",
        "block",
        "highlight",
        "html5",
        "wrap",
        "wrapper",
        "container",
        "box",
        "toolbar",
        "line",
        "lines",
        "linenums",
        "line-numbers",
        "source",
        "src",
        "pre",
        "area",
        "inner",
        "view",
        "content",
        "cm",
        "copy",
        "body",
        "no",
        "nohighlight",
        "editor",
        "sample",
        "snippet",
        "wrapped",
        "pristine",
        "layout",
        "stack",
        "header",
        "tab",
        "tabs",
        "title",
        "scroll",
        "dark",
        "light",
        "theme",
        "js-code",
        "en",
        "en-us",
        "enlighter",
        "hljs",
        "chroma",
    ]
)
BRUSH = re.compile(r"(?i)brush:\s*[\"']?([a-z][\w+#-]*)")
NUMBER_CLASS = re.compile(
    r"(?i)\b(?:class\s*=\s*(?:\"[^\"]*?|'[^']*?|)(?:\b|_)(?:line-?numbers?|linenos?|linenumber|lineno|lnt?|lnum|ln-num|"
    r"gutter|blob-num|lines-num|u-lineNum|hljs-ln-n|hljs-ln-numbers|lntd|rouge-gutter|crayon-nums?)(?:\b|_)|data-line-number|"
    r"data-pseudo-content|style\s*=\s*[\"'][^\"']*user-select:\s*none)"
)
_NUMBERS = (  # NUMBER_CLASS of small letters, each with letters in front that are quick to find
    re.compile(
        r"class(?<=\bclass)\s*=\s*(?:\"[^\"]*?|'[^']*?|)(?:\b|_)(?:line-?numbers?|linenos?|linenumber|lineno|lnt?|lnum|"
        r"ln-num|gutter|blob-num|lines-num|u-linenum|hljs-ln-n|hljs-ln-numbers|lntd|rouge-gutter|crayon-nums?)(?:\b|_)"
    ),
    re.compile(r"data-(?<=\bdata-)(?:line-number|pseudo-content)"),
    re.compile(r"style(?<=\bstyle)\s*=\s*[\"'][^\"']*user-select:\s*none"),
)
HIDDEN = re.compile(
    r"(?i)class\s*=\s*[\"'][^\"']*(?:hover-info|sr-only|visually-hidden|copy-?(?:btn|button|code)|clipboard|code-?lang-?label)"
    r"|\shidden(?:[\s=]|$)|onclick\s*=\s*[\"']?copycode"
)
DIGITS_NEXT = re.compile(r"\s*(?:<(?!/)[^<>]*>\s*){0,3}\d*\s*<")
# Possessive: numbers of a table, which end in a word, would be parted in all ways.
ONLY_NUMBERS = re.compile(r"(?:\s*+\d{1,6}+[.:|]?+\s*+)++")
BLOCKS = frozenset(
    ["div", "li", "p", "tr", "ol", "ul", "table", "tbody", "pre", "dd", "dt", "section", "h1", "h2", "h3", "h4"]
)
VOID = frozenset(["br", "img", "wbr", "hr", "input", "col", "link", "meta"])
UNSEEN = frozenset(["script", "style", "svg", "button", "textarea", "template"])
INNER_LINES = re.compile(r"(?i)<(?:div|li|p|tr|br|ol|table|pre|button)\b")
SEVERAL = re.compile(r"(?is)<code\b[^<>]*>(.*?)</code\s*>")
NEITHER = (False, False)
LONGEST = 5_000_000
LOOKED_THROUGH = 8  # times a page's length (and LITTLE more); elements that lie in each other are looked through each
LITTLE = 100_000


def rewrite_structure(data: bytes, hints: Hints) -> bytes:
    """The page with its code and formulas in markup that the segmenter reads; `hints` as of `hints_of`."""
    coded = with_code(data, hints)
    return with_formulas(coded, hints if coded is data else hints_of(coded))


def with_code(data: bytes, hints: Hints) -> bytes:
    """The page with its code in plain `<pre>`; `hints` as of `hints_of`."""
    bits = hints.bits
    if not bits & (hint.PRE | hint.CODE | hint.BOX) and bits & (hint.WORD | hint.TABLE) != hint.WORD | hint.TABLE:
        return data
    place = PLACE if bits & hint.BOX else PLACE_WITHOUT_BOXES
    parts, done, behind, left = [], 0, 0, LOOKED_THROUGH * len(data) + LITTLE
    absent: set[bytes] = set()  # ends that do not come any more
    for start, _ in hints.of(hint.OF_CODE):
        if start < behind or (found := place.match(data, start)) is None:
            continue
        at = found.end()
        tag = (found[1] or found[3] or found[5] or found[7]).lower()
        attrs = (found[2] or found[4] or found[6] or found[8] or b"").decode("utf-8", "replace")
        if tag in absent or (tag == b"table" and not ROWS_OF_CODE.search(data, start, at + 1500)):
            continue
        ends = end_of(data, tag, at)
        if ends is None:
            absent.add(tag)
            continue
        first, last = ends
        left -= last - at
        if left < 0:
            break
        if first - at > LONGEST:
            continue
        if (
            tag == b"code"
            and data.find(b"\n", at, first) < 0
            and data.find(b"<br", at, first) < 0
            and "block" not in attrs
        ):
            behind = last
            continue
        content = data[at:first].decode("utf-8", "replace")
        language = language_of(attrs, content, data[max(start - 300, 0) : start])
        follows = data[last : last + 200]
        new = rewritten(tag, attrs, content, language, follows)
        if new is None:
            continue
        parts += [data[done:start], new.encode("utf-8", "replace")]
        done = behind = last
    return b"".join([*parts, data[done:]]) if parts else data


def scripts(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the scripts of a page are; nothing in them is markup."""
    low, at = data.lower(), 0
    while (start := low.find(b"<script", at)) >= 0 and (at := low.find(b"</script", start)) >= 0:
        yield start, at


def end_of(data: bytes, tag: bytes, at: int) -> tuple[int, int] | None:
    """Where an element's content ends and where what follows it begins; tables and boxes may hold their like."""
    depth = 1
    for found in re.compile(rb"(?i)<(/?)" + tag + rb"(?=[\s>/])[^<>]*>").finditer(data, at, at + LONGEST):
        if found[1]:
            depth -= 1
        elif tag in (b"table", b"div"):
            depth += 1
        if depth == 0:
            return found.start(), found.end()
        if depth > 50:
            return None
    return None


def rewritten(tag: bytes, attrs: str, content: str, language: str, follows: bytes) -> str | None:
    """The element as `<pre>`; None where it is left as it is."""
    if tag in (b"pre", b"listing"):
        numbered = has_numbers(content) or ONLY_NUMBERS.match(content[:40]) is not None
        if (
            not numbered
            and not INNER_LINES.search(content)
            and content.count("<code") < 2
            and "hover-info" not in content
        ):
            return f"<pre{language}>{content}</pre>" if language else None
        if content.count("<code") > 1:
            if several := apart(content, language):
                return several
            if not numbered and not INNER_LINES.search(content):
                return f"<pre{language}>{content}</pre>" if language else None
        text = code_text(content)
        if numbered and not text.strip() and "lnt" in content:
            return " "
        if ONLY_NUMBERS.fullmatch(text) and is_count(text) and re.match(rb"(?i)\s*(?:</div>\s*)*</td>\s*<td", follows):
            return " "  # the numbers of the lines that the next cell holds
        return pre(text, language) if text.strip() else None
    if tag == b"code":
        if "<pre" in content:
            return None
        is_block = re.search(r"class\s*=\s*[\"'][^\"']*\bblock\b", attrs) is not None
        if not is_block and "\n" not in content and "<br" not in content:
            return None
        is_block = (
            is_block or re.search(r"white-space:\s*pre|\b(?:block|hljs|highlight)\b|\blanguage-", attrs) is not None
        )
        if not is_block and not re.search(r"(?i)<br", content):
            return None
        lines = code_text(content, keeps_lines=is_block)
        return pre(lines, language) if "\n" in lines.strip() or is_block else None
    if tag == b"div":
        if re.search(
            r"(?i)<(?:pre|table|code|p|a|h\d|img|blockquote|ul|form|section|article)\b", content
        ) or not re.search(r"(?i)\n|<br|<li", content):
            return None
        content = content.strip() if "<li" in content else content
        text = code_text(content, keeps_lines="<li" not in content)
        return pre(text, language) if "\n" in text.strip() else None
    text = code_text(content, keeps_lines="<pre" in content, rows=True)
    return pre(text, language) if text.strip() else None


def has_numbers(content: str) -> bool:
    """Whether NUMBER_CLASS is found in it."""
    small = content.lower()
    return any(pattern.search(small) is not None for pattern in _NUMBERS)


def pre(text: str, language: str) -> str:
    return f"<pre{language}>\n{html.escape(text, quote=False)}</pre>"


def apart(content: str, language: str) -> str | None:
    """A <pre> with text around several pieces of code, one of them of many lines: each is code of its own."""
    pieces = list(SEVERAL.finditer(content))
    outside = code_text(SEVERAL.sub(" ", content))
    if not outside.strip() or not any("\n" in piece[1].strip() for piece in pieces):
        return None
    parts, done = [], 0
    for piece in pieces:
        parts += [f"<p>{content[done : piece.start()]}</p>", pre(code_text(piece[1]), language)]
        done = piece.end()
    return "<div>" + "".join(parts) + f"<p>{content[done:]}</p></div>"


def tokens_of(content: str) -> Iterator[re.Match[str]]:
    """Tags, comments and text. A comment without an end is text; its end is not looked for again and again."""
    last = content.rfind("-->")
    return TOKEN.finditer(content) if last < 0 else tokens_and_comments(content, last)


def tokens_and_comments(content: str, last: int) -> Iterator[re.Match[str]]:
    at = 0
    for token in TOKEN_OR_COMMENT.finditer(content):
        yield token
        at = token.end()
        if at > last:
            break
    yield from TOKEN.finditer(content, at)


def code_text(content: str, keeps_lines: bool = True, rows: bool = False) -> str:
    """The text of code line by line: an element of its own for a line ends it, numbers of lines are left out."""
    if (
        len(breaks := re.findall(r"(?i)<br\s*/?>(?:\r?\n)?", content)) > 1
        and content.count("\n") == sum("\n" in line for line in breaks) >= len(breaks) - 1
    ):
        keeps_lines = False  # each line of the source ends with <br> too
    out: list[str] = []
    stack: list[str] = []
    skipped = -1  # depth of an element that is not shown
    fresh, cell_at = True, -1  # whether a line has just ended; where the line's cell began
    inside_pre = 0
    said: dict[str, tuple[bool, bool]] = {}  # by attributes: whether they hide, whether they are of numbers of lines
    for token in tokens_of(content):
        ends, tag, attrs, text = token.groups()
        if text is not None:
            if skipped >= 0:
                continue
            text = text.replace("\r\n", "\n") if "\r" in text else text
            if not keeps_lines and not inside_pre:
                text = re.sub(r"\n[ \t]*", "" if not text.strip() else "\n", text).strip("\n") if "\n" in text else text
            elif rows and not inside_pre and not text.strip() and "\n" in text:
                continue
            if text:
                text = (html.unescape(text) if "&" in text else text).replace("\xa0", " ")
                out.append(text)
                fresh = text.endswith("\n")
        elif tag is not None:
            tag = tag.lower()
            if tag == "br":
                if skipped < 0:
                    out.append("\n")
                    fresh = True
            elif ends:
                if tag == "span" and skipped < 0 and stack and stack[-1] == tag:  # most tags of code
                    stack.pop()
                    continue
                if tag not in stack:
                    continue
                while stack:
                    closed = stack.pop()
                    if closed == "pre":
                        inside_pre -= 1
                    if skipped >= len(stack):
                        skipped = -1
                    elif closed in BLOCKS and skipped < 0 and not fresh:
                        out.append("\n")
                        fresh = True
                    elif skipped < 0 and closed in ("li", "tr", "div") and out and cell_at == len(out):
                        out.append("\n")  # an empty line
                    if closed == tag:
                        break
            elif tag not in VOID and attrs[-1:] != "/":
                if len(stack) > 200:
                    continue
                hides, numbers = said.get(attrs, NEITHER)
                if skipped < 0 and attrs and attrs not in said:
                    said[attrs] = hides, numbers = (
                        HIDDEN.search(attrs) is not None, NUMBER_CLASS.search(attrs) is not None
                    )  # fmt: skip
                if tag == "span" and not hides and not numbers:
                    stack.append(tag)
                    continue
                if skipped < 0 and (
                    tag in UNSEEN
                    or hides
                    or (numbers
                        and ((tag == "td" and "code" not in attrs and "class" in attrs)
                             or DIGITS_NEXT.match(content, token.end(), token.end() + 200) is not None))
                ):  # fmt: skip
                    skipped = len(stack)
                elif tag in BLOCKS and not fresh and skipped < 0 and tag not in ("table", "tbody", "ol", "ul"):
                    out.append("\n")
                    fresh = True
                stack.append(tag)
                if tag == "pre":
                    inside_pre += 1
                if tag in ("li", "tr", "div") and skipped < 0:
                    cell_at = len(out)
    return without_numbers("".join(out))


def without_numbers(text: str) -> str:
    """Less the numbers of its lines, where each line has one, or each other line is one."""
    lines = text.split("\n")
    numbers = [line.strip() for line in lines if line.strip()]
    if len(numbers) < 4 or (not numbers[0].isdigit() and not numbers[0][0].isdigit()):
        return text
    if numbers[0].isdigit() and is_count("\n".join(numbers[::2])) and not is_count("\n".join(numbers)):
        kept, expected = [], int(numbers[0])
        for line in lines:
            if line.strip() == str(expected):
                expected += 1
            else:
                kept.append(line)
        return "\n".join(kept)
    filled = [re.match(r"\s*(\d+)(?=\D|$)[ \t]*", line) for line in lines if line.strip()]
    counts = [int(found[1][:9]) if found else -1 for found in filled]
    if counts[0] in (0, 1) and counts == list(range(counts[0], counts[0] + len(counts))) and len(set(numbers)) > 3:
        if all(line.isdigit() for line in numbers):
            return text
        rest = [re.sub(r"^\s*\d+", "", line) for line in lines]
        if all(not line.strip() or line[0] in " \t" for line in rest):
            width = min((len(line) - len(line.lstrip(" \t")) for line in rest if line.strip()), default=0)
            return "\n".join(line[width:] for line in rest)
    return text


def is_count(text: str) -> bool:
    numbers = [int(word[:9]) for word in re.findall(r"\d+", text)]
    words = text.split()
    return len(numbers) == len(words) > 0 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def tags_at_end(text: str) -> str:
    """The last tags of a text, four at most, with nothing but white space after each."""
    begin = end = len(text)
    for _ in range(4):
        tag = text[:end].rstrip()
        start = tag.rfind("<")
        if start < 0 or tag.find(">", start) != len(tag) - 1:
            break
        begin = end = start
    return text[begin:]


def language_of(attrs: str, content: str, before: bytes) -> str:
    """` data-language=...` as the element, a <code> that begins it, or the box around it names it; else nothing."""
    inner = re.match(r"\s*(?:<[^<>]*>\s*){0,3}?<code\b([^<>]*)>", content)
    for source in (attrs, inner[1] if inner else "", tags_at_end(before.decode("utf-8", "replace")[-300:])):
        if not source or len(source) > 2000:
            continue
        brush = BRUSH.search(source)
        for name in [brush[1]] if brush else LANGUAGE.findall(source):
            clean = name.lower().rstrip(".-").removeprefix("source-")
            if clean not in NO_LANGUAGE and 0 < len(clean) <= 20 and not clean.endswith(("-block", "-wrapper", "-box")):
                return f" data-language={clean}"
        bare = re.search(
            r"class\s*=\s*[\"']?(?:[^\"'>]*\s)?(?:highlight|hljs|hl|code|sourceCode|prettyprint)\s+([a-z+#]{1,12})\b",
            source,
        )
        if bare and bare[1] not in NO_LANGUAGE:
            return f" data-language={bare[1]}"
    return ""


# --- formulas ---------------------------------------------------------------------------------------------------------

MOST = 2_000_000
LONGEST_TEX = 20_000
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
EMBEDDED = re.compile(rb"data:image[^\"'\s<>]*+")  # an image in its own address
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
    attrs = EMBEDDED.sub(b"data:", found[1]) if b"data:image" in found[1] else found[1]
    if not IMAGE_HINT.search(attrs):
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
