"""ASCIIMath as LaTeX: names of symbols, fractions, roots, scripts and brackets."""

from __future__ import annotations

import re

from gristmill.stages.extract.symbols import FUNCTIONS, SYMBOLS

TOKEN = re.compile(r"\"[^\"]*\"|[A-Za-z]+|\d+(?:\.\d+)?|<=>|=>|->|<-|<=|>=|!=|\+-|\*\*|:\.|\(:|:\)|\{:|:\}|[^\s]")
NAMES = {name.removeprefix("\\"): name for name in SYMBOLS.values() if name.startswith("\\") and name[1:].isalpha()}
NAMES |= {name: f"\\{name}" for name in FUNCTIONS}
NAMES |= {
    "oo": "\\infty", "xx": "\\times", "del": "\\partial", "grad": "\\nabla", "RR": "\\mathbb{R}", "NN": "\\mathbb{N}",
    "ZZ": "\\mathbb{Z}", "QQ": "\\mathbb{Q}", "CC": "\\mathbb{C}", "le": "\\leq", "ge": "\\geq", "ne": "\\neq",
    "AA": "\\forall", "EE": "\\exists", "sub": "\\subset", "sube": "\\subseteq", "uu": "\\cup", "nn": "\\cap",
    "and": "\\text{and}", "or": "\\text{or}", "if": "\\text{if}", "dx": "dx", "dy": "dy", "dt": "dt", "to": "\\to",
    "=>": "\\Rightarrow", "<=>": "\\Leftrightarrow", "->": "\\to", "<-": "\\leftarrow", "<=": "\\leq", ">=": "\\geq",
    "!=": "\\neq", "+-": "\\pm", "**": "\\ast", "*": "\\cdot", ":.": "\\therefore", "(:": "\\langle", ":)": "\\rangle",
    "{:": "", ":}": "", "%": "\\%", "&": "\\&", "#": "\\#",
}  # fmt: skip
UNARY = {"sqrt": "\\sqrt", "hat": "\\hat", "bar": "\\overline", "vec": "\\vec", "dot": "\\dot", "ddot": "\\ddot",
         "ul": "\\underline", "text": "\\text", "bb": "\\mathbf", "bbb": "\\mathbb", "cc": "\\mathcal",
         "abs": "|", "floor": "\\lfloor", "ceil": "\\lceil"}  # fmt: skip
BINARY = {
    "frac": "\\frac",
    "root": "\\sqrt",
    "stackrel": "\\stackrel",
    "overset": "\\overset",
    "underset": "\\underset",
}
CLOSE = {"(": ")", "[": "]", "{": "}", "(:": ":)", "{:": ":}"}
DEEPEST, LONGEST = 60, 5_000


def from_ascii(source: str) -> str | None:
    """None where the formula is too long, nested too deep, or empty."""
    tokens = TOKEN.findall(source[: LONGEST + 1])
    if not tokens or len(source) > LONGEST:
        return None
    try:
        tex, at = expression(tokens, 0, "", 0)
        while at < len(tokens):  # a bracket that nothing opened
            more, after = expression(tokens, at + 1, "", 0)
            tex, at = f"{tex}{tokens[at]}{more}", after
    except TooDeep:
        return None
    return tex.strip() or None


class TooDeep(Exception):
    """A formula nested deeper than any that is written by hand."""


def expression(tokens: list[str], at: int, until: str, depth: int) -> tuple[str, int]:
    """Up to a closing bracket or the end."""
    if depth > DEEPEST:
        raise TooDeep
    parts: list[str] = []
    while at < len(tokens) and tokens[at] not in ([until] if until else [")", "]", "}"]):
        part, at = with_scripts(tokens, at, depth)
        if at < len(tokens) and tokens[at] == "/" and at + 1 < len(tokens):
            below, at = with_scripts(tokens, at + 1, depth)
            part = f"\\frac{{{stripped(part)}}}{{{stripped(below)}}}"
        parts.append(part)
    return " ".join(part for part in parts if part), at


def with_scripts(tokens: list[str], at: int, depth: int) -> tuple[str, int]:
    part, at = simple(tokens, at, depth)
    for mark in ("_", "^"):
        if at + 1 < len(tokens) and tokens[at] == mark:
            script, at = simple(tokens, at + 1, depth)
            part += f"{mark}{{{stripped(script)}}}"
    return part, at


def simple(tokens: list[str], at: int, depth: int) -> tuple[str, int]:
    if at >= len(tokens):
        return "", at
    token = tokens[at]
    if token in CLOSE:
        inner, after = expression(tokens, at + 1, CLOSE[token], depth + 1)
        left, right = NAMES.get(token, token), NAMES.get(CLOSE[token], CLOSE[token])
        left, right = left.replace("{", "\\{"), right.replace("}", "\\}")
        return f"{left}{inner}{right if after < len(tokens) else ''}", after + 1
    if token.startswith('"') and len(token) > 1:
        return f"\\text{{{token[1:-1]}}}", at + 1
    if token in UNARY or token in BINARY:
        if depth > DEEPEST:
            raise TooDeep
        first, at = simple(tokens, at + 1, depth + 1)
        if token in ("abs", "floor", "ceil"):
            ends = {"abs": "|", "floor": "\\rfloor", "ceil": "\\rceil"}[token]
            return f"{UNARY[token]} {stripped(first)} {ends}", at
        if token in UNARY:
            return f"{UNARY[token]}{{{stripped(first)}}}", at
        second, at = simple(tokens, at, depth + 1)
        if token == "root":
            return f"\\sqrt[{stripped(first)}]{{{stripped(second)}}}", at
        return f"{BINARY[token]}{{{stripped(first)}}}{{{stripped(second)}}}", at
    if token in NAMES:
        return NAMES[token], at + 1
    return (" ".join(token) if token.isalpha() else token), at + 1


def stripped(part: str) -> str:
    """Without the brackets that only held an argument together."""
    if len(part) > 1 and (part[0], part[-1]) in (("(", ")"), ("[", "]")):
        return part[1:-1]
    return part[2:-2] if part.startswith("\\{") and part.endswith("\\}") else part
