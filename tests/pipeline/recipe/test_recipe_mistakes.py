"""All that is wrong with a recipe is said at once and before any work, with the line, what was written, and what may
have been meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe import recipe as recipes, registry
from gristmill.pipeline.run.dry_run import foresee
from tests.pipeline.runs import save

SOURCES = "name: mistakes\nsources:\n  crawl: {jsonl: {path: a}}\n  books: {jsonl: {path: b}, join: late}\nstages:\n  - exact_dedup\n"


def complaints(folder: Path, text: str) -> list[str]:
    """Of a recipe, each with its line and without its file."""
    path = save(folder / "recipe.yaml", text)
    with pytest.raises(RecipeError) as error:
        recipes.load(path)
    return [line.removeprefix(f"{path}:") for line in str(error.value).splitlines()]


def mixed(mix: str) -> str:
    return f"{SOURCES}  - tokenize\n  - sample: {{name: late, rate: 1}}\n  - mix: {mix}\n"


def test_all_mistakes_are_told_at_once(tmp_path):
    text = """name: mistakes
workres: 2
sources:
  crawl:
    wrac: {path: a}
    stages: [extrat]
  books: {jsonl: {pth: b}}
stages:
  - gopher_quality: {min_word: 3}
  - exact_dedup
  - {write: , sample: }
  - parquet: {path: a}
