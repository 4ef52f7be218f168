"""Paths in a recipe: relative to the recipe and to nothing else, and known by what they hold."""

from __future__ import annotations

import json
import random
import typing
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gristmill.kernels.common.paths import PathRole
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.files import find_files
from gristmill.pipeline.recipe import fingerprint, recipe as recipes, registry
from gristmill.pipeline.run.dry_run import foresee
from gristmill.pipeline.shuffle.saved_index import saved_at
from gristmill.stages.one_of import choices_in
from gristmill.stages.stage import Stage
from gristmill.stages.tokens.training import SPECIALS, trained
from tests.pipeline.runs import go, lines, save, sentences

JUDGE = '{"kind": "linear", "heads": [{"name": "quality"}]}'
LABELS = '{"kind": "linear", "heads": [{"name": "topic", "kind": "labels"}]}'
TAXONOMY = "name: t\nquestion: so?\nlabels:\n- {name: a, definition: x}\n- {name: b, definition: y}\n"
UTILITIES = "source,science\na,0.5\nb,0.7\n"
ABLATIONS = "run,weight:a,weight:b,loss:science\n" + "".join(
    f"r{i},{i / 10},{1 - i / 10},{1 + i / 10}\n" for i in range(1, 10)
)
BENCHMARKS = "benchmarks_path: kept, benchmarks: [{name: b, path: '*.jsonl', fields: [q]}]"
# Every setting that is a path: the stage with it, the file that it names (or a file in the folder that it names), what
# that holds, and other contents.
SETTINGS = {
    "bad_words.words_path": ("bad_words: {words_path: kept/en}", "kept/en", "bad\n", "bad\nworse\n"),
    "benchmark_overlap.benchmarks_path": (f"benchmark_overlap: {{{BENCHMARKS}}}", "kept/b.jsonl", '{"q": "x y"}\n', '{"q": "x z"}\n'),
    "benchmark_overlap.common_phrases_file": (
        f"benchmark_overlap: {{{BENCHMARKS}, common_phrases_file: phrases}}", "phrases", "a proverb\n", "another\n",
    ),
    "cut_contamination.benchmarks_path": (f"cut_contamination: {{{BENCHMARKS}}}", "kept/b.jsonl", '{"q": "x y"}\n', '{"q": "x z"}\n'),
    "cut_contamination.common_phrases_file": (
        f"cut_contamination: {{{BENCHMARKS}, common_phrases_file: phrases}}", "phrases", "a proverb\n", "another\n",
    ),
    "datatrove.files": ("datatrove: {block: 'blocks_of_ours:Listed', files: {words_file: kept}}", "kept", "mill\n", "dog\n"),
    "difficulty.common_words": ("difficulty: {common_words: kept}", "kept", "the\nof\n", "of\nthe\n"),
    "datasketch_index.index_path": ("datasketch_index: {index_path: kept}", "kept/a.parquet", "a", "b"),
    "datatrove_index.index_path": ("datatrove_index: {index_path: kept}", "kept/bucket_000/a.minhash.sig", "a", "b"),
    "embed.model_path": ("embed: {model_path: kept}", "kept/tokenizer.json", "{}", "{} "),
    "fineweb_quality.thresholds_file": (
        "fineweb_quality: {thresholds_file: kept.json}", "kept.json", '{"de": {"max_newlines_per_word": 0.2}}', '{"de": {"max_newlines_per_word": 0.3}}',
    ),
    "gopher_quality.thresholds_file": (
        "gopher_quality: {thresholds_file: kept.json}", "kept.json", '{"de": {"min_words": 2}}', '{"de": {"min_words": 3}}',
    ),
    "gopher_repetition.thresholds_file": (
        "gopher_repetition: {thresholds_file: kept.json}", "kept.json", '{"de": {"max_top_2gram_share": 0.2}}', '{"de": {"max_top_2gram_share": 0.3}}',
    ),
    "judge.judge_path": ("judge: {judge_path: kept}", "kept/judge.json", JUDGE, JUDGE.replace("}]", "}] ")),
    "keep_languages.thresholds_file": (
        "keep_languages: {languages: [de], thresholds_file: kept.yaml}", "kept.yaml", "de: 0.5\n", "de: 0.6\n",
    ),
    "label.judge_path": ("label: {judge_path: kept}", "kept/judge.json", LABELS, LABELS.replace("}]", "}] ")),
    "language.model_file": ("language: {model_file: kept.bin}", "kept.bin", "a model", "another"),
    "llm_label.cache_path": ("llm_label: {model: m, taxonomy: topic, cache_path: kept}", "kept/answers", "", ""),
    "llm_label.model_path": ("llm_label: {model_path: kept, taxonomy: topic}", "kept/config.json", "{}", "{} "),
    "llm_label.taxonomy": ("llm_label: {model: m, taxonomy: kept.yaml}", "kept.yaml", TAXONOMY, TAXONOMY.replace("so", "thus")),
    "llm_score.cache_path": ("llm_score: {model: m, rubric: r, cache_path: kept}", "kept/answers", "", ""),
    "llm_score.description_file": ("llm_score: {model: m, description_file: kept.txt}", "kept.txt", "good texts", "better texts"),
    "llm_score.model_path": ("llm_score: {model_path: kept, rubric: r}", "kept/config.json", "{}", "{} "),
    **{
        f"mix.method.{method}.{name}": (f"mix: {{method: {{{method}: {{{name}: kept.csv{more}}}}}}}", "kept.csv", table, table.replace(a, b))
        for method, name, more, table, a, b in (
            ("log_linear", "ablations_file", "", ABLATIONS, "1.1", "1.2"), ("regmix", "ablations_file", ", regressor: ridge", ABLATIONS, "1.1", "1.2"),
            *((method, "confirmed_file", ", ablations_file: kept.csv", ABLATIONS, "1.1", "1.2") for method in ("log_linear", "regmix")),
            ("most_utility", "utilities_file", "", UTILITIES, "0.5", "0.4"), ("utilimax", "utilities_file", "", UTILITIES, "0.5", "0.4"),
        )
    },
    "nemo.files": ("nemo: {filter: 'blocks_of_ours:Marked', files: {words_file: kept}}", "kept", "mill\n", "dog\n"),
    "ocr.cache_path": ("ocr: {model: m, cache_path: kept}", "kept/answers", "", ""),
    "ocr.model_path": ("ocr: {model_path: kept}", "kept/config.json", "{}", "{} "),
    **{
        f"{stage}.cache_path": (f"{stage}: {{model: m, cache_path: kept}}", "kept/answers", "", "")
        for stage in ("refine", "rephrase")
    },
    **{
        f"{stage}.model_path": (f"{stage}: {{model_path: kept}}", "kept/config.json", "{}", "{} ")
        for stage in ("refine", "rephrase")
    },
    **{
        f"opt_out.{name}": (f"opt_out: {{{name}: {'[kept.txt]' if name == 'urls_file' else 'kept.txt'}}}", "kept.txt", "b.com\n", "c.com\n")
        for name in ("domains_file", "urls_file")
    },
    "opt_out.site_files": (
        "opt_out: {site_files: kept.jsonl}", "kept.jsonl", '{"host": "b.com", "body": "a"}', '{"host": "b.com", "body": "b"}',
    ),
    "paragraph_languages.model_file": ("paragraph_languages: {model_file: kept.bin}", "kept.bin", "a model", "another"),
    "perplexity.model_path": ("perplexity: {model_path: kept}", "kept/config.json", "{}", "{} "),
    "perplexity.tokenizer_path": ("perplexity: {model_path: kept, tokenizer_path: tok.json}", "tok.json", "{}", "{} "),
    "text_signals.stop_words_file": ("text_signals: {stop_words_file: kept.json}", "kept.json", '{"de": ["der"]}', '{"de": ["die"]}'),
    "tokenize.tokenizer": ("tokenize: {tokenizer: tok.json, eos: false}", "tok.json", "TOKENIZER", "OTHER TOKENIZER"),
    **{
        f"url_rules.{name}": (f"url_rules: {{{name}: {'[kept.txt]' if name.startswith('soft') else 'kept.txt'}}}", "kept.txt", "b.com\n", "c.com\n")
        for name in (
            "allowed_domains_file", "blocked_domains_file", "blocked_hosts_file", "blocked_prefixes_file", "blocked_substrings_file",
            "blocked_urls_file", "blocked_words_file", "soft_words_file",
        )
    },
    "url_rules.ut1_file": ("url_rules: {ut1_file: kept}", "kept/adult/domains", "b.com\n", "c.com\n"),
}  # fmt: skip
# Addresses that the engine itself looks up beside the recipe; `inputs` and saved indexes are known by contents on their
# own account.
ENGINES = {
    *(f"{stage}.{setting}" for stage in ("exact_dedup", "minhash_dedup") for setting in ("against", "save_index")),
    *(
        f"{reader}.path"
        for reader in ("arrow", "html", "jsonl", "parquet", "pdf", "plain", "site_files", "warc", "wet")
    ),
}

