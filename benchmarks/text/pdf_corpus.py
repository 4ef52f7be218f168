"""Makes PDFs with known text by seven programs, for benchmarks/text/pdf.py: LaTeX, LibreOffice, Chromium, ReportLab,
fpdf2, scans (LaTeX's pages as pictures) and Typst, which is kept out of all tuning.

    python -m benchmarks.text.pdf_corpus FOLDER --prose ../shared/data/prose.parquet

Text is taken from the prose file and cut into a title, headings, paragraphs, some lists and tables; each document has
a running head and page numbers, which are not in its known text. FOLDER gets NAME.pdf and truth.json. Needs pdflatex,
soffice, chromium, and the packages reportlab, fpdf2, typst and pillow. Part of benchmarks/text/pdf.py.
"""

from __future__ import annotations

import argparse
import html
import json
import random
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

COUNTS = {
    "latex": (24, 26), "libreoffice": (16, 12), "chromium": (14, 12), "reportlab": (14, 12), "fpdf2": (12, 10),
    "scan": (20, 21), "typst": (14, 13),
}  # fmt: skip
HELD_OUT = ("typst",)
SIZES = (9, 10, 11, 12)


@dataclass
class Made:
    """A document before any program has it. A block is (kind, content): heading, paragraph, list or table."""

    name: str
    program: str
    columns: int
    title: str
    head: str
    blocks: list[tuple[str, Any]]
    size: int
    style: int
    words: list[str] = field(default_factory=list)


def clean(text: str) -> str:
    """What every program's standard fonts can show."""
    text = re.sub(r"\s+", " ", text).replace("--", " - ").strip()
    text = text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: "-"})
    return re.sub(r"[^ !\"'(),\-.0-9:;?A-Za-z]", "", text).replace('"', "").replace("'", "")


def paragraphs_of(prose: Path) -> list[str]:
    found = []
    for text in pq.read_table(prose, columns=["text"])["text"].to_pylist():
        found += [clean(part) for part in text.split("\n\n")]
    return [text for text in found if 120 < len(text) < 1500]


def documents(prose: Path, seed: int = 1) -> Iterator[Made]:
    random_ = random.Random(seed)
    paragraphs = paragraphs_of(prose)
    for program, counts in COUNTS.items():
        for columns, count in enumerate(counts, start=1):
            for i in range(count):
                yield document(f"{program}-{columns}-{i:02d}", program, columns, paragraphs, random_)


def document(name: str, program: str, columns: int, paragraphs: list[str], random_: random.Random) -> Made:
    def some_words(least: int, most: int) -> str:
        words = [word for word in re.findall("[a-z]+", random_.choice(paragraphs)) if len(word) > 2]
        return " ".join(words[: random_.randint(least, most)] or ["mill"]).capitalize()

    title, head = some_words(4, 9), f"Journal of {some_words(2, 3)} {random_.randint(1, 60)}"
    blocks: list[tuple[str, Any]] = []
    target, held = random_.randint(1000, 2600), 0
    while held < target:
        if random_.random() < 0.25:
            blocks.append(("heading", some_words(2, 6)))
        draw = random_.random()
        if draw < 0.05:
            blocks.append(("list", [some_words(4, 12) + "." for _ in range(random_.randint(3, 5))]))
        elif draw < 0.09:
            rows = [[some_words(1, 2), *(f"{random_.uniform(0, 99):.1f}" for _ in range(3))] for _ in range(4)]
            blocks.append(("table", [["Name", "First", "Second", "Third"], *rows]))
        text = random_.choice(paragraphs)
        blocks.append(("paragraph", text))
        held += len(text.split())
    made = Made(name, program, columns, title, head, blocks, random_.choice(SIZES), random_.randrange(6))
    made.words = words_of(made)
    return made


def words_of(made: Made) -> list[str]:
    parts = [made.title]
    for kind, content in made.blocks:
        if kind == "table":
            parts += [cell for row in content for cell in row]
        else:
            parts += content if kind == "list" else [content]
    return " ".join(parts).split()


# --- LaTeX


FONTS = (
    "",
    r"\usepackage{times}",
    r"\usepackage{palatino}",
    r"\usepackage{lmodern}\usepackage[T1]{fontenc}",
    "",
    r"\usepackage{helvet}\renewcommand{\familydefault}{\sfdefault}",
)


