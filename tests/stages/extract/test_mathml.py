"""Presentation MathML becomes LaTeX: what browsers, KaTeX, MathJax, Word and MathType write, and what bombs do not."""

from __future__ import annotations

import re
import time

import pytest

from gristmill.stages.extract.asciimath import from_ascii
from gristmill.stages.extract.chtml import mathml_of
from gristmill.stages.extract.mathml import latex_of

MATRIX = "<mtable><mtr><mtd>a</mtd><mtd>b</mtd></mtr><mtr><mtd>c</mtd><mtd>d</mtd></mtr></mtable>".replace(
    "<mtd>", "<mtd><mi>"
).replace("</mtd>", "</mi></mtd>")
CELLS = r"a & b \\ c & d"
A, B, X, Y, N, ONE, TWO = (
    "<mi>a</mi>",
    "<mi>b</mi>",
    "<mi>x</mi>",
    "<mi>y</mi>",
    "<mi>n</mi>",
    "<mn>1</mn>",
    "<mn>2</mn>",
)
HALF = f"<mfrac>{ONE}{TWO}</mfrac>"

PAIRS = [
    # letters, numbers, operators
    (X, "x"), ("<mn>3.14</mn>", "3.14"), (f"{A}<mo>+</mo>{B}", "a+b"), (f"{A}<mo>−</mo>{B}", "a-b"),
    (f"{A}<mo>&#x2062;</mo>{B}", "ab"), (f"{A}<mo>≤</mo>{B}", r"a\leq b"), (f"{A}<mo>&lt;</mo>{B}", "a<b"),
    ("<mi>α</mi><mi>β</mi>", r"\alpha\beta"), ("<mi>α</mi>" + X, r"\alpha x"), ("<mi>Ω</mi>", r"\Omega"),
    ("<mi>&#x3C0;</mi>", r"\pi"), ("<mi>&pi;</mi>", r"\pi"), ("<mi>∞</mi>", r"\infty"), ("<mi>𝑧</mi>", "z"),
    ("<mi>ℝ</mi>", r"\mathbb{R}"), ("<mi mathvariant='double-struck'>Z</mi>", r"\mathbb{Z}"),
    ("<mi mathvariant='bold'>v</mi>", r"\mathbf{v}"), ("<mi mathvariant='script'>L</mi>", r"\mathcal{L}"),
    ("<mi mathvariant='fraktur'>g</mi>", r"\mathfrak{g}"), ("<mi mathvariant='normal'>d</mi>" + X, r"\mathrm{d}x"),
    ("<mi mathvariant='bold'>μ</mi>", r"\boldsymbol{\mu}"), ("<mi>sin</mi><mo>&#x2061;</mo>" + X, r"\sin x"),
    ("<mi>log</mi>" + X, r"\log x"), ("<mi>softmax</mi>", r"\mathrm{softmax}"),
    ("<mtext>if </mtext>" + X, r"\text{if }x"), ("<mtext>50%</mtext>", r"\text{50\%}"), ("<mo>%</mo>", r"\%"),
    (f"{X}<mo>∈</mo><mi>A</mi>", r"x\in A"), (f"{A}<mo>→</mo>{B}", r"a\rightarrow b"), (f"{A}<mo>⋅</mo>{B}", r"a\cdot b"),
    # fractions
    (HALF, r"\frac{1}{2}"), (f"<mfrac><mrow>{A}<mo>+</mo>{B}</mrow>{TWO}</mfrac>", r"\frac{a+b}{2}"),
    (f"<mfrac>{HALF}{X}</mfrac>", r"\frac{\frac{1}{2}}{x}"), (f"<mfrac bevelled='true'>{A}{B}</mfrac>", "a/b"),
    (f"<mfrac>{A}<mrow>{B}<mo>+</mo>{ONE}</mrow></mfrac><mo>=</mo><msqrt>{X}</msqrt>", r"\frac{a}{b+1}=\sqrt{x}"),
    (f"<mfrac><mrow><mi>d</mi>{Y}</mrow><mrow><mi>d</mi>{X}</mrow></mfrac>", r"\frac{dy}{dx}"),
    (f"<mo>(</mo><mfrac linethickness='0'>{N}<mi>k</mi></mfrac><mo>)</mo>", r"\binom{n}{k}"),
    # roots
    (f"<msqrt>{X}</msqrt>", r"\sqrt{x}"), (f"<msqrt>{A}<mo>+</mo>{B}</msqrt>", r"\sqrt{a+b}"),
    (f"<mroot>{X}<mn>3</mn></mroot>", r"\sqrt[3]{x}"), (f"<msqrt>{HALF}</msqrt>", r"\sqrt{\frac{1}{2}}"),
    (f"<menclose notation='radical'>{X}</menclose>", r"\sqrt{x}"),
    # scripts
    (f"<msup>{X}{TWO}</msup>", "x^{2}"), (f"<msub>{X}{N}</msub>", "x_{n}"), (f"<msubsup>{X}{ONE}{TWO}</msubsup>", "x_{1}^{2}"),
    (f"<msup><mi>e</mi><mrow><mo>−</mo>{X}</mrow></msup>", "e^{-x}"), ("<msup><mi>f</mi><mo>′</mo></msup>", "f'"),
    ("<msup><mi>f</mi><mo>″</mo></msup>", "f''"), ("<msub><mi>α</mi><mi>i</mi></msub>", r"\alpha_{i}"),
    (f"<msup><msub>{X}{ONE}</msub>{TWO}</msup>", "{x_{1}}^{2}"), ("<msup><mi>A</mi><mo>⊤</mo></msup>", r"A^{\top}"),
    (f"<msup><mrow><mo>(</mo>{A}<mo>+</mo>{B}<mo>)</mo></mrow>{TWO}</msup>", "(a+b)^{2}"),
    (f"<mo>(</mo>{A}<mo>+</mo>{B}<msup><mo>)</mo>{TWO}</msup>", "(a+b)^{2}"), ("<msup><mn>10</mn><mn>6</mn></msup>", "10^{6}"),
    ("<msub><mi>v</mi><mtext>max</mtext></msub>", r"v_{\text{max}}"), ("<msup><mn>90</mn><mo>∘</mo></msup>", r"90^{\circ}"),
    ("<mmultiscripts><mi>C</mi><none/><none/><mprescripts/><mn>6</mn><mn>14</mn></mmultiscripts>", "{}_{6}^{14}C"),
    (f"<mmultiscripts><mi>R</mi>{A}{B}</mmultiscripts>", "R_{a}^{b}"), ("<msub><mi>H</mi><mn>2</mn></msub><mi>O</mi>", "H_{2}O"),
    # limits
    (f"<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo>{ONE}</mrow>{N}</munderover>", r"\sum_{i=1}^{n}"),
    (f"<msubsup><mo>∫</mo><mn>0</mn>{ONE}</msubsup>{X}", r"\int_{0}^{1}x"), ("<munder><mo>⋃</mo><mi>i</mi></munder>", r"\bigcup_{i}"),
    (f"<munder><mi>lim</mi><mrow>{X}<mo>→</mo><mn>0</mn></mrow></munder>", r"\lim_{x\rightarrow 0}"),
    (f"<munder><mo>max</mo>{X}</munder>", r"\max_{x}"), (f"<munder><mi>argmax</mi>{X}</munder>", r"\operatorname*{argmax}_{x}"),
    (f"<munderover><mo>∏</mo><mi>i</mi>{N}</munderover>", r"\prod_{i}^{n}"), (f"<mover><mo>→</mo>{N}</mover>", r"\xrightarrow{n}"),
    ("<mover><mo>=</mo><mtext>def</mtext></mover>", r"\overset{\text{def}}{=}"), (f"<munder>{X}{Y}</munder>", r"\underset{y}{x}"),
    (f"<munder><munder><mrow>{A}<mo>+</mo>{B}</mrow><mo>⏟</mo></munder>{N}</munder>", r"\underbrace{a+b}_{n}"),
    # accents
    (f"<mover>{X}<mo>^</mo></mover>", r"\hat{x}"), (f"<mover accent='true'>{X}<mo>¯</mo></mover>", r"\bar{x}"),
    ("<mover><mi>v</mi><mo>→</mo></mover>", r"\vec{v}"), (f"<mover>{X}<mo>˙</mo></mover>", r"\dot{x}"),
    (f"<mover>{X}<mo>~</mo></mover>", r"\tilde{x}"), (f"<mover><mrow>{A}{B}</mrow><mo>¯</mo></mover>", r"\overline{ab}"),
    (f"<mover><mrow>{A}{B}</mrow><mo>^</mo></mover>", r"\widehat{ab}"), (f"<munder>{X}<mo>_</mo></munder>", r"\underline{x}"),
    (f"<menclose notation='top'>{A}</menclose>", r"\overline{a}"), (f"<menclose notation='box'>{A}</menclose>", r"\boxed{a}"),
    # fences
    (f"<mo>(</mo>{X}<mo>,</mo>{Y}<mo>)</mo>", "(x,y)"), (f"<mo>(</mo>{HALF}<mo>)</mo>", r"\left(\frac{1}{2}\right)"),
    (f"<mo stretchy='false'>(</mo>{HALF}<mo stretchy='false'>)</mo>", r"(\frac{1}{2})"), (f"<mo>[</mo>{A}<mo>]</mo>", "[a]"),
    (f"<mo>{{</mo>{A}<mo>}}</mo>", r"\{a\}"), (f"<mo>|</mo>{X}<mo>|</mo>", "|x|"), (f"<mo>‖</mo>{X}<mo>‖</mo>", r"\|x\|"),
    (f"<mo>⟨</mo>{X}<mo>⟩</mo>", r"\langle x\rangle"), (f"<mo>⌊</mo>{X}<mo>⌋</mo>", r"\lfloor x\rfloor"),
    (f"<mo>[</mo><mn>0</mn><mo>,</mo>{ONE}<mo>)</mo>", "[0,1)"), (f"<mfenced>{A}{B}</mfenced>", "(a,b)"),
    (f"<mfenced open='[' close=']' separators=';'>{A}{B}</mfenced>", "[a;b]"), (f"<mfenced open='|' close='|'>{X}</mfenced>", "|x|"),
    (f"<mo>|</mo>{X}<mo>|</mo><mo>+</mo><mo>|</mo>{Y}<mo>|</mo>", "|x|+|y|"), (f"<mo>(</mo><mo>(</mo>{A}<mo>)</mo>{B}<mo>)</mo>", "((a)b)"),
    # matrices
    (f"<mo>(</mo>{MATRIX}<mo>)</mo>", rf"\begin{{pmatrix}} {CELLS} \end{{pmatrix}}"),
    (f"<mo>[</mo>{MATRIX}<mo>]</mo>", rf"\begin{{bmatrix}} {CELLS} \end{{bmatrix}}"),
    (f"<mo>|</mo>{MATRIX}<mo>|</mo>", rf"\begin{{vmatrix}} {CELLS} \end{{vmatrix}}"),
    (f"<mfenced>{MATRIX}</mfenced>", rf"\begin{{pmatrix}} {CELLS} \end{{pmatrix}}"), (MATRIX, rf"\begin{{matrix}} {CELLS} \end{{matrix}}"),
    (f"<mi>f</mi><mo>=</mo><mrow><mo>{{</mo>{MATRIX}</mrow>", rf"f=\begin{{cases}} {CELLS} \end{{cases}}"),
    (f"<mo fence='true'>{{</mo>{MATRIX}<mo fence='true'></mo>", rf"\begin{{cases}} {CELLS} \end{{cases}}"),
    (f"<mfenced open='{{' close=''>{MATRIX}</mfenced>", rf"\begin{{cases}} {CELLS} \end{{cases}}"),
    (f"<mtable displaystyle='true'><mtr><mtd>{A}</mtd><mtd><mo>=</mo>{B}</mtd></mtr><mtr><mtd>{X}</mtd><mtd><mo>=</mo>{Y}</mtd></mtr></mtable>",
     r"\begin{aligned} a & =b \\ x & =y \end{aligned}"),
    (f"<mtable><mlabeledtr><mtd><mtext>(2)</mtext></mtd><mtd>{A}<mo>=</mo>{B}</mtd></mlabeledtr></mtable>", r"a=b \tag{2}"),
    # Word, MathType, KaTeX, broken attributes
    ("<mml:mrow xmlns:mml='m'><mml:mi>a</mml:mi><mml:mo>+</mml:mo><mml:mi>b</mml:mi></mml:mrow>", "a+b"),
    ("<mml:mfenced separators='|'><mml:mrow><mml:mfrac><mml:mi>a</mml:mi><mml:mi>b</mml:mi></mml:mfrac></mml:mrow></mml:mfenced>",
     r"\left(\frac{a}{b}\right)"),
    ("<mml:mover accent='true'><mml:mrow><mml:mi>x</mml:mi></mml:mrow><mml:mo>̂</mml:mo></mml:mover>", r"\hat{x}"),
    ("<mml:mrow><mml:munder><mml:mrow><mml:mi mathvariant='normal'>lim</mml:mi></mml:mrow><mml:mrow><mml:mi>n</mml:mi></mml:mrow>"
     "</mml:munder></mml:mrow><mml:mo>⁡</mml:mo><mml:mi>x</mml:mi>", r"\lim_{n}x"),
    (f"<mstyle displaystyle='true'><mrow><msup>{X}{TWO}</msup><mo>&#x2212;</mo>{ONE}</mrow></mstyle>", "x^{2}-1"),
    ("<mfenced open='{' close><mn>3</mn></mfenced>", r"\left\{3\right."), (f"<semantics>{X}<annotation>q</annotation></semantics>", "x"),
    (f"<mpadded>{X}</mpadded><mphantom>{Y}</mphantom>", "x"), (f"{X}<mspace width='1em'/>{Y}", r"x\quad y"),
]  # fmt: skip


