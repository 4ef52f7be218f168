"""Joules come from meters or not at all."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from gristmill.kernels.common import energy
from gristmill.kernels.common.energy import (
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
    """Answers as `pynvml` does: a handle here is the number of a board, from 1."""

    class NVMLError(Exception):
        pass

    def __init__(self, millijoules: list[int | None], driver: bool = True) -> None:
        self.millijoules, self.driver = millijoules, driver

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("library not found")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.millijoules)

    def nvmlDeviceGetHandleByIndex(self, place: int) -> int:
        return place + 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in UUIDS:
            raise self.NVMLError("not found")
        return UUIDS.index(uuid) + 1

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return UUIDS[handle - 1]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        value = self.millijoules[handle - 1]
        if value is None:
            raise self.NVMLError("not supported")
        return value


def test_the_stand_in_is_called_as_the_package_is() -> None:
    for name, method in inspect.getmembers(FakeNvml, inspect.isfunction):
        if name.startswith("nvml"):
            takes = [p for p in inspect.signature(method).parameters if p != "self"]
            assert takes in ([*inspect.signature(getattr(pynvml, name)).parameters], ["place"]), name
    assert issubclass(pynvml.NVMLError, Exception)


def test_joules_are_those_since_the_counter_was_made() -> None:
    library = FakeNvml([1000, 5_000_000, None])
    gpu = Gpu.counting(library, 2)
    assert gpu is not None and gpu.joules() == 0
    library.millijoules[1] = 5_012_345
    assert gpu.joules() == pytest.approx(12.345)
    library.millijoules[1] = 7
    assert gpu.joules() is None  # the driver was loaded anew
    assert Gpu.counting(library, 3) is None


def test_visible_gpus_are_those_that_cuda_sees() -> None:
    library = FakeNvml([0, 0, 0])
    assert visible_gpus(library, None) == [1, 2, 3]
    assert visible_gpus(library, "2,0") == [3, 1]
    assert visible_gpus(library, " GPU-cccc3333 , GPU-aaaa ") == [3, 1]
    assert visible_gpus(library, "0,-1,2") == [1] and visible_gpus(library, "1,9,0") == [2]
    assert (
        visible_gpus(library, "GPU-aaa,0") == []
        and visible_gpus(library, "") == []
        and visible_gpus(library, "MIG-1") == []
    )


def test_the_gpu_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml([0, 0, 0])
    properties = SimpleNamespace(uuid="cccc3333")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    counter = gpu_counter(library, torch.device("cuda", 0))
    assert counter is not None
    library.millijoules[2] = 4000
    assert counter.joules() == 4.0
    properties.uuid = "dddd4444"
    assert gpu_counter(library, torch.device("cuda", 0)) is None and gpu_counter(None, torch.device("cuda", 0)) is None


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
    assert grams_co2(None, 400) is None and grams_co2(3.6e6, None) is None and grams_co2(1.8e6, 400) == 200


@pytest.mark.parametrize("package", [None, FakeNvml([], driver=False)], ids=["no package", "no driver"])
def test_without_the_package_or_a_driver_a_gpu_is_not_measured(
    package: FakeNvml | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", package)
    monkeypatch.setattr(Packages, "found", classmethod(lambda cls: None))
    assert energy.nvml() is None
    assert meter_for(torch.device("cuda", 0)).read() == Energy(None, None)
    assert Machine.here().joules() is None


def test_a_machine_reads_all_boards_that_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml([1000, 2000, None])
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(Packages, "found", classmethod(lambda cls: None))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = Machine.here()
    library.millijoules = [4000, 9000, None]
    assert machine.joules() == 10.0


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
    code = "import sys; from gristmill.kernels.common.energy import Machine; Machine.here().joules(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
