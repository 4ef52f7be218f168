"""Parts of a tensor meet to the whole, and files of wholes are what everyone else reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from gristmill.trainer.parallel.parts import (
    Cut,
    Part,
    gather_wholes,
    list_tensors,
    part_of,
    read_cut,
    whole_cut,
    write_safetensors,
)
from gristmill.trainer.parallel.ranks import ALONE
from gristmill.trainer.parallel.zero import owners


@given(st.integers(0, 1), st.lists(st.integers(1, 5), min_size=2, max_size=8), st.data())
def test_cuts_meet_to_the_whole(dim: int, widths: list[int], data: st.DataObject) -> None:
    shape = (sum(widths), 3) if dim == 0 else (3, sum(widths))
    whole = torch.arange(3 * sum(widths)).reshape(shape)
    ends = [0, *torch.tensor(widths).cumsum(0).tolist()]
    spans = list(pairwise(ends))
    holder = [data.draw(st.integers(0, 2)) for _ in spans]
    found = torch.full(shape, -1)
    for rank in range(3):
        cut = Cut(shape, dim, tuple(span for span, who in zip(spans, holder, strict=True) if who == rank))
        if cut.spans:
            assert cut.of(whole).shape == cut.local_shape
            cut.put(cut.of(whole), found)
    assert torch.equal(found, whole)


def test_files_are_read_by_safetensors_whole_and_in_cuts(tmp_path: Path) -> None:
    tensors = {
        "scalar": torch.tensor(3.5),
        "matrix": torch.randn(6, 5),
        "half": torch.randn(3, 7).bfloat16(),
        "bytes": torch.arange(13, dtype=torch.uint8),
        "empty": torch.zeros(0, 4),
        "turned": torch.randn(4, 6, dtype=torch.float64).t(),
        "ü": torch.tensor([True, False]),
    }
    parts = {name: part_of(tensor) for name, tensor in tensors.items()}
    table = list_tensors(parts, ALONE)
    digest = write_safetensors(tmp_path / "file", table, gather_wholes(parts, table, ALONE))
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    assert len(digest) == 64
    with safe_open(tmp_path / "file", "pt") as file:
        cut = Cut((6, 5), 0, ((4, 6), (0, 1)))
        assert torch.equal(read_cut(file, "matrix", cut), cut.of(tensors["matrix"]))
        cut = Cut((6, 5), 1, ((1, 3),))
        assert torch.equal(read_cut(file, "matrix", cut), tensors["matrix"][:, 1:3])
        assert torch.equal(read_cut(file, "scalar", whole_cut(())), tensors["scalar"])


def test_a_state_is_cut_as_its_weight_if_it_is_as_large() -> None:
    part = Part(torch.zeros(2, 3), Cut((4, 3), 0, ((2, 4),)))
    assert part.beside(torch.ones(2, 3)).cut == part.cut
    assert part.beside(torch.tensor(7.0)).cut == whole_cut(())


def test_owners_have_about_equal_shares() -> None:
    sizes = {
        f"block.{i}.{name}": size
        for i in range(20)
        for name, size in (("qkv", 300), ("out", 200), ("gate_up", 1600), ("down", 800), ("norm", 2))
    }
    sizes["embedding"] = 5000
    found = owners(sizes, 4)
    assert list(found) == list(sizes)
    loads = [sum(size for name, size in sizes.items() if found[name] == rank) for rank in range(4)]
    assert max(loads) - min(loads) < 0.05 * sum(sizes.values()) / 4
    assert owners({"a": 1}, 3) == {"a": 0}


def test_ranks_that_disagree_about_a_tensor_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [{"a": ["F32", [2], 0, [[0, 2]]]}, {"a": ["F32", [3], 0, [[0, 3]]]}]
    monkeypatch.setattr("gristmill.trainer.parallel.ranks.RankGroup.gather", lambda self, value: said)
    with pytest.raises(ValueError, match="on one rank"):
        list_tensors({}, ALONE)
