"""Whatever is wrong, one clear message says so, the exit code tells whose fault it is, and nothing that was finished is
lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.storage import Store
from tests.pipeline.crawls import (
    RUN,
    Said,
    entry,
    inside,
    jsonl,
    left_over,
    noise,
    outside,
    permissions_hold,
    recipe,
    rejected,
    run_json,
    small_disk,
    stage_file,
    texts,
    without_roots_key,
    written,
)

Gristmill = Callable[..., Said]


@pytest.fixture
def gristmill(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gristmill:
    return lambda *args: inside(monkeypatch, capsys, *args)


@pytest.fixture
def permissions(tmp_path: Path) -> None:
    if not permissions_hold(tmp_path):
        pytest.skip("no file can be kept from a child process here")


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_a_recipe_that_is_not_there(gristmill: Gristmill, tmp_path: Path) -> None:
    gristmill("run", tmp_path / "recipe.yaml").one_line(2, "recipe.yaml: no such file")
    gristmill("run", tmp_path).one_line(2, str(tmp_path), "a folder; a YAML file was expected")
    (tmp_path / "crawl.yaml").touch()
    for near in ("crawl.yml", "crawl", "craw.yaml"):
        gristmill("plan", tmp_path / near).one_line(2, f"{near}: no such file; did you mean {tmp_path / 'crawl.yaml'}?")
    gristmill("plan", tmp_path / "other.yaml").one_line(2, "other.yaml: no such file")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("name: [1, 2\nsources: {\n", 2, "not valid YAML"),
        ("name: a\n\tb: c\n", 2, "not valid YAML"),
        ("", 1, "the file is empty"),
        ("# nothing but a comment\n", 1, "the file is empty"),
        ("just words\n", 1, "a recipe is a mapping"),
        ("name: a\nname: b\n", 2, "name stands here a second time"),
        ("name: tiny\n", 1, "at least one source was expected"),
        ("name: tiny\nsources: {docs: {}}\n", 2, "one reader was expected, not none"),
        ("sources: {docs: {jsonl: {path: docs.jsonl}}}\n", 1, "name: is missing"),
        ("name: a/b\nsources: {docs: {jsonl: {path: docs.jsonl}}}\n", 1, "letters, digits"),
        ("name: tiny\nsources:\n  docs: {jsonl: }\n", 3, "sources.docs.jsonl.path: is missing"),
        ("name: tiny\nsorces: {}\n", 2, "sorces: no such field; did you mean sources?"),
    ],
)
def test_a_recipe_that_is_none(gristmill: Gristmill, tmp_path: Path, text: str, line: int, says: str) -> None:
    gristmill("run", recipe(tmp_path, text)).one_line(2, f"recipe.yaml:{line}: ", says)


def test_a_recipe_of_bytes(gristmill: Gristmill, tmp_path: Path) -> None:
    file = recipe(tmp_path)
    for data in (
        b"\xff\xfe\x00",
        b"name: a\x00b\n",
        b"name: !!python/object:os.system {}\n",
        b"a: &x [*x]\n",
        b"a: 2026-13-45\n",
        b"? {a: 1}\n: 2\n",
    ):
        file.write_bytes(data)
        gristmill("run", file).one_line(2, "recipe.yaml")


@pytest.mark.parametrize(
    ("stages", "line", "says"),
    [
        ("\n  - exact_dedup\n  - sample: {rte: 0.5}", 7, "stages[1].sample.rte: no such field; did you mean rate?"),
        ("\n  - exact_dedpu", 6, "stages[0]: no such stage 'exact_dedpu'; did you mean exact_dedup?"),
        ("\n  - write\n  - sample: {rate: much}", 7, "stages[1].sample.rate: Input should be a valid number"),
        ("\n  - sample: 3", 6, "settings were expected"),
        ("write", 5, "stages: a list of stages was expected"),
        ("\n  - exact_dedup\n  - exact_dedup", 7, "exact_dedup is the name of something on line 6 already"),
        ("\n  - sample: {name: docs, rate: 1}", 6, "docs is the name of something on line 3 already"),
        ("\n  - jsonl: {path: x.jsonl}", 6, "jsonl reads files; it belongs under sources"),
        ("\n  - {write: , sample: }", 6, "a stage was expected"),
        ("\n  - [write]", 6, "a stage was expected"),
    ],
)
def test_a_stage_that_is_wrong_is_named_with_line_and_likely_spelling(
    gristmill: Gristmill, tmp_path: Path, stages: str, line: int, says: str
) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    gristmill("run", recipe(tmp_path, stages=stages)).one_line(2, f"recipe.yaml:{line}: ", says)
    assert not (tmp_path / "out").exists()


def test_a_signal_and_an_address_that_are_wrong(gristmill: Gristmill, tmp_path: Path) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    file = recipe(tmp_path, stages="\n  - keep_where: {signal: wrods, at_least: 5}")
    gristmill("plan", file).one_line(2, "signal wrods, which no stage measures; did you mean words? If not, ")
    gristmill("run", recipe(tmp_path), "--scheduler", "nonsense").one_line(2, "--scheduler nonsense: an address was")


def test_a_join_that_leads_nowhere(gristmill: Gristmill, tmp_path: Path) -> None:
    text = "name: tiny\nsources:\n  docs:\n    jsonl: {path: docs.jsonl}\n    join: wrte\nstages: [write]\n"
    gristmill("run", recipe(tmp_path, text)).one_line(
        2, "recipe.yaml:5: ", "no shared stage is called wrte; did you mean write?"
    )


# --- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("absent.jsonl", "absent.jsonl: no such file or folder"),
        ("empty", "empty: the folder is empty"),
        ("other", "other: the folder has no file that ends in .jsonl"),
        ("other/*.jsonl", "other/*.jsonl: nothing matches"),
        ("absent/*.jsonl", "there is no folder"),
        ("nosuch://bucket/docs.jsonl", "nosuch"),
    ],
)
def test_a_path_that_leads_nowhere(gristmill: Gristmill, tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "readme.txt").write_text("no documents")
    said = gristmill("run", recipe(tmp_path, path=path), "--out", tmp_path / "out")
    said.one_line(2, "sources.docs: ", says)
    assert gristmill("plan", recipe(tmp_path, path=path)).one_line(2, "sources.docs: ", says)


def test_an_input_that_may_not_be_read(tmp_path: Path, permissions: None) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2)).chmod(0)
    outside("run", recipe(tmp_path), before=without_roots_key).one_line(
        1, "sources.docs: ", "docs.jsonl cannot be read: Permission denied"
    )


def test_a_folder_of_inputs_that_may_not_be_read(tmp_path: Path, permissions: None) -> None:
    jsonl(tmp_path / "docs" / "docs.jsonl", texts(2))
    (tmp_path / "docs").chmod(0)
    outside("run", recipe(tmp_path, path="docs"), before=without_roots_key).one_line(
        2, "sources.docs: ", "may not be read"
    )
    (tmp_path / "docs").chmod(0o700)


def test_a_recipe_that_may_not_be_read(tmp_path: Path, permissions: None) -> None:
    recipe(tmp_path).chmod(0)
    outside("run", tmp_path / "recipe.yaml", before=without_roots_key).one_line(
        2, "recipe.yaml: cannot be read", "Permission denied"
    )


# --- output folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_folder_of_another_run(gristmill: Gristmill, tmp_path: Path, command: str) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('{"name": "other"}')
    gristmill(command, recipe(tmp_path), "--out", tmp_path / "out").one_line(
        2, "a run of the recipe named other, not tiny", "choose another --out"
    )


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("text", ['{"scripts": {}}', "[1, 2]"])
def test_a_folder_whose_run_json_is_someone_elses(
    gristmill: Gristmill, tmp_path: Path, text: str, command: str
) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text(text)
    gristmill(command, recipe(tmp_path), "--out", tmp_path / "out").one_line(
        2, "files that are no run of ours", "choose an empty one"
    )


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_folder_with_files_of_someone_else(gristmill: Gristmill, tmp_path: Path, command: str) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    gristmill(command, recipe(tmp_path), "--out", tmp_path / "out").one_line(2, "files that are no run of ours")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_a_folder_whose_run_json_is_torn(gristmill: Gristmill, tmp_path: Path) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('{"name": "ti')
    for args in (
        ("run", recipe(tmp_path), "--out", tmp_path / "out"),
        ("maintain", "clean", tmp_path / "out"),
        ("report", tmp_path / "out"),
        ("inspect", tmp_path / "out"),
    ):
        said = gristmill(*args)
        assert said.code in (1, 2)
        said.one_line(said.code, "run.json", "not JSON")


def test_an_out_that_is_a_file(gristmill: Gristmill, tmp_path: Path) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    (tmp_path / "out").write_text("a file")
    for command in ("plan", "run"):
        for out, why in (("out", "File exists"), ("out/below", "Not a directory")):
            said = gristmill(command, recipe(tmp_path), "--out", tmp_path / out)
            said.one_line(1, f"{tmp_path}/{out}: the output folder cannot be written: {why}")


def test_an_out_that_may_not_be_written(tmp_path: Path, permissions: None) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    for name, mode in (("there", 0o555), ("above", 0o555), ("closed", 0)):
        (tmp_path / name).mkdir(mode=mode)
        out = tmp_path / name / ("out" if name == "above" else "")
        for command in ("plan", "run"):
            outside(command, recipe(tmp_path), "--out", out, before=without_roots_key).one_line(
                1, name, "the output folder cannot be written: Permission denied"
            )


def test_a_second_run_in_the_same_folder(gristmill: Gristmill, tmp_path: Path) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    (tmp_path / "out").mkdir()
    with one_run_at_a_time(Store(str(tmp_path / "out"))):
        gristmill("run", recipe(tmp_path), "--out", tmp_path / "out").one_line(
            1, f"another run is at work here (process {os.getpid()})"
        )


@pytest.mark.run
def test_a_disk_that_fills_up_and_is_made_larger(gristmill: Gristmill, tmp_path: Path) -> None:
    for i in range(6):
        jsonl(tmp_path / "docs" / f"{i}.jsonl", [noise(i, 1_000_000)])
    file = recipe(tmp_path, path="docs", more="parts: {files: 1}\n")
    out = tmp_path / "disk" / "out"
    with small_disk(tmp_path / "disk", "2m") as grow:
        said = gristmill("run", file, "--out", out, "--workers", 1)
        last = said.err.strip().splitlines()[-1]  # after what there is so far
        assert said.code == 1 and all(
            part in last for part in (str(out), "the disk is full", "run the same command again")
        ), said.err
        assert left_over(out) == []
        grow("64m")
        said = gristmill("run", file, "--out", out, "--workers", 1)
        assert said.code == 0, said.err
        assert written(out) == sorted(noise(i, 1_000_000) for i in range(6))


def test_a_disk_that_is_full_from_the_start(gristmill: Gristmill, tmp_path: Path) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    with small_disk(tmp_path / "disk", "64k") as _:
        (tmp_path / "disk" / "out").mkdir()
        with (tmp_path / "disk" / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError):
            while True:
                ballast.write(bytes(4096))
        gristmill("run", recipe(tmp_path), "--out", tmp_path / "disk" / "out").one_line(
            1, str(tmp_path / "disk" / "out"), "the disk is full"
        )


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", ["much", "0", "-1%", "200%", "%", "nan", "inf"])
def test_a_sample_that_is_no_share(gristmill: Gristmill, tmp_path: Path, share: str) -> None:
    gristmill("run", recipe(tmp_path), f"--sample={share}").one_line(2, f"--sample {share}: a share")


@pytest.mark.parametrize("args", [["--workers", "none"], ["--workers", "0"], ["--limit", "0"], ["--nosuch"]])
def test_an_option_that_is_wrong(gristmill: Gristmill, tmp_path: Path, args: list[str]) -> None:
    said = gristmill("run", recipe(tmp_path), *args)
    assert said.code == 2 and args[0] in said.err


def test_a_memory_that_is_no_size(gristmill: Gristmill, tmp_path: Path) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    gristmill("run", recipe(tmp_path), "--memory", "lots", "--workers", 1).one_line(2, "--memory lots")


def test_a_scheduler_that_is_not_there(gristmill: Gristmill, tmp_path: Path) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    start = time.monotonic()
    gristmill("run", recipe(tmp_path), "--scheduler", "tcp://127.0.0.1:1").one_line(
        1, "no scheduler answers at tcp://127.0.0.1:1"
    )
    assert time.monotonic() - start < 30


def test_a_scheduler_and_a_cluster(gristmill: Gristmill, tmp_path: Path) -> None:
    gristmill("run", recipe(tmp_path), "--scheduler", "tcp://x:1", "--cluster", "x.yaml").one_line(
        2, "exclude each other"
    )


def test_a_limit_and_a_sample(gristmill: Gristmill, tmp_path: Path) -> None:
    gristmill("run", recipe(tmp_path), "--limit", "5", "--sample", "1%").one_line(2, "exclude each other")


class NoCredentials(Exception):
    """As s3:// says it: no OSError."""

    __module__ = "botocore.exceptions"


