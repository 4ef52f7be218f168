"""The arms and held-out texts of the race of corpora (benchmarks/training/corpora.py)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.training import corpora
from benchmarks.training.corpora import Row

RECIPES = Path(__file__).parents[2] / "recipes"


def test_an_arm_is_a_recipe_less_the_stages_behind_its_name():
    whole = [corpora.stage_name(stage) for stage in corpora.read_recipe("fineweb", [RECIPES])["stages"]]
    less = [
        corpora.stage_name(stage) for stage in corpora.read_recipe("fineweb-c4_lines-c4_quality", [RECIPES])["stages"]
    ]
    assert len(whole) > len(less) == len(whole) - 2
    assert [name for name in whole if name not in ("c4_lines", "c4_quality")] == less


def test_a_held_out_text_has_no_line_break_and_whole_sentences():
    text = "\n\n".join(f"Sentence {number} is wrapped\nin the middle." for number in range(1000))
    pieces = list(corpora.pieces(text))
    assert len(pieces) > 5 and " ".join(pieces) == " ".join(text.split())
    assert not any("\n" in piece for piece in pieces) and all(piece.endswith(".") for piece in pieces)


def test_no_work_gives_more_than_its_share():
    long = " ".join(f"Sentence {number} of a long book." for number in range(10_000))
    rows = corpora.held([("long", long), ("short", "One sentence.")])
    assert [row["cluster"] for row in rows].count("long") == corpora.MOST
    assert Row(cluster="short", text="One sentence.") in rows


def test_recipes_come_from_the_pages_own_data(tmp_path):
    steps = [
        {"@type": "HowToStep", "text": f"Mix the flour and the sugar with the milk, step {number}."}
        for number in range(3)
    ]
    data = {"@graph": [{"@type": "Recipe", "recipeInstructions": steps}]}
    page = f'<script type="application/ld+json">{json.dumps(data)}</script>'.encode()
    broken = b'<script type="application/ld+json">{"recipeInstructions": [</script>'
    pq.write_table(pa.table({"host": ["a.example", "b.example"], "html": [page, broken]}), tmp_path / "pages.parquet")
    ((host, text),) = corpora.recipes(tmp_path / "pages.parquet")
    assert host == "a.example" and text.count("step") == 3


def test_halves_are_of_sites_and_of_pages_where_no_site_is_known():
    rows = [Row(url=f"https://site{site}.org/{page}", text="") for site in range(40) for page in range(5)]
    halves = [{corpora.site(row["url"]) for row in corpora.chosen(rows, half)} for half in (0, 1)]
    assert not halves[0] & halves[1] and len(halves[0] | halves[1]) == 40 and min(map(len, halves)) > 5
    assert corpora.site("https://pages.example/1") == "https://pages.example/1"


def test_the_plan_names_a_set_for_every_arm():
    given = argparse.Namespace(
        control="datatrove", shape="10m", tokens=1000, seeds=2, curve=[0.5, 2.0], rate=0.001
    )  # fmt: skip
    plan = yaml.safe_load(corpora.plan(given, ["datatrove", "fineweb"]))
    assert plan["sets"] == {name: {"documents": f"arms/{name}"} for name in ("datatrove", "fineweb")}
    assert plan["control"] == "datatrove" and plan["arms"] == {"fineweb": "fineweb"}
