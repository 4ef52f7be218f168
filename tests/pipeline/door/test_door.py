"""Recipes in code, tables of other libraries as sources, and runs as objects."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import gristmill
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.look.run_folder import NotFound
from gristmill.pipeline.recipe.recipe import load
from gristmill.stages import ExactDedup, GopherQuality, Jsonl, KeepLanguages, Repair, Sample, TextSignals, Write
from gristmill.stages.frames import as_arrow
from gristmill.stages.stage import NoSuchSignal, Rule, snake_case
from tests.pipeline.runs import lines, save

TEXTS = [
    f"The mill number {i} by the river has {i + 20} wheels, and the miller turns them with the flour of that house. "
    * 4
    for i in range(12)
]
ROOT = Path(__file__).parents[3]
STAGES = [ExactDedup(), GopherQuality(min_words=20), Write()]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return pa.table({"text": [*TEXTS, *TEXTS[:3], "<b>few</b> words"], "url": ["https://a.org/1"] * 16})


@pytest.fixture(scope="module")
def run(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> gristmill.Run:
    recipe = gristmill.Recipe(table, STAGES, name="in_code", keep="all")
    return recipe.run(tmp_path_factory.mktemp("door") / "out", workers=1)


def test_a_recipe_in_code_is_what_its_yaml_is(tmp_path: Path) -> None:
    books = gristmill.Source(Jsonl(path=str(tmp_path)), [Repair()], join="exact_dedup")
    recipe = gristmill.Recipe({"a": Jsonl(path="/in"), "b": books}, [*STAGES[:2], "write"], name="r", keep="signals")
    assert "min_words: 20" in recipe.yaml() and "max_words" not in recipe.yaml()
    assert load(save(tmp_path / "r.yaml", recipe.yaml())).resolved() == recipe.checked.resolved()
    assert [step.called for step in recipe.checked.all_steps] == ["exact_dedup", "gopher_quality", "write", "repair"]


def test_a_run_shows_what_it_did(run: gristmill.Run) -> None:
    assert (
        sorted(row["text"] for row in run.kept()) == sorted(TEXTS)
        and repr(run).endswith("done)")
        and run.record["name"] == "in_code"
        and run.alarms == run.record["alarms"]
    )
    assert [row["reason"] for row in run.dropped("exact_dedup")] == ["exact_duplicate"] * 3
    [few] = run.dropped("gopher_quality", "too_few_words")
    assert few["text"] == "<b>few</b> words"
    html = run.stage("gopher_quality")._repr_html_()
    assert "&lt;b&gt;few" in html and "<b>few" not in html
    assert "gopher_quality" in run._repr_html_() and "12 kept" in repr(run.funnel)
    assert (
        "gopher_quality.min_words 20" in repr(run.signal("words")) and sum(run.signal("words").data[0]["counts"]) == 13
    )
    assert run.tune("gopher_quality.min_words=2000").data.total.newly_dropped == 12
    assert run.history(uid=few["uid"]).data["verdicts"][-1]["reason"] == "too_few_words"
    assert len([row for row in run.kept(columns=["uid"]) if set(row) == {"uid"}]) == 12


def test_sources_with_rules_of_their_own_have_histograms_of_their_own(tmp_path: Path) -> None:
    def of(words: int, rows: int, name: str) -> gristmill.Source:
        documents = [{"text": " ".join([f"word{name}"] * words + [str(row)])} for row in range(rows)]
        return gristmill.Source(documents, [GopherQuality(min_words=words, name=name)])

    sources = {"a": of(30, 5, "short"), "b": of(400, 7, "long")}
    run = gristmill.Recipe(sources, [ExactDedup(), Write()], name="segments").run(tmp_path / "out", workers=1)
    view = run.signal("words")
    assert [(its["sources"], its["low"], sum(its["counts"])) for its in view.data] == [(["a"], 31, 5), (["b"], 401, 7)]
    assert "short.min_words 30" in repr(view) and "long.min_words 400" in repr(view)


def test_what_is_not_there_is_told_with_what_is(run: gristmill.Run, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="did you mean words"):
        run.signal("word")
    with pytest.raises(NotFound, match="did you mean exact_dedup"):
        next(run.dropped("exact_dedupe"))
    with pytest.raises(RecipeError, match="writes documents"):
        next(run.kept("wrote"))
    with pytest.raises(NotFound, match="output folder of a run"):
        gristmill.open_run(tmp_path)


def test_a_wrong_recipe_says_so_at_once() -> None:
    with pytest.raises(RecipeError, match=r"<recipe>:\d+: stages.0: unknown stage|gopher_qualit"):
        gristmill.Recipe({"a": Jsonl(path="in")}, ["gopher_qualit"])
    with pytest.raises(RecipeError, match=r"sources.a: a reader, or an Arrow table.*polars frame"):
        gristmill.Recipe({"a": 3}, [Write()])
    with pytest.raises(RecipeError, match="no shared stage is called nowhere"):
        gristmill.Recipe({"a": gristmill.Source(Jsonl(path="in"), [Repair()], join="nowhere")}, [Write()])


@pytest.mark.parametrize("stage", [ExactDedup(), TextSignals(), GopherQuality(), Repair(), Write()])
def test_of_no_rows_no_rows_come_back(stage: Any) -> None:
    assert stage([]) == [] and stage(()) == []


def test_where_a_run_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recipe = gristmill.Recipe([{"text": "a"}], [Write()])
    with pytest.raises(
        RunFailed, match=r"tables lie in a folder beside the run, which cannot be written: .*Not a directory"
    ):
        recipe.run(tmp_path / "file" / "out")
    with pytest.raises(RecipeError, match="workers: -1; at least 1"):
        recipe.run(tmp_path / "out", workers=-1)


def test_rows_that_are_no_table_are_told_by_row_and_column() -> None:
    import pandas

    mixed, half = [{"text": None}, {"text": 1}, {"text": "x"}], [{"text": "x"}, {"text": "a\ud800"}]
    for make in (list, lambda rows: pandas.DataFrame(rows, dtype=object)):
        with pytest.raises(RecipeError, match=r"sources.a: row 2 \(the first is 0\): text is str, and (int|float) in"):
            gristmill.Recipe({"a": make(mixed)}, [Write()])
        with pytest.raises(RecipeError, match=r"row 1 .*: text: character 1 is half of a surrogate pair"):
            gristmill.Recipe({"a": make(half)}, [Write()])
    with pytest.raises(RecipeError, match=r"row 0 .*: year cannot be stored"):
        gristmill.Recipe({"a": [{"text": "x", "year": 1 << 70}]}, [Write()])


def test_rows_keep_every_column_of_any_row_and_uids_past_a_signed_number(tmp_path: Path) -> None:
    rows = [
        {"text": "a stone by the mill"},
        {"text": "a wheel in the river", "url": "https://a.example/", "uid": 1 << 63},
    ]
    table, back = as_arrow(rows)
    assert table.column_names == ["text", "url", "uid"] and table["uid"].to_pylist() == [None, 1 << 63]
    assert back(table) == [{"url": None, "uid": None, **row} for row in rows]
    assert as_arrow([])[0].num_rows == 0
    ran = gristmill.Recipe(rows, [ExactDedup(), Write()]).run(tmp_path / "out")
    kept = list(ran.kept())
    assert sorted(str(row["url"]) for row in kept) == ["None", "https://a.example/"]
    again = ExactDedup()([*kept, *({**row, "uid": 2**64 - 1 - n} for n, row in enumerate(kept))])
    assert [row["uid"] for row in again] == [row["uid"] for row in kept], "the first of each text"


@pytest.mark.parametrize("stage", [ExactDedup(), Repair(), TextSignals()])
def test_a_table_whose_texts_are_none_is_refused(stage: Any) -> None:
    for texts, kind in (([1, 2], "int64"), ([b"a", None], "binary")):
        with pytest.raises(TypeError, match=f"the column `text` is {kind}: strings were expected"):
            stage(pa.table({"text": texts}))


def test_columns_without_a_text_and_of_a_dictionary_are_texts() -> None:
    assert ExactDedup()(pa.table({"text": [None, None]})).num_rows == 2
    assert ExactDedup()(pa.table({"text": pa.array(["a", "a"]).dictionary_encode()})).num_rows == 1


def test_a_script_that_its_workers_run_again_is_told_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = gristmill.Recipe([{"text": TEXTS[0]}], [Write()])
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)  # as a worker imports it
    with pytest.raises(RecipeError, match='put the call under `if __name__ == "__main__":`'):
        recipe.run(tmp_path / "out")
    for call in (gristmill.ablate, gristmill.train_judge):
        with pytest.raises(RecipeError, match="workers import the script"):
            call(tmp_path / "plan.yaml")
    assert not (tmp_path / "out").exists()


def test_classes_of_files_travel_and_those_of_notebooks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from gristmill.stages import Sample\n\n\nclass Half(Sample):\n    '''Half.'''\n"
    (tmp_path / "my_half_stages.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_half_stages  # type: ignore[import-not-found]

    recipe = gristmill.Recipe({"a": Jsonl(path="in")}, [my_half_stages.Half(rate=0.5)])
    assert recipe.checked.steps[0].address == f"{tmp_path / 'my_half_stages.py'}:Half"

    here = type("Here", (Sample,), {"__module__": "__main__", "__doc__": "Here."})
    with pytest.raises(RecipeError, match="put it into a file of its own"):
        gristmill.Recipe({"a": Jsonl(path="in")}, [here(rate=0.5)])
    assert "my_half_stages" in sys.modules


def frames(table: pa.Table) -> list[Any]:
    import datasets

    some: list[Any] = [table, table.to_pandas(), datasets.Dataset(table), table.to_pylist()]
    try:
        import polars
    except ImportError:
        return some
    return [*some, polars.from_arrow(table), polars.from_arrow(table).lazy()]


def test_stages_take_tables_of_other_libraries_and_give_them_back(table: pa.Table) -> None:
    made = frames(table)
    assert len(made) >= 4
    for frame in made:
        kept, unique = TextSignals(only=("words",))(frame), ExactDedup()(frame)
        eager = type(frame).__name__.replace("LazyFrame", "DataFrame")
        assert type(kept).__name__ == type(unique).__name__ == eager
        measured, _ = as_arrow(kept)
        assert measured["words"].to_pylist()[-1] == 4 and as_arrow(unique)[0].num_rows == 13
    with pytest.raises(TypeError, match=r"dataset\['train'\]"):
        import datasets

        as_arrow(datasets.DatasetDict({"train": datasets.Dataset(table)}))


def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    blocks = [block for block in blocks if "train_judge" not in block]  # test_door_models.py has what it shows
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "books/a.jsonl", TEXTS)
    lines(tmp_path / "crawl/b.jsonl", TEXTS[:4])
    known: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), known)
    assert known["run"].record["name"] == "small" and len(list(gristmill.open_run("out/mine").kept())) == 12
    assert len(known["measured"]) == 2 and known["measured"][1]["words"] == 5


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    lines_of_script = [
        "import gristmill",
        "from gristmill.stages import ExactDedup, Write",
        "print('once', flush=True)",
        "rows = [{'text': f'The mill number {i} by the river'} for i in range(4)]",
        "print(len(list(gristmill.Recipe(rows, [ExactDedup(), Write()]).run('out', workers=2).kept())))",
    ]
    (tmp_path / "script.py").write_text("\n".join(lines_of_script))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["once", "4"]), done.stderr


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        (GopherQuality(), r"Measure it first: TextSignals\(\)\(table\)"),
        (KeepLanguages(languages=["en"]), r"Language\(\)"),
    ],
)
def test_a_rule_alone_says_who_measures_what_it_decides_by(stage: Rule, says: str) -> None:
    with pytest.raises(NoSuchSignal, match=says):
        stage([{"text": "A mill by the river."}])


def test_stages_have_one_name_in_recipes_and_in_python() -> None:
    assert len(gristmill.stages.HOMES) > 60
    for name in gristmill.stages.HOMES:
        recipe_name = snake_case(name)
        assert "".join(part.capitalize() for part in recipe_name.split("_")) == name
        assert getattr(gristmill.stages, name).recipe_name() == recipe_name


@pytest.mark.parametrize("wrong", ["FineWebQuality", "fineweb_quality", "FinewebQualty", "FINEWEBQUALITY"])
def test_a_wrong_name_is_answered_with_the_right_one(wrong: str) -> None:
    with pytest.raises(AttributeError, match=r"gristmill.stages has no '.*'; did you mean FinewebQuality\?"):
        getattr(gristmill.stages, wrong)
    assert not hasattr(gristmill.stages, wrong)
    with pytest.raises(AttributeError, match=r"did you mean stages\.MinhashDedup"):
        gristmill.MinHashDedup  # noqa: B018
    with pytest.raises(AttributeError, match="gristmill has no 'runs'; did you mean run"):
        gristmill.runs  # noqa: B018
    if wrong[0].isupper():
        with pytest.raises(ImportError, match="did you mean FinewebQuality"):
            exec(f"from gristmill.stages import {wrong}")
