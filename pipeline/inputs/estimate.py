"""What the whole would take, from a run on a part of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import as_money
from gristmill.pipeline.store.records import CountRecord, MapTask
from gristmill.pipeline.store.run_records import RunRecord, StageRecord, WholeRecord


def share_of(text: str) -> float:
    """A share as a person writes it: 1%, 0.01."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise RecipeError(f"--sample {text}: a share was expected, such as 1% or 0.01") from None
    if not 0 < share <= 1:
        raise RecipeError(f"--sample {text}: a share between 0 and 100% was expected")
    return share


# Seconds until workers are ready; whatever it took above them was for kernels, which are compiled once.
USUAL_START = 3.0
SURE = "right in 9 of 10 cases"
# Two-sided 95 % points of Student's t. Few parts of uneven inputs seldom include the largest, so they show too little
# spread: WIDER makes up for it. The interval then held the truth in 93 to 99 % of made-up inputs, even and uneven, of
# which 6 to 30 parts were read (tests/pipeline/inputs/test_estimate.py).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
WIDER = 1.4
WIDEST = 100.0  # times the estimate
ENOUGH = 5  # parts of a half, to estimate the halves apart


@dataclass(frozen=True)
class Halves:
    """All parts of a source, the smaller ones apart from the larger: documents are seldom as dense in both."""

    middle: int  # the largest size of the smaller half
    parts: tuple[int, int]
    bytes: tuple[int, int]


