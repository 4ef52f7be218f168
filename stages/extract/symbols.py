"""Unicode's letters and signs of mathematics as LaTeX: names of symbols, accents, functions and alphabets."""

from __future__ import annotations

import unicodedata
from functools import cache

_NAMES = r"""
α alpha β beta γ gamma δ delta ϵ epsilon ε varepsilon ζ zeta η eta θ theta ϑ vartheta ι iota κ kappa ϰ varkappa
λ lambda μ mu µ mu ν nu ξ xi π pi ϖ varpi ρ rho ϱ varrho σ sigma ς varsigma τ tau υ upsilon ϕ phi φ varphi χ chi ψ psi
ω omega Γ Gamma Δ Delta ∆ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Υ Upsilon Φ Phi Ψ Psi Ω Omega Ω Omega ϒ Upsilon
ϝ digamma
∑ sum ∏ prod ∐ coprod ∫ int ∬ iint ∭ iiint ∮ oint ∯ oiint ∰ oiiint ⋃ bigcup ⋂ bigcap ⨆ bigsqcup ⋁ bigvee ⋀ bigwedge
⨁ bigoplus ⨂ bigotimes ⨀ bigodot ⨄ biguplus
± pm ∓ mp × times ÷ div ⋅ cdot · cdot ∙ cdot ∗ ast ⋆ star ∘ circ • bullet ∩ cap ∪ cup ⊎ uplus ⊓ sqcap ⊔ sqcup ∨ vee
∧ wedge ∖ setminus ≀ wr ⋄ diamond △ triangle ▽ bigtriangledown ◃ triangleleft ▹ triangleright ⊕ oplus ⊖ ominus
⊗ otimes ⊘ oslash ⊙ odot † dagger ‡ ddagger ⨿ amalg ⊞ boxplus ⊠ boxtimes ⊡ boxdot ⋉ ltimes ⋊ rtimes
≤ leq ≥ geq ⩽ leqslant ⩾ geqslant ≦ leqq ≧ geqq ≪ ll ≫ gg ≺ prec ≻ succ ⪯ preceq ⪰ succeq ≼ preccurlyeq ≽ succcurlyeq
⊂ subset ⊃ supset ⊆ subseteq ⊇ supseteq ⊊ subsetneq ⊋ supsetneq ⊄ not\subset ⊈ nsubseteq ⊏ sqsubset ⊐ sqsupset
⊑ sqsubseteq ⊒ sqsupseteq ∈ in ∉ notin ∋ ni ⊢ vdash ⊣ dashv ⊨ models ⊩ Vdash ≡ equiv ∼ sim ≃ simeq ≍ asymp ≈ approx
≅ cong ≠ neq ≐ doteq ∝ propto ≢ not\equiv ≁ nsim ≇ ncong ≮ nless ≯ ngtr ≰ nleq ≱ ngeq ∣ mid ∤ nmid ∥ parallel
∦ nparallel ⊥ perp ⟂ perp ⌣ smile ⌢ frown ⋈ bowtie ≔ coloneqq ≜ triangleq ≲ lesssim ≳ gtrsim ≟ stackrel{?}{=}
← leftarrow → rightarrow ↔ leftrightarrow ⇐ Leftarrow ⇒ Rightarrow ⇔ Leftrightarrow ⟵ longleftarrow ⟶ longrightarrow
⟷ longleftrightarrow ⟸ Longleftarrow ⟹ Longrightarrow ⟺ iff ↦ mapsto ⟼ longmapsto ↑ uparrow ↓ downarrow ↕ updownarrow
⇑ Uparrow ⇓ Downarrow ⇕ Updownarrow ↗ nearrow ↘ searrow ↙ swarrow ↖ nwarrow ↪ hookrightarrow ↩ hookleftarrow
⇀ rightharpoonup ⇁ rightharpoondown ↼ leftharpoonup ↽ leftharpoondown ⇌ rightleftharpoons ⇋ leftrightharpoons
↠ twoheadrightarrow ↣ rightarrowtail ⇝ rightsquigarrow ⇄ rightleftarrows ⇆ leftrightarrows ↛ nrightarrow ⇏ nRightarrow
∞ infty ∂ partial ∇ nabla ∀ forall ∃ exists ∄ nexists ¬ neg ∅ emptyset ⌀ emptyset ℓ ell ℏ hbar ℵ aleph ℶ beth ℑ Im ℜ Re
℘ wp ∠ angle ∡ measuredangle ⊤ top √ surd ♭ flat ♮ natural ♯ sharp ♣ clubsuit ♢ diamondsuit ♡ heartsuit ♠ spadesuit
□ square ∎ blacksquare ■ blacksquare ◊ lozenge ′ prime ″ prime\prime ‵ backprime ∴ therefore ∵ because … ldots ⋯ cdots
⋮ vdots ⋱ ddots ı imath ȷ jmath § S ¶ P © copyright £ pounds ° circ ∁ complement ⊺ intercal ∔ dotplus ⋯ cdots
⟨ langle ⟩ rangle 〈 langle 〉 rangle ⌈ lceil ⌉ rceil ⌊ lfloor ⌋ rfloor ‖ Vert ∥ parallel ⟦ llbracket ⟧ rrbracket
ð eth ƛ lambdabar ≙ widehat{=} ∶ colon ⁄ slash
"""
SYMBOLS: dict[str, str] = {
    sign: "\\" + name for sign, name in zip(_NAMES.split()[::2], _NAMES.split()[1::2], strict=True)
}
SYMBOLS |= {
    "−": "-", "–": "-", "‐": "-", "⁎": "*", "∕": "/", "⁄": "/", "∶": ":", "％": "%", "＝": "=", "＋": "+", "′": "'",
    "″": "''", "‴": "'''", "⁗": "''''", "ˈ": "'", "’": "'", "{": "\\{", "}": "\\}", "%": "\\%", "&": "\\&", "#": "\\#",
    "$": "\\$", "_": "\\_", "\\": "\\backslash", "~": "\\sim", "°": "^{\\circ}", "¯": "\\bar{\\ }", "∣": "|",
    "≔": ":=", "²": "^{2}", "³": "^{3}", "½": "\\frac{1}{2}", "（": "(", "）": ")", "，": ",",
}  # fmt: skip
INVISIBLE = dict.fromkeys(map(ord, "\u2061\u2062\u2063\u2064\u200b\u200c\u200d\ufeff\u00ad\ufe00\ufe0e\ufe0f"))

