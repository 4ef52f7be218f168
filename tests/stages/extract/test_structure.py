"""Code, formulas, powers and tables of a page keep their structure, and hostile markup costs no more than its size."""

from __future__ import annotations

import time
from functools import reduce
from operator import or_

import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.html.hints import BOX, CODE, HINTS, IMAGE, MATH, MJX, PRE, SCRIPT, STATED, SUP, hints_of
from gristmill.stages.extract.engines import extract
from gristmill.stages.extract.gristmill import look_at, written_blocks


def written(source: str, form: str = "markdown") -> str:
    return written_blocks(look_at(source.encode()), form)


CODE_LINES = "def f():\n    return 1\n\nf()"
FENCED = f"```\n{CODE_LINES}\n```"
GITHUB = "".join(
    f'<tr><td class="blob-num" data-line-number="{n}"></td><td class="blob-code blob-code-inner">{line}\n</td></tr>'
    for n, line in enumerate(CODE_LINES.split("\n"), 1)
)
GITEA = "".join(
    f'<tr><td class="lines-num"><span data-line-number="{n}"></span></td><td class="lines-code chroma"><code class="code-inner">'
    f"{line}</code></td></tr>"
    for n, line in enumerate(CODE_LINES.split("\n"), 1)
)
GITILES = "".join(
    f'<tr class="u-pre FileContents-line"><td class="u-lineNum" data-line-number="{n}"></td>'
    f'<td class="FileContents-lineContents">{line}</td></tr>'
    for n, line in enumerate(CODE_LINES.split("\n"), 1)
)


@pytest.mark.parametrize(
    "source",
    [
        f"<pre>{CODE_LINES}</pre>",
        f"<table>{GITHUB}</table>",
        f"<table>{GITEA}</table>",
        f"<table class='FileContents'>{GITILES}</table>",
        "<pre>" + "".join(f"<div class=line>{line}</div>" for line in CODE_LINES.split("\n")) + "</pre>",
        "<pre>" + "".join(f"<div>{line}<br></div>" for line in CODE_LINES.split("\n")) + "</pre>",
        "<pre>" + "".join(f"<span class=lineno>{n}</span>{line}\n" for n, line in enumerate(CODE_LINES.split("\n"), 1)) + "</pre>",
        "<div class='blockcode'><div><ol>" + "".join(f"<li>{line}<br></li>\n" for line in CODE_LINES.split("\n")) + "</ol></div></div>",
        "<p><code>" + CODE_LINES.replace("    ", "&nbsp;" * 4).replace("\n", "<br>\n") + "</code></p>",
        "<table class=highlighttable><tr><td class=gutter><pre>1\n2\n3\n4</pre></td><td class=code><pre>" + CODE_LINES + "</pre></td></tr></table>",
    ],
)  # fmt: skip
def test_code_keeps_its_lines_and_indentation(source):
    assert written(source) == FENCED
    assert written(source, "text") == CODE_LINES


