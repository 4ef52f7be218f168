"""Where a model works: on a GPU if there is one. Apart, so that only stages with a model ask for torch."""

from __future__ import annotations


def on_device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"