FUNCTIONS = frozenset(
    [
        "arccos",
        "arcsin",
        "arctan",
        "arg",
        "cos",
        "cosh",
        "cot",
        "coth",
        "csc",
        "deg",
        "det",
        "dim",
        "exp",
        "gcd",
        "hom",
        "inf",
        "ker",
        "lg",
        "lim",
        "liminf",
        "limsup",
        "ln",
        "log",
        "max",
        "min",
        "sec",
        "sin",
        "sinh",
        "sup",
        "tan",
        "tanh",
        "Pr",
    ]
)
SPELLED = {"lim sup": r"\limsup", "lim inf": r"\liminf", "arg max": r"\operatorname*{arg\,max}",
           "arg min": r"\operatorname*{arg\,min}", "mod": r"\bmod"}  # fmt: skip
LIMITS = frozenset(f"\\{name}" for name in ["lim", "liminf", "limsup", "max", "min", "sup", "inf", "det", "gcd", "Pr"])
LARGE = frozenset(SYMBOLS[sign] for sign in "∑∏∐∫∬∭∮∯∰⋃⋂⨆⋁⋀⨁⨂⨀⨄")
OVER = {
    "^": "hat", "ˆ": "hat", "\u0302": "hat", "~": "tilde", "˜": "tilde", "∼": "tilde", "\u0303": "tilde", "¯": "bar",
    "‾": "bar", "\u0304": "bar", "\u0305": "overline", "ˉ": "bar", "―": "overline", "_": "bar", "−": "bar", "-": "bar",
    "→": "vec", "\u20d7": "vec", "⇀": "vec", "˙": "dot", ".": "dot", "·": "dot", "\u0307": "dot",
    "¨": "ddot", "\u0308": "ddot", "⋯": "ddot", "⃛": "dddot", "…": "dddot", "ˇ": "check", "\u030c": "check",
    "˘": "breve", "\u0306": "breve", "´": "acute", "\u0301": "acute", "`": "grave", "\u0300": "grave", "˚": "mathring",
    "⏞": "overbrace", "︷": "overbrace", "⏜": "overparen", "←": "overleftarrow", "↔": "overleftrightarrow",
    "⎴": "overbracket",
}  # fmt: skip
WIDE = {"hat": "widehat", "tilde": "widetilde", "bar": "overline", "vec": "overrightarrow"}
UNDER = {
    "⏟": "underbrace", "︸": "underbrace", "_": "underline", "¯": "underline", "‾": "underline", "\u0332": "underline",
    "→": "underrightarrow", "←": "underleftarrow", "⎵": "underbracket", "―": "underline",
    "\u0331": "underline", "ˍ": "underline",
}  # fmt: skip
ARROWS = {"→": "xrightarrow", "⟶": "xrightarrow", "←": "xleftarrow", "⟵": "xleftarrow", "⇒": "xRightarrow",
          "⟹": "xRightarrow", "↔": "xleftrightarrow", "⇌": "xrightleftharpoons", "=": "xlongequal"}  # fmt: skip
