"""A run whose rules have thresholds of every kind, and what the page's script does with its survey, in plain Python."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.pipeline.runs import WORDS, go, lines as save_lines, save

RECIPE = """
name: surveyed
sources:
  tales: {jsonl: {path: tales}}
  rhymes: {jsonl: {path: rhymes}}
stages:
  - keep_languages: {languages: [en, de], at_least: 0.3, thresholds: {de: 0.9}}
  - gopher_repetition
  - gopher_quality: {min_words: 20, max_words: 400, min_stop_words: 2, max_hash_ratio: 0.125}
  - dolma_gopher: {words: {low: 10, high: 300}, min_alphabetic_words: 0.5}
  - write
"""
HOSTILE_TITLE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"


def texts(chance: random.Random, count: int) -> list[str]:
    """Of all lengths, some that repeat themselves, some full of marks."""
    made = []
    for _ in range(count):
        words = chance.choices(WORDS, k=int(10 ** chance.uniform(0.5, 2.7)))
        if chance.random() < 0.2:
            words = words[:6] * chance.randint(1, 12)
        if chance.random() < 0.3:
            words = [
                word if chance.random() < 0.8 else chance.choice(["#", "...", "12", HOSTILE_TITLE]) for word in words
            ]
        made.append("\n".join(" ".join(words[at : at + 12]) for at in range(0, len(words), 12)))
    return made


def make(folder: Path, count: int = 400, seed: int = 7) -> Path:
    """The finished run."""
    chance = random.Random(seed)
    for file in range(3):
        save_lines(folder / f"tales/{file}.jsonl", texts(chance, count // 4))
    save_lines(folder / "rhymes/0.jsonl", texts(chance, count // 4))
    go(save(folder / "r.yaml", RECIPE), folder / "out")
    return folder / "out"


def survey_of(out: Path) -> dict[str, Any]:
    found = [json.loads(path.read_text()) for path in sorted(out.glob("partitions/*/survey.json"))]
    assert len(found) == 1
    return dict(found[0])


def edges(survey: dict[str, Any], cut: dict[str, Any]) -> list[float]:
    return list(survey["signals"][cut["signal"]]["edges"])


def exact(survey: dict[str, Any], k: int, at: int) -> dict[str, list[int]]:
    """Documents and words of each source that stay with threshold k moved to an edge."""
    cut = survey["cuts"][k]
    kept = slice(at + 1, None) if cut["side"] == "low" else slice(None, at + 1)
    return {
        source: [cut["free"][g][0] + sum(cut["documents"][g][kept]), cut["free"][g][1] + sum(cut["weights"][g][kept])]
        for g, source in enumerate(survey["sources"])
    }


def sampled(survey: dict[str, Any], moved: dict[int, int]) -> np.ndarray[Any, Any]:
    """Which documents of the sample stay with thresholds moved to edges."""
    stays = ~unpacked(survey["sample"]["gone"]).astype(bool)
    for k, cut in enumerate(survey["cuts"]):
        bins, at = unpacked(survey["sample"]["bins"][k]), moved.get(k, cut["at"])
        stays &= (bins == 255) | (bins > at if cut["side"] == "low" else bins <= at)
    return stays


def unpacked(text: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text), np.uint8)
