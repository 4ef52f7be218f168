"""Code, formulas and tables as Markdown, beside other extractors: similarity to the Markdown that 226 pages should give.

Scores as in WebMainBench. Of each page all blocks of a kind are joined and compared: 1 - Levenshtein distance / longer
length for code, formulas and tables, TEDS (Zhong et al. 2019) for tables as trees. A page counts for a kind where the
truth has one. Habits of the truth's writer (defuddle) are undone on both sides: languages of fences, padding of tables,
spaces in formulas. `every block` is ours without the choice of main text, so that its losses are those of rendering.

    python -m benchmarks.text.structure [--data ../shared/data] [--without trafilatura] [--show table]
"""

from __future__ import annotations

import argparse
import html
import json
import platform
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from gristmill.stages.extract.engines import extract, markup
from gristmill.stages.extract.gristmill import look_at, utf8, written_blocks

Table = list[list[str]]
FENCE = re.compile(r"(?ms)^[ \t>]*(`{3,}|~{3,})([^\n`]*)\n(.*?)^[ \t>]*\1`*[ \t]*$")
FRONT = re.compile(r"(?s)\A```json\n\{.*?\n\}\n```\n")
QUOTE = re.compile(r"(?m)^(?:> ?)+")
DISPLAYED = re.compile(r"(?s)(?<![\\\w])\\\[((?:(?!\n\n).)+?)\\\]|\\\(([^\n]+?)\\\)")
FORMULA = re.compile(r"\$\$((?:(?!\n\n)[^$])+?)\$\$|(?<![\\$\w])\$(?!\s)((?:\\.|[^$\n\\])+?)(?<!\s)\$(?![\d$])")
PRICE = re.compile(r"\d[\d,.]*(?:$|[^\d,.^_=+\\/*<>{a-zA-Z-])")
RULE = re.compile(r"\s*\|?[ :|-]*-[ :|-]*\|?\s*")
BAR = re.compile(r"(?<!\\)\|")
MARKUP_TABLE = re.compile(r"(?is)<table.*?</table>")
SPACES = re.compile(r"\s+")
MARKS = re.compile(r"[*_`~]|!?\[([^\]\n]*)\]\([^)\n]*\)|<[^<>\n]+>")
WORD = re.compile(r"\w+")
BUTTON = re.compile(r"\n复制代码\s*\Z")  # "copy the code", a button that the truth of one page holds
SHORTEST = 3  # letters of an ingredient, or the page holds it by chance
ENOUGH = 0.8  # of an ingredient's words on one line of the text


class Blocks(NamedTuple):
    """What of a Markdown text is not prose."""

    code: list[str]
    formulas: list[str]
    tables: list[Table]


def read_blocks(text: str, brackets: bool = True) -> Blocks:
    """`brackets`: whether TeX may stand in \\(...\\) too; the truth has only dollars, and escapes its brackets."""
    code = [
        QUOTE.sub("", found[3]) if found[0].lstrip(" \t").startswith(">") else found[3]
        for found in FENCE.finditer(text)
    ]
    rest = FENCE.sub("\n", text)
    indented = re.compile(r"(?m)(?:(?<=\n\n)|\A)((?:(?: {4}|\t)[^\n]*\n|[ \t]*\n)+)") if not code else None
    if indented and not re.search(r"(?m)^\s*(?:[-*+]|\d+[.)]) ", rest):
        code = [re.sub(r"(?m)^(?: {4}|\t)", "", block) for block in indented.findall(rest) if block.strip()]
    rest = re.sub(r"`[^`\n]+`", "", rest)
    rest = DISPLAYED.sub(dollars, rest) if brackets else rest
    formulas = [
        found[1] or found[2] for found in FORMULA.finditer(rest) if found[1] or not PRICE.match(found[2])
    ]  # in order, whether on a line of their own or not
    return Blocks([tidy_code(block) for block in code], [tidy_formula(f) for f in formulas], list(tables_of(rest)))


def dollars(found: re.Match[str]) -> str:
    """TeX's other brackets as dollars; those that Markdown escapes are brackets of the text."""
    source: str = found[1] or found[2]
    return f"$${source}$$" if re.search(r"[\\^_=]", source) else found[0]


def tidy_code(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.replace("\xa0", " ").strip("\n").split("\n"))


def tidy_formula(text: str) -> str:
    text = re.sub(r"\\(?:displaystyle|textstyle)\b", "", html.unescape(text))
    return SPACES.sub("", text).rstrip(".,")


