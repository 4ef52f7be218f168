"""Long proofs run in slices: they resume, and a failure can be run alone."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from benchmarks.soak import soak
from benchmarks.soak.soak import Proof, Soak


class Drawing:
    """A proof that notes what it was given, and fails on some numbers."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.drawn: dict[int, float] = {}

    def __call__(self, number: int, rng: random.Random, folder: Path) -> dict[str, float]:
        assert folder.is_dir() and not list(folder.iterdir())
        (folder / "x").write_text("x")
        (folder.parent / "shared").mkdir(exist_ok=True)
        self.drawn[number] = rng.random()
        if number in self.failing:
            raise ValueError(f"case {number} does not hold")
        return {"things": 2, "max_number": number}


def soaked(folder: Path, case: Drawing, seed: int = 0) -> tuple[dict[str, object], list[dict[str, object]]]:
    lines: list[str] = []
    summary = Soak(Proof("drawing", case, 3), seed, folder, lines.append).go(0)
    return summary, [json.loads(line) for line in lines]


def test_a_soak_goes_on_behind_its_last_slice(tmp_path: Path) -> None:
    case = Drawing()
    first, _ = soaked(tmp_path, case)
    assert (first["slices"], first["cases"], sorted(case.drawn)) == (1, 3, [0, 1, 2])
    second, lines = soaked(tmp_path, case)
    assert [line["what"] for line in lines] == ["drawing", "soak drawing"] and lines[0]["slice"] == 1
    assert (second["cases"], second["things"], second["max_number"], second["failures"]) == (6, 12, 5, [])
    assert sorted(case.drawn) == [0, 1, 2, 3, 4, 5] and len(set(case.drawn.values())) == 6


def test_what_a_case_draws_follows_from_seed_and_number_alone(tmp_path: Path) -> None:
    once, again, alone, other = Drawing(), Drawing(), Drawing(), Drawing()
    soaked(tmp_path / "a", once)
    soaked(tmp_path / "b", again)
    Soak(Proof("drawing", alone), 0, tmp_path / "c", lambda line: None).only(2, tmp_path / "alone")
    assert not (tmp_path / "alone").exists() and not (tmp_path / "c").exists(), (
        "a case that is run alone leaves nothing if it holds"
    )
    assert once.drawn == again.drawn and alone.drawn == {2: once.drawn[2]}
    assert soaked(tmp_path / "a", other, seed=1)[0]["cases"] == 3, "another seed begins at its own first slice"
    assert sorted(other.drawn) == [0, 1, 2] and not set(other.drawn.values()) & set(once.drawn.values())


def test_a_failure_is_named_and_stays_until_it_is_mended(tmp_path: Path) -> None:
    summary, lines = soaked(tmp_path, Drawing(1))
    assert lines[0] == {
        "failed": 1, "seed": 0, "error": "ValueError: case 1 does not hold", "again": "python -m benchmarks.soak.soak drawing --seed 0 --only 1",
    }  # fmt: skip
    assert (summary["cases"], summary["failures"], summary["things"]) == (3, [1], 4)
    with pytest.raises(ValueError, match="case 1 does not hold"):
        Soak(Proof("drawing", Drawing(1)), 0, tmp_path, lambda line: None).only(1, tmp_path / "alone")
    assert (tmp_path / "alone" / "case-1" / "x").exists()
    assert soaked(tmp_path, Drawing(1, 4))[0]["failures"] == [1, 4]
    case = Drawing(4)
    summary, _ = soaked(tmp_path, case)
    assert sorted(case.drawn) == [1, 4, 6, 7, 8], "what failed before is run again first"
    assert (summary["failures"], summary["mended"], summary["cases"]) == ([4], 1, 9)


def test_a_slice_that_was_broken_off_is_run_from_its_beginning(tmp_path: Path) -> None:
    soaked(tmp_path, Drawing())

    def broken_off(number: int, rng: random.Random, folder: Path) -> dict[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Soak(Proof("drawing", broken_off, 3), 0, tmp_path, lambda line: None).go(0)
    with (tmp_path / "drawing.jsonl").open("a") as file:
        file.write('{"what": "drawing", "se')  # killed while it wrote
    case = Drawing()
    assert soaked(tmp_path, case)[0]["cases"] == 6 and sorted(case.drawn) == [3, 4, 5]


@pytest.mark.parametrize(("failing", "code"), [((), 0), ((2,), 1)])
def test_the_command_ends_with_an_error_where_a_failure_is_left(
    failing: tuple[int, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(soak, "PROGRESS", tmp_path)
    monkeypatch.setattr(soak, "proof_of", lambda name: Proof(name, Drawing(*failing), 3))
    monkeypatch.setattr(sys, "argv", ["soak", "html", "--seconds", "0"])
    with pytest.raises(SystemExit) as end:
        soak.main()
    assert end.value.code == code
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["cases"] == 3


def test_the_proofs_are_found() -> None:
    assert {"html", "kills"} <= set(soak.PROOFS)