def latex_of(made: Made) -> str:
    options = f"{min(made.size, 12) if made.size > 9 else 10}pt,a4paper" + (",twocolumn" if made.columns == 2 else "")
    body = []
    for kind, content in made.blocks:
        if kind == "heading":
            body.append(f"\\section*{{{content}}}")
        elif kind == "list":
            body.append(
                "\\begin{itemize}\\renewcommand{\\labelitemi}{}"
                + "".join(f"\\item {t}\n" for t in content)
                + "\\end{itemize}"
            )
        elif kind == "table":
            rows = "\\\\\n".join(" & ".join(row) for row in content)
            body.append(
                f"\\begin{{center}}\\begin{{tabular}}{{lrrr}}\\hline {rows}\\\\ \\hline\\end{{tabular}}\\end{{center}}"
            )
        else:
            body.append(content.replace(" - ", " -{} ").replace("--", "-{}-") + "\n")
    heads = (
        f"\\fancyhf{{}}\\fancyhead[L]{{{made.head}}}\\fancyhead[R]{{\\thepage}}" if made.style % 2
        else f"\\fancyhf{{}}\\fancyhead[C]{{{made.head}}}\\fancyfoot[C]{{\\thepage}}"
    )  # fmt: skip
    return (
        f"\\documentclass[{options}]{{article}}{FONTS[made.style]}\\usepackage{{fancyhdr}}\\pagestyle{{fancy}}{heads}"
        f"\\fancypagestyle{{plain}}{{{heads}}}\\title{{{made.title}}}\\author{{}}\\date{{}}\\begin{{document}}\\maketitle\n"
        + "\n\n".join(body) + "\\end{document}"
    )  # fmt: skip


