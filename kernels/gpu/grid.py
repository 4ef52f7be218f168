"""How many programs fill a GPU."""

from __future__ import annotations

import torch


def processors(device: torch.device) -> int:
    """Of a GPU; two where it is only played by Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
