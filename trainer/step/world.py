"""The processes that train together. Here it is one, which reads all rows and writes all files.

A loop that is handed a `World` calls one process and several alike: `gristmill.trainer.parallel.ranks` has the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


class World:
    """One process."""

    @property
    def count(self) -> int:
        return 1

    @property
    def number(self) -> int:
        """This process's, counted from 0."""
        return 0

    @property
    def first(self) -> bool:
        """It writes the files."""
        return self.number == 0

    @property
    def readers(self) -> int:
        """How many processes read rows of their own."""
        return 1

    @property
    def reports(self) -> bool:
        """Of the processes that read the same rows one reports the work."""
        return True

    def gather(self, value: Any) -> list[Any]:
        """The value of each process, in all of them."""
        return [value]

    def total(self, value: Tensor) -> Tensor:
        """Over the processes that see tokens of their own."""
        return value

    def total_read(self, counts: Tensor) -> Tensor:
        """Counts of the rows that were read; rows that several processes read together count once."""
        return counts

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """In place."""

    def wait(self) -> None:
        """Until all processes have arrived."""


ONE = World()