READERS = {"jsonl.attributes"}  # tests/pipeline/interchange
GLOBS = {"cc.path"}  # of names in a list, and none of files


@pytest.fixture(scope="module")
def tokenizers() -> tuple[str, str]:
    texts = sentences(random.Random(1), 200, 12)
    specials = [*SPECIALS.values()]
    return trained(texts, 270, 2, specials), trained(texts, 300, 2, specials)


def recipe_with(folder: Path, step: str) -> Path:
    return save(
        folder / "r.yaml",
        f"name: r\nsources:\n  a: {{jsonl: {{path: in}}}}\n  b: {{jsonl: {{path: in2}}}}\nstages:\n  - {step}\n",
    )


def step_of(recipe: Path) -> Any:
    return recipes.load(recipe).steps[0]


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def beside(folder: Path, setting: str, contents: str) -> None:
    """The file of a setting, and whatever else its stage wants to be there."""
    if "common_phrases" in setting:
        put(folder / "kept/b.jsonl", '{"q": "x y"}\n')
    if setting.startswith("perplexity."):
        put(folder / "kept/config.json", "{}")
        put(folder / "kept/tokenizer.json", "{}")
    put(folder / SETTINGS[setting][1], contents)


def contents_of(setting: str, tokenizers: tuple[str, str]) -> tuple[str, str]:
    return tokenizers if setting == "tokenize.tokenizer" else (SETTINGS[setting][2], SETTINGS[setting][3])


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_path_is_looked_for_beside_the_recipe_and_known_by_what_it_holds(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizers: tuple[str, str]
) -> None:
    stage, *names = setting.split(".")
    first, second = contents_of(setting, tokenizers)
    home, moved, shell = (tmp_path / folder for folder in ("home", "moved", "shell"))
    for folder in (home, moved):
        beside(folder, setting, first)
    beside(shell, setting, second)  # of the same name, where the command is given
    monkeypatch.chdir(shell)
    step = step_of(recipe_with(home, SETTINGS[setting][0]))
    found = reduce(lambda settings, name: settings[name], names, step.stage.model_dump())
    assert step.stage.recipe_name() == stage
    [path] = [found] if isinstance(found, str) else found.values() if isinstance(found, dict) else found
    assert Path(path).is_absolute() and Path(path).is_relative_to(home) and Path(path).exists()
    before = fingerprint.identity_of(step.stage, step.spec).fingerprint
    elsewhere = step_of(recipe_with(moved, SETTINGS[setting][0]))
    assert (
        fingerprint.identity_of(elsewhere.stage, elsewhere.spec).fingerprint == before
    )  # where it lies does not count
    beside(home, setting, second)
    again = step_of(home / "r.yaml")
    assert (fingerprint.identity_of(again.stage, again.spec).fingerprint != before) == (first != second)