def test_a_store_that_cannot_be_reached(gristmill: Gristmill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoCredentials("Unable to locate credentials")

    for method in ("isdir", "exists", "cat_file", "makedirs"):
        monkeypatch.setattr(f"fsspec.implementations.memory.MemoryFileSystem.{method}", refuse)
    said = "Unable to locate credentials"
    gristmill("run", recipe(tmp_path, path="'memory://away/in'"), "--out", tmp_path / "o").one_line(
        1, "sources.docs: memory://away/in: cannot be reached: ", said
    )
    jsonl(tmp_path / "docs.jsonl", texts(2))
    gristmill("run", recipe(tmp_path), "--out", "memory://away/out").one_line(
        1, "memory://away/out: cannot be reached: ", said
    )
    gristmill("inspect", "memory://away/out").one_line(1, said)
    gristmill("inspect", "nosuch://away/out").one_line(2, "nosuch://away/out: Protocol not known")


def test_the_memory_of_one_process_is_no_place_for_workers(gristmill: Gristmill, tmp_path: Path) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    gristmill("run", recipe(tmp_path), "--out", "memory://lost/out").one_line(
        2, "memory://lost/out: memory:// is of one"
    )
    fsspec.filesystem("memory").pipe("/held/docs.jsonl", (tmp_path / "docs.jsonl").read_bytes())
    held = recipe(tmp_path, path="'memory://held'")
    gristmill("run", held, "--out", tmp_path / "o").one_line(
        2, "sources.docs: memory:///held/docs.jsonl: memory:// is of one"
    )
    Where(1, scheduler="inproc://10.0.0.1/1/1").check_reaches("memory://out")


@pytest.mark.parametrize("elsewhere", [["--scheduler", "tcp://x:1"], ["--cluster", "x.yaml"]])
@pytest.mark.parametrize("here", [["--workers", "2"], ["--memory", "4GB"]])
def test_what_is_of_workers_here_is_refused_where_there_are_others(
    gristmill: Gristmill, tmp_path: Path, elsewhere: list[str], here: list[str]
) -> None:
    gristmill("run", recipe(tmp_path), *elsewhere, *here).one_line(
        2, "--workers and --memory are for workers on this machine"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such cluster file"),
        ("type: slrm\n", "`type` is missing or unknown; there are slurm"),
        ("jobs: 3\n", "`type` is missing or unknown"),
        ("type: [slurm]\n", "`type` is missing or unknown"),
        ("a: [", "cannot be read"),
        ("type: slurm\njobs: many\n", "jobs"),
        ("type: slurm\njobs: 0\n", "jobs"),
    ],
)
def test_a_cluster_file_that_is_wrong(gristmill: Gristmill, tmp_path: Path, text: str | None, says: str) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(2))
    if text is not None:
        (tmp_path / "cluster.yaml").write_text(text)
    said = gristmill("run", recipe(tmp_path), "--out", tmp_path / "out", "--cluster", tmp_path / "cluster.yaml")
    assert said.code == 2 and "cluster.yaml" in said.err and says in said.err


