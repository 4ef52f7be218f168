"""A run's folder as it is read: files are those that were written, to the byte; one of another shape is told by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gristmill.pipeline.errors import NotJson, OtherShape
from gristmill.pipeline.look.overview import overview
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.store.run_records import RunRecord, SegmentManifest
from gristmill.pipeline.store.storage import json_bytes
from tests.pipeline.look.outfolder import make
from tests.pipeline.runs import go, lines, save

RECIPE = """
name: read
parts: {files: 1}
prices: {core_hour: 0.1}
sources: {notes: {jsonl: {path: "notes-*.jsonl"}}}
stages: [gopher_quality, exact_dedup, write]
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("read")
    for number in range(2):
        lines(folder / f"notes-{number}.jsonl", [f"number {number}", *(f"Note {n} of the mill." for n in range(9))])
    go(save(folder / "recipe.yaml", RECIPE), folder / "out")
    return folder / "out"


def test_what_is_read_is_written_back_to_the_byte(out: Path) -> None:
    data = (out / "run.json").read_bytes()
    read = RunRecord.from_json(json.loads(data)).to_json()
    assert json_bytes(read) == data and read == json.loads(data)
    manifests = sorted(out.glob("partitions/*/manifest.json"))
    assert len(manifests) >= 2
    for path in manifests:
        data = path.read_bytes()
        read = SegmentManifest.from_json(json.loads(data)).to_json()
        assert json_bytes(read) == data and read == json.loads(data)


def test_each_document_that_was_read_is_in_a_part_and_each_reject_in_a_file(out: Path) -> None:
    folder = RunFolder(out)
    [reader], rejects = folder.record.readers, folder.rejects()
    assert sum(folder.length(file.path) for file in folder.documents) == reader.count.kept == 20
    gone = {stage.name: stage.count.gone for stage in folder.record.stages if stage.count.gone}
    assert sum(gone.values()) and sum(folder.length(file.path) for file in rejects) == sum(gone.values())
    assert {file.stage for file in rejects} == set(gone) and folder.state == "done" and not folder.under_way


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", NotJson),
        ("[1, 2]", NotJson),
        ('{"stages": 3}', OtherShape),
        ('{"stages": [{"slowest": [1]}]}', OtherShape),
    ],
)
def test_a_record_of_another_shape_is_an_error_with_its_path_or_a_trouble(
    tmp_path: Path, text: str, error: type[Exception]
) -> None:
    out = make(tmp_path / "out")
    (out / "run.json").write_text(text)
    with pytest.raises(error, match=r"out/run\.json: not "):
        overview(RunFolder(out))
    lenient = RunFolder(out, lenient=True)
    assert lenient.record == RunRecord() and lenient.segments
    assert len(lenient.troubles) == 1 and "run.json" in lenient.troubles[0]


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"is .* the output folder of a run"):
        _ = RunFolder(tmp_path).record
    lenient = RunFolder(tmp_path, lenient=True)
    assert not lenient.record.stages and "there is no run.json" in lenient.troubles[0]
