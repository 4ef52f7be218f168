"""Text of PDFs in scripts whose letters join to clusters, against the known text: letters and words right.

    python -m benchmarks.text.pdf_scripts [--data ../shared/data/languages.parquet] [--languages ta te bn th hi]

Sentences of each language as paragraphs, printed by Chromium in one column, justified, and in two; its fonts must be
installed (fonts-lohit-taml, -telu, -beng-bengali, -deva, fonts-thai-tlwg). One JSON line a language. Similarity is
1 - (edits / the longer side), of letters without white space and of words between white space, both in NFC.
"""

from __future__ import annotations

import argparse
import html
import json
import subprocess
import tempfile
import unicodedata
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.text.pdf import by_pdfium, ours, similarity

LAYOUTS = {"one column": "text-align: justify", "two columns": "column-count: 2; column-gap: 16pt"}


def printed(paragraphs: list[str], language: str, style: str) -> bytes:
    body = "".join(f"<p>{html.escape(text)}</p>" for text in paragraphs)
    page = f"<!doctype html><html lang={language}><meta charset=utf-8><body style='font-size: 11pt; {style}'>{body}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.html").write_text(page)
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        command += ["--no-pdf-header-footer", f"--print-to-pdf={folder}/a.pdf", f"file://{folder}/a.html"]
        subprocess.run(command, capture_output=True, timeout=300, check=True)
        return (Path(folder) / "a.pdf").read_bytes()


def normal(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/languages.parquet"))
    parser.add_argument("--languages", nargs="+", default=["ta", "te", "bn", "th", "hi"])
    parser.add_argument("--sentences", type=int, default=60)
    args = parser.parse_args()
    table = pq.read_table(args.data)
    (texts,) = set(table.column_names) - {"language"}
    for language in args.languages:
        rows = table.filter(pq.filters_to_expression([("language", "==", language)]))[texts].to_pylist()
        paragraphs = [" ".join(text.split()) for text in rows if 40 < len(text) < 400][: args.sentences]
        truth = normal(" ".join(paragraphs))
        for layout, style in LAYOUTS.items():
            data = printed(paragraphs, language, style)
            for by, text in (("gristmill", ours(data).text), ("PDFium", by_pdfium(data))):
                found = normal(text)
                letters = similarity(list("".join(truth.split())), list("".join(found.split())))
                words = similarity(truth.split(), found.split())
                sizes = {"paragraphs": len(paragraphs), "words": len(truth.split())}
                line = {"what": language, "layout": layout, "by": by, "letters": round(letters, 3)}
                print(json.dumps({**line, "words_right": round(words, 3), **sizes}), flush=True)


if __name__ == "__main__":
    main()