def test_no_run_to_look_at(gristmill: Gristmill, tmp_path: Path) -> None:
    for command in (["inspect"], ["report"], ["maintain", "clean"]):
        gristmill(*command, tmp_path).one_line(2, str(tmp_path), "run")
        gristmill(*command, tmp_path / "absent").one_line(2, str(tmp_path / "absent"), "run")
    assert list(tmp_path.iterdir()) == []


# --- what is in the files --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def garbage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a file of noise and one of documents."""
    folder = tmp_path_factory.mktemp("garbage")
    (folder / "noise.warc.gz").write_bytes(noise(1, 20_000).encode())
    jsonl(folder / "docs.jsonl", texts(3))
    file = recipe(
        folder,
        "name: tiny\nsources:\n  crawl: {warc: {path: noise.warc.gz}, stages: [extract]}\n  docs: {jsonl: {path: docs.jsonl}}\nstages: [write]\n",
    )
    said = outside("run", file, "--out", folder / "out", "--workers", 1)
    assert said.code == 0, said.err
    assert "alarm" in said.out and "crawl gave no documents" in said.out
    return folder


def test_a_file_of_noise_is_counted_and_the_rest_goes_on(garbage: Path) -> None:
    crawl = entry(garbage / "out", "crawl")
    assert crawl["kept"] == 0 and crawl["quarantined"] >= 1 and crawl["docs_in"] == crawl["quarantined"]
    assert any(
        "damaged record in its files: noise.warc.gz (the whole file: " in alarm
        for alarm in run_json(garbage / "out")["alarms"]
    )
    assert written(garbage / "out") == texts(3)


