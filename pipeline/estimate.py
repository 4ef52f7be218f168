"""What the whole would take, from a run on a part of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import RecipeError
from pipeline.words import as_money


def share_of(text: str) -> float:
    """A share as a person writes it: 1%, 0.01."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise RecipeError(f"--sample {text}: a share was expected, such as 1% or 0.01") from None
    if not 0 < share <= 1:
        raise RecipeError(f"--sample {text}: a share between 0 and 100% was expected")
    return share


USUAL_START = 3.0  # seconds until workers are ready; whatever it took above them was for kernels, which are compiled once


@dataclass(frozen=True)
class Estimate:
    """Time, disk, memory and money for the whole."""

    share: float
    documents: int
    kept: int
    seconds: float
    disk_bytes: int
    memory_bytes: int
    cost: float | None  # at the recipe's prices
    currency: str | None

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        money = "" if self.cost is None else f", {as_money(self.cost, self.currency)}"
        return (
            f"this read {self.share:.2%} of the input. The whole: about {self.documents:,} documents, {self.kept:,} kept, {for_people(self.seconds)} on as many workers, "
            f"{self.disk_bytes / 1e9:,.1f} GB of disk, {self.memory_bytes / 1e9:,.1f} GB of memory a worker{money} (duplicates grow with size: fewer may be kept)"
        )


def estimate(record: dict[str, Any], workers: int) -> Estimate:
    """Scale a partial run up by the bytes it read, documents source by source: of a small one all may have been read. Start-up is not scaled: only the
    seconds of the stages are. What was compiled on the way will not be again."""
    readers = [e for e in record["stages"] if e["kind"] == "read"]
    read, whole = sum(e["bytes_in"] for e in readers), sum(i["bytes"] for i in record["inputs"].values())
    share = min(1.0, read / whole) if whole and read else 1.0
    shares = {e["name"]: min(1.0, e["bytes_in"] / record["inputs"][e["name"]]["bytes"]) for e in readers if e["bytes_in"]}
    last = record["stages"][-1]
    price = record.get("cost")
    compiling = max(0.0, record["start"]["seconds"] - USUAL_START)
    fixed = max(0.0, record["seconds"] - compiling - sum(e["seconds"] for e in record["stages"]) / workers)
    return Estimate(
        share,
        round(sum(e["kept"] / shares.get(e["name"], 1.0) for e in readers)),
        round(sum(count["kept"] / shares.get(source, 1.0) for source, count in last["sources"].items())),
        fixed + sum(e["seconds"] for e in record["stages"]) / workers / share,
        round(record.get("disk_bytes", 0) / share),
        max((e["peak_memory"] for e in record["stages"]), default=0),
        None if price is None else price["amount"] / share,
        None if price is None else price["currency"],
    )


def for_people(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"
