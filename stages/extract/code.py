"""Code of a page as plain `<pre>` before it is cut into blocks: lines, indentation and language kept, line numbers not.

Rewritten are a `<pre>` that holds elements of its own for lines or numbers; tables with a line of code in each row
(GitHub, Gitea, Gitiles, SyntaxHighlighter, highlight.js); lists with one in each item (Discuz); `<code>` and boxes of
code without a `<pre>`. Each `<pre>` says its language in `data-language`. A page without code is returned as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from gristmill.kernels.html import hints as hint
from gristmill.kernels.html.hints import Hints

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
ONLY_NUMBERS = re.compile(r"(?:\s*\d{1,6}[.:|]?\s*)+")
BLOCKS = frozenset(
    ["div", "li", "p", "tr", "ol", "ul", "table", "tbody", "pre", "dd", "dt", "section", "h1", "h2", "h3", "h4"]
)
VOID = frozenset(["br", "img", "wbr", "hr", "input", "col", "link", "meta"])
UNSEEN = frozenset(["script", "style", "svg", "button", "textarea", "template"])
INNER_LINES = re.compile(r"(?i)<(?:div|li|p|tr|br|ol|table|pre|button)\b")
SEVERAL = re.compile(r"(?is)<code\b[^<>]*>(.*?)</code\s*>")
LONGEST = 5_000_000
LOOKED_THROUGH = 8  # times a page's length (and LITTLE more); elements that lie in each other are looked through each
LITTLE = 100_000


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
    at, last = 0, content.rfind("-->")
    if last >= 0:
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
    for token in tokens_of(content):
        ends, tag, attrs, text = token.groups()
        if text is not None:
            if skipped >= 0:
                continue
            text = text.replace("\r\n", "\n")
            if not keeps_lines and not inside_pre:
                text = re.sub(r"\n[ \t]*", "" if not text.strip() else "\n", text).strip("\n") if "\n" in text else text
            elif rows and not inside_pre and not text.strip() and "\n" in text:
                continue
            if text:
                text = html.unescape(text).replace("\xa0", " ")
                out.append(text)
                fresh = text.endswith("\n")
        elif tag is not None:
            tag = tag.lower()
            if tag == "br":
                if skipped < 0:
                    out.append("\n")
                    fresh = True
            elif ends:
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
            elif tag not in VOID and not attrs.endswith("/"):
                if len(stack) > 200:
                    continue
                if skipped < 0 and (
                    tag in UNSEEN
                    or (attrs and HIDDEN.search(attrs) is not None)
                    or (attrs and NUMBER_CLASS.search(attrs) is not None
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
