"""`minhash_dedup: {device: gpu}` computes its band hashes with the GPU kernel, to the same result as on the CPU.
Without a GPU the kernel runs in Triton's interpreter here."""

from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pytest

from tests.stages.scattered import Scattered

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be there when triton is imported
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.gpu import minhash as gpu_kernel  # noqa: E402
from gristmill.stages import MinhashDedup  # noqa: E402
from gristmill.stages.dedup import minhash  # noqa: E402
from gristmill.stages.stage import CannotRun  # noqa: E402

SMALL: dict[str, Any] = {"hashes": 16, "bands": 4, "rows": 2}


@pytest.fixture
def batches_on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of documents of each batch that the GPU kernel was called with."""
    sizes: list[int] = []
    kernel = gpu_kernel.band_hashes

    def counted(column: Any, **settings: Any) -> Any:
        sizes.append(len(column))
        return kernel(column, **settings)

    monkeypatch.setattr(gpu_kernel, "band_hashes", counted)
    return sizes


def documents() -> pa.Table:
    dice = random.Random(4)
    pages = [[f"word{dice.randrange(300)}" for _ in range(30)] for _ in range(6)]
    texts = (
        [" ".join(page) for page in pages]
        + [" ".join([*page[:29], "changed"]) for page in pages[:3]]
        + ["", None, "short"]
    )
    return pa.table(
        {
            "uid": pa.array([dice.getrandbits(64) for _ in texts], pa.uint64()),
            "url": [""] * len(texts),
            "source": pa.array(["a"] * len(texts)).dictionary_encode(),
            "date": [""] * len(texts),
            "text": texts,
        }
    )


def outcome(device: str) -> tuple[set[int], list[dict[str, Any]], list[dict[str, Any]]]:
    """Who goes, who is named, and the bands that are saved for later runs."""
    flow = Scattered(3)
    MinhashDedup(device=device, save_index="index", **SMALL).run(flow.parts(documents()), flow)
    saved = flow.saved["index/bands"][0].table()
    assert saved is not None
    return (
        set(flow.gone),
        flow.named.sort_by("uid").to_pylist(),
        saved.sort_by([("uid", "ascending"), ("key", "ascending")]).to_pylist(),
    )


def test_device_gpu_calls_the_gpu_kernel_and_gives_what_the_cpu_gives(
    batches_on_gpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = outcome("cpu")
    assert len(wanted[0]) == 3 and len(wanted[2]) == 4 * 7 and not batches_on_gpu
    monkeypatch.setattr(minhash, "band_hashes", None)  # the CPU has no part in it
    assert outcome("gpu") == wanted
    assert sum(batches_on_gpu) == 12 + 9, "all documents for this run's bands, and those that stay for the index"


def test_sign_gives_the_same_rows_in_the_same_order(batches_on_gpu: list[int]) -> None:
    docs = documents()
    rows = MinhashDedup(device="gpu", seed=9, **SMALL).sign(docs)
    assert (
        rows.equals(MinhashDedup(device="cpu", seed=9, **SMALL).sign(docs))
        and len(rows) == 4 * 10
        and batches_on_gpu == [12]
    )


def test_auto_takes_the_gpu_where_there_is_one(batches_on_gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    docs = documents()
    assert len(MinhashDedup(device="auto", **SMALL).sign(docs)) == 4 * 10 and batches_on_gpu == [12]
    without_gpu(monkeypatch)
    assert len(MinhashDedup(device="auto", **SMALL).sign(docs)) == 4 * 10 and batches_on_gpu == [12]


def test_it_asks_for_workers_with_a_gpu() -> None:
    assert [MinhashDedup(device=device).gpu for device in ("cpu", "auto", "gpu")] == [False, True, True]


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpu(monkeypatch)
    with pytest.raises(
        CannotRun, match="`device: gpu`: torch sees no GPU on this machine; `device: cpu` gives the same result"
    ):
        MinhashDedup(device="gpu", **SMALL).sign(documents())


def test_a_gpu_with_too_little_memory_is_no_fault_of_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has")

    monkeypatch.setattr(gpu_kernel, "band_hashes", full)
    with pytest.raises(CannotRun, match=r"the GPU has too little memory \(CUDA out of memory\); `device: cpu`"):
        MinhashDedup(device="gpu", **SMALL).sign(documents())


@pytest.mark.parametrize(("device", "hashed"), [("cpu", 1), ("auto", 1), ("gpu", 0)])
def test_prepare_touches_no_gpu_and_compiles_what_the_device_needs(
    device: str, hashed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = {"cpu": 0, "pairs": 0}
    kernel, pairs = minhash.band_hashes, minhash.pairs_in_buckets

    def band_hashes(*given: Any, **settings: Any) -> Any:
        called["cpu"] += 1
        return kernel(*given, **settings)

    def pairs_in_buckets(*given: Any) -> Any:
        called["pairs"] += 1
        return pairs(*given)

    monkeypatch.setattr(minhash, "band_hashes", band_hashes)
    monkeypatch.setattr(minhash, "pairs_in_buckets", pairs_in_buckets)
    monkeypatch.setattr(minhash, "lacking_for_gpu", None)
    monkeypatch.setattr(gpu_kernel, "band_hashes", None)
    MinhashDedup(device=device, **SMALL).prepare()
    assert called == {"cpu": hashed, "pairs": 1}
