#!/usr/bin/env python3
"""Race corpora: one crawl through several pipelines, one small model for each corpus; which teaches more?

    python -m benchmarks.training.corpora FOLDER CRAWL... --data DATA --datatrove PYTHON [--manuals DOCS] [--sentences PACKAGE]
      [--arms fineweb,datatrove,...] [--recipes FOLDER] [--control datatrove] [--tokens 33_000_000] [--half 0]
    gristmill ablate FOLDER/plan.yaml      on a GPU; prints verdicts, compute multipliers and the cost

CRAWL: folders of WARC files (benchmarks/pipeline/real_crawl.py makes them). DATA: prose.parquet, near_duplicates.parquet,
wild_pages.parquet. DOCS: a Python documentation's _sources (reStructuredText), as Debian's python3.11-doc has them.
PACKAGE: npm's nlp-corpus, unpacked. --half keeps the pages of half of the sites (by hash of the host).

Arms, each a folder of Parquet files with `text` and `url`:

    NAME              recipes/NAME.yaml of this checkout (fineweb, gristmill, ...), or NAME.yaml of --recipes
    NAME-STAGE        the same without a stage; NAME-STAGE-STAGE without two
    datatrove         DataTrove's FineWeb steps (benchmarks/pipeline/end_to_end_datatrove.py)
    trafilatura       its text, English, without a filter
    resiliparse_dclm  recipes/dclm.yaml: resiliparse's text, DCLM's heuristics
    both_ours, both_datatrove   the pages that fineweb and datatrove both keep, in the text of each

Held-out texts are of domains that no crawl holds: books and encyclopedia, news, manuals, recipes as their pages' own
JSON-LD has them, single sentences of many kinds. Each domain gives the same number of bytes, and no text has a line
break: tools join paragraphs by one newline or by two, and a model learns which. On texts with empty lines between
sentences, corpora with two newlines were 0.5 bits per byte ahead for that alone.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import xxhash
import yaml

from gristmill.stages.text.language import model_path

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = "crawl-data/CC-MAIN-*/segments/*/warc/*.warc.gz"
ARMS = "fineweb,datatrove,trafilatura,resiliparse_dclm,both_ours,both_datatrove"
BYTES = 300_000  # of a domain
PIECE = 4_000  # characters of a held-out document, about
MOST = 5  # of a work: verdicts rest on works, not on pages of them
TRAFILATURA = {
    "stages": [{"extract": {"engine": "trafilatura"}}, "language", {"keep_languages": {"languages": ["en"]}}, "write"]
}  # fmt: skip
Row = dict[str, str]


def main() -> None:
    given = options()
    given.folder.mkdir(parents=True, exist_ok=True)
    names = given.arms.split(",")
    if given.control not in names:
        sys.exit(f"--control {given.control}: not one of --arms")
    crawl = one_crawl(given.crawl, given.folder / "crawl")
    sizes = {name: write(given.folder / "arms" / name, chosen(arm(given, name, crawl), given.half)) for name in names}
    held_out = {name: held(texts) for name, texts in domains(given).items()}
    rows = [{"domain": name, **row} for name, texts in held_out.items() for row in texts]
    pq.write_table(pa.Table.from_pylist(rows), given.folder / "held_out.parquet")
    (given.folder / "plan.yaml").write_text(plan(given, names))
    facts = {
        "what": "arms of a race of corpora",
        "arms": sizes,
        "held_out": {name: {"texts": len(texts), "clusters": len({row["cluster"] for row in texts})}
                     for name, texts in held_out.items()},
    }  # fmt: skip
    print(json.dumps(facts))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("crawl", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--datatrove", help="a Python that has datatrove")
    parser.add_argument("--manuals", type=Path)
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--arms", default=ARMS)
    parser.add_argument("--recipes", type=Path, action="append", default=[], help="a folder with recipes of yours")
    parser.add_argument("--control", default="datatrove")
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--tokens", type=int, default=33_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--shape", default=json.dumps({"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 8, "mlp": 1376})
    )
    parser.add_argument("--curve", type=float, nargs="*", default=[0.5, 2.0, 3.0])
    parser.add_argument("--rate", type=float, default=0.002)
    return parser.parse_args()


# --- arms


def one_crawl(crawls: list[Path], folder: Path) -> Path:
    """A folder with links to the files of all crawls."""
    folder.mkdir(exist_ok=True)
    for number, crawl in enumerate(crawls):
        for path in sorted(crawl.glob("*.warc.gz")):
            link = folder / f"{number}-{path.name}"
            if not link.exists():
                link.symlink_to(path.resolve())
    return folder


def arm(given: argparse.Namespace, name: str, crawl: Path) -> Iterable[Row]:
    """Documents of an arm; a run that is there is taken up again."""
    if name in ("both_ours", "both_datatrove"):
        texts = {of: {row["url"]: row for row in arm(given, of, crawl)} for of in ("fineweb", "datatrove")}
        mine = texts["fineweb" if name == "both_ours" else "datatrove"]
        return [mine[url] for url in sorted(texts["fineweb"].keys() & texts["datatrove"].keys())]
    if name == "datatrove":
        return datatrove(given, crawl)
    recipe = {"trafilatura": TRAFILATURA}.get(name) or read_recipe(name, [*given.recipes, ROOT / "recipes"])
    recipe = {**recipe, "name": name, "sources": {"crawl": {"warc": {"path": f"{crawl.resolve()}/*.warc.gz"}}}}
    recipe.pop("published", None)
    runs = given.folder / "runs"
    runs.mkdir(exist_ok=True)
    (runs / f"{name}.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    command = ["-m", "gristmill.pipeline.cli.app", "run", str(runs / f"{name}.yaml"), "--out", str(runs / name)]
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)
    table = ds.dataset(sorted((runs / name / "write").glob("*.parquet"))).to_table(columns=["url", "text"])
    return table.to_pylist()


def read_recipe(name: str, folders: list[Path]) -> dict[str, Any]:
    recipe, *without = name.split("-")
    name_of_file = f"{recipe.removeprefix('resiliparse_')}.yaml"
    file = next(folder / name_of_file for folder in folders if (folder / name_of_file).is_file())
    loaded = yaml.safe_load(file.read_text())
    stages = [stage for stage in loaded["stages"] if stage_name(stage) not in without]
    if missing := {*without} - {stage_name(stage) for stage in loaded["stages"]}:
        sys.exit(f"{name}: recipes/{recipe}.yaml has no stage {', '.join(sorted(missing))}")
    return {**loaded, "stages": stages}


def stage_name(stage: str | dict[str, Any]) -> str:
    return stage if isinstance(stage, str) else next(iter(stage))


def datatrove(given: argparse.Namespace, crawl: Path) -> Iterator[Row]:
    out = given.folder / "runs" / "datatrove"
    if not (out / "done").is_dir():
        if not given.datatrove:
            sys.exit("the arm datatrove needs --datatrove PYTHON")
        script = ROOT / "benchmarks" / "pipeline" / "end_to_end_datatrove.py"
        command = [given.datatrove, str(script), str(crawl), str(out), str(model_path(None)), "10"]
        subprocess.run(command, check=True, stdout=sys.stderr)
    for path in sorted((out / "done").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for row in map(json.loads, file):
                yield {"url": row["metadata"]["url"], "text": row["text"]}


def chosen(rows: Iterable[Row], half: int | None) -> list[Row]:
    return [row for row in rows if half is None or xxhash.xxh3_64_intdigest(site(row["url"]).encode()) % 2 == half]


def site(url: str) -> str:
    """The host; the url itself where the crawl's maker knew no host (RFC 2606's `.example`)."""
    host = urlsplit(url).hostname or ""
    return url if not host or host.endswith(".example") else host


def write(folder: Path, rows: list[Row]) -> dict[str, int]:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "documents.parquet")
    return {"documents": len(rows), "bytes": sum(len(row["text"].encode()) for row in rows)}


# --- held-out texts


def domains(given: argparse.Namespace) -> dict[str, Iterable[tuple[str, str]]]:
    """(cluster, text) by domain."""
    found: dict[str, Iterable[tuple[str, str]]] = {
        "books": ((row["work"], row["text"]) for row in prose(given, "books")),
        "encyclopedia": wikitext(prose(given, "encyclopedia")),
        "news": news(given.data / "near_duplicates.parquet"),
        "recipes": recipes(given.data / "wild_pages.parquet"),
    }
    if given.manuals:
        found["manuals"] = manuals(given.manuals)
    if given.sentences:
        found["sentences"] = sentences(given.sentences)
    return found


def held(texts: Iterable[tuple[str, str]]) -> list[Row]:
    """Pieces of the domain in the order of their hashes, up to BYTES, and no more than MOST from one work."""
    found = {(xxhash.xxh3_64_intdigest(piece.encode()), name, piece) for name, text in texts for piece in pieces(text)}
    rows, size, taken = [], 0, Counter[str]()
    for _, name, piece in sorted(found):
        taken[name] += 1
        if size < BYTES and taken[name] <= MOST:
            rows.append({"cluster": name, "text": piece})
            size += len(piece.encode())
    return rows


def pieces(text: str) -> Iterator[str]:
    """Whole sentences, up to about PIECE characters together, in one line."""
    start = 0
    for end in re.finditer(r"\n\n|(?<=[.!?:;])\s|$", text):
        if end.end() - start > PIECE or end.end() == len(text):
            if piece := " ".join(text[start : end.end()].split()):
                yield piece
            start = end.end()


def prose(given: argparse.Namespace, source: str) -> list[Row]:
    return [row for row in pq.read_table(given.data / "prose.parquet").to_pylist() if row["source"] == source]


def wikitext(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Articles, with WikiText's marks taken back: ` @-@ `, spaces before punctuation, headings of equals signs."""
    articles = re.split(r"(?m)^\s*= (?!=)(.+?) =\s*$", "\n".join(row["text"] for row in rows))
    for number, (title, text) in enumerate(zip(articles[1::2], articles[2::2], strict=True)):
        text = re.sub(r"(?m)^\s*(= )+.*$", "", text)
        text = re.sub(r" @([-,.])@ ", r"\1", text)
        text = re.sub(r" ([.,;:!?)\]%])|([(\[$]) ", r"\1\2", text).replace(" 's", "'s").replace('" ', '"')
        known = re.sub(r"[^.!?\n]*<unk>[^.!?\n]*[.!?]?", "", text)  # sentences whose words are all there
        paragraphs = [line.strip() for line in known.split("\n")]
        yield f"{number} {title}", "\n\n".join(line for line in paragraphs if line)