"""
    assert complaints(tmp_path, text) == [
        "2: workres: no such field; did you mean workers?",
        "5: sources.crawl.wrac: no such stage 'wrac'; did you mean warc?",
        "6: sources.crawl.stages[0]: no such stage 'extrat'; did you mean extract?",
        "7: sources.books.jsonl.pth: no such field; did you mean path?",
        "9: stages[0].gopher_quality.min_word: no such field; did you mean min_words?",
        "11: stages[2]: a stage was expected (`name` or `name: {settings}`), not {'write': None, 'sample': None}; write and sample each need a dash of their own",
        "12: stages[3]: parquet reads files; it belongs under sources",
    ]


def test_names_that_are_taken_and_joins_that_lead_nowhere_are_told_at_once(tmp_path):
    text = SOURCES.replace("join: late", "join: exact_dedpu") + "  - exact_dedup\n  - sample: {name: crawl, rate: 1}\n"
    said = complaints(tmp_path, text)
    assert [line[: line.index(" is")] for line in said[:2]] == ["7: exact_dedup", "8: crawl"]
    assert said[2:] == ["4: sources.books.join: no shared stage is called exact_dedpu; did you mean exact_dedup?"]


def test_a_misspelt_head_is_not_taken_for_a_missing_one(tmp_path):
    said = complaints(tmp_path, SOURCES.replace("name: mistakes", "nmae: mistakes").replace("sources:", "sorces:"))
    assert said == ["1: nmae: no such field; did you mean name?", "2: sorces: no such field; did you mean sources?"]


THEIRS = ["language_filter", "LanguageFilter", "GopherQualityFilter", "url_filter", "WarcReader", "minhash"]
OURS = ["keep_languages", "keep_languages", "gopher_quality", "url_rules", "warc", "minhash_dedup"]


@pytest.mark.parametrize(("theirs", "ours"), list(zip(THEIRS, OURS, strict=True)))
def test_a_name_of_another_tool_leads_to_the_stage_that_does_it(theirs, ours):
    assert registry.likely(theirs) == ours and ours in registry.names()
    with pytest.raises(LookupError, match=f"did you mean {ours}"):
        registry.find(theirs)
    assert {*registry.ELSEWHERE.values()} <= {*registry.names()}


def test_a_stage_that_nothing_is_like_is_named(tmp_path):
    assert complaints(tmp_path, SOURCES.replace("exact_dedup", "qqq").replace(", join: late", "")) == [
        "6: stages[0]: no such stage 'qqq'; `gristmill stages` lists all there are"
    ]


def test_a_field_of_other_stages_is_said_to_be_theirs(tmp_path):
    text = (
        SOURCES.replace(", join: late", "") + "  - gopher_quality: {threshold: 0.8}\n  - sample: {thresh: 1, rate: 1}\n"
    )
    theirs, nobodys = complaints(tmp_path, text)
    start = "7: stages[1].gopher_quality.threshold: no such field; threshold is a field of bloom_dedup, datasketch_index, minhash_dedup and semantic_dedup; here there are name, "
    assert theirs.startswith(start) and "min_words" in theirs and "did you mean" not in theirs
    assert nobodys == "8: stages[2].sample.thresh: no such field; there are name, rate, seed"


def test_a_readers_field_is_not_looked_for_in_stages_that_work(tmp_path):
    [said] = complaints(
        tmp_path, SOURCES.replace("{jsonl: {path: a}}", "{warc: {path: a, text: body}}").replace(", join: late", "")
    )
    assert "no such field; text is a field of arrow, jsonl and parquet; here there are name, path" in said


@pytest.mark.parametrize(
    ("mix", "says"),
    [
        (
            "{method: {given: {weights: {crwl: 1, news: 2}}}}",
            [
                "method.given.weights.crwl: no such source comes here; did you mean crawl?",
                "method.given.weights.news: no such source comes here; there are crawl, books",
                "method.given.weights: says nothing of books (0 leaves a source out)",
            ],
        ),
        ("{max_epochs: {crawl: 2, boks: 2}}", ["max_epochs.boks: no such source comes here; did you mean books?"]),
        (
            "{method: {utilimax: {utilities_file: u.csv}}}",
            ["method.utilimax.utilities_file.bokes: no such source comes here; did you mean books?"],
        ),
    ],
)
def test_a_mix_of_sources_that_are_not_there_is_told_before_any_work(tmp_path, mix, says):
    save(tmp_path / "u.csv", "source,science\ncrawl,0.5\nbokes,0.6\n")
    assert complaints(tmp_path, mixed(mix)) == [f"9: stages[3].mix.{one}" for one in says]


def test_a_mix_speaks_of_the_sources_that_join_before_it(tmp_path):
    late = "{method: {given: {weights: {crawl: 1, books: 2}}}}\n  - sample: {name: later, rate: 1}\n"
    [said] = complaints(tmp_path, mixed(late).replace("join: late", "join: later"))
    assert said == "9: stages[3].mix.method.given.weights.books: no such source comes here; there are crawl"
    right = [
        mixed("{method: {given: {weights: {crawl: 1, books: 0}}}}"),
        mixed("{by: [language], method: {given: {weights: {en: 1}}}}"),
    ]
    assert [len(recipes.load(save(tmp_path / "right.yaml", text)).sources) for text in right] == [2, 2]


@pytest.mark.parametrize(
    ("mix", "says"),
    [
        # One of several kinds, as it was written before: settings beside the name.
        (
            "{method: utilimax, utilities_file: u.csv, aversion: 1.0, budget: 9}",
            "utilities_file: is a setting of the method utilimax, and stands below the name: `method: {utilimax: {utilities_file: u.csv, aversion: 1.0}}`",
        ),
        (
            "{method: {utilimax: {utilities_file: u.csv}}, aversion: 2}",
            "aversion: is a setting of the method utilimax, and stands below the name: `method: {utilimax: {utilities_file: u.csv, aversion: 2}}`",
        ),
        (
            "{noise: flag}",
            "noise: is a setting of the methods utilimax and most_utility, and stands below the name: `method: {utilimax: {noise: flag}}`",
        ),
        (
            "{method: unimax, aversion: 0.3}",
            "aversion: is a setting of the method utilimax, not of unimax, and stands below the name: `method: {utilimax: {aversion: 0.3}}`",
        ),
        (
            f"{{weights: {{{', '.join(f'source_{n}: 1' for n in range(99))}}}}}",
            "weights: is a setting of the method given, and stands below the name: `method: {given: {weights: …}}`",
        ),
        ("{unimax: }", "unimax: is a method: `method: unimax`"),
        ("{given: {weights: {a: 1}}}", "given: is a method: `method: {given: {weights: {a: 1}}}`"),
        # Below the name of another, or of none.
        (
            "{method: {unimax: {aversion: 1}}}",
            "method.unimax.aversion: no such field; aversion is a field of utilimax; here there are none",
        ),
        (
            "{method: {log_linear: {ablations_file: a.csv, prior: {crawl: 1, books: 1}, klo: 1}}}",
            "method.log_linear.klo: no such field; did you mean kl?",
        ),
        ("{method: utilmax}", "method: no such method; did you mean utilimax?"),
        ("{method: {utilmax: {aversion: 1}}}", "method.utilmax: no such method; did you mean utilimax?"),
        (
            "{method: evenly}",
            "method: no such method; there are given, proportional, temperature, unimax, utilimax, most_utility, regmix, log_linear",
        ),
        # Something is lacking, or too much.
        ("{method: utilimax}", "method.utilimax.utilities_file: is missing"),
        ("{method: {given: }}", "method.given.weights: is missing"),
        (
            "{method: {utilimax: , utilities_file: u.csv}}",
            "method: one method was expected, with its settings below its name: `{utilimax: {utilities_file: …}}`",
        ),
        (
            "{method: {unimax: , budget: 9}}",
            "method: one method was expected, as `NAME` or `{NAME: {…}}`, not unimax and budget",
        ),
        ("{method: [unimax]}", "method: one method was expected, as `NAME` or `{NAME: {…}}`, not ['unimax']"),
        ("{method: {given: 3}}", "method.given: settings were expected (name: value), not 3"),
        ("{method: {given: {weights: {crawl: 0}}}}", "method.given.weights: one number at least must be above 0"),
        (
            "{method: {given: {weights: {crawl: -1}}}}",
            "method.given.weights.crawl: Input should be greater than or equal to 0, not -1",
        ),
        (
            "{method: {most_utility: {utilities_file: u.csv, task_weights: {sciense: 1}}}}",
            "method.most_utility.task_weights: no task 'sciense'; there are 'science'",
        ),
    ],
)
def test_a_method_has_its_own_settings_below_its_name_and_no_others(tmp_path, mix, says):
    save(tmp_path / "u.csv", "source,science\ncrawl,0.5\nbooks,0.6\n")
    save(tmp_path / "a.csv", "weight:crawl,weight:books,loss:q\n0,1,1\n1,0,2\n0.5,0.5,1\n0.2,0.8,1\n")
    assert complaints(tmp_path, mixed(mix)) == [f"9: stages[3].mix.{says}"]


def test_the_line_is_that_of_the_setting_inside_a_method_or_a_schedule(tmp_path):
    text = mixed(
        """
      method:
        utilmax:
          aversion: 1
  - order:
      by: mtld
      schedule: interleaved
      stages: 3
      sources:
        crawl: {by: mtld, schedule: anneal, share: 0.2, best: 0.3}
        books:
          by: mtld
          schedule:
            warm_up:
              passes: 3"""
    )
    assert complaints(tmp_path, text) == [
        "11: stages[3].mix.method.utilmax: no such method; did you mean utilimax?",
        "18: stages[4].order.sources.crawl.share: is a setting of the schedule anneal, and stands below the name: `schedule: {anneal: {share: 0.2, best: 0.3}}`",
        "23: stages[4].order.sources.books.schedule.warm_up.passes: no such field; passes is a field of interleaved; here there are share",
        "16: stages[4].order.stages: is a setting of the schedules stages and steps, not of interleaved, and stands below the name: `schedule: {stages: {stages: 3}}`",
    ]


@pytest.mark.parametrize("method", ["unimax", "{unimax: }", "{unimax: {}}"])
def test_a_method_without_settings_may_be_a_bare_name(tmp_path, method):
    recipe = recipes.load(save(tmp_path / "r.yaml", mixed(f"{{method: {method}}}")))
    assert recipe.steps[-1].stage.model_dump()["method"] == {"unimax": {}}
    assert recipe.resolved()["stages"][-1]["mix"]["method"] == {"unimax": {}}
    assert registry.build(recipe.steps[-1].spec) == recipe.steps[-1].stage


def test_a_tokenizer_that_is_not_there_is_told_before_any_work(tmp_path, monkeypatch):
    def no_way(url: str) -> None:
        raise ConnectionError("no way there")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", no_way)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ours").mkdir()
    text = SOURCES.replace(", join: late", "") + "  - tokenize: {tokenizer: nosuch/thing}\n"
    [said] = complaints(tmp_path, text)
    assert said.startswith(
        "7: stages[1].tokenize: tokenizer: nosuch/thing is neither a file nor a folder here, and the Hugging Face hub cannot be"
    )
    [said] = complaints(tmp_path, text.replace("nosuch/thing", f"{tmp_path}/ours"))
    assert said.startswith(f"7: stages[1].tokenize: tokenizer: {tmp_path}/ours holds no tokenizer.json")


def test_workers_and_memory_that_no_machine_can_give(tmp_path):
    text = "name: mistakes\nworkers: WORKERS\nmemory: MEMORY\nsources:\n  crawl: {jsonl: {path: a}}\nstages: [write]\n"
    for workers, memory in (("0", '"4"'), ("-3", "4 XB"), ("0", "1.5"), ("0", "100 kB")):
        said = complaints(tmp_path, text.replace("WORKERS", workers).replace("MEMORY", memory))
        assert said[0] == f"2: workers: 1 or more, or auto, was expected, not {workers}" and said[1].startswith(
            "3: memory: "
        )
    for memory in ("auto", "4GB", "1.5 GiB", '"0"', '"0.5"', "800m", "2TB"):
        assert recipes.load(
            save(tmp_path / "recipe.yaml", text.replace("WORKERS", "1").replace("MEMORY", memory))
        ).head.memory


def test_a_folder_of_the_run_is_no_place_for_what_a_stage_writes(tmp_path):
    assert complaints(tmp_path, SOURCES.replace(", join: late", "") + "  - write: {name: partitions}\n") == [
        "7: partitions is a folder that each run has for itself; give another `name`"
    ]


def test_a_word_that_yaml_takes_for_something_else(tmp_path):
    """Norwegian is `no`."""
    text = "name: 2026\nsources:\n  crawl: {jsonl: {path: a}}\nstages:\n  - keep_languages: {languages: [no, en]}\n"
    assert complaints(tmp_path, text) == [
        "1: name: Input should be a valid string, not 2026; to YAML it is a word only in quotes",
        "5: stages[0].keep_languages.languages[0]: Input should be a valid string, not False; to YAML it is a word only in quotes",
    ]


def test_a_home_in_a_recipe_is_that_of_its_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    asked = recipes.load(save(tmp_path / "recipe.yaml", SOURCES.replace(", join: late", "") + "out: ~/runs/a\n"))
    assert asked.out() == str(tmp_path / "me/runs/a")


def test_a_source_that_is_not_there_is_not_preferred(tmp_path):
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nsources:\n  news: {jsonl: {path: in}}\nstages:\n  - exact_dedup: {sources: [nws]}\n  - keep_where: {signal: words, at_least: 9, at_most: 5}\n",
    )
    with pytest.raises(RecipeError, match="nothing lies between at_least 9 and at_most 5"):
        recipes.load(recipe)
    save(recipe, recipe.read_text().replace("at_most: 5", "at_most: 50"))
    with pytest.raises(RecipeError, match=r"r.yaml:5: .*nws is no source; did you mean news"):
        recipes.load(recipe)


def test_a_wrong_member_of_a_list_is_told_once(tmp_path):
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - personal_data: {kinds: [emails]}\n  - write: {without: [text]}\n",
    )
    with pytest.raises(RecipeError) as told:
        recipes.load(recipe)
    said = str(told.value).splitlines()
    assert len(said) == 2 and "kinds" in said[0] and "'emails'" in said[0] and "text is no signal" in said[1]


LIMITS = """
from gristmill.stages.stage import Rule, Verdict