OPENING = {"(": "(", "[": "[", "{": "\\{", "⟨": "\\langle", "〈": "\\langle", "⌈": "\\lceil", "⌊": "\\lfloor",
           "⟦": "\\llbracket", "（": "(", "<": "\\langle"}  # fmt: skip
CLOSING = {")": ")", "]": "]", "}": "\\}", "⟩": "\\rangle", "〉": "\\rangle", "⌉": "\\rceil", "⌋": "\\rfloor",
           "⟧": "\\rrbracket", "）": ")", ">": "\\rangle"}  # fmt: skip
BARS = {"|": "|", "∣": "|", "‖": "\\|", "∥": "\\|", "||": "\\|"}
VARIANTS = {
    "bold": "mathbf", "bold-italic": "boldsymbol", "double-struck": "mathbb", "script": "mathcal",
    "bold-script": "mathcal", "fraktur": "mathfrak", "bold-fraktur": "mathfrak", "sans-serif": "mathsf",
    "bold-sans-serif": "mathsf", "sans-serif-italic": "mathsf", "monospace": "mathtt", "normal": "mathrm",
}  # fmt: skip
_ALPHABETS = (
    ("BOLD ITALIC", "boldsymbol"), ("BOLD SCRIPT", "mathcal"), ("BOLD FRAKTUR", "mathfrak"), ("BOLD", "mathbf"),
    ("DOUBLE-STRUCK", "mathbb"), ("SCRIPT", "mathcal"), ("FRAKTUR", "mathfrak"), ("BLACK-LETTER", "mathfrak"),
    ("SANS-SERIF", "mathsf"), ("MONOSPACE", "mathtt"), ("ITALIC", ""),
)  # fmt: skip


@cache
def letter(sign: str) -> tuple[str, str]:
    """A character as LaTeX, and the alphabet that it is written in (`mathbb`), if it is a letter of one."""
    if sign in SYMBOLS:
        return SYMBOLS[sign], ""
    point = ord(sign)
    if 0x1D400 <= point < 0x1D800 or 0x2100 <= point < 0x2140:
        name, plain = unicodedata.name(sign, ""), unicodedata.normalize("NFKC", sign)
        if len(plain) == 1 and plain != sign:
            if plain in SYMBOLS:
                plain = SYMBOLS[plain]
            for word, alphabet in _ALPHABETS:
                if word in name:
                    return plain, alphabet
    if point < 0x80 or not 0x300 <= point < 0x370:
        return sign, ""
    return "", ""
