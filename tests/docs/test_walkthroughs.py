"""The pages that a newcomer follows are followed: every command, recipe and piece of Python on them, in their order."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.shards.reader import open_shards
from tests.docs.pages import ROOT, Block, blocks
from tests.docs.test_commands_in_docs import lines_of
from tests.pipeline.engine.here import work_here

NOT_RUN = ("doctor", "demo", "explore")
TEXTS = [f"The miller and the mill of river {n} have to be of use. " * 20 for n in range(40)] + ["too short"] * 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a crawl, in which the pages are followed."""
    folder = tmp_path_factory.mktemp("walk")
    write_crawl(folder / "crawl")
    for extra in ("demo.yaml", "truth.json"):
        (folder / "crawl" / extra).unlink()
    (folder / "texts").mkdir()
    (folder / "texts" / "a.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        follow("docs/start.md", folder)
        yield folder


def gristmill(command: str) -> str:
    words = re.findall(r'"[^"]*"|\S+', command)[1:]
    done = CliRunner().invoke(app, [word.strip('"') for word in words])
    assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
    return done.output


def follow(page: str, folder: Path, **instead: str) -> dict[str, Any]:
    """Do what a page says; what stands for a reader's own is replaced."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        text = block.text
        for given, real in instead.items():
            text = (
                text.replace(given.replace("_", "."), real)
                if given != "url"
                else text.replace("https://example.com/page", real)
            )
        if block.language == "shell":
            for line in lines_of(Block(block.page, block.line, "shell", text)):
                written = re.fullmatch(r"echo (\S+) > (\S+)", line)
                if written:
                    (folder / written[2]).write_text(f"{written[1]}\n")
                elif line.startswith("gristmill ") and line.split()[1] not in NOT_RUN:
                    gristmill(line)
        elif block.language == "yaml":
            change_recipe(text, folder)
        elif block.language == "python" and (file := re.match(r"# (\w+\.py)\n", text)):
            (folder / file[1]).write_text(text)
        elif block.language == "python":
            exec(compile(text, str(block), "exec", dont_inherit=True), names)
    return names


def change_recipe(text: str, folder: Path) -> None:
    """A whole recipe is a file by its name; what `init` wrote stays and must be the same. Stages go into recipe.yaml."""
    given = yaml.safe_load(text)
    file = folder / "recipe.yaml"
    if isinstance(given, dict):
        if given["name"] == "crawl":
            shown = [each if isinstance(each, str) else next(iter(each)) for each in given["stages"]]
            for name in shown:  # the reader takes the # away
                file.write_text(file.read_text().replace(f"# - {name}\n", f"- {name}\n"))
            assert [step.called for step in recipes.load(file).steps] == shown
        else:
            (folder / f"{given['name']}.yaml").write_text(text)
        return
    recipe = yaml.safe_load(file.read_text())
    for stage in given:
        name = next(iter(stage)) if isinstance(stage, dict) else stage
        places = [at for at, each in enumerate(recipe["stages"]) if name in each]
        if places:
            recipe["stages"][places[0]] = stage
        elif name != "opt_out":
            recipe["stages"].append(stage)
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))


def test_ten_minutes(place: Path) -> None:
    rows = ds.dataset(place / "out/crawl/write", format="parquet").count_rows()
    assert rows > 100 and (place / "out/crawl-sample/report.html").is_file()
    assert len([*(place / "out/crawl/shards/512").glob("*.arrow")]) >= 1


def test_json_lines_become_clean_texts_and_shards(place: Path) -> None:
    assert ds.dataset(place / "out/texts/write", format="parquet").count_rows() == 40
    assert open_shards(place / "out/texts/shards/512").index.total("documents") == 40
    files = (path.read_bytes() for path in (place / "clean/documents").glob("*.gz"))
    lines = [line for data in files for line in gzip.decompress(data).decode().splitlines()]
    assert sorted(json.loads(line)["text"] for line in lines) == sorted(TEXTS[:40])


def test_the_reference_names_every_file_of_a_run(place: Path) -> None:
    source = importlib.util.spec_from_file_location("files_of_a_run", ROOT / "docs" / "site" / "files.py")
    assert source is not None and source.loader is not None
    source.loader.exec_module(page := importlib.util.module_from_spec(source))
    stands_for = {
        "**": ".+",
        "*": "[^/]*",
        "SINK": "[^/]+",
        "STAGE": "[^/]+",
        "SEGMENT": "[^/]+",
        "LENGTH": r"\d+",
        "NAME": "[^/]+",
    }
    pieces = re.compile(r"\*\*|\*|[A-Z]{3,}(?=/)|[^*]")
    known = [
        re.compile("".join(stands_for.get(piece, re.escape(piece)) for piece in pieces.findall(glob)))
        for glob in page.PLACES
    ]
    files = [
        path.relative_to(place / "out/crawl").as_posix() for path in (place / "out/crawl").rglob("*") if path.is_file()
    ]
    assert len(files) > 20 and [name for name in files if not any(each.fullmatch(name) for each in known)] == []


def test_why_was_my_document_dropped(place: Path) -> None:
    rejects = ds.dataset(place / "out/crawl/stages/gopher_quality/rejects", format="parquet").to_table()
    row = next(row for row in rejects.to_pylist() if row["reason"] == "too_few_stop_words" and row["url"])
    theirs = {"00f1e2d3c4b5a697": f"{row['uid']:016x}", "doc-17": row["id"]}
    names = follow("docs/how_to/why_dropped.md", place, url=row["url"], **theirs)
    assert names["rejects"].count_rows() == len(rejects) > 3
    assert "too_few_stop_words" in gristmill(f"gristmill inspect out/crawl --url {row['url']}")


def test_a_rule_of_my_own(place: Path) -> None:
    names = follow("docs/how_to/own_rule.md", place)
    assert names["PlainText"]()(names["gristmill"].stages.TextSignals()(names["table"]))["text"].to_pylist() == [
        "A quiet sentence."
    ]
    assert ds.dataset(place / "out/ruled/write", format="parquet").count_rows() > 100
    code = (place / "other_rules.py").read_text()
    exec(compile(code, "other_rules.py", "exec", dont_inherit=True), others := {})
    even = others["EvenWords"]()(names["gristmill"].stages.TextSignals()(names["table"]))
    assert even.num_rows == 0  # both have three
    assert ds.dataset(place / "out/calm/write", format="parquet").count_rows() > 100
    for name in ("test_my_rule", "test_my_rules"):
        tests = [test for called, test in vars(importlib.import_module(name)).items() if called.startswith("test_")]
        assert len(tests) == 1
        tests[0]()
    for name in [name for name, module in sys.modules.items() if str(place) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def test_forgetting_a_site(place: Path) -> None:
    urls = ds.dataset(place / "out/crawl/write", format="parquet").to_table(["url"])["url"].to_pylist()
    host = urls[0].split("/")[2]
    follow("docs/how_to/forget_a_site.md", place, example_org=host)
    left = ds.dataset(place / "out/crawl/write", format="parquet").to_table(["url"])["url"].to_pylist()
    assert [url for url in left if url.split("/")[2] == host] == [] and 0 < len(left) < len(urls)
    assert (place / "out/crawl/forgotten/receipt-0001.txt").is_file()
