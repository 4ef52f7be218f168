"""The nearest centres by Triton are those of the CPU bit for bit; without a GPU, in Triton's interpreter."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be there when triton is imported
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.gpu import nearest as gpu  # noqa: E402
from gristmill.kernels.vectors import int8  # noqa: E402
from gristmill.stages import SemanticClusters  # noqa: E402
from tests.stages.semantic.planted import as_lists, blobs, documents  # noqa: E402

SMALL = gpu.NearestTile(rows=16, centres=16, numbers=32)


@pytest.mark.parametrize(("rows", "centres", "width"), [(1, 1, 4), (50, 37, 24), (33, 16, 70), (20, 5, 256)])
def test_places_and_cosines_are_those_of_the_cpu(
    rows: int, centres: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(gpu.nearest_on_device, "__defaults__", (SMALL,))
    dice = np.random.default_rng(rows)
    vectors, middles = (int8.rounded(dice.normal(size=(n, width))) for n in (rows, centres))
    middles[-1] = middles[0]  # of equals the first
    for one, other in zip(int8.nearest(vectors, middles), gpu.nearest(vectors, middles), strict=True):
        assert np.array_equal(one, other)


def test_clusters_are_the_same_on_either_device() -> None:
    vectors, _ = blobs(3, 8)
    docs = documents(["t"] * 24, embedding=as_lists(vectors))
    found = [SemanticClusters(clusters=3, device=device)(docs).to_pylist() for device in ("cpu", "gpu")]
    assert found[0] == found[1] and len({row["cluster"] for row in found[0]}) == 3
    assert isinstance(docs["embedding"].type, pa.FixedSizeListType)
