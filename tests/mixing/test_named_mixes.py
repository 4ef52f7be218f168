"""The named mixes in recipes/: the weights that guides quote, one for each source, and shares that can be drawn."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gristmill.mixing.weights.supply import Supply
from gristmill.stages.blend.methods import Given, choose

RECIPES = Path(__file__).parents[2] / "recipes"
WEIGHTS = {
    "mix_general_web": {"common_crawl": 0.60, "webtext2": 0.22, "books1": 0.08, "books2": 0.08, "wikipedia": 0.03},
    "mix_code": {"github_code": 0.30, "stack_overflow": 0.15, "documentation": 0.10, "books_technical": 0.15, "web_filtered": 0.25, "wikipedia": 0.05},
    "mix_academic": {"arxiv_papers": 0.25, "pubmed": 0.15, "books_academic": 0.20, "wikipedia": 0.15, "mathstackexchange": 0.10, "web_filtered": 0.15},
    "mix_reasoning": {
        "arxiv_papers": 0.25, "books_academic": 0.20, "wikipedia": 0.15, "mathstackexchange": 0.15, "github_code": 0.05, "stack_overflow": 0.05,
        "web_filtered": 0.15,
    },
}  # fmt: skip


def read(name: str) -> dict[str, Any]:
    recipe: dict[str, Any] = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    return recipe


def test_all_named_mixes_are_here() -> None:
    assert {path.stem for path in RECIPES.glob("mix_*.yaml")} == set(WEIGHTS)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_named_mix_weighs_each_of_its_sources(name: str) -> None:
    recipe = read(name)
    stages = [stage if isinstance(stage, str) else next(iter(stage)) for stage in recipe["stages"]]
    assert recipe["name"] == name and stages == ["exact_dedup", "minhash_dedup", "tokenize", "mix", "order", "pack"]
    by_name = {key: value for stage in recipe["stages"] if isinstance(stage, dict) for key, value in stage.items()}
    mix = by_name["mix"]
    assert mix["method"] == {"given": {"weights": WEIGHTS[name]}} and mix["max_epochs"] == 4 and mix["budget"] == 10**10
    assert (
        set(WEIGHTS[name])
        == set(recipe["sources"])
        == set(by_name["minhash_dedup"]["sources"])
        == set(by_name["exact_dedup"]["sources"])
    )
    supply = Supply.of(dict.fromkeys(recipe["sources"], 1e12), mix["budget"], mix["max_epochs"])
    weights = choose(supply, Given(**mix["method"]["given"])).weights_N
    assert weights.sum() == pytest.approx(1) and weights.max() == pytest.approx(
        max(WEIGHTS[name].values()) / sum(WEIGHTS[name].values())
    )


def test_the_reasoning_mix_is_the_academic_one_with_pubmed_shared_out() -> None:
    academic, reasoning = WEIGHTS["mix_academic"], WEIGHTS["mix_reasoning"]
    gained = {
        name: round(weight - academic.get(name, 0), 12)
        for name, weight in reasoning.items()
        if weight != academic.get(name, 0)
    }
    assert gained == {"mathstackexchange": 0.05, "github_code": 0.05, "stack_overflow": 0.05} and sum(
        reasoning.values()
    ) == pytest.approx(1)
