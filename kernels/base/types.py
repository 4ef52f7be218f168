"""The types of arrays by what they hold, whatever their shape: one name for each, used in every room."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]  # of any type
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Offsets = np.ndarray[Any, np.dtype[np.int64]]  # where values begin in a flat array, and its length, as in Arrow
Integers = np.ndarray[Any, np.dtype[np.int64]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]  # machine words of 64 bits
Floats = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
