"""The GPUs of a run, and the links between them: measured where they are, or said, to plan for those that are not.

Links are what makers state, each way, of one GPU: `costs.py` takes a share of it. NVML tells which
NVLinks are up, the kind those of cards elsewhere; without one, GPUs of a host exchange over PCIe. No interface tells
how fast hosts are linked: where `network_gb_s` is not said it is taken to be 50 GB/s a GPU (400 Gbit/s each).
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from gristmill.trainer.checked import CHECKED, Count, from_json
from gristmill.trainer.model.flops import PEAKS, peak_of

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

NVLINK = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}  # GB/s of a link each way, by version
PCIE, NETWORK, HOST_MEMORY = 25.0, 50.0, 1000.0
OF_A_HOST = 8  # cards that are only said
LINKS = {  # GB/s each way that makers state of NVLink
    "GB200": 900.0, "B200": 900.0, "GH200": 450.0, "H200": 450.0, "H100": 450.0, "H20": 450.0, "H800": 200.0,
    "A100": 300.0, "A800": 200.0,
}  # fmt: skip
UNKNOWN = 100.0  # TFLOP/s
CPU = {"tflops": 0.05, "link_gb_s": 5.0}  # for runs of a few minutes
GB = 1e9


@dataclass(frozen=True, config=CHECKED)
class Cards:
    """`memory_gb` of each (1e9 bytes), `tflops` its peak in bf16, `link_gb_s` what it sends to the others of its host,
    `network_gb_s` to those of other hosts; `host_memory_gb` is what `offload` has. `kind`: a name that has a peak, such
    as H100."""

    count: Count
    memory_gb: Positive
    per_host: Count = OF_A_HOST
    kind: str = ""
    tflops: Positive = UNKNOWN
    link_gb_s: Positive = PCIE
    network_gb_s: Positive = NETWORK
    host_memory_gb: Positive = HOST_MEMORY

    def __post_init__(self) -> None:
        if self.per_host > self.count:
            object.__setattr__(self, "per_host", self.count)
        if self.count % self.per_host:
            raise ValueError(f"count {self.count:,} is no multiple of per_host {self.per_host:,}")

    @property
    def hosts(self) -> int:
        return self.count // self.per_host

    def __str__(self) -> str:
        places = f"{self.hosts:,} hosts of {self.per_host:,}" if self.hosts > 1 else "one host"
        links = f", {self.link_gb_s:g} GB/s between cards" if self.per_host > 1 else ""
        links += f", {self.network_gb_s:g} GB/s between hosts" if self.hosts > 1 else ""
        kind = f" {self.kind}" if self.kind else ""
        return f"{self.count:,}{kind} of {self.memory_gb:.0f} GB, {places}{links}"


def cards_from(said: dict[str, Any], count: int) -> Cards:
    """What was said, and the rest from this machine's GPUs, of which the run has `count` in all; without GPUs, ranks
    share the processor's memory. Where another count is said, the cards are elsewhere, and nothing is measured."""
    from_json(Cards, {"count": count, "memory_gb": 1.0, "per_host": 1, **said}, "cards")  # names and numbers are right
    facts = {"count": count, **said}
    if (kind := said.get("kind")) and "tflops" not in said:
        if (peak := peak_of(kind)) is None:
            known = ", ".join(name for name, *_ in PEAKS)
            raise ValueError(
                f"cards.kind: no card {kind!r} is known; give its tflops in bf16, or one of these: {known}"
            )
        facts["tflops"] = peak / 1e12
    gpus = torch.cuda.is_available()
    if "count" not in said or (gpus and said["count"] == count):
        facts = {**(_gpus(count) if gpus else _processors(count)), **facts}
    elif "memory_gb" not in said:
        raise ValueError("cards.memory_gb: is missing: of one card, in GB")
    elif kind:
        facts.setdefault("link_gb_s", link_of(kind))
    return from_json(Cards, facts, "cards")


def link_of(kind: str) -> float:
    """GB/s each way of a card by its name: by NVLink to all cards of its host, or by PCIe."""
    words = re.split(r"[^A-Z0-9]+", kind.upper())
    bridged = {"PCIE", "NVL"} & set(words)  # NVLink to one neighbour at most
    return PCIE if bridged else next((LINKS[word] for word in words if word in LINKS), PCIE)


def _gpus(count: int) -> dict[str, Any]:
    card = min(int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count() - 1)
    properties = torch.cuda.get_device_properties(card)
    peak = peak_of(properties.name)
    return {
        "per_host": _on_this_host(count),
        "memory_gb": properties.total_memory / GB,
        "kind": properties.name,
        "tflops": peak / 1e12 if peak else UNKNOWN,
        "link_gb_s": _nvlink(card) or PCIE,
        "host_memory_gb": _host_memory(),
    }


def _processors(count: int) -> dict[str, Any]:
    here, memory = _on_this_host(count), _host_memory()
    return {"per_host": here, "memory_gb": memory / here, "host_memory_gb": memory, "kind": "CPU", **CPU}


def _host_memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB


def _on_this_host(count: int) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", count))


def _nvlink(card: int) -> float | None:
    """GB/s each way over all NVLinks of a GPU that are up; None: there are none, or NVML does not tell."""
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(card).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except (pynvml.NVMLError, AttributeError):  # torch has no `uuid` of every kind of card
        return None
    speed = 0.0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link):
                speed += NVLINK.get(pynvml.nvmlDeviceGetNvLinkVersion(handle, link), NVLINK[5])
        except pynvml.NVMLError:  # this card has no such link
            break
    return speed or None
