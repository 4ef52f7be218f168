"""Repeats of paragraphs and urls, through the engine: the same with one worker and two, few buckets and many, and every
document accounted for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from gristmill.pipeline.shuffle import shuffle
from tests.pipeline.runs import go, save, tree, written

RECIPE = """
name: repeats
sources: {{a: {{jsonl: {{path: {folder}/in}}}}}}
stages:
  - {stage}
  - write
"""
NOTICE = "This site uses cookies to give you the best of all that the mill can offer you today and tomorrow."


def crawl(folder: Path) -> None:
    """Four files of 25 pages: a notice on each, a story that every fifth page shares, a line of its own, and a url that
    two files share."""
    (folder / "in").mkdir()
    for f in range(4):
        rows = []
        for i in range(25):
            own = " ".join(f"w{f * 1000 + i * 30 + k}" for k in range(20))
            shared = " ".join(f"s{i % 5 * 100 + k}" for k in range(20))
            rows.append({"text": f"{own}\n{shared}\n{NOTICE}", "url": f"http://a{f % 2}.com/{i}?utm_source={f}"})
        (folder / "in" / f"f{f}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.run
@pytest.mark.parametrize(
    ("stage", "left", "stories", "notices"),
    [
        ("paragraph_dedup", 100, 5, 1),
        ("bloom_dedup: {false_positives: 1.0e-6}", 100, 5, 1),
        ("bloom_dedup: {false_positives: 1.0e-6, shards: 4}", 100, None, 4),
        ("url_dedup", 50, 50, 50),
        ("site_boilerplate", 100, 0, 0),
        ("site_boilerplate: {alone_share: 0.5, min_share: 0.5}", 100, 100, 0),
    ],
)
def test_workers_and_buckets_do_not_matter(tmp_path, monkeypatch, stage, left, stories, notices):
    crawl(tmp_path)
    recipe = save(tmp_path / "recipe.yaml", RECIPE.format(folder=tmp_path, stage=stage))
    go(recipe, tmp_path / "one")
    texts = [text for _, text in written(tmp_path / "one")]
    lines = Counter(line for text in texts for line in text.split("\n"))
    assert len(texts) == left and lines[NOTICE] == notices
    assert stories is None or sum(count for line, count in lines.items() if line.startswith("s")) == stories
    assert sum(line.startswith("w") for line in lines) == left, "what stands once is still there"
    go(recipe, tmp_path / "two", workers=2)
    assert tree(tmp_path / "one", "write") == tree(tmp_path / "two", "write")
    monkeypatch.setattr(shuffle, "ROWS_A_BUCKET", 5)
    go(recipe, tmp_path / "many")
    assert written(tmp_path / "many") == written(tmp_path / "one")