def halves_of(sizes: Sequence[int]) -> Halves:
    middle = sorted(sizes)[(len(sizes) - 1) // 2] if sizes else 0
    small = [size for size in sizes if size <= middle]
    return Halves(middle, (len(small), len(sizes) - len(small)), (sum(small), sum(sizes) - sum(small)))


@dataclass(frozen=True)
class PartRead:
    """A part of which documents were read, from its start on: perhaps not all."""

    size: int
    read: int  # bytes
    documents: int
    whole: bool

    @classmethod
    def of(cls, task: MapTask, count: CountRecord) -> PartRead:
        whole = task["limit"] is None or count["kept"] < task["limit"]
        return cls(task["cost"], count["bytes_in"], count["kept"], whole)

    @property
    def in_all(self) -> float:
        """Documents of the whole part."""
        return self.documents * (1.0 if self.whole or not self.read else max(1.0, self.size / self.read))

    @property
    def variance(self) -> float:
        """Of `in_all`, as if documents differed in size by their mean."""
        return (
            0.0
            if self.whole or not self.documents
            else self.in_all**2 * max(0.0, 1 - self.read / max(1, self.size)) / self.documents
        )


@dataclass(frozen=True)
class Whole:
    """How many documents a source has in all, and between which numbers that lies; None where too little was read to
    say."""

    parts: int
    of: int
    documents: int
    low: int | None
    high: int | None

    def plain(self) -> WholeRecord:
        return {
            "parts": self.parts,
            "of": self.of,
            "documents": self.documents,
            "low": self.low,
            "high": self.high,
        }


def documents_in_all(parts: Sequence[PartRead], halves: Halves) -> Whole:
    """From some parts of a source to all: documents per byte, in the smaller and the larger parts apart where enough of
    both were read. The spread is that of the estimates which leave one part out (the jackknife), the interval is taken
    on the logarithm, for a total is never below zero."""
    count, seen = sum(halves.parts), sum(part.documents for part in parts)
    apart = [[p for p in parts if p.size <= halves.middle], [p for p in parts if p.size > halves.middle]]
    strata = list(zip(apart, halves.parts, halves.bytes, strict=True))
    if min(len(some) for some in apart) < ENOUGH:
        strata = [(list(parts), count, sum(halves.bytes))]
    estimates = [in_stratum(*stratum) for stratum in strata]
    total = sum(documents for documents, _ in estimates)
    spreads = [spread for _, stratum_spreads in estimates for spread in stratum_spreads]
    variance = sum(spread.variance for spread in spreads)
    if not total or not math.isfinite(variance):
        exact = len(parts) == count and all(part.whole for part in parts)
        return Whole(len(parts), count, round(total), seen if exact else None, seen if exact else None)
    free = (
        variance**2 / sum(spread.variance**2 / spread.free for spread in spreads) if variance else 1.0
    )  # Welch and Satterthwaite
    factor = min(WIDEST, math.exp(min(9.0, student(free) * WIDER * math.sqrt(variance) / total)))
    return Whole(len(parts), count, round(total), max(seen, round(total / factor)), max(seen, round(total * factor)))


@dataclass(frozen=True)
class Spread:
    """A variance of an estimate and its degrees of freedom."""

    variance: float
    free: float


UNKNOWN = Spread(math.inf, 1.0)


def in_stratum(parts: Sequence[PartRead], of: int, size: int) -> tuple[float, list[Spread]]:
    """Documents in `of` parts of `size` bytes, and what that number may be off by: parts that were not read, and the
    rest of those that were begun."""
    if not parts:
        return 0.0, [UNKNOWN] if size else []
    sizes, documents = [max(1, part.size) for part in parts], [part.in_all for part in parts]
    share = min(1.0, sum(sizes) / max(1, size))
    total = sum(documents) / share
    within = sum(part.variance for part in parts) / share**2 * len(parts) / of
    spreads = [Spread(within, sum(part.documents for part in parts))] if within else []
    if len(parts) < of:
        without = (
            [(sum(documents) - n) / (sum(sizes) - x) * size for n, x in zip(documents, sizes, strict=True)]
            if len(parts) > 1
            else []
        )
        between = (1 - len(parts) / of) * (len(parts) - 1) / len(parts) * sum((other - total) ** 2 for other in without)
        alike = sum(sizes) ** 2 / sum(x * x for x in sizes)  # how many parts of one size would tell as much
        spreads.append(Spread(between, max(1.0, alike - 1)) if len(parts) > 1 else UNKNOWN)
    return total, spreads


def student(free: float) -> float:
    return STUDENT[int(free) - 1] if 1 <= free < len(STUDENT) + 1 else 1.96 + 2.6 / max(1.0, free)


class EstimateRecord(TypedDict):
    """An estimate as `gristmill run --json` prints it."""

    share: float
    documents: int
    low: int | None
    high: int | None
    kept: int
    drawn_by: str | None
    seconds: float
    disk_bytes: int
    memory_bytes: int
    cost: float | None
    currency: str | None


@dataclass(frozen=True)
class Estimate:
    """Time, disk, memory and money for the whole."""

    share: float
    documents: int
    low: int | None  # documents, at least and at most; None where too little was read to say
    high: int | None
    kept: int
    drawn_by: str | None  # a `mix` with a budget, which does not grow with the input: `kept` then come to it
    seconds: float
    disk_bytes: int
    memory_bytes: int
    cost: float | None  # at the recipe's prices
    currency: str | None

    @property
    def spread(self) -> tuple[float, float]:
        """By what the truth may be lower and higher, as far as documents tell."""
        if self.low is None or self.high is None or not self.documents:
            return 1.0, 1.0
        return self.low / self.documents, self.high / self.documents

    def plain(self) -> EstimateRecord:
        return {
            "share": self.share,
            "documents": self.documents,
            "low": self.low,
            "high": self.high,
            "kept": self.kept,
            "drawn_by": self.drawn_by,
            "seconds": self.seconds,
            "disk_bytes": self.disk_bytes,
            "memory_bytes": self.memory_bytes,
            "cost": self.cost,
            "currency": self.currency,
        }

    @property
    def kept_in_words(self) -> str:
        if self.drawn_by is None:
            return f"{self.kept:,} kept"
        return f"{self.kept:,} come to {self.drawn_by}, whose budget says how many are kept"

    def in_words(self) -> str:
        money = "" if self.cost is None else f", {as_money(self.cost, self.currency)}"
        sure = (
            f"{self.low:,} to {self.high:,}, {SURE}"
            if self.low is not None and self.high is not None
            else "too little was read to say how sure"
        )
        return (
            f"this read {self.share:.2%} of the input. The whole: about {self.documents:,} documents ({sure}), "
            f"{self.kept_in_words}, {for_people(self.seconds)} on as many workers, "
            f"{self.disk_bytes / 1e9:,.1f} GB of disk, {self.memory_bytes / 1e9:,.1f} GB of memory a worker{money} "
            "(duplicates grow with size: fewer may be kept)"
        )


def estimate(record: RunRecord, workers: int) -> Estimate:
    """Scale a partial run up: documents by the parts that each source gave them from, all else by bytes read. Only the
    seconds of the stages are scaled, not those of the start; kernels that were compiled will not be compiled again."""
    readers = {e["name"]: e for e in record["stages"] if e["kind"] == "read"}
    read, whole = sum(e["bytes_in"] for e in readers.values()), sum(i["bytes"] for i in record["inputs"].values())
    share = min(1.0, read / whole) if whole and read else 1.0
    sources = {name: record["inputs"][name].get("estimate") or read_whole(entry) for name, entry in readers.items()}
    budgeted = next((e for e in record["stages"] if e["stage"] == "mix" and e["settings"]["budget"]), None)
    last = budgeted or record["stages"][-1]
    price = record.get("cost")
    compiling = max(0.0, record["start"]["seconds"] - USUAL_START)
    fixed = max(0.0, record["seconds"] - compiling - sum(e["seconds"] for e in record["stages"]) / workers)
    documents = sum(s["documents"] for s in sources.values())
    lows = [s["documents"] - s["low"] for s in sources.values() if s["low"] is not None]
    highs = [s["high"] - s["documents"] for s in sources.values() if s["high"] is not None]
    is_sure = len(lows) == len(sources)
    return Estimate(
        share,
        documents,
        round(documents - math.hypot(*lows)) if is_sure else None,
        round(documents + math.hypot(*highs)) if is_sure else None,
        round(
            sum(
                (count["docs_in"] if budgeted else count["kept"])
                * sources[name]["documents"]
                / max(1, readers[name]["kept"])
                for name, count in last["sources"].items()
            )
        ),
        budgeted and budgeted["name"],
        fixed + sum(e["seconds"] for e in record["stages"]) / workers / share,
        round(record.get("disk_bytes", 0) / share),
        max((e["peak_memory"] for e in record["stages"]), default=0),
        None if price is None else price["amount"] / share,
        None if price is None else price["currency"],
    )


def read_whole(reader: StageRecord) -> WholeRecord:
    """Of a source that was read to its end."""
    kept = reader["kept"]
    return {"parts": 0, "of": 0, "documents": kept, "low": kept, "high": kept}


def for_people(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return "1 second" if round(seconds) == 1 else f"{seconds:,.0f} seconds"
