"""What commands print where the terminal has 80 columns: nothing is wider, and no name is broken."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from rich.console import Console

from gristmill.pipeline.cli import app as cli
from gristmill.pipeline.cli.app import COMMANDS
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import run
from gristmill.pipeline.tables import TerminalTable, fitting
from tests.pipeline.engine.here import work_here

WIDE = 80
LONG_WORD = 60  # a path or an address may be longer than a line, and is not broken
STAGES = ("language", "keep_languages", "gopher_repetition", "gopher_quality", "exact_dedup", "minhash_dedup")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the demo's crawl, a run of it, and recipes with mistakes."""
    folder = tmp_path_factory.mktemp("terminal")
    write_crawl(folder / "crawl")
    text = (folder / "crawl/demo.yaml").read_text().replace("./*.warc.gz", "crawl/*.warc.gz")
    (folder / "demo.yaml").write_text(text.partition("  - tokenize")[0])
    source = "name: a\nsources: {a: {warc: {path: crawl}}}\nstages:"
    (folder / "typo.yaml").write_text(f"{source}\n  - extract\n  - gopher_quality: {{min_word: 5}}\n")
    (folder / "stage.yaml").write_text(f"{source} [extract, gopher_qualty]\n")
    (folder / "setting.yaml").write_text(f"{source} [extract, sample: {{rate: 7}}]\n")
    (folder / "input.yaml").write_text(source.replace("path: crawl", "path: nowhere") + " [extract, write]\n")
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        patch.setenv("COLUMNS", str(WIDE))
        patch.chdir(folder)
        run(recipes.load(folder / "demo.yaml"), str(folder / "out"), Where(1), Quiet())
        yield folder


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of standard output and of standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["gristmill", *arguments])
        with pytest.raises(SystemExit):
            cli.main()
            raise SystemExit
    out, err = capsys.readouterr()
    return [line for line in [*out.splitlines(), *err.splitlines()] if line.strip()]


def too_wide(lines: list[str]) -> list[str]:
    return [line for line in lines if len(line) > WIDE and not any(len(word) > LONG_WORD for word in line.split())]