@pytest.mark.parametrize(
    ("source", "language"),
    [
        ("<pre><code class='language-rust'>a</code></pre>", "rust"), ("<pre class='lang-c++'>a</pre>", "c++"),
        ("<div class='highlight highlight-source-js'><pre>a</pre></div>", "js"), ("<pre class='brush: java; x'>a</pre>", "java"),
        ("<pre data-lang=go>a</pre>", "go"), ("<pre><code class='hljs python'>a</code></pre>", "python"),
        ("<pre class='prettyprint linenums'>a</pre>", ""),
        ("<pre class='code-block wrapper'>a</pre>", ""), ("<pre>a</pre>", ""), ("<pre class=language-none>a</pre>", ""),
    ],
)  # fmt: skip
def test_a_fence_names_the_language(source, language):
    assert written(source) == f"```{language}\na\n```"
    assert written(source, "text") == "a"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<math><mfrac><mi>a</mi><mi>b</mi></mfrac></math>", r"$\frac{a}{b}$"),
        ("<math display=block><mi>x</mi><mo>=</mo><mn>1</mn></math>", "$$x=1$$"),
        ("<math alttext='y'><mi>x</mi></math>", "$y$"),
        ("<mml:math><mml:msqrt><mml:mi>x</mml:mi></mml:msqrt></mml:math>", r"$\sqrt{x}$"),
        ("<math><mi>x</mi><annotation encoding='application/x-tex'>z</annotation></math>", "$z$"),
        ("<math><mn>5</mn></math>", "5"),
        ("<script type='math/mml'><math><mi>q</mi></math></script>", "$q$"),
        ("<script type='math/asciimath'>1/2</script>", r"$\frac{1}{2}$"),
        ("<img class=tex alt='\\frac{a}{b}'>", r"$\frac{a}{b}$"),
        ("<img src='https://latex.codecogs.com/png.latex?%5Csqrt%7Bx%7D'>", r"$\sqrt{x}$"),
        ("<img src='/latex.php?latex=%5Calpha+%2B+1&bg=ffffff&s=0' alt='x'>", r"$\alpha + 1$"),
        ("<img src='/c.png' alt='A text about cost'>b", "b"),
        ("<span class='math-inline' data-math='x^2'></span>", "$x^2$"),
        ("<span class=MathJax id=MathJax-Element-1-Frame><i>x</i>2</span><script type='math/tex'>x^2</script>", "$x^2$"),
        ("<span class=MathJax data-mathml='&lt;math&gt;&lt;mi&gt;w&lt;/mi&gt;&lt;/math&gt;'><b>w</b></span>", "$w$"),
        ("<i>a</i><sup>2</sup>+b<sup>2</sup>", "a^2+b^2"), ("x<sup>n+1</sup>", "x^{n+1}"), ("10<sup>6</sup>", "10^6"),
        ("20 km<sup>2</sup>", "20 km^2"), ("10<sup><b>6</b></sup>", "10^6"),
        ("1066<sup><a href='#n3'>3</a></sup>", "1066[3]"), ("5<sup class=footnote-ref>a</sup>", "5[a]"),
        ("45<a href='x#n2'><sup>2</sup></a>", "45[2]"), ("9<sup><a class=fn>\u2020</a></sup>", "9[\u2020]"),
        ("10<sup><a href='/wiki/Power'>\u22126</a></sup>", "10^\u22126"), ("word<sup>2</sup> 1<sup>st</sup> M<sup>me</sup>", "word2 1st Mme"),
    ],
)  # fmt: skip
def test_formulas_are_latex_in_both_forms(source, text):
    assert written(f"<p>{source}</p>") == text
    assert written(f"<p>{source}</p>", "text") == text


def test_the_lines_of_crayon_are_code_without_their_numbers():
    lines = "".join(f"<div class='crayon-line'>{line}</div>" for line in ("if <i>a</i>:", "    b()"))
    numbers = "".join(f"<div class='crayon-num' data-line='{number}'>{number}</div>" for number in (1, 2))
    cells = f"<td class='crayon-nums'>{numbers}</td><td class='crayon-code'><div class='crayon-pre'>{lines}</div></td>"
    assert (
        written(f"<table class='crayon-table'><tr class='crayon-row'>{cells}</tr></table>")
        == "```\nif a:\n    b()\n```"
    )


@pytest.mark.parametrize("numbers", ["1  2\n" * 20_000, "7" * 50_000, "1. " * 20_000])
def test_numbers_that_end_in_a_word_are_not_parted_in_all_ways(numbers):
    start = time.process_time()
    assert "end" in written(f"<pre><div>{numbers}end</div></pre><p>{'Words of a page. ' * 20}")
    assert time.process_time() - start < 5


@pytest.mark.parametrize(("tag", "name"), [("span", "mw-editsection"), ("a", "headerlink"), ("span", "editsection")])
def test_what_stands_beside_a_heading_to_edit_or_link_it_is_left_out(tag, name):
    assert written(f"<h2>Rows<{tag} class='{name}' href=#x>[edit]¶</{tag}></h2><p>a") == "## Rows\n\na"


