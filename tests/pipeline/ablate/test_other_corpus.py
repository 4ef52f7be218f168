"""The section of docs/ablations.md that compares a run with another tool's corpus, as it stands there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from tests.pipeline.ablate.ablation_sets import held_out, tales
from tests.pipeline.runs import go

pytest.importorskip("torch")

PAGE = Path(__file__).parents[3] / "docs" / "ablations.md"
OURS = """
name: web
sources:
  web: {jsonl: {path: web/}}
stages:
  - tokenize: {tokenizer: train, vocab_size: 300}
  - pack: {row_length: 1024}
"""
PLAN = """
name: compared
sets: {ours: out/web, theirs: out/theirs}
control: theirs
arms: {ours: ours}
protocol: from_scratch
shape: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32}
tokens: 8192
seeds: 2
training: {rate: 0.01, rows_per_update: 4}
evaluate: {texts: {prose: {files: prose.parquet, cluster: host}}, target: prose, points: 1}
"""


def test_another_corpus_is_packed_with_the_tokenizer_of_a_run_and_compared(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Compare with another tool's corpus")[2].partition("\n## ")[0]
    theirs = section.partition("```yaml\n")[2].partition("```")[0]
    assert (
        "sets: {ours: out/web, theirs: out/theirs}" in section and "`control: theirs`, `arms: {ours: ours}`" in section
    )
    for seed, (name, recipe) in enumerate((("web", OURS), ("theirs", theirs))):
        (tmp_path / name).mkdir()
        rows = [{"id": f"{name}-{number}", "text": text} for number, text in enumerate(tales(900, seed))]
        (tmp_path / name / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / f"{name}.yaml").write_text(recipe)
        go(tmp_path / f"{name}.yaml", tmp_path / "out" / name)
    held_out(tmp_path / "prose.parquet", 60, 9)
    (tmp_path / "plan.yaml").write_text(PLAN)
    shown = CliRunner().invoke(app, ["ablate", str(tmp_path / "plan.yaml"), "--dry-run", "--workers", "0"])
    assert shown.exit_code == 0, shown.output
    assert "4 jobs" in shown.stdout and "ours" in shown.stdout and "measuring" in shown.stdout
