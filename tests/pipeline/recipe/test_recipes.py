"""The recipes that come with the package are whole: they parse, every signal has somebody who measures it, and they
keep prose and drop junk."""

from __future__ import annotations

import importlib.util
import random
import re
from pathlib import Path

import pytest
import yaml

from gristmill.pipeline.plan.signals import with_measures
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.shards.reader import open_shards
from tests.pipeline.runs import go, lines, save, written

RECIPES = Path(__file__).parents[3] / "recipes"
MIXES = ["mix_academic", "mix_code", "mix_general_web", "mix_reasoning"]
PUBLISHED = ["dclm", "decontaminate", "dolma", "fineweb", "multilingual", "refinedweb"]
NAMES = [*PUBLISHED, "gristmill"]
ON_PAGES = [
    "dclm_full",
    "fineweb2",
    "nemotron_cc",
    "web_cells",
    "web_code",
    "web_math",
]  # tests/pipeline/recipe/test_web_recipes.py
ORDERS = {
    "fineweb": [
        "extract",
        "keep_languages",
        "gopher_repetition",
        "gopher_quality",
        "c4_lines",
        "c4_quality",
        "fineweb_quality",
        "minhash_dedup",
        "personal_data",
    ],
    "dclm": [
        "extract",
        "repair",
        "keep_languages",
        "gopher_quality",
        "gopher_repetition",
        "refinedweb_lines",
        "refinedweb_quality",
        "bloom_dedup",
    ],
    "refinedweb": [
        "extract",
        "keep_languages",
        "gopher_repetition",
        "gopher_quality",
        "refinedweb_lines",
        "refinedweb_quality",
        "minhash_dedup",
    ],
    "decontaminate": ["keep_languages", "gopher_quality"],
    "gristmill": ["extract", "keep_languages", "gopher_repetition", "gopher_quality", "minhash_dedup", "personal_data"],
    "dolma": ["keep_languages", "url_dedup", "c4_lines", "dolma_gopher", "personal_data", "paragraph_dedup"],
    "multilingual": [
        "extract",
        "keep_languages",
        "minhash_dedup",
        "gopher_repetition",
        "fineweb_quality",
        "gopher_quality",
        "repair",
        "personal_data",
    ],
}

needs_trafilatura = pytest.mark.skipif(
    importlib.util.find_spec("trafilatura") is None, reason="the extra trafilatura is not installed"
)

PROSE = {
    "en": """The old mill stood at the end of the valley, where the river turns towards the sea. People from the village used to bring their grain to it.
They would wait in the yard while the great stones turned. My grandfather knew the last miller well, and he told us many stories of that time.
In the winter the wheel would freeze, and the miller went out with an axe to break the ice. Nobody had to pay on such days, for he was glad to have company.
When the railway came, flour could be had for less in the town, and one farmer after another stayed away. The mill was sold and then stood empty.
Today a family of artists lives there with their children, and if you ask them they will show you the stones, which have not been moved for a century.""",
    "fr": """Le vieux moulin se trouvait au bout de la vallée, là où la rivière tourne vers la mer. Les gens du village y apportaient leur grain et attendaient dans la
cour pendant que les grandes meules tournaient. Mon grand-père connaissait bien le dernier meunier, et il nous a raconté beaucoup d'histoires de ce temps.
En hiver, la roue gelait et le meunier sortait avec une hache pour casser la glace. Personne ne devait payer ces jours-là, car il était content de la compagnie.
Quand le chemin de fer est arrivé, la farine était moins chère en ville, et les paysans sont restés chez eux. Le moulin a été vendu, puis il est resté vide.""",
}
JUNK = "\n".join(["Home", "Menu", "Buy now!", "3 likes", "Buy now!"] * 12)


@pytest.mark.parametrize("name", NAMES)
@needs_trafilatura
def test_a_recipe_parses_and_every_signal_is_measured(name):
    recipe = recipes.load(RECIPES / f"{name}.yaml")
    called = [step.called for step in with_measures(recipe).steps]
    assert [stage for stage in called if stage in ORDERS[name]] == ORDERS[name] and called[-1] == "write"
    assert any(stage.startswith("text_signals") for stage in called) and "language" in called


def test_there_is_a_test_for_every_recipe():
    assert (
        sorted(path.stem for path in RECIPES.glob("*.yaml")) == sorted(NAMES + MIXES + ON_PAGES)
        and sorted(ORDERS) == sorted(NAMES)
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_says_what_it_reproduces_and_where_it_differs(name):
    head = (RECIPES / f"{name}.yaml").read_text().split("\nname:")[0]
    assert head.startswith("# ") and "et al." in head and "Differences, and why" in head


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_keeps_prose_and_drops_junk(name, tmp_path):
    texts = [PROSE["en"], PROSE["fr"], JUNK, "", "Too short."]
    lines(tmp_path / "in" / "a.jsonl", texts)
    text = (RECIPES / f"{name}.yaml").read_text()
    text, sources = re.subn(r"(?m)^    \w+: \{path: crawl-data.*$", f"    jsonl: {{path: {tmp_path}/in}}", text)
    text = re.sub(r"(?m)^  - extract(:.*)?\n", "", text).replace("multilingual/", f"{RECIPES}/multilingual/")
    assert sources == 1
    go(save(tmp_path / "recipe.yaml", text), tmp_path / "out")
    kept = [row[1] for row in written(tmp_path / "out")]
    wanted = PROSE["fr" if name == "multilingual" else "en"]
    assert [re.sub(r"\s+", " ", row) for row in kept] == [re.sub(r"\s+", " ", wanted)]


@pytest.mark.parametrize("name", MIXES)
def test_a_named_mix_ends_in_shards_of_its_shares(name, tmp_path):
    told = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    mix = next(step["mix"] for step in told["stages"] if isinstance(step, dict) and "mix" in step)
    chance = random.Random(name)
    for source in told["sources"]:
        texts = [" ".join("".join(chance.choices("abcdefgh", k=6)) for _ in range(80)) for _ in range(60)]
        lines(tmp_path / source / "a.jsonl", texts)
    told["sources"] = {source: {"jsonl": {"path": str(tmp_path / source)}} for source in told["sources"]}
    mix["budget"] = 50_000
    for step in told["stages"]:
        if isinstance(step, dict) and "tokenize" in step:
            step["tokenize"]["vocab_size"] = 400
        if isinstance(step, dict) and "pack" in step:
            step["pack"]["row_length"] = 1024
    go(save(tmp_path / "recipe.yaml", yaml.safe_dump(told, sort_keys=False)), tmp_path / "out")
    shards = open_shards(tmp_path / "out" / "shards" / "1024")
    weights = mix["method"]["given"]["weights"]
    total = sum(weights.values())
    assert set(shards.index.sources) == {source for source, weight in weights.items() if weight}
    for source, weight in weights.items():
        assert shards.index.sources[source] / 50_000 == pytest.approx(weight / total, abs=0.01)
