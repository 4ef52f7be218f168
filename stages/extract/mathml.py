"""Presentation MathML as LaTeX: fractions, roots, scripts, limits, matrices, fences, accents, letters.

Elements are written as they end, from what their children were written as, so that depth costs no recursion. Read as
KaTeX, MathJax, Temml, LaTeXML, Word and MathType write it. A formula nested deeper than `DEEPEST` or longer than
`LONGEST` is none.
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

from gristmill.stages.extract.symbols import (
    ARROWS,
    BARS,
    CLOSING,
    FUNCTIONS,
    INVISIBLE,
    LARGE,
    LIMITS,
    OPENING,
    OVER,
    SPELLED,
    SYMBOLS,
    UNDER,
    VARIANTS,
    WIDE,
    letter,
)

DEEPEST, LONGEST = 100, 100_000
TOKEN = re.compile(
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[(?P<raw>.*?)(?:\]\]>|\Z)|<(?P<ends>/?)(?:[\w.-]{1,20}:)?(?P<tag>[A-Za-z][\w.-]*)"
    r"(?P<attrs>(?:[^<>\"']++|\"[^\"]*\"|'[^']*')*+)>|(?P<text>[^<]+)|<",
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"([\w:-]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>/]+))|([\w:-]+)")
SPACE = re.compile(r"\s+")
COMMAND_ENDS = re.compile(r"\\[A-Za-z]+\Z")
ATOM = re.compile(r"\\[A-Za-z]+|\\.|[^\\{}^_]|\\(?:math[a-z]+|boldsymbol|operatorname\*?)\{[^{}]*\}")
NUMBER = re.compile(r"[\d.,]+")
PRIMES = re.compile(r"'+")
TALL = re.compile(r"\\(?:frac|sum|prod|int|begin|sqrt|oint|iint|binom|bigcup|bigcap|overline|overbrace)(?![A-Za-z])")
TEXT_ESCAPES = str.maketrans({"{": "\\{", "}": "\\}", "%": "\\%", "#": "\\#", "$": "\\$", "&": "\\&", "_": "\\_",
                              "\\": "\\backslash "})  # fmt: skip
TOKENS = frozenset(["mi", "mn", "mo", "mtext", "ms"])
LEFT_OUT = frozenset(["annotation", "annotation-xml", "mphantom", "mprescripts", "maligngroup", "malignmark", "none"])
RELATIONS = frozenset(["=", "<", ">", "≤", "≥", "≈", "≡", "∼", "≃", "≅", "≠", ":=", "∝", "⇒", "⇔", "→", "∈", "⊂", "⊆"])
MATRICES = {"()": "pmatrix", "[]": "bmatrix", "||": "vmatrix", "‖‖": "Vmatrix", "∥∥": "Vmatrix", "{}": "Bmatrix"}


class Node(NamedTuple):
    """One element, written."""

    tag: str
    tex: str
    raw: str = ""  # the characters of a token element
    attrs: dict[str, str] = {}  # noqa: RUF012 (never written to)
    cells: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


EMPTY = Node("", "")


class Open(NamedTuple):
    """An element that has not ended."""

    tag: str
    attrs: dict[str, str]
    children: list[Node]
    text: list[str]


def latex_of(source: str) -> str | None:
    """The LaTeX of an element <math>; None where it holds nothing or more than a formula may."""
    if len(source) > LONGEST:
        return None
    stack = [Open("math", {}, [], [])]
    for token in TOKEN.finditer(source):
        tag, text = token["tag"], token["text"] or token["raw"]
        if text is not None:
            stack[-1].text.append(text)
        elif tag is not None and not token["ends"]:
            tag, attrs = tag.lower(), token["attrs"]
            if not attrs.endswith("/") or ("=" in attrs and attrs.endswith("=/")):
                stack.append(Open(tag, attributes(attrs), [], []))
                if len(stack) > DEEPEST:
                    return None
            else:
                stack[-1].children.append(written(Open(tag, attributes(attrs[:-1]), [], [])))
        elif tag is not None:
            end(stack, tag.lower())
    while len(stack) > 1:
        end(stack, stack[-1].tag)
    tex = row(stack[0].children).tex
    return SPACE.sub(" ", tex).strip() or None


def end(stack: list[Open], tag: str) -> None:
    """An end tag; one of nothing that is open is passed over."""
    if all(opened.tag != tag for opened in stack[1:]):
        return
    while True:
        opened = stack.pop()
        stack[-1].children.append(written(opened))
        if opened.tag == tag:
            return


def attributes(attrs: str) -> dict[str, str]:
    if not attrs or attrs.isspace():
        return {}
    return {
        (found[1] or found[5]).lower(): html.unescape(found[2] or found[3] or found[4] or "")
        for found in ATTRIBUTE.finditer(attrs)
    }


def written(opened: Open) -> Node:
    tag, attrs, children = opened.tag, opened.attrs, opened.children
    if tag in TOKENS:
        if children and not opened.text:
            return row(children)
        text = SPACE.sub(" ", html.unescape("".join(opened.text))).translate(INVISIBLE)
        return token_of(tag, text if tag in ("mtext", "ms") else text.strip(), attrs)
    if tag in LEFT_OUT:
        return Node(tag, "")
    if tag == "mspace":
        return Node(tag, space(attrs.get("width", "")))
    if tag == "semantics" and children:
        return children[0]
    if tag == "maction" and children:
        return children[0]
    if tag == "mfenced":
        return fenced(children, attrs)
    if tag == "mfrac":
        return fraction(children, attrs)
    if tag in ("msqrt", "mroot"):
        if tag == "mroot" and len(children) > 1:
            return Node(tag, f"\\sqrt[{children[1].tex}]{{{children[0].tex}}}")
        return Node(tag, f"\\sqrt{{{row(children).tex}}}")
    if tag in ("msub", "msup", "msubsup"):
        base, first, second = (*children, EMPTY, EMPTY, EMPTY)[:3]
        return scripted(base, *((EMPTY, first) if tag == "msup" else (first, second)))
    if tag in ("munder", "mover", "munderover"):
        base, first, second = (*children, EMPTY, EMPTY, EMPTY)[:3]
        return limited(base, *((EMPTY, first) if tag == "mover" else (first, second)))
    if tag == "mmultiscripts":
        return multiscripts(children)
    if tag in ("mtd", "mtr", "mlabeledtr", "mtable"):
        return part_of_table(tag, children, attrs)
    if tag == "menclose":
        return enclosed(row(children).tex, attrs.get("notation", "longdiv").lower())
    return row(children)


def token_of(tag: str, text: str, attrs: dict[str, str]) -> Node:
    if tag == "mn":
        return Node(tag, "".join(letter(sign)[0] for sign in text), text, attrs)
    if tag in ("mtext", "ms"):
        if not text.strip():
            return Node(tag, "\\ " if text else "", text, attrs)
        text = text.replace("\xa0", " ")
        if text in SYMBOLS:
            return Node(tag, SYMBOLS[text], text, attrs)
        variant = {"bold": "textbf", "italic": "textit"}.get(attrs.get("mathvariant", ""), "text")
        return Node(tag, f"\\{variant}{{{text.translate(TEXT_ESCAPES)}}}", text, attrs)
    if text.strip("-−") in FUNCTIONS:
        return Node(tag, text.replace(text.strip("-−"), "\\" + text.strip("-−")), text, attrs)
    if text in SPELLED:
        return Node(tag, SPELLED[text], text, attrs)
    if len(text) > 1 and text.isalpha() and text.isascii():
        if tag == "mo":
            return Node(tag, f"\\operatorname{{{text}}}", text, attrs)
        name = VARIANTS.get(attrs.get("mathvariant", "normal"), "mathit")
        return Node(tag, f"\\{name}{{{text}}}", text, attrs)
    return Node(tag, letters(text, attrs.get("mathvariant", "") if tag == "mi" else ""), text, attrs)


def letters(text: str, variant: str) -> str:
    """Letters one by one, those of one alphabet together."""
    alphabet = VARIANTS.get(variant, "")
    parts: list[list[str]] = []
    for sign in text:
        tex, own = letter(sign)
        own = own or (alphabet if sign.isalnum() and not (alphabet == "mathrm" and tex[:1] == "\\") else "")
        if own == "mathbf" and tex[:1] == "\\":
            own = "boldsymbol"
        if parts and parts[-1][0] == own:
            parts[-1][1] = joined([parts[-1][1], tex])
        else:
            parts.append([own, tex])
    return joined([f"\\{own}{{{tex}}}" if own else tex for own, tex in parts])


def space(width: str) -> str:
    found = re.fullmatch(r"\s*(-?[\d.]{1,8})em\s*", width)
    ems = float(found[1]) if found and re.fullmatch(r"-?\d*\.?\d+|-?\d+\.", found[1]) else 0.0
    return "\\qquad " if ems >= 2 else "\\quad " if ems >= 1 else "\\, " if ems > 0 else ""


def joined(parts: list[str]) -> str:
    """Parts in a row, with a space where a command would run into a letter."""
    out: list[str] = []
    for part in parts:
        if part and out and part[0].isalpha() and COMMAND_ENDS.search(out[-1][-24:]):
            out.append(" ")
        if part:
            out.append(part)
    return "".join(out)


def braced(tex: str) -> str:
    return tex if ATOM.fullmatch(tex) or NUMBER.fullmatch(tex) else f"{{{tex}}}"


def row(children: list[Node]) -> Node:
    """A row: fences that hold something tall grow, and make a matrix of a table."""
    nodes = [node for node in children if node.tex or node.tag == "mo"]
    if len(nodes) == 1:
        return nodes[0]
    parts = [node.tex for node in nodes]
    tall = [0]
    opened: list[int] = []
    first_pair = (-1, -1)
    for place, node in enumerate(nodes):
        tall.append(tall[-1] + bool(TALL.search(node.tex)))
        if node.tag != "mo":
            continue
        sign, attrs = node.raw, node.attrs
        match = opened[-1] if opened else -1
        bar = sign in BARS and attrs.get("form") != "infix"
        closes = (sign in CLOSING and sign != ">") or (not sign and match >= 0)
        closes = closes or (bar and match >= 0 and nodes[match].raw == sign and place > match + 1)
        opens = (sign in OPENING and sign != "<") or (not sign and attrs.get("fence") == "true")
        if bar and not closes:
            opens = attrs.get("form") == "prefix" or attrs.get("fence") == "true" or before_operand(nodes, place)
        if closes and match >= 0:
            opened.pop()
            first_pair = (match, place)
            fence(nodes, parts, match, place, tall[place] > tall[match + 1])
        elif opens:
            opened.append(place)
    for match in opened:  # a brace before cases, that nothing closes
        if nodes[match].raw == "{" and match + 2 == len(nodes) and nodes[match + 1].rows:
            parts[match], parts[match + 1] = "", environment("cases", nodes[match + 1].rows)
    whole = first_pair == (0, len(nodes) - 1)
    return Node("fenced" if whole else "mrow", joined(parts))


def before_operand(nodes: list[Node], place: int) -> bool:
    return place == 0 or (nodes[place - 1].tag == "mo" and nodes[place - 1].raw not in CLOSING)


def fence(nodes: list[Node], parts: list[str], first: int, last: int, tall: bool) -> None:
    """Writes a pair of fences around what stands between them."""
    one = nodes[first + 1] if last == first + 2 else None
    pair = nodes[first].raw + nodes[last].raw
    if one is not None and one.rows and (pair in MATRICES or pair == "{"):
        parts[first] = parts[last] = ""
        parts[first + 1] = environment(MATRICES.get(pair, "cases"), one.rows)
    elif one is not None and one.tag == "atop" and pair == "()":
        parts[first] = parts[last] = ""
        parts[first + 1] = f"\\binom{{{one.cells[0]}}}{{{one.cells[1]}}}"
    else:
        attrs = nodes[first].attrs
        grows = attrs.get("stretchy") != "false" and (tall or attrs.get("fence") == attrs.get("stretchy") == "true")
        left, right = opening(nodes[first].raw), closing(nodes[last].raw)
        if grows or "." in (left, right):
            parts[first], parts[last] = f"\\left{left}", f"\\right{right}"
        else:
            parts[first], parts[last] = left, right


def opening(sign: str) -> str:
    return OPENING.get(sign) or CLOSING.get(sign) or BARS.get(sign) or sign or "."


def closing(sign: str) -> str:
    return CLOSING.get(sign) or OPENING.get(sign) or BARS.get(sign) or sign or "."


def fenced(children: list[Node], attrs: dict[str, str]) -> Node:
    first, last = attrs.get("open", "(").strip(), attrs.get("close", ")").strip()
    marks = attrs.get("separators", ",").replace(" ", "")
    nodes = [node for node in children if node.tex]
    if len(nodes) == 1 and nodes[0].rows and (first + last in MATRICES or first + last == "{"):
        return Node("mfenced", environment(MATRICES.get(first + last, "cases"), nodes[0].rows))
    if len(nodes) == 1 and nodes[0].tag == "atop" and first + last == "()":
        return Node("mfenced", f"\\binom{{{nodes[0].cells[0]}}}{{{nodes[0].cells[1]}}}")
    parts: list[str] = []
    for place, node in enumerate(nodes):
        if place and marks:
            parts.append(letter(marks[min(place - 1, len(marks) - 1)])[0])
        parts.append(node.tex)
    if not first and not last:
        return Node("mfenced", joined(parts))
    grows = any(TALL.search(node.tex) for node in nodes)
    left, right = opening(first), closing(last)
    if grows or "." in (left, right):
        left, right = f"\\left{left}", f"\\right{right}"
    return Node("mfenced", joined([left, *parts, right]))


def fraction(children: list[Node], attrs: dict[str, str]) -> Node:
    above, below = (*children, EMPTY, EMPTY)[:2]
    if attrs.get("linethickness", "").strip() in ("0", "0px", "0pt", "0em", "0.0pt"):
        return Node("atop", f"{{{above.tex} \\atop {below.tex}}}", cells=(above.tex, below.tex))
    if attrs.get("bevelled") == "true":
        return Node("mfrac", f"{braced(above.tex)}/{braced(below.tex)}")
    return Node("mfrac", f"\\frac{{{above.tex}}}{{{below.tex}}}")


def scripted(base: Node, low: Node, high: Node) -> Node:
    tex = base.tex
    if base.tag == "mo" and base.raw in CLOSING:  # the fence before it is in the row
        tex = closing(base.raw)
    elif not (ATOM.fullmatch(tex) or NUMBER.fullmatch(tex) or tex in LARGE or is_braced(base)):
        tex = f"{{{tex}}}"
    if low.tex:
        tex += f"_{{{low.tex}}}"
    if high.tex:
        mark = high.tex.replace(" ", "").replace("\\prime", "'")
        tex += mark if PRIMES.fullmatch(mark) else f"^{{{high.tex}}}"
    return Node("scripted", tex)


def is_braced(base: Node) -> bool:
    return base.tag in ("fenced", "mfenced") or (base.tag in ("mtext", "ms") and base.tex[-1:] == "}")


def limited(base: Node, low: Node, high: Node) -> Node:
    """Something under or over: limits, accents, braces, or just that."""
    tex = base.tex
    if base.raw in ARROWS and (low.tex or high.tex) and base.raw != "=":
        under = f"[{low.tex}]" if low.tex else ""
        return Node("mover", f"\\{ARROWS[base.raw]}{under}{{{high.tex}}}")
    head = tex[: tex.find("_")] if base.tag == "limited" and "_" in tex else tex
    takes_limits = (
        head in LARGE
        or head in LIMITS
        or tex in LARGE
        or tex in LIMITS
        or tex.startswith(("\\operatorname*", "\\underbrace", "\\overbrace"))
    )
    if not takes_limits and low.tex and base.raw.isalpha() and len(base.raw) > 1:
        tex, takes_limits = f"\\operatorname*{{{base.raw}}}", True
    if takes_limits:
        return Node("limited", tex + (f"_{{{low.tex}}}" if low.tex else "") + (f"^{{{high.tex}}}" if high.tex else ""))
    if high.tex or high.raw:
        name = OVER.get(high.raw, "") if high.tag in TOKENS else ""
        if name:
            name = name if ATOM.fullmatch(tex) else WIDE.get(name, name)
            tex = f"\\{name}{{{tex}}}"
        else:
            tex = f"\\overset{{{high.tex}}}{{{tex}}}"
    if low.tex or low.raw:
        name = UNDER.get(low.raw, "") if low.tag in TOKENS else ""
        tex = f"\\{name}{{{tex}}}" if name else f"\\underset{{{low.tex}}}{{{tex}}}"
    return Node("limited", tex)


def multiscripts(children: list[Node]) -> Node:
    marks = [node.tag for node in children]
    cut = marks.index("mprescripts") if "mprescripts" in marks else len(children)
    base, after, before = children[0] if children else EMPTY, children[1:cut], children[cut + 1 :]
    tex = joined([base.tex])
    for low, high in zip(after[::2], [*after[1::2], EMPTY], strict=False):
        tex = scripted(Node("mrow", tex), low, high).tex
    if before:
        tex = joined(["{}" + "".join(scripted(EMPTY, low, high).tex.removeprefix("{}") for low, high in
                                     zip(before[::2], [*before[1::2], EMPTY], strict=False)), tex])  # fmt: skip
    return Node("scripted", tex)


def part_of_table(tag: str, children: list[Node], attrs: dict[str, str]) -> Node:
    if tag == "mtd":
        return Node(tag, row(children).tex or " ")
    if tag == "mtr":
        return Node(tag, "mtr", cells=tuple(node.tex.strip() for node in children))
    if tag == "mlabeledtr":
        label = children[0].tex.strip() if children else ""
        cells = [node.tex.strip() for node in children[1:]]
        named = re.sub(r"\\text\{\(\}|\\text\{\)\}|^\(|\)$|^\\text\{\((.*)\)\}$", r"\1", label).strip()
        return Node(tag, "mtr", cells=(*cells[:-1], f"{cells[-1] if cells else ''} \\tag{{{named}}}"))
    rows = tuple(node.cells for node in children if node.cells)
    if not rows:
        return Node(tag, joined([node.tex for node in children]))
    if len(rows) == 1 and (len(rows[0]) == 1 or "\\tag" in rows[0][-1]):
        return Node(tag, joined(list(rows[0])))
    aligned = attrs.get("columnalign", "").startswith("right") or attrs.get("displaystyle") == "true"
    after = [cells[1].removeprefix("{}")[:1] for cells in rows if len(cells) > 1]
    aligned = aligned or any(sign and sign in RELATIONS for sign in after)
    return Node(tag, environment("aligned" if aligned else "matrix", rows), rows=rows)


def environment(name: str, rows: tuple[tuple[str, ...], ...]) -> str:
    return f"\\begin{{{name}}} " + " \\\\ ".join(" & ".join(cells) for cells in rows) + f" \\end{{{name}}}"


def enclosed(tex: str, notation: str) -> Node:
    names = {"top": "overline", "bottom": "underline", "box": "boxed", "roundedbox": "boxed", "radical": "sqrt",
             "updiagonalstrike": "cancel", "downdiagonalstrike": "bcancel", "horizontalstrike": "not",
             "actuarial": "overline"}  # fmt: skip
    name = next((names[word] for word in notation.split() if word in names), "")
    return Node("menclose", f"\\{name}{{{tex}}}" if name else tex)