@pytest.mark.parametrize(
    ("source", "markdown"),
    [
        ("<tr><td colspan=2>a<td>b<tr><td>c<td>d<td>e", "| a |  | b |\n| --- | --- | --- |\n| c | d | e |"),
        ("<tr><td rowspan=2>a<td>b<tr><td>c<tr><td>d<td>e", None),
        ("<tr><th>a<th>b<th>c<tr><td rowspan=2>d<td>e<td>f<tr><td>g<td>h<tr><td>i<td>j<td>k",
         "| a | b | c |\n| --- | --- | --- |\n| d | e | f |\n|  | g | h |\n| i | j | k |"),
        ("<tr><th>a<th>b<tr><td>c<td>d<tr><td>e<td><tr><td>f<td>g", "| a | b |\n| --- | --- |\n| c | d |\n| e |  |\n| f | g |"),
        ("<tr><td><td>a<td>b<tr><td>c<td>d<td>e", "|  | a | b |\n| --- | --- | --- |\n| c | d | e |"),
        ("<tr><td>a<td><td>b<tr><td>c<td><td>d", "| a | b |\n| --- | --- |\n| c | d |"),
        ("<tr><td colspan=2>title<tr><th>a<th>b<tr><td>c<td>d", "title\n\n| a | b |\n| --- | --- |\n| c | d |"),
        ("<tr><th>a<th>b<tr><td><p>c<p>d<td>e<tr><td>f<td>g", "| a | b |\n| --- | --- |\n| c d | e |\n| f | g |"),
        ("<tr><th>a<th>b<tr><td><h4>c</h4><p>d<td><pre>e</pre><tr><td>f<td>three words here",
         "| a | b |\n| --- | --- |\n| c d | e |\n| f | three words here |"),
        ("<tr><td colspan=2><h3>title</h3><tr><th>a<th>b<tr><td>c<td>d", "### title\n\n| a | b |\n| --- | --- |\n| c | d |"),
        ("<tr><td>1<td><p>a<p>by b<td>9<tr><td>2<td><p>c<p>by d<td>8<tr><td>3<td><p>e<p>by f<td>7",
         "| 1 | a by b | 9 |\n| --- | --- | --- |\n| 2 | c by d | 8 |\n| 3 | e by f | 7 |"),
    ],
)  # fmt: skip
def test_tables_keep_their_columns(source, markdown):
    found = written(f"<table>{source}</table>")
    assert found == markdown if markdown else "a | b" in found


ROW = """<tr><td><a href=/{0}><img src={0}.jpg></a><td><h3><a href=/{0}>Kettle {0}</a></h3><p>steel<p>1.{0} l
<td><ul><li>quiet<li>quick</ul><td><div>{0} EUR</div><form><select><option>1<option>2</select><button>Add to cart</button></form>"""


def test_rows_of_a_product_table_are_rows():
    found = written(
        "<table><tr><th><th>Product<th>Features<th>Price" + "".join(map(ROW.format, range(1, 11))) + "</table>"
    )
    assert found.split("\n") == [
        "| Product | Features | Price |",
        "| --- | --- | --- |",
        *(f"| Kettle {n} steel 1.{n} l | quiet; quick | {n} EUR Add to cart |" for n in range(1, 11)),
    ]


@pytest.mark.parametrize(
    "source",
    [
        f"<tr><td><p>menu<td><h2>one</h2><p>other {'a text ' * 90}",  # one row: columns of a page
        f"<tr><td>name<td>date<tr><td><p>one<p>other<td><p>{'post ' * 70}<p>signature",
        "<tr><td><h3>one</h3><p>other<td><h3>card</h3><p>text" * 3,
        "<tr><td><p>one<p>other<td><p>card<p>text" * 3,
        f"<tr><th>a<th>b<tr><td><p>one<p>other {'x ' * 1500}<td>c",
        "<tr><th>a<th>b<tr><td><p>one<p>other" + "<p>c" * 30 + "<td>d",
        "<tr><th>a<th>b<tr><td><pre>one\nother</pre><td>c",
        "<tr><td><p>one<p>other<td>c<tr><td>d<td><table><tr><td>e</table>",
    ],
)
def test_cells_of_a_layout_are_paragraphs(source):
    lines = written(f"<table>{source}</table>").split("\n")
    assert [line.strip("# ") for line in lines if "one" in line] == ["one"] * source.count("one")
    assert sum(line.startswith("other") for line in lines) == source.count("other")


