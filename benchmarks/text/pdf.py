"""Text of PDFs against their known text: edit similarity over words, hyphens, running heads, scans, pages a second.

    python -m benchmarks.text.pdf_corpus FOLDER && python -m benchmarks.text.pdf FOLDER [--peers] [--worst 10]

One JSON line a result. Pages a second are of processor time, the child's too. `similarity` is 1 - (edits / words of the
longer side), the mean over documents. Peers: pypdf, pdfminer.six and PDFium's own text (pypdfium2). Broken words are
found in PDFium's own text, which marks hyphens at lines' ends (U+FFFE): those whose parts together are a word of the
known text, and with the hyphen are not.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.text.pdf_corpus import HELD_OUT
from gristmill.stages.pdf.document import PdfText, text_of
from gristmill.stages.pdf.files import read_pdf

BROKEN = re.compile(r"([A-Za-z]+)(?:[-\u00ad]\s*\n\s*|[\ufffe\x02]\s*)([a-z]+)")


def edits(a: list[str], b: list[str]) -> int:
    """Levenshtein's distance, 1 bit a word of `a` (Hyyrö 2003)."""
    if not a or not b:
        return len(a) + len(b)
    where: dict[str, int] = defaultdict(int)
    for i, word in enumerate(a):
        where[word] |= 1 << i
    full, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    plus, minus, distance = full, 0, len(a)
    for word in b:
        same = where.get(word, 0)
        down = (((same & plus) + plus) ^ plus) | same | minus
        up = minus | (~(down | plus) & full)
        left = plus & down
        distance += bool(up & last) - bool(left & last)
        up = (up << 1 | 1) & full
        plus = ((left << 1) & full) | (~(down | up) & full)
        minus = up & down
    return distance


def similarity(truth: list[str], found: list[str]) -> float:
    return 1 - edits(truth, found) / max(len(truth), len(found), 1)


def ours(data: bytes) -> PdfText:
    return text_of(read_pdf(data))


def by_pypdf(data: bytes) -> str:
    from pypdf import PdfReader

    return "\n".join(page.extract_text() for page in PdfReader(io.BytesIO(data)).pages)


def by_pdfminer(data: bytes) -> str:
    from pdfminer.high_level import extract_text

    return str(extract_text(io.BytesIO(data)))


def by_pdfium(data: bytes) -> str:
    import pypdfium2

    return "\n".join(page.get_textpage().get_text_range() for page in pypdfium2.PdfDocument(data))


def rejoined(plain: str, truth: Counter[str], found: Counter[str]) -> tuple[int, int]:
    """Of the words that a line's end has cut, how many are whole in the text."""
    broken = Counter(
        start + end for start, end in BROKEN.findall(plain) if start + end in truth and f"{start}-{end}" not in truth
    )
    whole = sum(min(count, max(0, found[word] - (truth[word] - count))) for word, count in broken.items())
    return whole, broken.total()


def letters(words: list[str]) -> list[str]:
    return re.findall(r"[A-Za-z]+(?:-[A-Za-z]+)*", " ".join(words))


def measure(
    name: str, convert: Callable[[bytes], Any], folder: Path, truth: dict[str, Any], plain: dict[str, str]
) -> list[dict[str, Any]]:
    facts = []
    for document, about in truth.items():
        data = (folder / f"{document}.pdf").read_bytes()
        start = time.process_time()
        made = convert(data)
        seconds = time.process_time() - start + (made.seconds if isinstance(made, PdfText) else 0.0)
        text = made.text if isinstance(made, PdfText) else made
        words = text.split()
        whole, broken = rejoined(plain[document], Counter(letters(about["words"])), Counter(letters(words)))
        joined = " ".join(words).lower()
        facts.append({
            "by": name, "document": document, "program": about["program"], "columns": about["columns"],
            "similarity": similarity(about["words"], words), "whole": whole, "broken": broken,
            "heads": joined.count(about["head"].lower()), "seconds": seconds,
            "unread": len(made.unread) if isinstance(made, PdfText) else 0,
            "pages": about["pages"],
        })  # fmt: skip
    return facts


def summary(facts: list[dict[str, Any]], what: str) -> dict[str, Any]:
    return {
        "what": what, "by": facts[0]["by"], "documents": len(facts), "pages": sum(f["pages"] for f in facts),
        "similarity": round(mean(f["similarity"] for f in facts), 4), "least": round(min(f["similarity"] for f in facts), 4),
        "hyphens": f"{sum(f['whole'] for f in facts)}/{sum(f['broken'] for f in facts)}",
        "heads_left": f"{sum(f['heads'] for f in facts)}/{sum(f['pages'] for f in facts)}",
        "pages_a_second": round(sum(f["pages"] for f in facts) / sum(f["seconds"] for f in facts), 1),
    }  # fmt: skip


def main() -> None:
    import pypdfium2

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", action="store_true", help="pypdf, pdfminer.six and PDFium's own text too")
    parser.add_argument("--worst", type=int, default=0, help="name so many of our least similar documents")
    parser.add_argument("--tuned", action="store_true", help="leave out the programs that are kept out of tuning")
    args = parser.parse_args()
    truth = json.loads((args.folder / "truth.json").read_text())
    if args.tuned:
        truth = {name: about for name, about in truth.items() if about["program"] not in HELD_OUT}
    plain = {}
    for name, about in truth.items():
        pdf = pypdfium2.PdfDocument(args.folder / f"{name}.pdf")
        about["pages"] = len(pdf)
        plain[name] = "\n".join(page.get_textpage().get_text_range() for page in pdf)
    scans = {name for name, about in truth.items() if about["program"] == "scan"}
    ours(next((args.folder / f"{name}.pdf").read_bytes() for name in truth))  # the child is started
    found = measure("gristmill", ours, args.folder, {n: a for n, a in truth.items() if n in scans}, plain)
    told = sum(f["unread"] == f["pages"] for f in found)
    print(json.dumps({"what": "scans told, with all their pages", "told": told, "of": len(found)}))
    texts = {name: about for name, about in truth.items() if name not in scans}
    converters = {"gristmill": ours}
    if args.peers:
        converters |= {"pdfium": by_pdfium, "pypdf": by_pypdf, "pdfminer": by_pdfminer}
    for by, convert in converters.items():
        facts = measure(by, convert, args.folder, texts, plain)
        print(json.dumps(summary(facts, "all")))
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for fact in facts:
            held_out = fact["program"] in HELD_OUT
            groups[f"{fact['columns']} column{'s' if fact['columns'] > 1 else ''}"].append(fact)
            groups[f"{fact['program']} {fact['columns']}"].append(fact)
            groups["held out of tuning" if held_out else "tuned on"].append(fact)
        for what in sorted(groups) if by == "gristmill" else ["1 column", "2 columns"]:
            print(json.dumps(summary(groups[what], what)))
        for fact in sorted(facts, key=lambda f: f["similarity"])[: args.worst if by == "gristmill" else 0]:
            print(json.dumps({"what": "worst", **fact}))


if __name__ == "__main__":
    main()
