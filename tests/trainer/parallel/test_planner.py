"""`parallel: auto` chooses what a person would, says why, and keeps what was set."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.training.layouts import rows_of
from benchmarks.training.speed import batches_on
from gristmill.trainer.model.shapes import DecoderShape, shape_named
from gristmill.trainer.parallel import cards
from gristmill.trainer.parallel.cards import GB, Cards, cards_from
from gristmill.trainer.parallel.costs import DocumentLengths, rank_memory, update_seconds
from gristmill.trainer.parallel.planner import Layout, NoLayout, Task, choose
from gristmill.trainer.run.batch_search import SPARE
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step.muon import Muon

SMALL = shape_named("124m", 50_304)
MIDDLE = shape_named("1.3b", 50_304)
LARGE = DecoderShape(32_000, 4096, 32, 32, 32, 11_008, context=65_536)  # 7b
LARGEST = DecoderShape(128_256, 8192, 80, 64, 8, 28_672, context=8192)  # 70b


def h100(count: int, memory_gb: float = 80, **more: Any) -> Cards:
    return Cards(count, memory_gb, kind="H100", tflops=989, link_gb_s=450, **more)


def layout_of(
    shape: DecoderShape, cards: Cards, rows: int, length: int, document: float = 1000, **settings: Any
) -> Layout:
    training = Training(10, rows, **settings)
    return choose(Task(shape, training, cards, length, DocumentLengths.of_mean(document, length), frozenset(settings)))


@dataclass(frozen=True)
class Case:
    shape: DecoderShape
    cards: Cards
    rows: int
    length: int
    chosen: dict[str, Any]
    reasons: tuple[str, ...]
    document: float = 1000
    settings: dict[str, Any] = field(default_factory=dict)


PLAIN = {"tensor": 1, "context": 1, "replicas": 1, "offload": False, "recompute": "none", "zero": 0}
CASES = {
    "124m on 1 card": Case(SMALL, h100(1), 256, 2048, PLAIN, ("recompute none: selective 1% slower",)),
    "1.3b on 2 cards": Case(MIDDLE, h100(2, 141), 64, 4096, PLAIN, ("zero 0: 1 as fast",)),
    "7b on 1 card": Case(
        LARGE, h100(1), 64, 8192, PLAIN | {"offload": True, "recompute": "full"}, ("offload yes: no takes 127.5 GB",)
    ),
    "7b on 2 cards": Case(
        LARGE, h100(2), 64, 8192, PLAIN | {"zero": 3, "recompute": "full"},
        ("zero 3: 0 takes", "recompute full: none takes"),
    ),
    "7b on 8 cards": Case(LARGE, h100(8), 64, 8192, PLAIN | {"zero": 2}, ("tensor 1: 2 24% slower",)),
    "7b at 64k on 2 cards": Case(
        LARGE, h100(2, 141), 8, 65_536, PLAIN | {"zero": 3, "recompute": "full"}, ("none takes 231.6 GB",), 30_000
    ),
    "one row of 64k on 2 cards": Case(
        LARGE, h100(2, 141), 1, 65_536, PLAIN | {"context": 2, "zero": 1, "recompute": "full"},
        ("context 2: 1 7% slower",), 30_000,
    ),
    "7b on two hosts far apart": Case(
        LARGE, h100(16, network_gb_s=6), 64, 8192, PLAIN | {"zero": 2, "replicas": 2}, ("replicas 2: 1 16% slower",)
    ),
    "70b on 8 hosts": Case(
        LARGEST, h100(64), 128, 8192, {"tensor": 1, "zero": 3, "recompute": "full", "offload": False, "replicas": 1},
        ("zero 3: 0 takes", "8 hosts of 8"),
    ),
    "what is set is kept": Case(
        LARGE, h100(8), 64, 8192, PLAIN | {"tensor": 4, "recompute": "full", "rows_per_step": 4},
        ("tensor 4: set", "recompute full: set", "rows_per_step 4: set"),
        settings={"tensor": 4, "recompute": "full", "rows_per_step": 4},
    ),
    "Muon needs whole matrices": Case(
        MIDDLE, h100(8), 64, 4096, PLAIN | {"zero": 1}, ("zero 1: 0",), settings={"optimizer": Muon()}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_layout_of_a_model_on_cards(name: str) -> None:
    case = CASES[name]
    layout = layout_of(case.shape, case.cards, case.rows, case.length, case.document, **case.settings)
    found = layout.candidate.settings
    assert {key: found[key] for key in case.chosen} == case.chosen
    assert {key: getattr(layout.training, key) for key in found} == found
    assert layout.candidate.peak <= (1 - SPARE) * case.cards.memory_gb * GB
    said = "\n".join(layout.why)
    assert "layouts considered" in said and f"{layout.candidate.peak / GB:.1f} GB of a rank" in said
    for reason in case.reasons:
        assert reason in said, said
    layout.training.check_step(case.cards.count // layout.training.ranks_of_a_row)  # a run accepts it


def test_what_fits_nowhere_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        NoLayout, match=r"70,553,706,496 parameters .* fit no layout of 1 H100 .* or (\d+) of these"
    ) as said:
        layout_of(LARGEST, h100(1), 128, 8192)
    count = int(str(said.value).rsplit("or ", 1)[1].split(" ")[0])
    assert count > 8 and layout_of(LARGEST, h100(count), 128, 8192)
    with pytest.raises(NoLayout):
        layout_of(LARGEST, h100(count // 2), 128, 8192)
    with pytest.raises(NoLayout, match=r"no layout of 3 rows an update over 8 cards with pipeline 1 is one"):
        layout_of(SMALL, h100(8), 3, 512, pipeline=1)
    with pytest.raises(NoLayout, match=r"with tensor 2, zero 3 is one"):
        layout_of(LARGE, h100(8), 64, 8192, zero=3, tensor=2)


def test_costs_are_near_what_was_measured() -> None:
    """docs/training.md: tokens/s of 1.3b on one H200 and two, of 124m on one, and of 1.3b in fp8."""
    for shape, count, rows, length, document, linears, measured in (
        (MIDDLE, 1, 16, 4096, 920, "bf16", 70_600),
        (MIDDLE, 2, 32, 4096, 915, "bf16", 134_400),
        (MIDDLE, 1, 16, 4096, 920, "fp8", 89_700),
        (SMALL, 1, 64, 1024, 503, "bf16", 595_000),
    ):
        training = Training(10, rows, linears=linears)
        documents = DocumentLengths.of_mean(document, length)
        seconds = update_seconds(shape, training, h100(count, 141), length, documents, rows // count, True)
        assert rows * length / seconds.total == pytest.approx(measured, rel=0.05)


MEASURED = {  # tokens/s on H200s over those of one, docs/training.md: cards, layout
    "1.3b, rows of 4,096": (
        ("1.3b", 4096, 16, 16_384, 900.0),
        [
            (2, {"zero": 2}, 1.85), (2, {"zero": 3}, 1.84), (4, {"zero": 2}, 3.70),
            (2, {"pipeline": 2, "pipeline_schedule": "1f1b"}, 1.83),
            (2, {"pipeline": 2, "pipeline_schedule": "interleaved"}, 1.85),
            (2, {"pipeline": 2, "pipeline_schedule": "zb1p"}, 1.86),
            (2, {"pipeline": 2, "pipeline_schedule": "zbv"}, 1.86),
            (4, {"pipeline": 4, "pipeline_schedule": "1f1b"}, 3.19),
            (4, {"pipeline": 4, "pipeline_schedule": "interleaved"}, 3.32),
            (4, {"pipeline": 4, "pipeline_schedule": "zb1p"}, 3.29),
            (4, {"pipeline": 4, "pipeline_schedule": "zbv"}, 3.35),
        ],
    ),
    "4b-a1.3b": (
        ("4b-a1.3b", 4096, 16, 16_384, 900.0),
        [(2, {"zero": 1}, 1.963), (2, {"experts": 2, "zero": 1}, 1.716)],
    ),
    "4b-a1.3b, flash-attn-4": (("4b-a1.3b", 4096, 16, 16_384, 900.0), [(4, {"zero": 1}, 3.78)]),
    "rows of 65,536, documents of 16,000": (
        ("1.3b", 65_536, 4, 65_536, 16_000.0),
        [(2, {"context": 2, "recompute": "full"}, 1.90), (2, {"zero": 2, "recompute": "full"}, 1.57)],
    ),
    "rows of 65,536, one document": (
        ("1.3b", 65_536, 2, 65_536, 65_536.0),
        [(2, {"context": 2, "recompute": "full"}, 1.90), (2, {"zero": 2, "recompute": "full"}, 1.99)],
    ),
    "rows of 65,536, short documents": (
        ("1.3b", 65_536, 4, 65_536, 900.0),
        [(2, {"context": 2, "recompute": "full"}, 1.88), (2, {"zero": 2, "recompute": "full"}, 1.84)],
    ),
}  # fmt: skip


def benchmark_rows(row: int, micros: int, tokens: int, mean: float) -> DocumentLengths:
    return DocumentLengths(rows_of(batches_on(torch.device("cpu"), tokens, row, mean, range(micros)), row))


@pytest.mark.parametrize("name", MEASURED)
def test_layouts_compare_as_measured(name: str) -> None:
    (shape_name, row, micros, tokens, mean), ways = MEASURED[name]
    shape, documents = shape_named(shape_name, 50_304, context=row), benchmark_rows(row, micros, tokens, mean)

    def seconds(count: int, **layout: Any) -> float:
        step = tokens // row * layout.get("context", 1)
        training = Training(1, micros * tokens // row, step, **layout)
        cards = Cards(count, 141, kind="H200", tflops=989, link_gb_s=450)
        return update_seconds(shape, training, cards, row, documents, step, "flash-attn-4" in name).total

    alone = seconds(1, recompute=ways[0][1].get("recompute", "none"))
    for count, layout, measured in ways:
        assert alone / seconds(count, **layout) == pytest.approx(measured, rel=0.05), (count, layout)


def test_long_rows_of_unequal_documents_are_shared_and_rows_of_equal_ones_are_not() -> None:
    shape, cards = shape_named("1.3b", 50_304, context=65_536), h100(2, 141)
    training = Training(10, 4, recompute="full")
    unequal, equal = benchmark_rows(65_536, 4, 65_536, 16_000.0), DocumentLengths.of_mean(16_000, 65_536)
    fields = frozenset({"recompute"})
    found = [choose(Task(shape, training, cards, 65_536, each, fields)).training.context for each in (unequal, equal)]
    assert found == [2, 1]
    rate = 1e15
    assert equal.uneven(shape, rate, rate, 1, 2) == 0.0 == unequal.uneven(shape, rate, rate, 1, 1)
    assert unequal.uneven(shape, rate, rate, 4, 2) == pytest.approx(unequal.uneven(shape, rate, rate, 1, 2) / 2)


def test_replicas_send_less_between_hosts() -> None:
    far = h100(16, network_gb_s=2)
    flat, replicated, narrow = (
        update_seconds(LARGE, Training(10, 64, zero=3, **more), far, 8192, DocumentLengths.of_mean(1000, 8192), 1)
        for more in ({}, {"replicas": 2}, {"replicas": 2, "replica_gradients": "int8"})
    )
    assert flat.exchanges + flat.hidden > 4 * (replicated.exchanges + replicated.hidden)
    assert narrow.exchanges + narrow.hidden < replicated.exchanges + replicated.hidden
    one, two = (rank_memory(LARGE, Training(10, 64, zero=3, replicas=R), 16, 8192, 1) for R in (1, 2))
    assert two.optimizer == pytest.approx(2 * one.optimizer, rel=1e-6) and two.residual == 0
    kept = rank_memory(LARGE, Training(10, 64, zero=3, replicas=2, replica_gradients="int8"), 16, 8192, 1)
    assert kept.residual == 4 * LARGE.parameters // 8 and kept.peak == two.peak + kept.residual


def test_experts_far_apart_cost_their_exchanges() -> None:
    """Bytes that a token's copies are, there and back, forward and backward; half of them hide."""
    shape = shape_named("4b-a1.3b", 50_304)
    mixture, tokens, documents = shape.experts, 4 * 4096, DocumentLengths.of_mean(1000, 4096)
    assert mixture is not None
    alone, near, far, again = (
        update_seconds(shape, Training(10, 64, experts=count, recompute=recompute), cards, 4096, documents, 4).exchanges
        for count, cards, recompute in (
            (1, h100(16), "none"),
            (8, h100(16), "none"),
            (16, h100(16), "none"),
            (8, h100(16), "full"),
        )
    )
    sent = 4 * tokens * mixture.active * shape.hidden * 2 * (7 / 8) * (shape.layers - len(mixture.dense))
    expected = 0.5 * sent / (450e9 * 0.75)
    assert near - alone == pytest.approx(expected, rel=0.3)  # gradients of experts are summed over fewer ranks
    assert again - near == pytest.approx(expected / 2, rel=0.3) and far > 1.5 * near
    chosen = layout_of(shape, h100(8), 64, 4096)
    assert any(line.startswith(f"experts {chosen.training.experts}: ") for line in chosen.why), chosen.why