def test_alarms_are_errors_when_one_says_so(gristmill: Gristmill, garbage: Path) -> None:
    gristmill("run", garbage / "recipe.yaml", "--out", garbage / "out", "--strict").one_line(
        3, "alarms, and --strict was given"
    )
    assert gristmill("run", garbage / "recipe.yaml", "--out", garbage / "out").code == 0


def test_what_a_run_does_not_have(gristmill: Gristmill, garbage: Path) -> None:
    out = garbage / "out"
    gristmill("inspect", out, "wrte").one_line(2, "no stage 'wrte'", "did you mean write")
    gristmill("inspect", out, "crawl", "--reason", "damagd").one_line(2, "damagd")
    gristmill("inspect", out, "--uid", "0000000000000001").one_line(2, "no document 0000000000000001")
    gristmill("inspect", out, "--uid", "not a uid").one_line(2, "is no uid")
    gristmill("inspect", out, "--url", "https://nowhere.example").one_line(2, "nowhere.example")


# --- stages of one's own ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "my_rules.py: no such file"),
        ("x = 1\n", "my_rules.py has no stage named Boom"),
        ("Boom = 3\n", "my_rules.py has no stage named Boom"),
        ("class Boom: pass\n", "my_rules.py has no stage named Boom"),
        ("import nosuchpackage\n", "my_rules.py does not import: ModuleNotFoundError: No module named 'nosuchpackage'"),
        ("def broken(:\n", "my_rules.py does not import: SyntaxError"),
        ("raise SystemExit(0)\n", "my_rules.py does not import: SystemExit"),
        (
            "from gristmill.stages.stage import Rule\nclass Boom(Rule): pass\n",
            "a rule declares `limits`, or has a method `verdict(self, signals)`",
        ),
    ],
)
def test_a_stage_file_that_is_wrong(gristmill: Gristmill, tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "my_rules.py").write_text(text)
    gristmill("run", recipe(tmp_path, stages="\n  - my_rules.py:Boom")).one_line(2, "recipe.yaml:6: stages[0]: ", says)