def news(path: Path) -> Iterator[tuple[str, str]]:
    for row in pq.read_table(path).to_pylist():
        yield row["id"], row["text"]


def recipes(path: Path) -> Iterator[tuple[str, str]]:
    """What the pages' own JSON-LD says to do, in English."""
    for row in pq.read_table(path, columns=["host", "html"]).to_pylist():
        page = row["html"].decode("utf-8", "replace")
        for script in re.findall(r"(?s)<script[^>]*application/ld\+json[^>]*>(.*?)</script>", page):
            steps = [html.unescape(re.sub(r"<[^>]+>", " ", step)).strip() for step in instructions(script)]
            text = "\n\n".join(" ".join(step.split()) for step in steps if step)
            if len(re.findall(r"\b(?:the|and|with|into)\b", text)) >= 8:
                yield row["host"], text


def instructions(script: str) -> Iterator[str]:
    try:
        waiting = [json.loads(script, strict=False)]
    except ValueError:
        return
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            found = value.get("recipeInstructions", [])
            for step in found if isinstance(found, list) else [found]:
                text = step.get("text") if isinstance(step, dict) else step
                if isinstance(text, str):
                    yield text
            waiting += [below for below in value.values() if isinstance(below, list | dict)]


def manuals(folder: Path) -> Iterator[tuple[str, str]]:
    """Paragraphs of prose of reStructuredText, without directives, tables and code."""
    for path in sorted(folder.rglob("*.rst.txt")):
        paragraphs = re.split(r"\n\s*\n", path.read_text(encoding="utf-8"))
        plain = [re.sub(r":[\w:]+:`~?([^`]*)`|``?([^`]*)``?", r"\1\2", text) for text in paragraphs]
        prose = [text for text in plain if re.match(r"[A-Z]", text) and text.endswith(".") and "::" not in text]
        yield path.parent.name + "/" + path.name, "\n\n".join(prose)


def sentences(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((folder / "builds").glob("doc-*.json")):
        yield path.stem, "\n\n".join(json.loads(path.read_text(encoding="utf-8")))


# --- the plan


def plan(given: argparse.Namespace, names: list[str]) -> str:
    layout = {
        "name": "corpora",
        "sets": {name: {"documents": f"arms/{name}"} for name in names},
        "control": given.control,
        "arms": {name: name for name in names if name != given.control},
        "protocol": "from_scratch",
        "shape": json.loads(given.shape) if given.shape.startswith("{") else given.shape,
        "tokens": given.tokens,
        "seeds": given.seeds,
        "curve": given.curve,
        "training": {"rate": given.rate, "rows_per_update": 32},
        "evaluate": {
            "texts": {"held_out": {"files": "held_out.parquet", "cluster": "cluster", "domain": "domain"}},
            "target": "held_out",
        },
    }
    return yaml.safe_dump(layout, sort_keys=False)


if __name__ == "__main__":
    main()
