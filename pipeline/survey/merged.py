"""The histograms that legs have of one signal, as one. Legs beside each other have other documents; what is behind one
has the same again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gristmill.pipeline.survey.histogram_edges import places_of
from gristmill.pipeline.survey.records import CutCounts, SignalCounts, SurveyRecord


def side_by_side(surveys: Sequence[SurveyRecord]) -> list[SurveyRecord]:
    """The first leg, and those that have other sources: they are beside it. What is behind it has the same documents
    again."""
    chosen: list[SurveyRecord] = []
    for survey in surveys:
        if all(set(survey["sources"]).isdisjoint(other["sources"]) for other in chosen):
            chosen.append(survey)
    return chosen


def merged_signal(name: str, surveys: Sequence[SurveyRecord]) -> SignalCounts:
    """Of the legs that have the signal, those with all sources, each document once; of several such choices the one
    with most documents, which is the earliest in the run."""

    def documents(survey: SurveyRecord) -> int:
        return sum(survey["signals"][name]["counts"])

    def covered(chosen: Sequence[SurveyRecord]) -> tuple[int, int]:
        return sum(len(survey["sources"]) for survey in chosen), sum(map(documents, chosen))

    having = [survey for survey in surveys if name in survey["signals"]]
    narrow = sorted(having, key=lambda survey: (len(survey["sources"]), -documents(survey)))
    wide = sorted(having, key=lambda survey: (-len(survey["sources"]), -documents(survey)))
    chosen = max(side_by_side(narrow), side_by_side(wide), key=covered)
    return merged([survey["signals"][name] for survey in chosen])


def merged(signals: Sequence[SignalCounts]) -> SignalCounts:
    """Over the edges that part every leg's documents exactly, so that counts stay exact where edges differ."""
    if len(signals) == 1:
        return signals[0]
    low, high = min(signal["low"] for signal in signals), max(signal["high"] for signal in signals)
    candidates = sorted({low, *(edge for signal in signals for edge in signal["edges"])})
    edges = [edge for edge in candidates if all(parts_exactly(edge, signal) for signal in signals)]
    below = np.sum([[documents_below(edge, signal) for edge in edges] for signal in signals], axis=0)
    total = sum(sum(signal["counts"]) for signal in signals)
    decades = any(signal["decades"] for signal in signals)
    return {
        "edges": edges,
        "counts": np.diff([0, *below, total]).tolist(),
        "places": [round(place, 4) for place in places_of(edges, decades)],
        "decades": decades,
        "knee": None,
        "low": low,
        "high": high,
    }


def parts_exactly(edge: float, signal: SignalCounts) -> bool:
    return edge in signal["edges"] or edge <= signal["low"] or edge > signal["high"]


def documents_below(edge: float, signal: SignalCounts) -> int:
    if edge <= signal["low"]:
        return 0
    if edge > signal["high"]:
        return sum(signal["counts"])
    return sum(signal["counts"][: signal["edges"].index(edge) + 1])


def cuts_of(name: str, surveys: Sequence[SurveyRecord]) -> list[CutCounts]:
    """The thresholds on a signal, each once: a rule that sources with legs of their own share is in each leg."""
    cuts = [cut for survey in surveys for cut in survey["cuts"] if cut["signal"] == name]
    return list({(cut["stage"], cut["field"], cut["side"], cut["value"]): cut for cut in cuts}.values())