class Mine(Rule):
    min_depth: float = 1
    max_depth: float | None = 5

    def verdict(self, signals):
        return Verdict.keep(len(signals))
"""


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        (
            "gopher_quality: {min_words: 500, max_words: 100}",
            "gopher_quality: min_words 500 is above max_words 100: no document could pass",
        ),
        (
            "gopher_quality: {min_mean_word_length: 11}",
            "min_mean_word_length 11 is above max_mean_word_length 10: no document could pass",
        ),
        (
            "gopher_quality: {max_words: null, min_words: 100000000000000000000000000000}",
            "min_words 1e+29 is above 2,147,483,647, the most that any document can have",
        ),
        (
            "c4_quality: {min_sentences: 3000000000}",
            "min_sentences 3e+09 is above 2,147,483,647, the most that any document can have",
        ),
        (
            "gopher_quality: {min_alphabetic_word_share: 80}",
            "min_alphabetic_word_share 80 is above 1, the most that a share can have",
        ),
        (
            "dolma_gopher: {min_alphabetic_words: 80}",
            "min_alphabetic_words: Input should be less than or equal to 1, not 80",
        ),
        (
            "dolma_gopher: {words: {low: 9, high: 5}}",
            "dolma_gopher.words: low 9 is above high 5: no value lies between them",
        ),
        ("own.py:Mine: {min_depth: 6}", "min_depth 6 is above max_depth 5: no document could pass"),
        (
            "gopher_quality: {thresholds_file: limits.yaml}",
            "limits.yaml: fr: min_words 900 is above max_words 800: no document could pass",
        ),
        (
            "gopher_quality: {max_words: 40, thresholds_file: fine.yaml}",
            "min_words 50 is above max_words 40: no document could pass",
        ),
        (
            "fineweb_quality: {thresholds_file: shares.yaml}",
            "shares.yaml: de: min_terminal_line_share 12 is above 1, the most that a share can have",
        ),
    ],
)
def test_limits_that_nothing_can_pass_are_told_before_any_work(tmp_path, stage, says):
    save(tmp_path / "own.py", LIMITS)
    save(tmp_path / "limits.yaml", "de: {min_words: 20}\nfr: {min_words: 900, max_words: 800}\n")
    save(tmp_path / "shares.yaml", "de: {min_terminal_line_share: 12}\n")
    save(tmp_path / "fine.yaml", "de: {min_words: 5}\n")
    [said] = complaints(tmp_path, SOURCES.replace(", join: late", "") + f"  - {stage}\n")
    assert said.startswith("7: stages[1].") and said.endswith(says) and len(said) < 300


def test_limits_that_meet_are_allowed(tmp_path):
    text = (
        SOURCES.replace(", join: late", "")
        + "  - gopher_quality: {min_words: 100, max_words: 100, max_hash_ratio: 1.0e+29}\n"
    )
    assert [s.called for s in recipes.load(save(tmp_path / "r.yaml", text)).steps] == ["exact_dedup", "gopher_quality"]


FINE = "sources:\n  crawl: {jsonl: {path: a}}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sources: {jsonl: {path: x}}\n", "2: sources.jsonl: jsonl is a reader, and stands where a source has its name; put a name of your own above it: `my_data: {jsonl: …}`"),
        ("sources:\n  warc:\n    path: [a, b]\n", "3: sources.warc: warc is a reader, and stands where a source has its name; put a name of your own above it: `my_data: {warc: …}`"),
        ("sources:\n  crawl: {path: x}\n", "3: sources.crawl: path is a setting of a reader, which is missing: `crawl: {READER: {path: …}}`, and READER is jsonl, parquet, warc or another"),
        ("sources:\n  crawl: data/*.jsonl\n", "3: sources.crawl: a reader was expected, such as `warc: {path: crawl/*.warc.gz}`, not 'data/*.jsonl'"),
        ("sources: [{jsonl: {path: x}}]\n", "2: sources: at least one source was expected, such as `crawl: {warc: {path: crawl/*.warc.gz}}`, not [{'jsonl': {'path': 'x'}}]"),
        ("sources:\n  crawl: {jsonl: data/}\n", "3: sources.crawl.jsonl: settings were expected (name: value), not 'data/'; did you mean {path: 'data/'}?"),
        ("sources:\n  crawl: {jsonl: {path: a}, warc: {path: b}}\n", "3: sources.crawl: one reader was expected, not jsonl, warc; give each a source of its own"),
        ("sources:\n  crawl: {exact_dedup: {}}\n", "3: sources.crawl.exact_dedup: exact_dedup does not read files; stages of one source stand in its own list: `stages: [exact_dedup]`"),
        ("sources:\n  crawl: {jsonl: {path: a}, extract: {}}\n", "3: sources.crawl: one reader was expected, not jsonl, extract; stages of one source stand in its own list: `stages: [extract]`"),
        ("sources:\n  crawl: {jsonl: {path: a}}\n  exact_dedup: {}\n", "4: sources.exact_dedup: exact_dedup is a stage; it belongs under stages, as `- exact_dedup`"),
        ("source:\n  crawl: {jsonl: {path: a}}\n", "2: source: no such field; did you mean sources?"),
        (FINE + "stages:\n  exact_dedup:\n  write: {}\n", "4: stages: a list of stages was expected, each behind a dash: `- exact_dedup`"),
        (FINE + "stages: write\n", "4: stages: a list of stages was expected, each behind a dash: `- exact_dedup`"),
        (FINE + "stages: [[exact_dedup, write]]\n", "4: stages[0]: a stage was expected (`name` or `name: {settings}`), not ['exact_dedup', 'write']; one list holds all stages, each behind a dash of its own"),
        (FINE + "stages: [{warc: {path: b}}]\n", "4: stages[0]: warc reads files; it belongs under sources"),
        (FINE + "stages:\n  - sample: 0.1\n", "5: stages[0].sample: settings were expected (name: value), not 0.1; did you mean {rate: 0.1}?"),
        (FINE + "stages:\n  - sample: {rate: 10%}\n", "5: stages[0].sample.rate: Input should be a valid number, unable to parse string as a number, not '10%'; 10% is written 0.1"),
        (FINE + "stages:\n  - keep_languages: {languages: en}\n", "5: stages[0].keep_languages.languages: Input should be a valid list, not 'en'; a list stands in brackets: [en]"),
        (FINE + "stages:\n  - gopher_quality:\n    min_words: 3\n", "5: stages[0]: a stage was expected (`name` or `name: {settings}`), not {'gopher_quality': None, 'min_words': 3}; settings are indented below their stage: `gopher_quality: {min_words: …}`"),
    ],
)  # fmt: skip
def test_first_mistakes_are_answered_in_the_terms_of_who_made_them(tmp_path, text, says):
    assert complaints(tmp_path, f"name: r\n{text}") == [says]


def test_a_source_may_have_the_name_of_a_reader_or_a_stage(tmp_path):
    save(tmp_path / "own.py", "from gristmill.stages.read.jsonl import Jsonl\n\nclass Mine(Jsonl):\n    pass\n")
    text = "name: r\nsources:\n  jsonl: {jsonl: {path: a}}\n  sample: {'own.py:Mine': {path: b}}\n"
    assert [(s.name, s.reader.called) for s in recipes.load(save(tmp_path / "r.yaml", text)).sources] == [
        ("jsonl", "jsonl"),
        ("sample", "mine"),
    ]


def test_plan_says_all_that_is_wrong_with_order_signals_and_paths_at_once(tmp_path):
    text = (
        "name: r\nsources:\n  a: {jsonl: {path: nowhere}}\n  b: {html: {path: no/pages}, stages: [exact_dedup], join: late}\n"
        "stages:\n  - keep_where: {signal: mine, at_least: 1}\n  - threshold: {by: yours, keep: 0.5}\n"
        "  - {write: {name: late}}\n  - repair\n"
    )
    with pytest.raises(RecipeError) as error:
        foresee(recipes.load(save(tmp_path / "r.yaml", text)), str(tmp_path / "out"))
    said = [line.partition("r.yaml:")[2] for line in str(error.value).splitlines()]
    assert [line[: line.index(":")] for line in said] == ["4", "6", "7", "3", "4"], said
    assert all(
        word in line
        for word, line in zip(("exact_dedup needs", "signal mine", "yours", "nowhere", "no/pages"), said, strict=True)
    )


def test_what_stages_say_of_their_recipe_comes_with_what_is_wrong_with_names(tmp_path):
    text = "name: r\nsources:\n  a: {jsonl: {path: a}}\nstages:\n  - exact_dedup: {prefer: [source], sources: [b]}\n  - {sample: {name: a, rate: 1}}\n"
    said = complaints(tmp_path, text)
    assert [line[0] for line in said] == ["6", "5"] and "no source" in said[1], said
