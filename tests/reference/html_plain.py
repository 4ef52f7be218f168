"""The reference of `kernels/html/segment.py`: the same page from the same bytes, with lists, regular expressions and
single characters."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import replace

import numpy as np

from gristmill.kernels.html import names
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.open_elements import DEEPEST
from gristmill.kernels.html.segment import Page
from gristmill.kernels.html.tables import name_hash
from tests.reference.html_plain_text import (
    ATTRIBUTE_NAME,
    BETWEEN,
    BLOCK,
    BREAKS_OUT,
    DESCRIBING,
    ENDS_P,
    EQUALS,
    FORMATTING,
    HEADINGS,
    INLINE,
    LEAVES,
    NAME,
    PARTS_OF_TABLE,
    POWER,
    PRICE,
    RAW,
    SCOPE,
    SCRIPT,
    SECTIONS,
    SPACE_BYTES,
    SPECIAL,
    TABLE_SCOPE,
    UNQUOTED,
    UNSEEN,
    WHITE,
    WRAPPED,
    Open,
    Said,
    Writer,
    bits_of,
    matched,
    media_type,
    unescape,
)

END_OF_NOSCRIPT = re.compile(rb"(?i)</noscript[" + WHITE + rb"/>]")


def segment_plain(data: bytes) -> Page:
    return Builder(data).page()


class Builder(Writer):
    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = self.whole = data
        self.noscript_end = 0
        self.elements: list[tuple[int, int, int, int]] = [(TAGS.index("html"), -1, 0, 0)]
        self.heads: list[tuple[int, int, int]] = []
        self.over = 0
        self.math: Open | None = None
        self.before_math: tuple[int, list[str], list[bool], str, bool] = 0, [], [], "", False

    def page(self) -> Page:
        at = 0
        while at < len(self.whole):
            if at >= self.noscript_end:
                self.data = self.whole
            at = self.one_token(at)
        self.flush()
        tag, parent, bits, alike = zip(*self.elements, strict=True)
        texts = [text.encode() for text, _, _ in self.blocks]
        kinds, starts, ends = ([head[i] for head in self.heads] for i in range(3))
        return Page(
            np.array(tag, np.uint8), np.array(parent, np.int32), np.array(bits, np.uint32), np.array(alike, np.uint32),
            np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)]).astype(np.int64),
            np.array([element for _, element, _ in self.blocks], np.int32), np.array([linked for _, _, linked in self.blocks], np.int32),
            np.array([len(text) for text, _, _ in self.blocks], np.int32),
            np.array(kinds, np.uint8), np.array(starts, np.int64), np.array(ends, np.int64),
        )  # fmt: skip

    # Tokens

    def one_token(self, at: int) -> int:
        data = self.data
        if data[at] != ord("<"):
            end = data.find(b"<", at)
            end = len(data) if end < 0 else end
            if not self.skip:
                self.write(unescape(self.lines(data[at:end]), in_attribute=False))
            return end
        if data[at + 1 : at + 2] in (b"!", b"?"):
            if self.math and not self.skip and data.startswith(b"<![CDATA[", at):
                end = data.find(b"]]>", at + 9)
                self.write(self.lines(data[at + 9 : None if end < 0 else end]))
            return self.after_declaration(at, foreign=self.math is not None)
        ends = data[at + 1 : at + 2] == b"/"
        begin = at + 1 + ends
        if re.match(rb"[A-Za-z]", data[begin : begin + 1]):
            return self.tag(at, begin, ends)
        if ends and begin < len(data):
            return self.behind(b">", begin)
        if not self.skip:
            self.write(data[at:begin].decode())
        return begin

    def lines(self, raw: bytes) -> str:
        text = raw.decode().replace("\r\n", "\n")
        return text if self.keeps_space() else WRAPPED.sub("", text)

    def behind(self, what: bytes, at: int) -> int:
        found = self.data.find(what, at)
        return len(self.data) if found < 0 else found + len(what)

    def after_declaration(self, at: int, foreign: bool) -> int:
        if self.data.startswith(b"<!--", at):
            found = re.compile(rb"-?>|[\s\S]*?--!?>").match(self.data, at + 4)
            return found.end() if found else len(self.data)
        if foreign and self.data.startswith(b"<![CDATA[", at):
            return self.behind(b"]]>", at + 9)
        return self.behind(b">", at + 1)

    def attributes(self, at: int) -> tuple[Said, int] | None:
        said = Said()
        while True:
            before = at
            at += len(matched(BETWEEN, self.data, at))
            if at >= len(self.data):
                return None
            if self.data[at] == ord(">"):
                said.closed = at > before and self.data[at - 1] == ord("/")
                return said, at + 1
            name = matched(ATTRIBUTE_NAME, self.data, at)
            at += len(name)
            equals = EQUALS.match(self.data, at)
            value = b""
            if equals:
                at = equals.end()
                quote = self.data[at : at + 1]
                if quote in (b'"', b"'"):
                    end = self.data.find(quote, at + 1)
                    if end < 0:
                        return None
                    value, at = self.data[at + 1 : end], end + 1
                else:
                    value = matched(UNQUOTED, self.data, at)
                    at += len(value)
            self.attribute(said, name.lower().decode("latin-1"), value)

    def attribute(self, said: Said, name: str, value: bytes) -> None:
        if name in DESCRIBING:
            said.bits |= bits_of(value)
            if name == "class":
                said.first_class = name_hash(
                    (re.split(rb"[" + WHITE + rb"]+", value.lstrip(b"\t\n\f\r "), maxsplit=1))[0]
                )
        elif name == "style":
            said.bits |= bits_of(value) & names.HIDDEN
        elif name == "hidden" or (name == "aria-hidden" and value[:1] in (b"t", b"T")):
            said.bits |= names.HIDDEN
        elif name == "href":
            said.href = True
        elif name in ("type", "encoding"):
            said.kind = value
        elif name == "alttext":
            said.alt = value
        elif name == "display":
            said.as_block = value[:1] in (b"b", b"B")
        elif name == "shadowrootmode":
            said.shadow = True
        elif name == "open":
            said.is_open = True
        elif name == "value":
            whole = re.match(rb"[" + WHITE + rb"]*([+-]?[0-9]{1,9})(?![0-9])", value)
            said.number = int(whole[1]) if whole else None
        elif name in ("colspan", "rowspan"):
            digits = re.match(rb"[" + WHITE + rb"]*0*([0-9]*)", value)
            number = int(digits[1][:9] or 0) if digits else 0
            said.spans = (
                (said.spans[0], min(number, 1000)) if name == "colspan" else (min(number, 65534), said.spans[1])
            )

    def tag(self, at: int, begin: int, ends: bool) -> int:
        name = matched(NAME, self.data, begin).lower()
        read = self.attributes(begin + len(name))
        if read is None:
            return len(self.data)
        said, after = read
        tag = name.decode("latin-1")
        if ends:
            self.end_tag(tag)
            return after
        if tag == "annotation" and self.math and not self.skip and media_type(said.kind) == b"application/x-tex":
            return self.math_said(after)
        heads = {
            "meta": names.HEAD_META,
            "link": names.HEAD_LINK,
            "base": names.HEAD_BASE,
            "time": names.HEAD_TIME,
            "html": names.HEAD_HTML,
        }
        if tag in heads and not self.skip:
            self.heads.append((heads[tag], at, after))
        if tag == "sup" and not self.skip and not self.math:
            self.power(after)
        known = len(self.elements)
        self.start_tag(tag, name, said)
        if tag in ("ol", "pre") and not self.skip:
            self.heads.append((names.HEAD_LIST if tag == "ol" else names.HEAD_PRE, at, after))
        if tag in ("td", "th") and any(said.spans) and len(self.elements) > known and not self.skip:
            self.heads.append((names.HEAD_CELL, len(self.elements) - 1, said.spans[0] << 16 | said.spans[1]))
        if tag == "li" and said.number is not None and len(self.elements) > known and not self.skip:
            self.heads.append((names.HEAD_ITEM, len(self.elements) - 1, said.number))
        if tag == "noscript" and at >= self.noscript_end:
            closed = END_OF_NOSCRIPT.search(self.data, after)
            self.noscript_end = closed.start() if closed else len(self.data)
            self.data = self.data[: self.noscript_end]
        if tag == "svg":
            return after if said.closed else self.after_svg(after)
        if tag == "math":
            self.math_begins(said)
        elif tag in RAW:
            return self.raw_text(tag, after, said)
        return after

    def power(self, at: int) -> None:
        block = self.text
        found = POWER.match(self.data, at)
        if found and not block.gap and not block.blank() and block.characters[-1] in "0123456789":
            cents = len(found[1]) == 2 and found[1].isdigit() and PRICE.search("".join(block.characters))
            self.write(" " if found[2] else "." if cents else "^")

    def after_svg(self, at: int) -> int:
        depth, inside_html = 1, 0
        while True:
            at = self.data.find(b"<", at)
            if at < 0 or at + 1 >= len(self.data):
                return len(self.data)
            if self.data[at + 1 : at + 2] in (b"!", b"?"):
                at = self.after_declaration(at, foreign=True)
                continue
            found = re.compile(rb"</?[A-Za-z][^" + WHITE + rb"/>]*").match(self.data, at)
            if not found:
                at += 1
                continue
            tag = found[0].lstrip(b"</").lower().decode("latin-1")
            closing = found[0][1] == ord("/")
            breaks = tag in BLOCK and any(o.name == tag for o in self.stack[1:]) if closing else tag in BREAKS_OUT
            if breaks and not inside_html:
                return at
            read = self.attributes(found.end())
            if read is None:
                return len(self.data)
            said, at = read
            if said.closed:
                continue
            if tag == "svg":
                depth += -1 if closing else 1
                if depth == 0:
                    return at
            elif tag in ("foreignobject", "desc", "title"):
                inside_html = max(inside_html + (-1 if closing else 1), 0)

    def raw_text(self, tag: str, at: int, said: Said) -> int:
        if tag == "plaintext":
            end = len(self.data)
        elif tag == "script":
            end = self.end_of_script(at)
        else:
            found = re.compile(rb"(?i)</" + tag.encode() + rb"[" + WHITE + rb"/>]").search(self.data, at)
            end = found.start() if found else len(self.data)
        if self.skip:
            return end
        content = self.data[at:end]
        if tag == "title":
            self.heads.append((names.HEAD_TITLE, at, end))
        elif tag == "script" and media_type(said.kind) == b"application/ld+json":
            self.heads.append((names.HEAD_JSON, at, end))
        elif tag == "script" and media_type(said.kind) == b"math/tex":
            self.formula(content, media_type(said.kind[-7:]) == b"display", lambda text: text)
        elif tag in ("xmp", "plaintext"):
            self.stack.append(Open("", len(self.elements) - 1, keeps_space=True))
            self.write(self.lines(content))
            self.flush()
            self.stack.pop()
        return end

    def end_of_script(self, at: int) -> int:
        escaped = doubly = False
        while found := SCRIPT.search(self.data, at):
            at = found.end()
            if found[1] and not escaped:
                escaped, at = True, found.start() + 2
            elif found[2]:
                escaped = doubly = False
            elif found[3] == b"</":
                if not doubly:
                    return found.start()
                doubly = False
            elif found[3] == b"<" and escaped:
                doubly = True
        return len(self.data)

    # Formulas

    def math_begins(self, said: Said) -> None:
        if self.skip or self.math:
            return
        if self.stack[-1].name == "math" and not said.closed:
            self.math = self.stack[-1]
            self.before_math = (
                len(self.blocks),
                self.text.characters[:],
                self.text.linked[:],
                self.text.gap,
                said.as_block,
            )
        if self.formula(said.alt, said.as_block, lambda text: unescape(text, in_attribute=True)):
            self.skip = self.math

    def math_said(self, at: int) -> int:
        end = self.data.find(b"<", at)
        end = len(self.data) if end < 0 else end
        blocks, characters, linked, gap, twice = self.before_math
        if self.data[at:end].strip(SPACE_BYTES) and len(self.blocks) == blocks:
            self.text.characters, self.text.linked, self.text.gap = characters[:], linked[:], gap
            self.formula(self.data[at:end], twice, lambda text: unescape(text, in_attribute=False))
            self.skip = self.math
        return end

    # Open elements

    def close(self, depth: int) -> None:
        for element in self.stack[depth:]:
            if element is self.skip:
                self.skip = None
            if element is self.math:
                self.math = None
        del self.stack[depth:]

    def nearest(self, tags: set[str], scope: Set[str]) -> int:
        for depth in range(len(self.stack) - 1, 0, -1):
            if self.stack[depth].name in tags:
                return depth
            if self.stack[depth].name in scope:
                return 0
        return 0

    def close_nearest(self, tags: set[str], scope: Set[str]) -> None:
        depth = self.nearest(tags, scope)
        if depth:
            self.close(depth)

    def close_inline(self, tag: str) -> None:
        depth = self.nearest({tag}, SCOPE)
        if not depth:
            return
        if any(element.name in SPECIAL for element in self.stack[depth + 1 :]):
            self.stack[depth].name, self.stack[depth].link = "", False
        else:
            self.close(depth)

    def close_item(self, tags: set[str]) -> None:
        for depth in range(len(self.stack) - 1, 0, -1):
            name = self.stack[depth].name
            if name in tags:
                self.close(depth)
                return
            if name in SPECIAL and name not in ("address", "div", "p"):
                return

    def close_implied(self, tag: str) -> bool:
        if tag in ENDS_P:
            self.close_nearest({"p"}, SCOPE | {"button"})
        top = self.stack[-1].name
        if tag in HEADINGS and top in HEADINGS:
            self.close(len(self.stack) - 1)
        elif tag == "a":
            self.close_inline("a")
        elif tag == "li":
            self.close_item({"li"})
        elif tag in ("dt", "dd"):
            self.close_item({"dt", "dd"})
        elif tag == "button":
            self.close_nearest({"button"}, SCOPE)
        elif (tag in ("option", "optgroup") and top in ("option", tag)) or (
            tag in ("rt", "rp") and top in ("rt", "rp")
        ):
            self.close(len(self.stack) - 1)
        elif tag == "form":
            return not any(element.name == "form" for element in self.stack)
        elif tag == "table" and top in SECTIONS | {"table", "tr"}:
            self.close(self.nearest({"table"}, TABLE_SCOPE))
        elif tag in PARTS_OF_TABLE:
            table = self.nearest({"table"}, TABLE_SCOPE)
            if not table:
                return False
            context = {"td": SECTIONS | {"tr"}, "th": SECTIONS | {"tr"}, "tr": SECTIONS}.get(tag, set())
            while len(self.stack) - 1 > table and self.stack[-1].name not in context:
                self.close(len(self.stack) - 1)
        return True

    def push(self, tag: str, name: bytes, said: Said) -> None:
        place = self.stack[-1].place
        bits = said.bits | (names.HIDDEN if tag == "dialog" and not said.is_open else 0)
        if not self.skip and (bits or tag not in INLINE):
            self.elements.append((TAGS.index(tag) if tag in TAGS else 0, place, bits, alike(name, said)))
            place = len(self.elements) - 1
        if tag in LEAVES or (said.closed and (self.math or tag == "math")):
            return
        if len(self.stack) - 1 >= DEEPEST:
            self.over += 1
            return
        element = Open(tag, place, link=tag == "a" and said.href, keeps_space=tag in ("pre", "listing"))
        self.stack.append(element)
        if not self.skip and ((tag in UNSEEN and not said.shadow) or (tag in ("span", "a") and bits & names.LEFT_OUT)):
            self.skip = element

    def start_tag(self, tag: str, name: bytes, said: Said) -> None:
        if tag == "br":
            self.line_break()
            return
        skipped = self.skip
        if tag in BLOCK and not skipped:
            self.flush()
        if tag == "html":
            root = self.elements[0]
            self.elements[0] = (root[0], root[1], root[2] | said.bits, alike(name, said))
            return
        if tag == "head" or (tag == "body" and any(element.name == "body" for element in self.stack)):
            return
        if (
            self.math
            and tag in BREAKS_OUT
            and self.stack[-1].name not in ("mi", "mo", "mn", "ms", "mtext", "annotation-xml")
        ):
            self.close(self.stack.index(self.math))
        counts = self.close_implied(tag)
        if skipped and not self.skip and tag in BLOCK:
            self.flush()
        if not counts:
            return
        if tag in ("td", "th") and self.stack[-1].name != "tr" and len(self.stack) - 1 < DEEPEST:
            self.push("tr", b"tr", replace(said, bits=0, first_class=0))
        self.push(tag, name, said)

    def end_tag(self, tag: str) -> None:
        if tag == "br":
            self.line_break()
            return
        skipped = self.skip
        if tag in BLOCK and not skipped:
            self.flush()
        if tag in ("html", "head", "body"):
            return
        if self.over:
            self.over -= 1
        else:
            self.close_by_name(tag)
        if skipped and not self.skip and tag in BLOCK:
            self.flush()

    def close_by_name(self, tag: str) -> None:
        if tag in HEADINGS:
            self.close_nearest(set(HEADINGS), SCOPE)
        elif tag in FORMATTING or tag == "form":
            self.close_inline(tag)
        elif tag in PARTS_OF_TABLE or tag == "table":
            self.close_nearest({tag}, TABLE_SCOPE)
        elif tag == "p":
            self.close_nearest({tag}, SCOPE | {"button"})
        elif tag == "li":
            self.close_nearest({tag}, SCOPE | {"ol", "ul"})
        elif tag in BLOCK | SPECIAL:
            self.close_nearest({tag}, SCOPE)
        else:
            self.close_nearest({tag}, SPECIAL)


def alike(name: bytes, said: Said) -> int:
    return (name_hash(name) ^ (said.first_class * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)) >> 32
