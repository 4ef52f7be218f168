"""A reader of one's own over something that is no file: one file of code and one line of a recipe."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import GristmillError, RunFailed
from gristmill.pipeline.inputs.portion import Portion
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.dry_run import foresee
from gristmill.pipeline.run.run import run
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import Counting, save, written

READER = '''
import sqlite3

from gristmill.stages.documents import Collector
from gristmill.stages.inputs import InputFile, InputFiles
from gristmill.stages.stage import Reader


class Database(Reader):
    """Documents of the tables of a SQLite database, one input a table; spans are ranges of rowid."""

    def list_inputs(self, access):
        path = access.located(self.path)
        with sqlite3.connect(path) as database:
            tables = [name for name, in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            files = []
            for name in tables:
                count, last, size = database.execute(
                    f"SELECT count(*), max(rowid), coalesce(sum(length(body)), 0) FROM {name}"
                ).fetchone()
                files.append(InputFile(f"sqlite://{path}", name, size, content=f"{count} rows up to {last}"))
        return InputFiles(files)

    def open(self, origin, access):
        return sqlite3.connect(origin.address.removeprefix("sqlite://"))

    def spans(self, file, path, size, target):
        [last] = file.execute(f"SELECT max(rowid) FROM {path}").fetchone()
        step = max(1, last * target // size)
        return [(start, min(start + step, last + 1)) for start in range(1, last + 1, step)]

    def read(self, file, origin):
        collector = Collector(origin.source, origin.path)
        rows = file.execute(
            f"SELECT rowid, url, body FROM {origin.path} WHERE rowid >= ? AND (? IS NULL OR rowid < ?) ORDER BY rowid",
            (origin.start, origin.end, origin.end),
        )
        for rowid, url, body in rows:
            if body is None:
                collector.skip("no_body", url)
                continue
            collector.add(rowid, text=body, url=url)
            if collector.full:
                yield collector.take()
        yield collector.take()
'''
RECIPE = (
    "name: own\nparts: {max_bytes: %d, files: 1}\n"
    "sources:\n  pages: {database.py:Database: {path: pages.db}}\nstages: [exact_dedup, write]\n"
)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


def fill(folder: Path, table: str, rows: int) -> None:
    with sqlite3.connect(folder / "pages.db") as database:
        database.execute(f"CREATE TABLE IF NOT EXISTS {table} (url TEXT, body TEXT)")
        database.executemany(
            f"INSERT INTO {table} VALUES (?, ?)",
            [(f"https://{table}.example/{n}", None if n % 10 == 3 else f"text {n} of {table}") for n in range(rows)],
        )


def made(folder: Path, max_bytes: int = 1000) -> Path:
    fill(folder, "first", 200)
    fill(folder, "second", 20)
    save(folder / "database.py", READER)
    return save(folder / "own.yaml", RECIPE % max_bytes)


def texts(rows: int, table: str) -> list[str]:
    return [f"text {n} of {table}" for n in range(rows) if n % 10 != 3]


def test_a_database_is_read_in_spans_of_its_rows_and_accounted_for(tmp_path: Path) -> None:
    summary = run(recipes.load(made(tmp_path)), str(tmp_path / "out"), Where(2), Quiet())
    assert sorted(text for _, text in written(tmp_path / "out")) == sorted(texts(200, "first") + texts(20, "second"))
    [read, *_] = summary.record.to_json()["stages"]
    assert (read["docs_in"], read["kept"], read["dropped"]) == (220, 198, {"no_body": 22})
    assert len([*(tmp_path / "out/write").glob("*.parquet")]) > 3
    rejects = [row for path in (tmp_path / "out").rglob("rejects/*.parquet") for row in pq.read_table(path).to_pylist()]
    assert {row["url"] for row in rejects if row["reason"] == "no_body"} >= {"https://first.example/3"}
    whole = save(tmp_path / "own.yaml", RECIPE % 10**9)
    run(recipes.load(whole), str(tmp_path / "whole"), Where(1), Quiet())
    assert written(tmp_path / "whole") == written(tmp_path / "out")


def test_a_run_resumes_and_reads_only_the_table_that_changed(tmp_path: Path) -> None:
    recipe, out = made(tmp_path), str(tmp_path / "out")
    done = run(recipes.load(recipe), out, Where(1), Quiet())
    assert done.worked > 0
    assert run(recipes.load(recipe), out, Where(1), Quiet()).worked == 0
    fill(tmp_path, "second", 5)
    [segment, *_] = foresee(recipes.load(recipe), out)
    assert segment.parts is not None and segment.up_to_date == segment.parts - 1
    ui = Counting()
    run(recipes.load(recipe), out, Where(1), ui)
    assert ui.anew["pages", "stages"] == 1


@pytest.mark.parametrize("limit", [5, 100, 1000])
def test_a_limit_takes_so_many_documents(limit: int, tmp_path: Path) -> None:
    loaded, kept = recipes.load(made(tmp_path)), []
    for workers in (1, 3):
        out = tmp_path / f"out{workers}"
        run(loaded, str(out), Where(workers), Quiet(), Portion(documents=limit))
        assert run(loaded, str(out), Where(workers), Quiet(), Portion(documents=limit)).worked == 0
        kept.append(written(out))
    assert kept[0] == kept[1] and 0.8 * min(limit, 198) <= len(kept[0]) <= min(limit, 198)


@pytest.mark.parametrize(
    ("instead", "says"),
    [
        ("raise KeyError('token')", r"pages.*database.py:Database\) cannot list its inputs: KeyError: 'token'"),
        ("return []", r"pages.*list_inputs\(\) answered with .*list.*; InputFiles was expected"),
        ("return InputFiles([InputFile('sqlite://x', 'a', 10)])", r"sqlite://x.*what is no file needs `content`"),
    ],
)
def test_a_listing_that_fails_says_whose_it_is(instead: str, says: str, tmp_path: Path) -> None:
    recipe = made(tmp_path)
    save(tmp_path / "database.py", READER.replace("path = access.located(self.path)", instead))
    with pytest.raises((RunFailed, GristmillError), match=says):
        run(recipes.load(recipe), str(tmp_path / "out"), Where(1), Quiet())
