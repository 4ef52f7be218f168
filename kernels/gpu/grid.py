"""How many programs fill a GPU."""

from __future__ import annotations

import torch


def processors(device: torch.device) -> int:
    """The multiprocessors of a GPU; two in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
