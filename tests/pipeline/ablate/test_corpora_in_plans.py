"""Sets of documents in a plan: another tool's files and a run, packed alike and compared; what is wrong with them is
said in one line, before anything is trained."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.pipeline.ablate.corpora import equal_parts, pack_corpora, sample
from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import PreparedAblation, run
from gristmill.pipeline.ablate.show import AblationUi, curves
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.train.evaluation import documents_of, is_wrapped
from gristmill.shards.reader import open_shards
from tests.pipeline.ablate.ablation_sets import held_out, tales
from tests.pipeline.runs import go

pytest.importorskip("torch")

HERE = Crew(0, 1)
PLAN = """
name: compared
sets:
  theirs: {documents: theirs, text: content}
  others: {documents: [others.parquet]}
  ours: {run: out/web}
tokenizer: train
vocabulary: 300
row_length: 64
control: theirs
arms: {ours: ours, others: others}
protocol: from_scratch
shape: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32}
tokens: 10240
seeds: 2
training: {rate: 0.01, rows_per_update: 8}
evaluate: {texts: {prose: {files: prose.parquet, cluster: host, domain: kind}}, target: prose, points: 5}
"""
RECIPE = """
name: web
sources:
  web: {jsonl: {path: web/}}
stages:
"""


def lines_of(texts: Sequence[str], column: str = "text") -> bytes:
    return "".join(json.dumps({"id": number, column: text}) + "\n" for number, text in enumerate(texts)).encode()


def save(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def make_run(folder: Path, *stages: str) -> None:
    """A run of 300 texts, in out/web."""
    save(folder / "web" / "texts.jsonl", lines_of(tales(300, 3)))
    recipe = save(folder / "web.yaml", (RECIPE + "".join(f"  - {stage}\n" for stage in stages)).encode())
    go(recipe, folder / "out" / "web")


def make_plan(folder: Path, text: str = PLAN) -> Path:
    """Three corpora: two held-out texts are in theirs, and one in others."""
    held_out(folder / "prose.parquet", 60, 9)
    sought = pq.read_table(folder / "prose.parquet")["text"].to_pylist()
    save(folder / "theirs" / "a.jsonl.gz", gzip.compress(lines_of([*tales(150, 1), *sought[:2]], "content")))
    save(folder / "theirs" / "b.jsonl.zst", zstandard.compress(lines_of(tales(150, 2), "content")))
    pq.write_table(pa.table({"text": [*tales(600, 4), f"As they say: {sought[5]}"]}), folder / "others.parquet")
    return save(folder / "plan.yaml", text.encode())


def go_on(plan: Path) -> tuple[dict[str, Any], str]:
    """The record, and what was noted."""
    out, log = plan.parent / "out" / "compared", plan.parent / "said.txt"
    with log.open("w") as stream:
        record: Any = run(load(plan), out, HERE, AblationUi(out, stream))
    return record, log.read_text()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    folder = tmp_path_factory.mktemp("compared")
    make_run(folder, "write")
    plan = make_plan(folder)
    return plan, *go_on(plan)


def test_one_plan_compares_three_pipelines(compared: tuple[Path, dict[str, Any], str]) -> None:
    plan, record, _ = compared
    assert record["status"] == "done" and {arm["name"] for arm in record["arms"]} == {"ours", "others"}
    sets = [open_shards(found["folder"]) for found in record["sets"].values()]
    assert len({each.meta.tokenizer_hash for each in sets}) == 1 and {each.meta.row_length for each in sets} == {64}
    assert {each.folder.parent.parent.parent for each in sets} == {plan.parent / "out" / "compared" / "sets"}
    assert {name: open_shards(found["folder"]).index.total("documents") for name, found in record["sets"].items()} == {
        "theirs": 300, "others": 600, "ours": 300,
    }  # fmt: skip


def test_held_out_texts_are_left_out_and_counted(compared: tuple[Path, dict[str, Any], str]) -> None:
    _, record, log = compared
    assert {name: found["left_out"] for name, found in record["sets"].items()} == {"theirs": 2, "others": 1, "ours": 0}
    assert "sets.theirs: 2 documents hold held-out texts and are left out" in log
    assert any("sets.others: 1 documents" in warning for warning in record["warnings"])


def test_curves_and_multipliers_by_domain(compared: tuple[Path, dict[str, Any], str]) -> None:
    plan, record, _ = compared
    found = {(curve["arm"], curve["task"]): curve for curve in record["curves"]}
    tasks = ("prose", "prose/long", "prose/short")
    assert set(found) == {(arm, task) for arm in ("control", "ours", "others") for task in tasks}
    assert all(curve["tokens"] == [2048, 4096, 6144, 8192, 10240] for curve in found.values())
    assert all(curve["mean"][-1] < curve["mean"][0] for curve in found.values())
    multipliers = [row["multiplier"] for arm in record["arms"] for row in arm["differences"]]
    assert len(multipliers) == 6 and all(each["low"] <= each["value"] <= each["high"] for each in multipliers)
    table = curves(record)  # type: ignore[arg-type]
    assert table is not None and len(table.rows) == 9
    page = (plan.parent / "out" / "compared" / "ablation.html").read_text()
    assert "Target on the way: long" in page and "tokens</" in page
    assert f"matched in tokens; tokens of a run: control {record['control']['reading']['tokens']:,} (" in page


def test_a_second_start_packs_and_trains_nothing(compared: tuple[Path, dict[str, Any], str]) -> None:
    plan, record, _ = compared
    folder = plan.parent / "out" / "compared" / "sets"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.arrow")}
    again, log = go_on(plan)
    assert len(before) >= 3 and {path: path.stat().st_mtime_ns for path in folder.rglob("*.arrow")} == before
    assert "packed" not in log and "training a tokenizer" not in log and log.count("is already done") == 6
    assert again["arms"] == record["arms"] and again["sets"] == record["sets"]


def test_matched_in_epochs_each_arm_reads_its_own_data_as_often(tmp_path: Path) -> None:
    make_run(tmp_path, "tokenize: {tokenizer: train, vocab_size: 300}", "pack: {row_length: 64}", "write")
    plan = make_plan(tmp_path, PLAN.replace("tokenizer: train\nvocabulary: 300\nrow_length: 64", "match: epochs"))
    ready = PreparedAblation(load(plan), tmp_path / "out" / "compared", HERE, print, only_planned=True)
    assert ready.checked.folders["ours"] == tmp_path / "out" / "web" / "shards" / "64"  # as the run packed them
    times = {arm: next(iter(epochs.values())) for arm, epochs in ready.checked.epochs.items()}
    assert times["others"] == pytest.approx(times["control"], rel=0.03)
    assert ready.checked.lengths["others"].updates == pytest.approx(2 * ready.checked.length.updates, rel=0.05)
    assert not any("repetition" in warning for warning in ready.warnings)
    assert any(warning.startswith("sets.ours: not searched") for warning in ready.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("documents: theirs,", "documents: nowhere,"), "sets.theirs.documents: {0}/nowhere: no such file or folder"),
        (("documents: theirs,", "documents: empty,"), "sets.theirs.documents: {0}/empty: the folder is empty"),
        (("documents: theirs,", "documents: hollow,"), "sets.theirs.documents: {0}/hollow: its files are empty"),
        (("documents: theirs,", "documents: both,"), "sets.theirs.documents: JSON lines and Parquet; name one of them"),
        (("text: content", "text: contents"), "no column 'contents'; did you mean content?"),
        (("run: out/web", "run: out/none"), "sets.ours.run: {0}/out/none: no run is here"),
        (("run: out/web", "run: out/web"), "sets.ours.run: {0}/out/web: the run is failed; run its recipe again first"),
        (("run: out/web", "run: out/web, text: body"), "sets.ours: text is the column of documents"),
        (("run: out/web", "run: out/web, documents: x"), "sets.ours: one of documents, run and shards was expected"),
        (("{run: out/web}", "{rnu: out/web}"), "sets.ours.rnu: no such field; did you mean run?"),
        (("tokenizer: train", "tokenizer: ./none.json"), "tokenizer: there is no file or folder ./none.json"),
        (("vocabulary: 300", "vocabulary: 200"), "vocabulary: Input should be greater than or equal to 259"),
        (
            ("protocol: from_scratch\nshape", "match: epochs\nbase: {model: x}\nx-shape"),
            "match: epochs is for from_scratch",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    for name, files in {
        "empty": {},
        "hollow": {"a.jsonl": b""},
        "both": {"a.jsonl": b"{}\n", "b.parquet": b"x"},
    }.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            save(tmp_path / name / file, content)
    save(tmp_path / "out" / "web" / "run.json", b'{"status": "failed"}')
    assert change[0] in PLAN
    text = PLAN if "run:" in change[0] else PLAN.replace("{run: out/web}", "{documents: others.parquet}")
    plan = make_plan(tmp_path, text.replace(*change))
    with pytest.raises(RecipeError) as error:
        pack_corpora(load(plan), tmp_path / "out" / "compared", True, print)
    assert message.format(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_run_that_keeps_no_documents_can_only_be_read_as_it_is_packed(tmp_path: Path) -> None:
    make_run(tmp_path, "tokenize: {tokenizer: train, vocab_size: 280}", "pack: {row_length: 64}")
    with pytest.raises(RecipeError, match="another tokenizer or row length, and keeps no documents"):
        pack_corpora(load(make_plan(tmp_path)), tmp_path / "out" / "compared", True, print)


def test_sets_that_are_packed_need_no_tokenizer(tmp_path: Path) -> None:
    plan = make_plan(
        tmp_path, PLAN.replace("{documents: theirs, text: content}", "a").replace("{documents: [others.parquet]}", "b")
    )
    plan.write_text(plan.read_text().replace("{run: out/web}", "c"))
    with pytest.raises(RecipeError, match="tokenizer: all sets are packed already"):
        pack_corpora(load(plan), tmp_path / "out", True, print)


def test_a_sample_is_of_the_lowest_hashes_whatever_the_order() -> None:
    texts = tales(200, 1)
    found = sample(texts, 1000)
    assert found == sample(texts[::-1], 1000) and 1000 <= sum(map(len, found)) < 1200
    assert found == sample(texts, 5000)[: len(found)] and len(sample(texts, 1 << 30)) == 200
    assert [len(part) for part in equal_parts([[b"aaaa", b"aaaa"], [b"bbb", b"bb"]])] == [4, 1, 3, 2]


WRAPPED = "The king had seen the river and\nthe house by the old tree, but he\nsaid nothing of it to the queen, who\nslept.\n\nThen they\nwent home."


def test_lines_broken_inside_sentences_are_found_and_joined(tmp_path: Path) -> None:
    assert is_wrapped(WRAPPED) and is_wrapped(WRAPPED.replace("\n", "\r\n"))
    assert not is_wrapped("A line.\nAnother one.\nAnd a third.\nAnd so on.") and not is_wrapped(
        WRAPPED.replace("\n", " ")
    )
    pq.write_table(pa.table({"text": [WRAPPED, "One.", "  two\n\n\nthree  \n  four"]}), tmp_path / "t.parquet")
    spec: Any = dict.fromkeys(("domain", "cluster", "most")) | {"files": [str(tmp_path / "t.parquet")], "text": "text"}
    assert documents_of("t", spec | {"unwrap": False}).texts[0] == WRAPPED
    joined = documents_of("t", spec | {"unwrap": True}).texts
    assert joined == [" ".join(WRAPPED.split()), "One.", "two three four"]


@pytest.mark.parametrize(("text", "where"), [(WRAPPED, "inside sentences"), ("One.\n\nTwo.", "between paragraphs")])
def test_a_warning_names_line_breaks_that_may_decide(tmp_path: Path, text: str, where: str) -> None:
    plan = make_plan(tmp_path, PLAN.replace("{run: out/web}", "{documents: others.parquet}"))
    pq.write_table(
        pa.table({"text": [text] * 9 + ["One."], "host": list("abcdefghij"), "kind": ["x"] * 10}),
        tmp_path / "prose.parquet",
    )
    for written, said in (
        (plan.read_text(), True),
        (plan.read_text().replace("cluster: host", "cluster: host, unwrap: true"), False),
    ):
        plan.write_text(written)
        ready = PreparedAblation(load(plan), tmp_path / "out" / "compared", HERE, print, only_planned=True)
        found = [warning for warning in ready.warnings if "`unwrap: true` puts each text in one line" in warning]
        assert bool(found) == said and all(f"prose: 9 of 10 texts break lines {where}" in warning for warning in found)
    shutil.rmtree(tmp_path / "out")