def tables_of(text: str) -> Iterator[Table]:
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if at and "|" in lines[at - 1] and RULE.fullmatch(lines[at]) and "|" in lines[at]:
            rows = [cells_of(lines[at - 1])]
            at += 1
            while at < len(lines) and "|" in lines[at] and lines[at].strip():
                rows.append(cells_of(lines[at]))
                at += 1
            yield from worth_counting(rows)
        at += 1
    for table in MARKUP_TABLE.findall(text):
        rows = [
            [tidy_cell(cell) for cell in re.findall(r"(?is)<t[dh].*?>(.*?)(?=<t[dhr]\b|</t[dhr])", row)]
            for row in re.split(r"(?i)<tr", table)[1:]
        ]
        yield from worth_counting(rows)


def worth_counting(rows: Table) -> Iterator[Table]:
    """A table with text and two columns; one of a single column is a matter of taste."""
    filled = [row for row in rows if any(row)]
    if filled and max(map(len, filled)) > 1:
        yield filled


def cells_of(line: str) -> list[str]:
    line = re.sub(r"^[\s>]*\|?", "", line)
    return [tidy_cell(cell) for cell in BAR.split(re.sub(r"\|\s*$", "", line))]


def tidy_cell(cell: str) -> str:
    cell = MARKS.sub(lambda found: found[1] or "", html.unescape(cell).replace("\\", ""))
    return SPACES.sub(" ", cell).strip()