@pytest.mark.parametrize(
    "source",
    [
        "<table><tr><td>a<td>b" * 1000,
        "<table>" + "<tr>" + "<td>a" * 100 + "</tr>" * 1 + ("<tr>" + "<td>x" * 100) * 900 + "</table>",
        "<table>" + "<tr><td>" * 1_000_000 + "</table>a",
        "<table>" + "<tr><td rowspan=65535 colspan=1000>a<td>b" * 5000 + "</table>",
        "<table><tr>" + "<td rowspan=65535>a" * 199 + "<tr><td>b<td>c" * 5000 + "</table>",
        "<p>a" + "<math>" * 100_000,
        "<p>a" + "<math><mrow>" * 100_000 + "</math>",
        "<p>a<math>" + "<mi>x</mi>" * 1_000_000 + "</math>",
        "<p>a" + "<math><mi>x</mi></math> " * 50_000,
        "<pre>a" * 100_000, "<p>a" + "<code>b\n" * 50_000, "<pre>" + "<div>" * 100_000 + "a", "<p>a" + "<!--" * 100_000,
        "<pre>" + "<!-- a\n" * 20_000 + "</pre>", "<pre>-->" + "<!-- a\n" * 20_000 + "</pre>",
        "<p>a" + "<table class='lineno'>" * 5_000, "<p>a" + "<img alt='\\frac{" * 50_000, "a<sup>" * 50_000,
        "<p>a" + "<mjx-container>" * 20_000, "<div class='code-block'>a\n" * 20_000,
    ],
)  # fmt: skip
def test_hostile_structure_is_bounded(source):
    written("<table><tr><td rowspan=2>a<td>b</table><math><mi>x</mi></math><pre>a</pre>")
    started = time.process_time()
    found = written(source)
    assert time.process_time() - started < 6
    assert len(found) < 20 * len(source) + 1000


SIGNS = {PRE: b"<pre>", CODE: b"<code>\n</code>", MATH: b"<math>", SUP: b"x<sup>", MJX: b"<mjx-c>", BOX: b'<div class="code-block">',
         IMAGE: b'<img src="/latex.php">', STATED: b'<span data-math="x">', SCRIPT: b'<script type="math/mml">'}  # fmt: skip


@given(st.lists(st.sampled_from([*SIGNS, 0]), max_size=8))
def test_hints_say_what_a_page_holds(bits):
    source = b"<p>text ".join(SIGNS.get(bit, b"<i title='tex'>") for bit in bits)
    assert hints_of(source).bits & HINTS == reduce(or_, bits, 0)


@pytest.mark.parametrize("tag", ["code", "pre", "div class=highlight", "td class=blob-code"])
def test_code_that_never_ends_costs_no_square(tag: str) -> None:
    html = f"<article>{'<p>The mill stands still.</p>' * 20}</article>" + f"<{tag}>\n<b>x</b><br>" * 8_000
    for ending in ("", f"</{tag.split()[0]}>"):
        started = time.process_time()
        assert "The mill stands still." in extract(html + ending).text
        assert time.process_time() - started < 6


def test_lists_that_lie_deep_are_shown_as_deep_as_sixteen_and_cost_no_square() -> None:
    started = time.process_time()
    text = written("<ul><li>mill" * 30_000, "text")
    assert time.process_time() - started < 8
    lines = [line for line in text.split("\n") if line]
    assert len(lines) > 100 and {len(line) - len(line.lstrip()) for line in lines} == set(range(0, 32, 2))