def test_cards_are_those_here_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards.torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    here = cards_from({}, 4)
    assert (here.count, here.per_host, here.hosts, here.kind) == (4, 2, 2, "CPU")
    assert here.memory_gb == pytest.approx(here.host_memory_gb / 2) and here.tflops < 1
    said = cards_from({"count": 64, "memory_gb": 141, "kind": "H200"}, 1)
    assert (said.hosts, said.tflops, said.link_gb_s) == (8, 989, 450)
    for kind, link in (("NVIDIA A100-SXM4-80GB", 300), ("NVIDIA A100-PCIE-40GB", 25), ("h100 nvl", 25), ("L4", 25)):
        assert cards_from({"count": 64, "memory_gb": 80, "kind": kind}, 1).link_gb_s == link
    assert cards_from({"count": 8, "memory_gb": 80, "kind": "N1", "tflops": 500}, 1).link_gb_s == cards.PCIE
    for wrong, message in (
        ({"count": 8}, r"cards\.memory_gb: is missing"),
        ({"count": 12, "memory_gb": 80}, r"count 12 is no multiple of per_host 8"),
        ({"count": 8, "memory_gb": 80, "kind": "H1000"}, r"cards\.kind: no card 'H1000' is known; .* H100,"),
        ({"memory_gb": -1}, r"cards\.memory_gb: Input should be greater than 0"),
    ):
        with pytest.raises(ValueError, match=message):
            cards_from(wrong, 1)


def test_nvlinks_that_are_up_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def state(handle: str, link: int) -> int:
        if link >= 12:  # an A100 has no more
            raise NVMLError
        return int(link != 3)

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_NVLINK_MAX_LINKS=18,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1": "card"}[uuid],
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkVersion=lambda handle, link: 3,
    )
    monkeypatch.setattr(cards, "import_module", lambda name: nvml)
    monkeypatch.setattr(cards.torch.cuda, "get_device_properties", lambda card: SimpleNamespace(uuid="1"))
    assert cards._nvlink(0) == 11 * 25
    monkeypatch.setattr(nvml, "nvmlDeviceGetNvLinkState", lambda handle, link: 0)
    assert cards._nvlink(0) is None
