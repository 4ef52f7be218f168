"""Joules come from meters or not at all."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gristmill.trainer.run import energy
from gristmill.trainer.run.energy import (
    Energy,
    Gpu,
    Machine,
    Meter,
    Packages,
    gpu_counter,
    grams_co2,
    meter_for,
    visible_gpus,
)

UUIDS = ["GPU-aaaa1111", "GPU-aaab2222", "GPU-cccc3333"]


class FakeNvml:
    """Answers as the library does, through the pointers that it is given."""

    def __init__(self, millijoules: list[int | None]) -> None:
        self.millijoules = millijoules

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.millijoules)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, place: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = place.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() not in UUIDS:
            return 6
        handle._obj.value = UUIDS.index(uuid.decode()) + 1
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, text: Any, length: ctypes.c_uint) -> int:
        text.value = UUIDS[(handle.value or 0) - 1].encode()
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, out: Any) -> int:
        value = self.millijoules[(handle.value or 0) - 1]
        if value is None:
            return 3  # not supported
        out._obj.value = value
        return 0


def handles(library: FakeNvml, setting: str | None) -> list[int | None]:
    return [handle.value for handle in visible_gpus(library, setting)]


def test_joules_are_those_since_the_counter_was_made() -> None:
    library = FakeNvml([1000, 5_000_000, None])
    gpu = Gpu.counting(library, ctypes.c_void_p(2))
    assert gpu is not None and gpu.joules() == 0
    library.millijoules[1] = 5_012_345
    assert gpu.joules() == pytest.approx(12.345)
    library.millijoules[1] = 7
    assert gpu.joules() is None  # the driver was loaded anew
    assert Gpu.counting(library, ctypes.c_void_p(3)) is None


def test_visible_gpus_are_those_that_cuda_sees() -> None:
    library = FakeNvml([0, 0, 0])
    assert handles(library, None) == [1, 2, 3]
    assert handles(library, "2,0") == [3, 1]
    assert handles(library, " GPU-cccc3333 , GPU-aaaa ") == [3, 1]
    assert handles(library, "0,-1,2") == [1] and handles(library, "1,9,0") == [2]
    assert handles(library, "GPU-aaa,0") == [] and handles(library, "") == [] and handles(library, "MIG-1") == []


def test_the_gpu_is_found_by_its_uuid_else_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml([0, 0, 0])
    properties = SimpleNamespace(uuid="cccc3333")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: properties)
    counter = gpu_counter(library, torch.device("cuda", 0))
    assert counter is not None
    library.millijoules[2] = 4000
    assert counter.joules() == 4.0
    del properties.uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    counter = gpu_counter(library, torch.device("cuda", 0))
    assert counter is not None
    library.millijoules[1] = 2000
    assert counter.joules() == 2.0
    assert gpu_counter(library, torch.device("cuda", 1)) is None and gpu_counter(None, torch.device("cuda", 0)) is None


def zone(folder: Path, name: str, what: str, microjoules: int, most: int = 1_000_000) -> Path:
    made = folder / name
    made.mkdir()
    for file, content in (("name", what), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
        (made / file).write_text(f"{content}\n")
    return made


def test_processor_packages_are_added_up_and_wrap_around(tmp_path: Path) -> None:
    first, second = (
        zone(tmp_path, "intel-rapl:0", "package-0", 900_000),
        zone(tmp_path, "intel-rapl:1", "package-1", 10),
    )
    zone(tmp_path, "intel-rapl:0:0", "core", 1)
    zone(tmp_path, "intel-rapl:2", "psys", 1)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1)
    packages = Packages.found(tmp_path)
    assert packages is not None and packages.joules() == 0
    (first / "energy_uj").write_text("100000\n")  # wrapped around: 100,000 + 100,000
    (second / "energy_uj").write_text("500010\n")
    assert packages.joules() == pytest.approx(0.7)
    (first / "energy_uj").write_text("300000\n")
    assert packages.joules() == pytest.approx(0.9)
    (second / "energy_uj").unlink()
    assert packages.joules() is None


def test_where_there_is_no_meter_nothing_is_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Packages.found(tmp_path) is None and Packages.found(tmp_path / "absent") is None
    unreadable = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (unreadable / "energy_uj").unlink()
    assert Packages.found(tmp_path) is None
    monkeypatch.setattr(Packages, "found", classmethod(lambda cls: None))
    assert meter_for(torch.device("cpu")).read() == Energy(None, None)
    monkeypatch.setattr(energy, "LIBRARY", "libno-such-thing.so.1")
    assert energy.nvml() is None
    assert meter_for(torch.device("cuda", 0)).read() == Energy(None, None)
    assert grams_co2(None, 400) is None and grams_co2(3.6e6, None) is None and grams_co2(1.8e6, 400) == 200


def test_a_meter_tells_the_device_that_trains_from_the_processors() -> None:
    gpu, packages = SimpleNamespace(joules=lambda: 50.0), SimpleNamespace(joules=lambda: 7.0)
    assert Meter(gpu, packages, on_gpu=True).read() == Energy(50.0, 7.0)
    assert Meter(None, packages, on_gpu=True).read() == Energy(None, 7.0)
    assert Meter(None, packages, on_gpu=False).read() == Energy(7.0, 7.0)
    assert Energy(5.0, None) - Energy(2.0, 1.0) == Energy(3.0, None)


def test_a_machine_adds_up_what_has_a_meter_and_says_nothing_without_one():
    class Fixed:
        def __init__(self, *read: float | None) -> None:
            self.read = list(read)

        def joules(self) -> float | None:
            return self.read.pop(0)

    assert Machine([]).joules() is None
    with Machine([Fixed(1.0, 4.0), Fixed(10.0, None)]) as machine:
        assert machine.joules() == 11.0
        assert machine.joules() is None, "a meter that fails leaves no half of a sum"


def test_a_mill_reads_meters_without_torch():
    code = "import sys; from gristmill.trainer.run.energy import Machine; Machine.here().joules(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
