"""A recipe that reads the text of pages before anything has extracted it is refused, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.recipe import recipe as recipes
from tests.pipeline.runs import save

OWN = """
from typing import ClassVar
import pyarrow as pa
from gristmill.stages.stage import Annotate, Applied, Global, Rewrite, Rule, Sink, Verdict, with_columns

class Mine(Rewrite):
    def rewrite(self, batch):
        return Applied(with_columns(batch, {"text": pa.array(["t"] * len(batch))}), Verdict.keep(len(batch)))

class OfText(Mine):
    needs: ClassVar[tuple[str, ...]] = ("text",)

class OfHtml(Mine):
    needs: ClassVar[tuple[str, ...]] = ("html",)

class Links(Annotate):
    needs: ClassVar[tuple[str, ...]] = ("html",)
    adds: ClassVar[tuple[str, ...]] = ("links",)
    def annotate(self, batch):
        return {"links": pa.array([1] * len(batch))}

class FewLinks(Rule):
    needs: ClassVar[tuple[str, ...]] = ("links",)
    def verdict(self, signals):
        return Verdict.keep(len(signals))

class Pages(Sink):
    def table(self, batch):
        return batch.select(["html"])
"""


def planned(folder: Path, stages: list[str], source: str = "{warc: {path: in}}") -> None:
    save(folder / "s.py", OWN)
    listed = "".join(f"  - {stage}\n" for stage in stages)
    make_plan(
        recipes.load(
            save(
                folder / "r.yaml",
                f"name: r\nsources:\n  crawl: {source}\n  b: {{jsonl: {{path: in}}}}\nstages:\n{listed}",
            )
        )
    )


@pytest.mark.parametrize(
    ("stages", "line", "who"),
    [
        (["write"], 6, "write"),
        (["sample: {rate: 0.5}", "gopher_quality", "write"], 7, "gopher_quality"),
        (["exact_dedup", "extract", "write"], 6, "exact_dedup"),
        (["url_dedup", "minhash_dedup", "extract"], 7, "minhash_dedup"),
        (["repair", "extract", "write"], 6, "repair"),
        (["paragraph_dedup"], 6, "paragraph_dedup"),
        (["site_boilerplate", "extract"], 6, "site_boilerplate"),
        (["tokenize: {tokenizer: train}"], 6, "tokenize"),
        (["s.py:OfText", "extract", "write"], 6, "of_text"),
        (["s.py:Links", "s.py:FewLinks", "write"], 8, "write"),
    ],
)
def test_a_stage_that_reads_text_before_there_is_any(tmp_path: Path, stages: list[str], line: int, who: str) -> None:
    with pytest.raises(
        RecipeError, match=rf"r\.yaml:{line}: {who} reads text, but crawl gives pages \(HTML\): put `extract` before it"
    ):
        planned(tmp_path, stages)
    planned(tmp_path, stages, "{wet: {path: in}}")
    planned(tmp_path, stages, "{warc: {path: in}, stages: [extract: {name: own_extract}]}")


@pytest.mark.parametrize(
    "stages",
    [
        ["extract", "gopher_quality", "write"],
        ["sample: {rate: 0.5}", "url_dedup", "s.py:Links", "s.py:FewLinks", "s.py:Pages", "extract", "write"],
        ["s.py:Mine", "gopher_quality", "write"],
        ["s.py:OfHtml", "exact_dedup", "write"],
        ["sample: {rate: 0.5}"],
        ["s.py:Pages"],
    ],
)
def test_pages_go_through_whatever_needs_no_text_and_text_comes_from_who_makes_it(
    tmp_path: Path, stages: list[str]
) -> None:
    planned(tmp_path, stages)


def test_a_source_that_joins_after_extraction_needs_its_own(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"r\.yaml:7: write reads text, but crawl gives pages"):
        planned(tmp_path, ["extract", "write"], "{warc: {path: in}, join: write}")