def test_structural_pairs():
    wrong = []
    for source, tex in PAIRS:
        found = latex_of(source) or ""
        if re.sub(r"\s+", " ", found) != tex:
            wrong.append((source, found, tex))
    assert len(PAIRS) >= 100
    assert len(wrong) <= 0.05 * len(PAIRS), wrong


@pytest.mark.parametrize(
    ("source", "none"),
    [
        ("<mrow>" * 5000 + "<mi>x</mi>" + "</mrow>" * 5000, True),
        ("<mfrac>" * 1_000_000, True),
        ("<mi>x</mi>" * 9_000, False),
        ("</mrow>" * 10_000 + "<mi>x</mi>", False),
        ("<mo>(</mo>" * 9_000, False),
        ("<mi a='" * 10_000, True),
    ],
)
def test_bombs_end_soon(source, none):
    started = time.process_time()
    assert (latex_of(source) is None) == none
    assert time.process_time() - started < 1.5


def test_what_mathjax_draws_is_read():
    drawn = (
        "<mjx-math><mjx-msup><mjx-mi><mjx-c class='mjx-c1D465'></mjx-c></mjx-mi><mjx-script><mjx-mn><mjx-c class='mjx-c32'>"
        "</mjx-c></mjx-mn></mjx-script></mjx-msup><mjx-mo><mjx-c class='mjx-c3D'></mjx-c></mjx-mo><mjx-mfrac><mjx-frac>"
        "<mjx-num><mjx-nstrut></mjx-nstrut><mjx-mn><mjx-c>1</mjx-c></mjx-mn></mjx-num><mjx-dbox><mjx-dtable><mjx-row>"
        "<mjx-den><mjx-mn><mjx-c>2</mjx-c></mjx-mn></mjx-den></mjx-row></mjx-dtable></mjx-dbox></mjx-frac></mjx-mfrac></mjx-math>"
    )
    assert latex_of(mathml_of(drawn)) == r"x^{2}=\frac{1}{2}"


@pytest.mark.parametrize(
    ("source", "tex"),
    [
        ("x^2", "x^{2}"), ("(a+b)/2", r"\frac{a + b}{2}"), ("sqrt(x)", r"\sqrt{x}"), ("root(3)(x)", r"\sqrt[3]{x}"),
        ("sum_(i=1)^n i", r"\sum_{i = 1}^{n} i"), ("alpha <= oo", r"\alpha \leq \infty"), ("RR", r"\mathbb{R}"),
        ('"text" a', r"\text{text} a"), ("(", "("), ("(" * 1000, None), ("", None),
    ],
)  # fmt: skip
def test_asciimath(source, tex):
    assert from_ascii(source) == tex
