"""`parallel: auto` chooses what a person would, says why, and keeps what was set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from gristmill.trainer.model.shapes import DecoderShape, shape_named
from gristmill.trainer.parallel.memory import rank_memory
from gristmill.trainer.parallel.planner import GB, Cards, Layout, NoLayout, Task, cards_from, choose
from gristmill.trainer.run.batch_search import SPARE
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step.muon import Muon

SMALL = shape_named("124m", 50_304)
MIDDLE = shape_named("1.3b", 50_304)
LARGE = DecoderShape(32_000, 4096, 32, 32, 32, 11_008, context=65_536)  # 7b
LARGEST = DecoderShape(128_256, 8192, 80, 64, 8, 28_672, context=8192)  # 70b


def cards_of(count: int, memory_gb: float = 80, **more: Any) -> Cards:
    return Cards(count, memory_gb, **more)


def layout_of(shape: DecoderShape, cards: Cards, rows: int, length: int, **settings: Any) -> Layout:
    return choose(Task(shape, Training(10, rows, **settings), cards, length, frozenset(settings)))


@dataclass(frozen=True)
class Case:
    shape: DecoderShape
    cards: Cards
    rows: int
    length: int
    chosen: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)


PLAIN = {"tensor": 1, "context": 1, "replicas": 1, "offload": False, "recompute": "none", "zero": 0, "pipeline": 1}
CASES = {
    "124m on 1 card": Case(SMALL, cards_of(1), 256, 2048, PLAIN),
    "1.3b on 2 cards": Case(MIDDLE, cards_of(2, 141), 64, 4096, PLAIN),
    "7b on 1 card": Case(LARGE, cards_of(1), 64, 8192, PLAIN | {"offload": True, "recompute": "full"}),
    "7b on 2 cards": Case(LARGE, cards_of(2), 64, 8192, PLAIN | {"zero": 3, "recompute": "full"}),
    "7b on 8 cards": Case(LARGE, cards_of(8), 64, 8192, PLAIN | {"zero": 2}),
    "7b at 64k on 2 cards": Case(LARGE, cards_of(2, 141), 8, 65_536, PLAIN | {"zero": 3, "recompute": "full"}),
    "one row of 64k on 2 cards": Case(
        LARGE, cards_of(2, 141), 1, 65_536, PLAIN | {"context": 2, "zero": 1, "recompute": "full"}
    ),
    "7b on two hosts": Case(LARGE, cards_of(16), 64, 8192, PLAIN | {"zero": 2, "replicas": 2}),
    "70b on 8 hosts": Case(LARGEST, cards_of(64), 128, 8192, PLAIN | {"zero": 3, "recompute": "full"}),
    "what is set is kept": Case(
        LARGE, cards_of(8), 64, 8192, PLAIN | {"tensor": 4, "recompute": "full", "rows_per_step": 4},
        {"tensor": 4, "recompute": "full", "rows_per_step": 4},
    ),
    "Muon needs whole matrices": Case(MIDDLE, cards_of(8), 64, 4096, PLAIN | {"zero": 1}, {"optimizer": Muon()}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_layout_of_a_model_on_cards(name: str) -> None:
    case = CASES[name]
    layout = layout_of(case.shape, case.cards, case.rows, case.length, **case.settings)
    assert {key: getattr(layout.training, key) for key in case.chosen} == case.chosen
    assert layout.peak <= (1 - SPARE) * case.cards.memory_gb * GB
    why = "\n".join(layout.why)
    assert "layouts considered" in why and f"{layout.peak / GB:.1f} GB of a rank" in why and str(case.cards) in why
    layout.training.check_step(case.cards.count // layout.training.ranks_of_a_row)  # a run accepts it


def test_what_fits_nowhere_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        NoLayout, match=r"70,553,706,496 parameters .* fit no layout of 1 cards .* would take cards of \d+ GB"
    ):
        layout_of(LARGEST, cards_of(1), 128, 8192)
    with pytest.raises(NoLayout, match=r"no layout of 3 rows an update over 8 cards with pipeline 1 is one"):
        layout_of(SMALL, cards_of(8), 3, 512, pipeline=1)
    with pytest.raises(NoLayout, match=r"with tensor 2, zero 3 is one"):
        layout_of(LARGE, cards_of(8), 64, 8192, zero=3, tensor=2)


def test_experts_are_shared_only_where_nothing_else_fits() -> None:
    mixture = shape_named("4b-a1.3b", 50_304)
    assert layout_of(mixture, cards_of(2, 141), 64, 4096).training.experts == 1
    assert layout_of(mixture, cards_of(8, 30), 64, 4096, zero=1).training.experts > 1


def test_shards_of_hosts_that_are_replicas_take_more() -> None:
    one, two = (rank_memory(LARGE, Training(10, 64, zero=3, replicas=R), 16, 8192, 1) for R in (1, 2))
    assert two.optimizer == pytest.approx(2 * one.optimizer, rel=1e-6)


def test_cards_are_those_here_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    here = cards_from({}, 4)
    assert (here.count, here.per_host, here.hosts) == (4, 2, 2)
    assert here.memory_gb == pytest.approx(here.host_memory_gb / 2)
    elsewhere = cards_from({"count": 64, "memory_gb": 141}, 1)
    assert (elsewhere.hosts, elsewhere.per_host, elsewhere.host_memory_gb) == (8, 8, 1000)
    for wrong, message in (
        ({"count": 8}, r"cards\.memory_gb: is missing"),
        ({"count": 12, "memory_gb": 80}, r"count 12 is no multiple of per_host 8"),
        ({"count": 8, "memory_gb": 80, "kind": "H100"}, r"cards\.kind: no such field"),
        ({"memory_gb": -1}, r"cards\.memory_gb: Input should be greater than 0"),
    ):
        with pytest.raises(ValueError, match=message):
            cards_from(wrong, 1)