def distance(left: str, right: str) -> int:
    """Levenshtein's, by Myers' bit vectors (1999) in the form of Hyyrö (2003)."""
    if not left or not right:
        return max(len(left), len(right))
    places: dict[str, int] = {}
    for place, letter in enumerate(left):
        places[letter] = places.get(letter, 0) | 1 << place
    everything, last = (1 << len(left)) - 1, 1 << (len(left) - 1)
    up, down, edits = everything, 0, len(left)
    for letter in right:
        equal = places.get(letter, 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down
        more, less = down | (everything & ~(diagonal | up)), up & diagonal
        edits += bool(more & last) - bool(less & last)
        more, less = (more << 1 | 1) & everything, (less << 1) & everything
        up, down = less | (everything & ~(diagonal | more)), more & diagonal
    return edits


def similarity(left: str, right: str) -> float:
    longest = max(len(left), len(right))
    return 1 - distance(left, right) / longest if longest else 1.0


def teds(left: Table, right: Table) -> float:
    """1 - tree edit distance / nodes of the larger tree, where rows answer to rows and cells to cells."""
    sizes = [1 + sum(1 + len(row) for row in table) for table in (left, right)]
    cost = aligned(
        [len(row) + 1 for row in left],
        [len(row) + 1 for row in right],
        lambda i, j: aligned(
            [1] * len(left[i]), [1] * len(right[j]), lambda k, n: 1 - similarity(left[i][k], right[j][n])
        ),
    )
    return 1 - cost / max(sizes)


def aligned(left: list[int], right: list[int], change: Callable[[int, int], float]) -> float:
    costs = np.zeros(len(right) + 1)
    costs[1:] = np.cumsum(right)
    for i, weight in enumerate(left):
        before, costs = costs, np.empty_like(costs)
        costs[0] = before[0] + weight
        for j, other in enumerate(right):
            costs[j + 1] = min(before[j + 1] + weight, costs[j] + other, before[j] + change(i, j))
    return float(costs[-1])


def tables_score(wanted: list[Table], found: list[Table]) -> float:
    """The mean over the truth's tables of the best that stands at most two places away in the text."""
    total = 0.0
    for place, table in enumerate(wanted):
        near = found if len(found) <= 6 else found[max(place - 2, 0) : place + 3]
        total += max((teds(table, other) for other in near), default=0.0)
    return total / max(len(wanted), 1)


def written(table: Table) -> str:
    return "\n".join(" | ".join(row) for row in table)


def scores(wanted: Blocks, found: Blocks) -> dict[str, float]:
    marks: dict[str, float] = {}
    if wanted.code:
        marks["code"] = similarity("\n".join(wanted.code), "\n".join(found.code))
    if wanted.formulas:
        marks["formula"] = similarity("\n".join(wanted.formulas), "\n".join(found.formulas))
    if wanted.tables:
        texts = ["\n\n".join(map(written, tables)) for tables in (wanted.tables, found.tables)]
        marks["table"] = similarity(texts[0], texts[1])
        marks["teds"] = tables_score(wanted.tables, found.tables)
    return marks


def engines(without: list[str]) -> Iterator[tuple[str, Callable[[bytes], str]]]:
    yield "gristmill", lambda data: extract(data, form="markdown").text
    yield "gristmill, every block", lambda data: written_blocks(look_at(utf8(data)), "markdown")
    makers: dict[str, Callable[[Any], Callable[[str], str]]] = {
        "trafilatura": lambda module: (
            lambda page: (
                module.extract(
                    page, output_format="markdown", include_formatting=True, include_tables=True, favor_recall=True
                )
                or ""
            )
        ),
        "html2text": lambda module: lambda page: module.html2text(page, bodywidth=0),
        "markdownify": lambda module: lambda page: module.markdownify(page, heading_style="ATX"),
    }
    for name, make in makers.items():
        if name in without:
            continue
        try:
            run = make(import_module(name))
        except ImportError as error:
            print(json.dumps({"what": name, "skipped": f"{error}; pip install {name}"}), flush=True)
            continue
        yield name, lambda data, run=run: run(markup(data))  # type: ignore[misc]


def exact_code(pages: Iterable[dict[str, Any]], texts: Iterable[str]) -> dict[str, str]:
    """Of each page whose code is known block by block: how many blocks are there exactly."""
    counts = {}
    for page, text in zip(pages, texts, strict=True):
        if page["code"]:
            wanted, found = page["truth"].code, read_blocks(text).code
            exact = sum((Counter(wanted) & Counter(found)).values())
            counts[page["id"]] = f"{exact} of {len(wanted)}, {len(found)} found"
    return counts


def measure(pages: list[dict[str, Any]], run: Callable[[bytes], str], show: str | None) -> dict[str, Any]:
    texts, start = [], time.process_time()
    for page in pages:
        try:
            texts.append(run(page["html"]))
        except Exception as error:  # an engine's failure on a page is a page without text
            print(json.dumps({"failed": page["id"], "error": repr(error)[:200]}))
            texts.append("")
    seconds = time.process_time() - start
    marks: dict[str, dict[str, float]] = {}
    for page, text in zip(pages, texts, strict=True):
        for kind, score in scores(page["truth"], read_blocks(text)).items():
            marks.setdefault(kind, {})[page["id"]] = score
    if show:
        for page, score in sorted(marks.get(show, {}).items(), key=lambda item: item[1]):
            print(f"{score:.3f} {page}")
    means = {kind: round(float(np.mean(list(by_page.values()))), 4) for kind, by_page in sorted(marks.items())}
    counts = {kind: len(by_page) for kind, by_page in sorted(marks.items())}
    return {**means, "pages": counts, "exact_code": exact_code(pages, texts), "seconds": round(seconds, 2)}


def ingredients_of(page: str) -> list[str]:
    """`recipeIngredient` of a page's JSON-LD."""
    found: list[str] = []
    for source in re.findall(r"(?is)<script[^>]*application/ld\+json[^>]*>(.*?)</script>", page):
        try:
            nodes = [json.loads(source, strict=False)]
        except ValueError:
            continue
        while nodes and not found:
            node = nodes.pop()
            if isinstance(node, dict):
                stated = node.get("recipeIngredient")
                found = [item for item in stated if isinstance(item, str)] if isinstance(stated, list) else []
                nodes += [value for value in node.values() if isinstance(value, (dict, list))]
            elif isinstance(node, list):
                nodes += node
    clean = [SPACES.sub(" ", re.sub(r"<[^>]*>", "", html.unescape(html.unescape(item)))).strip() for item in found]
    return [item for item in clean if sum(map(str.isalpha, item)) >= SHORTEST]


def words(text: str) -> list[str]:
    return WORD.findall(unicodedata.normalize("NFKC", text.replace("⁄", "/")).lower())


def held(item: str, text: set[str]) -> bool:
    wanted = words(item)
    return bool(wanted) and sum(word in text for word in wanted) >= ENOUGH * len(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--show", choices=["code", "formula", "table", "teds"], help="ours page by page, worst first")
    asked = parser.parse_args()
    source = asked.data / "structure.parquet"
    if not source.exists():
        raise SystemExit(f"{source}: no such file; --data names the folder with structure.parquet")
    pages = pq.read_table(source).to_pylist()
    for page in pages:
        page["truth"] = read_blocks(FRONT.sub("", page["markdown"] or ""), brackets=False)
        if page["code"]:
            page["truth"] = page["truth"]._replace(code=[tidy_code(BUTTON.sub("", block)) for block in page["code"]])
    for name, run in engines(asked.without):
        scores_of_engine = measure(pages, run, asked.show if name == "gristmill" else None)
        print(json.dumps({"what": name, "machine": f"{platform.machine()}, one core", **scores_of_engine}), flush=True)


if __name__ == "__main__":
    main()
