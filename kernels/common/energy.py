"""Energy that a run has used, in joules: of its GPU by NVML's counter, of the machine's processors by RAPL; None
where there is no meter.

NVML (the driver's library, by way of nvidia-ml-py) counts the millijoules of a whole board since the driver was loaded,
on Volta and later; a MIG slice has no counter of its own. RAPL
(/sys/class/powercap) counts the microjoules of a processor package, whoever uses it, wraps around, and on most
systems can be read by root alone. Neither is estimated from anything else.
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a run of the mill reads meters without torch
    import torch

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Energy:
    """Joules; None: there is no meter. `device`: what trains, a GPU or the processors; `processors`: all packages of
    this machine."""

    device: float | None
    processors: float | None

    def __sub__(self, earlier: Energy) -> Energy:
        return Energy(_less(self.device, earlier.device), _less(self.processors, earlier.processors))


def _less(now: float | None, then: float | None) -> float | None:
    return None if now is None or then is None else now - then


class Counter(Protocol):
    def joules(self) -> float | None:
        """Since the counter was made; None where it cannot be read."""


class Meter:
    """Energy used by one process's device since the meter was made. A GPU counts as a whole; ranks of one machine
    read the same processors, which `gristmill.trainer.run.reporting` counts once."""

    def __init__(self, gpu: Counter | None, packages: Counter | None, on_gpu: bool) -> None:
        self._gpu, self._packages, self._on_gpu = gpu, packages, on_gpu

    def read(self) -> Energy:
        packages = None if self._packages is None else self._packages.joules()
        if not self._on_gpu:
            return Energy(packages, packages)
        return Energy(None if self._gpu is None else self._gpu.joules(), packages)


class Machine:
    """All GPUs that this process may see, and the processors, since this was made. `with` it, they are read every
    minute, so that none wraps around unseen."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._counters = counters
        self._reading = threading.Lock()
        self._left = threading.Event()

    def __enter__(self) -> Machine:
        if self._counters:
            threading.Thread(target=self._watch, name="energy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def _watch(self) -> None:
        while not self._left.wait(60):
            self.joules()

    @classmethod
    def here(cls) -> Machine:
        library = nvml()
        boards = visible_gpus(library, os.environ.get("CUDA_VISIBLE_DEVICES")) if library is not None else []
        return cls(
            [
                counter
                for counter in (Packages.found(), *(Gpu.counting(library, board) for board in boards))
                if counter is not None
            ]
        )

    def joules(self) -> float | None:
        """Of everything that has a meter; None where nothing has, or one failed."""
        with self._reading:
            readings = [counter.joules() for counter in self._counters]
        measured = [joules for joules in readings if joules is not None]
        return sum(measured) if readings and len(measured) == len(readings) else None


def meter_for(device: torch.device) -> Meter:
    on_gpu = device.type == "cuda"
    return Meter(gpu_counter(nvml(), device) if on_gpu else None, Packages.found(), on_gpu)


def machine_name() -> str:
    """The same for all processes whose processors are the same ones, in whatever containers."""
    return _text(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


def grams_co2(joules: float | None, grams_per_kwh: float | None) -> float | None:
    """At the intensity of the grid that the caller states."""
    return None if joules is None or grams_per_kwh is None else joules / 3.6e6 * grams_per_kwh


# --- GPUs -----------------------------------------------------------------------------------------------------------


def nvml() -> Any | None:
    """The module of nvidia-ml-py, or None where there is none, or no driver that answers."""
    try:
        # Not by `import`: a meter decides nothing, so its version must not be in the fingerprints of ablations.
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return library


class Gpu:
    """One board, by NVML's handle."""

    def __init__(self, library: Any, handle: Any, start: float) -> None:
        self._library, self._handle, self._start = library, handle, start

    @classmethod
    def counting(cls, library: Any, handle: Any) -> Gpu | None:
        """None where the board has no counter."""
        start = _joules(library, handle)
        return None if start is None else cls(library, handle, start)

    def joules(self) -> float | None:
        now = _joules(self._library, self._handle)
        return None if now is None or now < self._start else now - self._start  # less: the driver was loaded anew


def _joules(library: Any, handle: Any) -> float | None:
    millijoules = _answer(library, library.nvmlDeviceGetTotalEnergyConsumption, handle)
    return None if millijoules is None else float(millijoules) / 1000


def gpu_counter(library: Any | None, device: torch.device) -> Gpu | None:
    """Of the GPU that torch calls so."""
    if library is None:
        return None
    import torch

    uuid = torch.cuda.get_device_properties(device).uuid
    handle = _answer(library, library.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
    return None if handle is None else Gpu.counting(library, handle)


def visible_gpus(library: Any, setting: str | None) -> list[Any]:
    """Handles of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order: indices, or UUIDs that may be abbreviated. As
    in CUDA, entries after one that matches nothing are ignored.

    Indices are those of the PCI bus, which are CUDA's where all GPUs are of one kind or CUDA_DEVICE_ORDER is
    PCI_BUS_ID.
    """
    count = _answer(library, library.nvmlDeviceGetCount) or 0
    answers = [_answer(library, library.nvmlDeviceGetHandleByIndex, place) for place in range(count)]
    handles = [handle for handle in answers if handle is not None]
    if setting is None:
        return handles
    seen: list[Any] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.startswith("GPU-"):
            uuids = [_answer(library, library.nvmlDeviceGetUUID, handle) or "" for handle in handles]
            fits = [handle for handle, uuid in zip(handles, uuids, strict=True) if uuid.startswith(entry)]
            if len(fits) != 1:
                break
            seen.append(fits[0])
        elif entry.isdecimal() and int(entry) < len(handles):
            seen.append(handles[int(entry)])
        else:
            break
    return seen


def _answer(library: Any, ask: Callable[..., Any], *arguments: Any) -> Any | None:
    """None where the driver has no answer."""
    try:
        return ask(*arguments)
    except library.NVMLError:
        return None


# --- processors -----------------------------------------------------------------------------------------------------


class Packages:
    """All processor packages together. Counters wrap around, so read them now and then: every few minutes is enough."""

    def __init__(self, zones: dict[Path, int]) -> None:
        self._most = zones  # microjoules after which a counter begins anew
        self._last = {zone: _microjoules(zone) for zone in zones}
        self._used = 0

    @classmethod
    def found(cls, folder: Path = POWERCAP) -> Packages | None:
        """None where there are none, or they may not be read."""
        zones: dict[Path, int] = {}
        for zone in sorted(folder.glob("intel-rapl:*")):  # AMD's are called so too
            if not _text(zone / "name").startswith("package"):  # a part of one, or the whole machine
                continue
            most = _text(zone / "max_energy_range_uj")
            if _microjoules(zone) is None or not most.isdecimal():
                return None
            zones[zone] = int(most)
        return cls(zones) if zones else None

    def joules(self) -> float | None:
        for zone, most in self._most.items():
            now, last = _microjoules(zone), self._last[zone]
            if now is None or last is None:
                return None
            self._used += now - last if now >= last else now + most - last
            self._last[zone] = now
        return self._used / 1e6


def _microjoules(zone: Path) -> int | None:
    text = _text(zone / "energy_uj")
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