def test_a_stage_file_that_is_no_text(gristmill: Gristmill, tmp_path: Path) -> None:
    (tmp_path / "my_rules.py").write_bytes(b"\xff\xfe\x00x")
    gristmill("run", recipe(tmp_path, stages="\n  - my_rules.py:Boom")).one_line(
        2, "recipe.yaml:6: stages[0]: ", "my_rules.py"
    )


def run_with_boom(gristmill: Gristmill, folder: Path, deed: str, documents: list[str], mark: str = "MARK") -> Said:
    stage_file(folder, deed, mark)
    jsonl(folder / "docs.jsonl", documents)
    return gristmill(
        "run", recipe(folder, stages="['my_rules.py:Boom', write]"), "--out", folder / "out", "--workers", 1
    )


@pytest.mark.run
@pytest.mark.parametrize(
    ("deed", "error", "signs"),
    [
        ("raise ValueError('too hot to handle')", "ValueError: too hot to handle", []),
        (
            "os._exit(7)",
            "killed the worker: ended with code 7",
            ["a worker died", "killed its process", "killed its process"],
        ),
        (
            "os._exit(1)",
            "killed the worker: ended with code 1",
            ["a worker died", "killed its process", "killed its process"],
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "killed the worker: died of SIGKILL",
            ["a worker died", "died of SIGKILL", "quarantined"],
        ),
        (
            "time.sleep(600)",
            "killed the worker: took too long",
            ["a worker took longer than its patience", "took too long"],
        ),
    ],
)
def test_one_document_that_breaks_a_stage_is_put_aside_and_the_others_go_on(
    gristmill: Gristmill, tmp_path: Path, deed: str, error: str, signs: list[str]
) -> None:
    said = run_with_boom(gristmill, tmp_path, deed, texts(5, mark_at=2))
    assert said.code == 0, said.err
    notes = said.err.splitlines()
    assert len(notes) == len(signs) and all(
        sign in note and "boom" in note for sign, note in zip(signs, notes, strict=True)
    ), said.err
    assert all("(https://example.org/docs/2)" in note for note in notes[1:]), (
        "the first names stage and part, the others the document"
    )
    assert "boom quarantined 1 document of docs" in said.out
    boom = entry(tmp_path / "out", "boom")
    assert (boom["docs_in"], boom["kept"], boom["quarantined"]) == (5, 4, 1)
    assert [(r["reason"], r["detail"], r["text"]) for r in rejected(tmp_path / "out", "boom")] == [
        ("quarantined", error, texts(5, 2)[2])
    ]
    assert written(tmp_path / "out") == [t for i, t in enumerate(texts(5)) if i != 2]