# command, the least number of lines, and what must stand there whole
SHOWN: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
    "nothing": ([], 30, tuple(path.split()[0] for path in COMMANDS)),
    "plan": (["plan", "demo.yaml", "--out", "out"], 8, STAGES),
    "plan of nothing": (["plan", "demo.yaml", "--out", "nothing"], 10, (*STAGES, "never run")),
    "run": (["run", "demo.yaml", "--out", "out"], 12, (*STAGES, "too_few_alphabetic_words")),
    "sample": (["run", "demo.yaml", "--out", "out", "--limit", "50"], 14, (*STAGES, "documents")),
    "inspect": (["inspect", "out"], 40, (*STAGES, "duplicate_paragraph_characters", "quarantined")),
    "inspect a rule": (["inspect", "out", "gopher_quality"], 20, ("too_few_alphabetic_words",)),
    "inspect a reason": (["inspect", "out", "exact_dedup", "--reason", "exact_duplicate"], 5, ("exact_duplicate",)),
    "tune": (["tune", "out", "gopher_quality.min_words=80"], 15, ("gopher_quality: too_few_words",)),
    "report": (["report", "out"], 1, ("report:",)),
    "estimate": (
        ["estimate", "demo.yaml", "--sample", "50%"],
        10,
        ("workers", "at least", "at most"),
    ),
    "doctor": (["doctor"], 20, ("cores", "scoring by a language model")),
    "stages": (["stages"], 80, ("few_replacement_characters", "Deduplication and decontamination")),
    "a stage": (["stages", "gopher_quality"], 40, ("too_few_alphabetic_words", "docs/rules.md")),
    "a stage misspelt": (["stages", "gopher_qualty"], 1, ("did you mean gopher_quality?",)),
    "new": (["new", "stage", "my_rule", "--folder", "new"], 3, ("my_rule.py",)),
    "init": (["init", "crawl", "--recipe", "new.yaml"], 2, ("new.yaml",)),
    "a typo": (["run", "typo.yaml"], 1, ("did you mean", "min_words?")),
    "no such stage": (["run", "stage.yaml"], 1, ("did you mean", "gopher_quality?")),
    "a bad setting": (["run", "setting.yaml"], 1, ("stages[1].sample.rate:",)),
    "no input": (["run", "input.yaml"], 1, ("input.yaml:2:", "folder")),
    "no recipe": (["run", "nowhere.yaml"], 1, ("nowhere.yaml: no such file",)),
    "no run": (["inspect", "nowhere"], 1, ("the output folder of a run?",)),
    "no option": (["run", "demo.yaml", "--worker", "2"], 3, ("--workers",)),
    "no command": (["rnu"], 3, ("'run'",)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_no_line_is_wider_than_the_terminal(place: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, least, whole = SHOWN[name]
    lines = printed(arguments, capsys)
    assert len(lines) >= least, lines
    assert too_wide(lines) == []
    for word in whole:
        assert any(word in line for line in (*lines, " ".join(lines))), word
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("path", COMMANDS)
def test_help_pages_have_examples_and_fit(path: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed([*path.split(), "--help"], capsys)
    assert too_wide(lines) == [] and lines[0].startswith(f"Usage: gristmill {path} [OPTIONS]")
    assert not set("{}") & set(lines[0])
    examples = lines[lines.index("Examples:") + 1 :]
    assert examples and all(line.startswith("  gristmill ") for line in examples)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_there(shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GRISTMILL_COMPLETE", f"source_{shell}")
    assert any("_GRISTMILL_COMPLETE" in line for line in printed([], capsys))
    asks = {"bash": {"COMP_WORDS": "gristmill in", "COMP_CWORD": "1"}}.get(
        shell, {"_TYPER_COMPLETE_ARGS": "gristmill in", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    )
    monkeypatch.setenv("_GRISTMILL_COMPLETE", f"complete_{shell}")
    for variable, value in asks.items():
        monkeypatch.setenv(variable, value)
    offered = " ".join(printed([], capsys))
    assert "init" in offered and "inspect" in offered and "doctor" not in offered


def test_the_plan_names_each_node_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(["plan", "demo.yaml", "--out", "out"], capsys)
    nodes = [node.name for node in make_plan(recipes.load(place / "demo.yaml")).nodes]
    assert [line.split()[0] for line in lines if line and line.split()[0] in nodes] == nodes and len(nodes) > 3
    assert RunFolder("out").json("run.json")["status"] == "done"


def shown(table: TerminalTable, width: int) -> list[str]:
    console = Console(width=width, force_terminal=False, record=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_tables_fit_and_keep_numbers_and_names_whole(width: int) -> None:
    names = [f"a_stage_{number}" for number in range(9)]
    rows = [
        (name, 10**number, ["too_few_words 12", "too_many_bullets 5"], "something at the end of it")
        for number, name in enumerate(names)
    ]
    heads = ("stage", "documents in all", "because", "spare")
    table = TerminalTable.of("a title", heads, rows, words={0, 2, 3}, spared=(3,))
    lines = shown(table, width)
    assert all(len(line) <= width and line == line.rstrip() for line in lines)
    rows = [line for line in lines if line.split() and line.split()[0] in names]
    assert len(rows) == len(names)
    for number, line in enumerate(rows):
        assert f"{10**number:,}" in line.split()
        assert "…" not in line.replace(", …", "") or width < 50
    assert ("something" in "".join(lines)) == (width >= 60)


def test_the_widest_column_wraps() -> None:
    rows = [("first", "", " ".join(["many"] * 16)), *((f"row {n}", f"five words in row {n}", "") for n in range(6))]
    lines = shown(TerminalTable.of("a title", ("row", "why", "more"), rows, words=3), 60)
    assert len(lines) == 2 + 3 + 6 and max(map(len, lines)) <= 60


def test_a_list_shows_as_many_items_as_fit() -> None:
    assert fitting(["one 1", "two 2", "three 3"], 30) == "one 1, two 2, three 3"
    assert fitting(["one 1", "two 2", "three 3"], 15) == "one 1, two 2, …"
    assert fitting(["one 1", "two 2"], 8) == "one 1, …" and fitting([], 8) == ""


def test_control_characters_never_reach_the_terminal() -> None:
    table = TerminalTable.of("evil \x1b[2J", ("a", "b"), [("\x1b]0;title\x07x", "1\x1b[31m")])
    assert "\x1b" not in "".join(shown(table, 80)) and "\x07" not in "".join(shown(table, 80))


def test_where_there_is_only_ascii_other_characters_are_escapes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONIOENCODING=ascii, or a locale that has no more."""
    written = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(written, encoding="ascii", write_through=True))
    monkeypatch.setattr("sys.argv", ["gristmill", "inspect", "out"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 0
    shown = written.getvalue().decode("ascii")
    assert "gopher_quality" in shown and "\\u20" in shown
