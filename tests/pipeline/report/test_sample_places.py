"""A sample of a reject shows the place that it went for, where a stage can name it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.stage_view import stage_view
from gristmill.pipeline.look.tune import tune
from gristmill.pipeline.report.build import build_report
from gristmill.pipeline.report_data.documents import CHARACTERS, around
from tests.pipeline.runs import go, lines, save

PRICES = '''
from typing import ClassVar

import pyarrow as pa

from gristmill.stages import Annotate, Rule, above


class Prices(Annotate):
    """Counts prices."""

    needs: ClassVar = ("text",)
    adds: ClassVar = ("prices",)

    def annotate(self, batch):
        return {"prices": pa.array([float(text.count("$")) for text in batch.column("text").to_pylist()])}

    def place(self, what, text):
        if "UNREADABLE" in text:
            raise ValueError("no place")
        return text.find("$"), text.find("$") + 3


class FewPrices(Rule):
    """Drops documents with prices."""

    limits: ClassVar = (above("prices", 0, "prices"),)
'''
RECIPE = """
name: places
parts: {{files: {files}}}
sources: {{web: {{jsonl: {{path: in}}}}}}
stages:
  - c4_lines: {{terminal_punctuation: false}}
  - bad_words: {{words_path: words.txt}}
  - prices.py:Prices
  - c4_quality: {{min_sentences: 0}}
  - few_bad_words
  - prices.py:FewPrices
  - fineweb_quality: {{min_terminal_line_share: 0, max_short_line_share: 1}}
  - exact_dedup
  - write
"""
BEFORE = "\n".join(f"The miller keeps sentence number {n} of this page, and what is good." for n in range(40))
AFTER = "\n".join(f"What is not good goes to the river, sentence {n} of them." for n in range(20))
WENT_FOR = {
    ("c4_quality", "curly_bracket"): ("Here is the function {code} to copy.", "{"),
    ("c4_quality", "lorem_ipsum"): ("And now Lorem Ipsum dolor sit amet.", "Lorem Ipsum"),
    ("few_bad_words", "bad_words"): ("It was a darn-good Darn Thing to say.", "darn-good"),
    ("few_prices", "prices"): ("All this for only $99 at the mill.", "$99"),
    ("fineweb_quality", "duplicate_line_characters"): ("Twice is too much for this mill.\n" * 9, "Twice is too much for this mill."),
}  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    save(folder / "prices.py", PRICES)
    save(folder / "words.txt", "darn good\nrotten\n")
    texts = [f"{BEFORE}\n{offence}\n{AFTER}" for offence, _ in WENT_FOR.values()]
    for number, text in enumerate([*texts, f"UNREADABLE {texts[3]}", BEFORE, AFTER]):
        lines(folder / f"in/{number}.jsonl", [text])
    go(save(folder / "recipe.yaml", RECIPE.format(files=1)), folder / "out")
    return folder / "out"


def samples_in(out: Path, stage: str) -> dict[str, list[dict[str, Any]]]:
    return dict(json.loads((out / f"stages/{stage}/report.json").read_text())["samples"])


@pytest.mark.parametrize(("stage", "reason"), WENT_FOR)
def test_a_sample_shows_what_it_went_for(out: Path, stage: str, reason: str) -> None:
    sample = samples_in(out, stage)[reason][0]
    start, end = sample["match"]
    assert sample["text"][start:end] == WENT_FOR[stage, reason][1]
    assert sample["text"].startswith("… The miller keeps") and len(sample["text"]) <= CHARACTERS + 2
    assert [document.match for document in stage_view(RunFolder(out), stage, reason, 1).samples] == [(start, end)]


def test_a_stage_that_fails_to_name_a_place_leaves_the_beginning(out: Path) -> None:
    first, second = sorted(samples_in(out, "few_prices")["prices"], key=lambda sample: "match" not in sample)
    assert "match" in first and "match" not in second and second["text"].startswith("UNREADABLE The miller")


def test_rejects_that_are_in_no_report_show_it_too(out: Path) -> None:
    """Of stages of ours: the code of a user's own is not run to look at a run."""
    (path := out / "stages/c4_quality/report.json").write_text(
        json.dumps(json.loads(path.read_text()) | {"samples": {}})
    )
    [sample] = stage_view(RunFolder(out), "c4_quality", "curly_bracket").samples
    assert sample.match is not None and str(sample.text)[slice(*sample.match)] == "{"
    (moved,) = tune(RunFolder(out), ["c4_quality.max_curly_brackets=1"]).moved
    assert "function {code}" in moved.text and moved.text.startswith("… ")


def test_the_report_marks_it(out: Path) -> None:
    page = build_report(RunFolder(out))
    assert "<mark>$99</mark>" in page and "<mark>darn-good</mark>" in page


def test_samples_do_not_depend_on_parts(out: Path) -> None:
    recipe = save(out.parent / "other.yaml", RECIPE.format(files=8))
    go(recipe, out.parent / "other")
    for stage in ("few_bad_words", "few_prices", "fineweb_quality"):
        a, b = (samples_in(folder, stage) for folder in (out, out.parent / "other"))
        assert {name: sorted(map(str, a[name])) for name in a} == {name: sorted(map(str, b[name])) for name in b} and a


def test_a_place_near_the_beginning_leaves_the_beginning() -> None:
    assert around("a {b} c" + " d" * 900, (2, 3)) == (("a {b} c" + " d" * 900)[:CHARACTERS], (2, 3))
    assert around("x" * 900 + "{" + "x" * 900, (900, 901), 90) == ("… " + "x" * 30 + "{" + "x" * 59, (32, 33))
    long, match = around("word " * 300 + "A" * 1000, (1500, 2500), 90)
    assert long.startswith("… word") and len(long) <= 92 and match == (27, len(long))
    assert around("a\n" + "b" * 900, (2, 902), 90) == ("a\n" + "b" * 88, (2, 90))
    assert around("short", None) == ("short", None) and around("", None) == ("", None)
