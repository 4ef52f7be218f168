"""`gristmill judge train`: figures that cannot be had by knowing the held-out texts already."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError

PLAN = "kind: linear\nlabelled: {files: rows.jsonl, label: label, good: [good]}\nhold_out: 0.3\n"


def train(folder: Path, rows: list[dict[str, Any]]) -> Result:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "plan.yaml").write_text(PLAN)
    return CliRunner().invoke(
        app, ["judge", "train", str(folder / "plan.yaml"), "--out", str(folder / "judge"), "--json"]
    )


def test_a_text_on_two_hosts_is_not_trained_on_and_held_out(tmp_path: Path) -> None:
    """Labels are drawn at random, so a judge that does better than chance has seen the answers."""
    draw = random.Random(3)
    texts = [" ".join("".join(draw.choices("abcdefghij", k=5)) for _ in range(8)) for _ in range(300)]
    rows = [
        {"text": text, "label": draw.choice(["good", "bad"]), "url": f"https://h{(7 * n) % 61}.example.org/{n}"}
        for n, text in enumerate(texts)
    ]
    mirrors = [{**row, "url": f"https://h{(7 * n + 13) % 61}.example.org/{n}"} for n, row in enumerate(rows)]
    done = train(tmp_path, [*rows, *mirrors])
    assert done.exit_code == 0, done.output
    card = json.loads((tmp_path / "judge" / "judge.json").read_text())
    text = json.dumps(card)
    (metrics,) = card["metrics"].values()
    assert metrics["texts"] > 100 and 0.35 < metrics["auc"] < 0.65, text
    held_out = card["training"]["held_out"]
    assert 0 < held_out["copies_left_out"] < held_out["texts"] == metrics["texts"]


def test_rows_without_any_text_train_no_judge(tmp_path: Path) -> None:
    rows = [{"text": None, "label": ("good", "bad")[n % 2], "url": f"https://h{n}.example.org"} for n in range(40)]
    done = train(tmp_path, rows)
    assert isinstance(done.exception, RecipeError) and "no row has a text in the column 'text'" in str(done.exception)
    assert not (tmp_path / "judge").exists()
