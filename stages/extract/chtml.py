"""MathML out of what MathJax 3 and 4 draw with HTML (`<mjx-math>`), for pages that do not keep the MathML itself."""

from __future__ import annotations

import re

TAG = re.compile(r"<(/?)mjx-([\w-]+)((?:[^<>\"']++|\"[^\"]*\"|'[^']*')*+)>|([^<]+)|<[^<>]*>?")
GLYPH = re.compile(r"\bmjx-c([0-9A-F]{2,5})\b")
KEPT = frozenset(
    [
        "mi",
        "mn",
        "mo",
        "mtext",
        "ms",
        "mrow",
        "mfrac",
        "msqrt",
        "mroot",
        "msub",
        "msup",
        "msubsup",
        "munder",
        "mover",
        "munderover",
        "mtable",
        "mtr",
        "mtd",
        "mlabeledtr",
    ]
)
PARTS = frozenset(["num", "den", "over", "under", "base", "script", "root", "surd", "sqrt", "assistive-mml"])
ORDER = {"munder": ("base", "under"), "mover": ("base", "over"), "munderover": ("base", "under", "over"),
         "mfrac": ("num", "den"), "mroot": ("sqrt", "root"), "msqrt": ("sqrt",)}  # fmt: skip
DEEPEST = 200


def mathml_of(source: str) -> str:
    """The formula as MathML; what is nested deeper than `DEEPEST` is left out."""
    stack: list[tuple[str, list[tuple[str, str]]]] = [("mrow", [])]
    for ends, tag, attrs, text in TAG.findall(source):
        if text:
            if not text.isspace() and stack[-1][0] != "c":
                stack[-1][1].append(("text", text))
            elif not text.isspace():
                stack[-1][1].append(("glyph", text))
        elif tag and not ends:
            if len(stack) > DEEPEST:
                return ""
            stack.append((tag, []))
            glyph = GLYPH.search(attrs) if tag == "c" else None
            if glyph:
                stack[-1][1].append(("code", f"&#x{glyph[1]};"))
        elif tag and any(opened == tag for opened, _ in stack[1:]):
            while True:
                opened, children = stack.pop()
                stack[-1][1].extend(written(opened, children))
                if opened == tag:
                    break
    while len(stack) > 1:
        opened, children = stack.pop()
        stack[-1][1].extend(written(opened, children))
    return "".join(text for _, text in stack[0][1])


def written(tag: str, children: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """An element that has ended, as the children that it gives the one around it."""
    if tag == "c":
        glyph = next((text for kind, text in children if kind == "code"), None)
        return [("text", glyph or "".join(text for _, text in children))]
    if tag in PARTS:
        if tag == "script" and len(children) > 1:  # the upper one comes first
            return [("script", text) for _, text in reversed(children)]
        return [] if tag in ("surd", "assistive-mml") else [(tag, "".join(text for _, text in children))]
    if tag in KEPT:
        parts = children
        if tag in ORDER:
            named = dict(children)
            if tag == "munderover" and "munder" in named and "over" in named:
                return [(tag, f"<mover>{named['munder']}<mrow>{named['over']}</mrow></mover>")]
            parts = [(name, f"<mrow>{named[name]}</mrow>") for name in ORDER[tag] if name in named] or children
        return [(tag, f"<{tag}>{''.join(text for _, text in parts)}</{tag}>")]
    return children if tag not in ("nstrut", "dstrut", "line", "spacer", "tstrut", "strut") else []