@pytest.mark.parametrize("setting", [name for name in SETTINGS if not name.endswith(".model_path")])
def test_a_file_of_that_name_beside_the_shell_is_not_taken(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizers: tuple[str, str]
) -> None:
    beside(tmp_path / "shell", setting, contents_of(setting, tokenizers)[0])
    (tmp_path / "home").mkdir()
    if setting.endswith(".cache_path"):
        pytest.skip("a folder that is not beside the recipe is refused by name: test_llm_score")
    monkeypatch.chdir(tmp_path / "shell")
    with pytest.raises(RecipeError, match=str(tmp_path / "home")):
        recipes.load(recipe_with(tmp_path / "home", SETTINGS[setting][0]))


def roles_in(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[PathRole]:
    yield from (role for role in metadata if isinstance(role, PathRole))
    if typing.get_origin(annotation) is typing.Annotated:
        yield from roles_in(annotation.__origin__, annotation.__metadata__)
    else:
        for inner in typing.get_args(annotation):
            yield from roles_in(inner)


def settings_of(kind: type[BaseModel], above: str) -> Iterator[tuple[str, FieldInfo]]:
    """The settings of a stage, those of each kind of one of several too."""
    for name, info in kind.model_fields.items():
        yield f"{above}.{name}", info
    for name, (_, kinds) in choices_in(kind).items():
        for called, one in kinds.items():
            yield from settings_of(one, f"{above}.{name}.{called}")


def test_every_setting_that_is_a_path_has_the_type_and_a_test() -> None:
    typed, named = set(), set()
    for name, kind in registry.built_in().items():
        for setting, info in settings_of(kind, name):
            field = setting.rpartition(".")[2]
            if any(roles_in(info.annotation, tuple(info.metadata))):
                typed.add(setting)
            if field.endswith(("path", "_file", "_files", "_folder")) or field in (
                "tokenizer",
                "against",
                "save_index",
            ):
                named.add(setting)
    assert typed - READERS == set(SETTINGS)
    assert named <= typed | ENGINES | GLOBS


@pytest.mark.parametrize("reader", sorted(name.split(".")[0] for name in ENGINES if name.endswith(".path")))
@pytest.mark.parametrize("path", ["in", "in/*", "in/a.x"])
def test_inputs_are_those_beside_the_recipe(
    reader: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = registry.built_in()[reader].suffixes[0]  # type: ignore[attr-defined]
    for folder in ("home", "shell"):
        put(tmp_path / folder / "in" / f"a{suffix}", "")
    monkeypatch.chdir(tmp_path / "shell")
    path = path.replace(".x", suffix)
    recipe = save(
        tmp_path / "home" / "r.yaml", f"name: r\nsources:\n  a: {{{reader}: {{path: '{path}'}}}}\nstages: [write]\n"
    )
    loaded = recipes.load(recipe)
    assert [file.address for file in find_files(loaded.sources[0], recipe.parent, "a").files] == [
        str(tmp_path / "home" / "in" / f"a{suffix}")
    ]


@pytest.mark.parametrize("setting", ["against", "save_index"])
def test_saved_indexes_lie_beside_the_recipe(setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    value = "[index]" if setting == "against" else "index"
    step = step_of(recipe_with(tmp_path / "home", f"minhash_dedup: {{{setting}: {value}}}"))
    addresses = {saved_at(address, step).address for address in (*step.stage.loads, *step.stage.saves)}
    assert addresses == {str(tmp_path / "home" / "index" / part) for part in ("bands", "sketches")}


@pytest.mark.parametrize("tokenizer", ["train", "gpt2", "owner/name"])
def test_a_tokenizer_may_be_a_name(tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.stages.tokens.tokenize.check", lambda *of: None)  # nothing is fetched
    (tmp_path / "train").mkdir()  # a folder called so is not meant
    assert step_of(recipe_with(tmp_path, f"tokenize: {{tokenizer: {tokenizer}}}")).stage.tokenizer == tokenizer
    (tmp_path / tokenizer).mkdir(parents=True, exist_ok=True)
    stage = step_of(recipe_with(tmp_path, f"tokenize: {{tokenizer: {tokenizer}}}")).stage
    assert stage.tokenizer == ("train" if tokenizer == "train" else str(tmp_path / tokenizer))


def test_weights_beside_a_tokenizer_do_not_count_and_its_settings_do(
    tmp_path: Path, tokenizers: tuple[str, str]
) -> None:
    recipe = recipe_with(tmp_path, "tokenize: {tokenizer: model, eos: false}")
    put(tmp_path / "model/tokenizer.json", tokenizers[0])

    def of() -> str:
        step = step_of(recipe)
        return fingerprint.identity_of(step.stage, step.spec).fingerprint

    before = of()
    put(tmp_path / "model/model.safetensors", "weights")
    assert of() == before
    put(tmp_path / "model/tokenizer_config.json", json.dumps({"bos_token": "<|endoftext|>"}))
    assert of() != before


def test_plan_sees_a_tokenizer_that_changed_and_run_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizers: tuple[str, str]
) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    lines(home / "in" / "a.jsonl", ["the cat sees the old house", "a dog finds a red river"])
    put(home / "tok.json", tokenizers[0])
    recipe = save(
        home / "r.yaml",
        "name: r\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - tokenize: {tokenizer: tok.json, eos: false}\n  - write\n",
    )
    monkeypatch.chdir(tmp_path)

    def why() -> dict[str, str]:
        return {seen.name: seen.why for seen in foresee(recipes.load(recipe), str(out))}

    def tokens() -> int:
        [path] = (out / "write").rglob("*.parquet")
        return int(pc.sum(pq.read_table(path)["tokens"]).as_py())

    go(recipe, out)
    first = tokens()
    assert set(why().values()) == {"up to date"} and first > 0
    put(home / "tok.json", tokenizers[1])
    assert why()["tokenize"] != "up to date" and why()["a"] == "up to date"
    _, anew = go(recipe, out)
    assert anew["tokenize", "mark"] == 1 and tokens() < first  # more pieces in the vocabulary, fewer of them a text
    assert set(why().values()) == {"up to date"}


def test_a_users_stage_may_name_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the type of a setting, alone or in a list."""
    save(
        tmp_path / "mine.py",
        "from gristmill.kernels.common.paths import RecipePath\nfrom gristmill.stages.stage import Rule, Verdict\n\nclass Mine(Rule):\n    words: RecipePath\n    more: list[RecipePath]\n"
        "    def verdict(self, signals):\n        return Verdict.keep(len(signals))\n",
    )
    put(tmp_path / "a.txt", "1")
    put(tmp_path / "b.txt", "1")
    (tmp_path / "shell").mkdir()
    monkeypatch.chdir(tmp_path / "shell")
    recipe = recipe_with(tmp_path, "'mine.py:Mine': {words: a.txt, more: [b.txt]}")
    prints = []
    for name in (None, "a.txt", "b.txt"):
        if name:
            put(tmp_path / name, "22")
        step = step_of(recipe)
        assert isinstance(step.stage, Stage) and step.stage.model_dump() == {
            "name": None, "words": str(tmp_path / "a.txt"), "more": [str(tmp_path / "b.txt")],
        }  # fmt: skip
        prints.append(fingerprint.identity_of(step.stage, step.spec).fingerprint)
    assert len(set(prints)) == 3