def latex(made: Made, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.tex").write_text(latex_of(made))
        run(["pdflatex", "-interaction=batchmode", "a.tex"], folder)
        (Path(folder) / "a.pdf").rename(out)


def scan(made: Made, out: Path) -> None:
    import pypdfium2
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        latex(made, Path(folder) / "b.pdf")
        pages = [
            page.render(scale=100 / 72).to_pil().convert("L") for page in pypdfium2.PdfDocument(Path(folder) / "b.pdf")
        ]
        turned: list[Image.Image] = [page.rotate(0.3, fillcolor=255) for page in pages[:3]]
        turned[0].save(out, save_all=True, append_images=turned[1:], resolution=100)


# --- HTML, for Chromium and LibreOffice


def html_blocks(made: Made) -> str:
    parts = []
    for kind, content in made.blocks:
        if kind == "heading":
            parts.append(f"<h2>{html.escape(content)}</h2>")
        elif kind == "list":
            parts.append("<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in content) + "</ul>")
        elif kind == "table":
            rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in content)
            parts.append("<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>")
        else:
            parts.append(f"<p>{html.escape(content)}</p>")
    return "\n".join(parts)


def chromium(made: Made, out: Path) -> None:
    font = ("serif", "sans-serif", "Liberation Serif", "DejaVu Sans", "Liberation Sans", "DejaVu Serif")[made.style]
    align = "justify" if made.style % 2 else "left"
    page = (
        f"<!doctype html><html lang=en><title>{made.title}</title><style>@page {{ size: A4; margin: 22mm 20mm;"
        f' @top-center {{ content: "{made.head}"; font-size: 8pt }} @bottom-center {{ content: counter(page); font-size: 8pt }} }}'
        f" body {{ font: {made.size}pt {font}; text-align: {align}; hyphens: auto }} ul {{ list-style: none }}"
        f" main {{ column-count: {made.columns}; column-gap: {14 + made.style}pt }} td {{ padding: 2pt 8pt }}</style>"
        f"<h1>{made.title}</h1><main>{html_blocks(made)}</main></html>"
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.html").write_text(page)
        run([
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer", f"--print-to-pdf={out}", f"file://{folder}/a.html",
        ], folder)  # fmt: skip


def fodt_of(made: Made) -> str:
    """A flat OpenDocument file: one file, its styles in it."""

    def p(style: str, text: str) -> str:
        return f'<text:p text:style-name="{style}">{html.escape(text)}</text:p>'

    body = []
    for kind, content in made.blocks:
        if kind == "heading":
            body.append(p("H", content))
        elif kind == "list":
            body += [p("L", text) for text in content]
        elif kind == "table":
            rows = "".join(
                "<table:table-row>"
                + "".join(f"<table:table-cell>{p('C', cell)}</table:table-cell>" for cell in row)
                + "</table:table-row>"
                for row in content
            )
            body.append(f'<table:table><table:table-column table:number-columns-repeated="4"/>{rows}</table:table>')
        else:
            body.append(p("T", content))
    font = (
        "Liberation Serif",
        "Liberation Sans",
        "DejaVu Serif",
        "DejaVu Sans",
        "Liberation Serif",
        "Liberation Sans",
    )[made.style]
    names = " ".join(f'xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{v}:1.0"' for n, v in (
        ("office", "office"), ("style", "style"), ("text", "text"), ("table", "table"), ("fo", "xsl-fo-compatible"), ("svg", "svg-compatible"),
    ))  # fmt: skip
    text = '<style:text-properties style:font-name="F" fo:font-size="{}pt" fo:language="en" fo:country="US" fo:hyphenate="{}" fo:hyphenation-remain-char-count="2" fo:hyphenation-push-char-count="2"/>'
    styles = "".join(
        f'<style:style style:name="{name}" style:family="paragraph"><style:paragraph-properties fo:text-align="{align}" fo:margin-bottom="6pt" fo:margin-left="{margin}"/>{text.format(size, hyphenate)}</style:style>'
        for name, size, hyphenate, align, margin in (
            ("T", made.size, "true", "justify" if made.style % 2 else "left", "0cm"), ("H", made.size + 3, "false", "left", "0cm"),
            ("L", made.size, "false", "left", "0.8cm"), ("C", made.size, "false", "left", "0cm"), ("B", made.size + 8, "false", "center", "0cm"),
            ("R", 8, "false", "center", "0cm"),
        )
    )  # fmt: skip
    section = (
        f'<style:style style:name="S" style:family="section"><style:section-properties text:dont-balance-text-columns="false"><style:columns fo:column-count="{made.columns}" fo:column-gap="0.5cm"/></style:section-properties></style:style>'
    )  # fmt: skip
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document {names} office:version="1.2" office:mimetype="application/vnd.oasis.opendocument.text">'
        f'<office:font-face-decls><style:font-face style:name="F" svg:font-family="\'{font}\'"/></office:font-face-decls>'
        f"<office:automatic-styles>{styles}{section}"
        '<style:page-layout style:name="P"><style:page-layout-properties fo:page-width="21cm" fo:page-height="29.7cm" fo:margin-top="1.5cm" fo:margin-bottom="1.5cm" fo:margin-left="2cm" fo:margin-right="2cm"/>'
        '<style:header-style><style:header-footer-properties fo:min-height="0.8cm" fo:margin-bottom="0.4cm"/></style:header-style><style:footer-style><style:header-footer-properties fo:min-height="0.8cm" fo:margin-top="0.4cm"/></style:footer-style></style:page-layout>'
        "</office:automatic-styles>"
        f'<office:master-styles><style:master-page style:name="Standard" style:page-layout-name="P"><style:header>{p("R", made.head)}</style:header><style:footer><text:p text:style-name="R"><text:page-number text:select-page="current">1</text:page-number></text:p></style:footer></style:master-page></office:master-styles>'
        f'<office:body><office:text>{p("B", made.title)}<text:section text:style-name="S" text:name="s">{"".join(body)}</text:section></office:text></office:body></office:document>'
    )


def libreoffice(all_made: list[Made], out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for made in all_made:
            files.append(Path(folder) / f"{made.name}.fodt")
            files[-1].write_text(fodt_of(made))
        run(
            ["soffice", f"-env:UserInstallation=file://{folder}/profile", "--headless", "--convert-to", "pdf",
             "--outdir", str(out), *map(str, files)], folder,
        )  # fmt: skip


# --- Python packages


def reportlab(made: Made, out: Path) -> None:
    from reportlab.lib.pagesizes import A4, letter
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.platypus import BaseDocTemplate, Frame, PageTemplate, Paragraph, Table

    width, height = A4 if made.style % 2 else letter
    font = ("Times-Roman", "Helvetica", "Times-Roman")[made.style % 3]
    style = ParagraphStyle(
        "t",
        fontName=font,
        fontSize=made.size,
        leading=made.size * 1.2,
        spaceAfter=6,
        alignment=4 if made.style % 2 else 0,
    )
    big, middle = (
        ParagraphStyle(f"h{n}", parent=style, fontSize=made.size + n, leading=(made.size + n) * 1.2) for n in (8, 3)
    )
    gap, margin, top = 16 + made.style, 60, 70
    each = (width - 2 * margin - gap * (made.columns - 1)) / made.columns
    frames = [
        Frame(margin + i * (each + gap), margin, each, height - margin - top, 0, 0, 0, 0) for i in range(made.columns)
    ]

    def decorate(canvas: Any, doc: Any) -> None:
        canvas.setFont(font, 8)
        canvas.drawCentredString(width / 2, height - 40, made.head)
        canvas.drawCentredString(width / 2, 30, f"Page {doc.page}" if made.style > 2 else str(doc.page))

    flow: list[Any] = [Paragraph(made.title, big)]
    for kind, content in made.blocks:
        if kind == "heading":
            flow.append(Paragraph(content, middle))
        elif kind == "list":
            flow += [Paragraph(text, ParagraphStyle("l", parent=style, leftIndent=18)) for text in content]
        elif kind == "table":
            flow.append(Table(content))
        else:
            flow.append(Paragraph(content, style))
    template = BaseDocTemplate(str(out), pagesize=(width, height), title=made.title)
    template.addPageTemplates([PageTemplate(frames=frames, onPage=decorate)])
    template.build(flow)


def fpdf2(made: Made, out: Path) -> None:
    from fpdf import FPDF

    class Paper(FPDF):
        def header(self) -> None:
            self.set_font("Helvetica", size=8)
            self.cell(0, 8, made.head, align="C", new_x="LMARGIN", new_y="NEXT")
            self.ln(4)

        def footer(self) -> None:
            self.set_y(-14)
            self.set_font("Helvetica", size=8)
            self.cell(0, 8, f"{self.page_no()}/{{nb}}" if made.style > 3 else str(self.page_no()), align="C")

    paper = Paper(format="A4")
    paper.add_page()
    paper.set_title(made.title)
    font = ("Times", "Helvetica")[made.style % 2]
    paper.set_font(font, size=made.size)
    blocks = [("heading", made.title), *made.blocks]
    if made.columns == 1:
        for kind, content in blocks:
            if kind == "table":
                paper.set_font(font, size=made.size)
                with paper.table(content):
                    pass
                paper.ln(3)
                continue
            paper.set_font(font, size=made.size + 3 * (kind == "heading"))
            for text in content if kind == "list" else [content]:
                paper.multi_cell(
                    0, made.size * 0.45, text, align="J" if made.style % 2 else "L", new_x="LMARGIN", new_y="NEXT"
                )
                paper.ln(2)
    else:
        with paper.text_columns(ncols=2, gutter=6, text_align="J" if made.style % 2 else "L") as columns:
            for kind, content in blocks:
                for text in (
                    [" ".join(row) for row in content] if kind == "table" else content if kind == "list" else [content]
                ):
                    with columns.paragraph(bottom_margin=2) as paragraph:
                        paragraph.write(text)
    paper.output(str(out))


def typst(made: Made, out: Path) -> None:
    import typst as compiler

    def plain(text: str) -> str:
        return f"#{json.dumps(text)}"

    body = []
    for kind, content in made.blocks:
        if kind == "heading":
            body.append(f"= {plain(content)}")
        elif kind == "list":
            body += [f"#block(inset: (left: 12pt), {json.dumps(text)})" for text in content]
        elif kind == "table":
            body.append("#table(columns: 4, " + ", ".join(json.dumps(cell) for row in content for cell in row) + ")")
        else:
            body.append(plain(content))
    font = ("Libertinus Serif", "New Computer Modern", "DejaVu Sans Mono")[made.style % 2]
    source = (
        f'#set page(paper: "a4", columns: {made.columns}, header: align(center, text(8pt, {json.dumps(made.head)})), numbering: "1")\n'
        f'#set text(font: {json.dumps(font)}, size: {made.size}pt, lang: "en")\n#set par(justify: {"true" if made.style % 2 else "false"}'
        f', first-line-indent: {"12pt" if made.style > 3 else "0pt"})\n'
        + (f'#place(top + center, scope: "parent", float: true, text(18pt, {json.dumps(made.title)}))\n\n' if made.columns == 2 else f"#text(18pt, {json.dumps(made.title)})\n\n")
        + "\n\n".join(body)
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.typ"
        path.write_text(source)
        out.write_bytes(compiler.compile(str(path)))


def run(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=600, check=False)
    if done.returncode:
        print(command[0], done.returncode, done.stdout[-300:], done.stderr[-300:])


ONE_BY_ONE: dict[str, Callable[[Made, Path], None]] = {
    "latex": latex, "chromium": chromium, "reportlab": reportlab, "fpdf2": fpdf2, "scan": scan, "typst": typst,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prose", type=Path, default=Path("../shared/data/prose.parquet"))
    parser.add_argument("--only", help="one program")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    every = [made for made in documents(args.prose) if args.only in (None, made.program)]
    written = [
        made for made in every if made.program == "libreoffice" and not (args.folder / f"{made.name}.pdf").exists()
    ]
    if written:
        libreoffice(written, args.folder.resolve())
    for made in every:
        out = args.folder.resolve() / f"{made.name}.pdf"
        if made.program in ONE_BY_ONE and not out.exists():
            ONE_BY_ONE[made.program](made, out)
    path = args.folder / "truth.json"
    truth = json.loads(path.read_text()) if path.exists() else {}
    truth |= {
        made.name: {"program": made.program, "columns": made.columns, "head": made.head, "words": made.words}
        for made in every
        if (args.folder / f"{made.name}.pdf").exists()
    }
    path.write_text(json.dumps(truth))
    print(f"{len(truth)} documents in {args.folder}")


if __name__ == "__main__":
    main()
