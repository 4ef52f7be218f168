"""What a run tells Prometheus: by a strict reading of its text format, the same numbers as run.json."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from gristmill.pipeline.cli import app as cli
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.progress.progress import ProgressRecorder, Quiet
from gristmill.pipeline.progress.prometheus import exposition, metrics_to
from tests.pipeline.crawls import jsonl, recipe, texts

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})\{{(.*)\}} (NaN|[-+]?[0-9.]+(?:e[-+][0-9]+)?)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Samples by name and labels; every line of the format and no other, each family once, with HELP and TYPE."""
    assert text.endswith("\n")
    samples: Samples = {}
    types: dict[str, str] = {}
    helped: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            assert words and name not in helped, line
            helped.append(name)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert helped[-1] == name and name not in types and kind in ("gauge", "counter"), line
            assert name.endswith("_total") == (kind == "counter"), line
            types[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match and list(types)[-1] == match[1], line
            labels = list(LABEL.finditer(match[2]))
            assert "".join(label[0] for label in labels) == match[2] and labels, line
            names = Counter(label[1] for label in labels)
            assert max(names.values()) == 1
            key = match[1], frozenset((label[1], unescaped(label[2])) for label in labels)
            assert key not in samples, line
            samples[key] = float(match[3])
    return samples


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)


@pytest.mark.run
def test_a_finished_run_has_the_numbers_of_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonl(tmp_path / "docs.jsonl", [*texts(30), *texts(5), "short"])
    made = recipe(tmp_path, stages="[gopher_quality: {min_words: 3}, exact_dedup, write]")
    metrics, out = tmp_path / "node.prom", tmp_path / "out"
    arguments = ["gristmill", "run", str(made), "--out", str(out), "--workers", "1", "--metrics", str(metrics)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    record = json.loads((out / "run.json").read_text())
    samples = parsed(metrics.read_text())
    run = ("run", record["name"])
    assert samples["gristmill_run_state", frozenset([run, ("state", "done")])] == 1
    assert sum(value for (name, _), value in samples.items() if name == "gristmill_run_state") == 1
    dropped = 0
    for stage in record["stages"]:
        for source, count in stage["sources"].items():
            labels = [run, ("stage", stage["name"]), ("source", source)]
            assert samples["gristmill_stage_documents_total", frozenset(labels)] == count["docs_in"]
            assert samples["gristmill_stage_kept_total", frozenset(labels)] == count["kept"]
            for reason, number in count["dropped"].items():
                key = "gristmill_stage_dropped_total", frozenset([*labels, ("reason", reason)])
                assert samples[key] == number
                dropped += number
    assert dropped > 5, "texts twice, and a short one"
    assert samples["gristmill_documents_total", frozenset([run])] >= 36
    assert samples["gristmill_workers", frozenset([run])] == 1
    assert samples["gristmill_tasks_total", frozenset([run, ("kind", "partition")])] >= 1
    assert any(name == "gristmill_stage_peak_memory_bytes" and value > 1e6 for (name, _), value in samples.items())
    assert list(tmp_path.glob(".*")) == [], "no half file is left"


def test_hostile_names_stay_labels() -> None:
    facts = ProgressRecorder(Quiet(), 'a"b\\c\nd', [], lambda _: []).facts()
    samples = parsed(exposition(facts))
    assert {dict(labels)["run"] for _, labels in samples} == {'a"b\\c\nd'} and len(samples) >= 10


def test_a_file_that_no_collector_would_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "metrics.txt", tmp_path / "none" / "metrics.prom"):
        with pytest.raises(RecipeError, match=r"ends in \.prom"):
            metrics_to(path)