def test_a_stage_that_every_document_breaks_is_at_fault_itself(gristmill: Gristmill, tmp_path: Path) -> None:
    run_with_boom(gristmill, tmp_path, "raise ValueError('too hot to handle')", texts(20), mark="document").one_line(
        1, "boom: ", "all 20 documents", "ValueError: too hot to handle"
    )


def test_a_stage_without_a_package_it_needs(gristmill: Gristmill, tmp_path: Path) -> None:
    run_with_boom(gristmill, tmp_path, "import nosuchpackage", texts(5, mark_at=2)).one_line(
        1, "boom (my_rules.py:Boom): ", "No module named 'nosuchpackage'"
    )


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_an_interrupted_run_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    stage_file(tmp_path, "time.sleep(0.4)")
    for i in range(12):
        jsonl(tmp_path / "docs" / f"{i}.jsonl", [f"document {i} MARK"])
    file = recipe(tmp_path, stages="['my_rules.py:Boom', write]", path="docs", more="parts: {files: 1}\n")
    command = [*RUN, "run", str(file), "--out", str(tmp_path / "out"), "--workers", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 60
    while len(list((tmp_path / "out" / ".write.new").glob("*.parquet"))) < 3:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    Said(process.returncode, out, err).one_line(
        130, "interrupted", f"gristmill run {file} --out {tmp_path / 'out'}", "resume"
    )
    record = run_json(tmp_path / "out")
    kept = record["stages"][0]["kept"] if record["stages"] else 0
    assert (
        record["status"] == "interrupted"
        and kept <= len(list((tmp_path / "out" / ".write.new").glob("*.parquet"))) < 12
    )
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert len(re.findall(r'"event": "finished".*"anew": false', again.stderr)) >= 1
    assert written(tmp_path / "out") == sorted(f"document {i} MARK" for i in range(12))


def test_a_file_that_cannot_be_written_is_named_and_not_the_one_that_was_to_become_it(tmp_path: Path) -> None:
    name = f"{'x' * 250}.html"  # as long as names may be, but for what a temporary file adds
    with pytest.raises(OSError) as error, Store(str(tmp_path)).commit(name):
        pass
    assert error.value.filename == str(tmp_path / name)
