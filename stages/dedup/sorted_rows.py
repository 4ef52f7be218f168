"""Sorted columns: where a run of equal rows begins."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Array


def begins_run(*columns: Array) -> Array:
    """Of sorted columns: is the row another than the one before?"""
    new = np.ones(len(columns[0]), bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return new
