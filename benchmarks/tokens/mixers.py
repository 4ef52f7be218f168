#!/usr/bin/env python3
"""Solvers of mixing/ beside cvxpy (Clarabel) on the same problems, and the draw's documents a second. One JSON line a
result.

    python -m benchmarks.tokens.mixers [--times 5] [--sources 1000] [--tasks 100] [--documents 2000000] [--no-peer]

Times are wall seconds, one thread (set here); the peer is built and solved once for each problem, and its time is that
of solve(). `worse_by` is the peer's objective less ours: above 0 the peer's answer is the worse one. `gap` bounds what
any mix could gain on ours. The draw is measured over both passes: hashes of uids, histogram, plan, cut and copies, from
arrays in memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from gristmill.mixing import draw
from gristmill.mixing.weights import log_linear, regmix
from gristmill.mixing.weights.ablations import Ablations, left_out, rank_correlation
from gristmill.mixing.weights.supply import Supply
from gristmill.mixing.weights.utilimax import utilimax

T = TypeVar("T")
PACKAGES = ("gristmill", "numpy", "scipy", "scikit-learn", "cvxpy", "clarabel")
LIMIT = 2.0


def timed(function: Callable[[], T], times: int) -> tuple[T, list[float]]:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        found = function()
        seconds.append(time.perf_counter() - start)
    return found, seconds


def report(what: str, sizes: dict[str, Any], values: list[float], **more: Any) -> None:
    line = {
        "what": what,
        "sizes": sizes,
        "median": digits(statistics.median(values)),
        "spread": [digits(min(values)), digits(max(values))],
        **more,
    }
    print(
        json.dumps(
            line
            | {"machine": platform.processor() or platform.machine(), "versions": {p: version(p) for p in PACKAGES}}
        ),
        flush=True,
    )


def digits(value: float) -> float:
    return float(f"{value:.4g}")


def solved(build: Callable[[Any], tuple[Any, list[Any]]]) -> tuple[Any, float]:
    """The peer's weights and seconds."""
    import cvxpy

    cost, limits = build(cvxpy)
    problem = cvxpy.Problem(cvxpy.Minimize(cost), limits)
    start = time.perf_counter()
    problem.solve(solver="CLARABEL")
    seconds = time.perf_counter() - start
    return problem.variables()[0].value, seconds


def utility(sources: int, tasks: int, times: int, peer: bool) -> None:
    random = np.random.default_rng(0)
    sizes = random.lognormal(0, 2, sources)
    supply = Supply.of({str(i): size for i, size in enumerate(sizes)}, sizes.sum(), 4.0)
    utility_NT = random.random((sources, tasks))
    for aversion in (1.0, 0.1, 0.01, 0.001, 0.0):
        tilt, seconds = timed(lambda aversion=aversion: utilimax(supply, utility_NT, aversion), times)
        more: dict[str, Any] = {"gap": digits(tilt.gap), "limit": LIMIT, "within_limit": max(seconds) < LIMIT}
        if peer:

            def build(cvxpy: Any, aversion: float = aversion) -> tuple[Any, list[Any]]:
                w = cvxpy.Variable(sources)
                cost = cvxpy.norm(utility_NT.T @ w - 1, 2) + aversion * sources * cvxpy.sum_squares(w)
                return cost, [w >= 0, w <= supply.caps_N, cvxpy.sum(w) == 1]

            theirs, took = solved(build)
            value = float(np.linalg.norm(utility_NT.T @ theirs - 1) + aversion * sources * theirs @ theirs)
            more |= {"peer": f"cvxpy with Clarabel, {took:.3g} s", "ratio": digits(took / statistics.median(seconds))}
            more |= {"worse_by": digits(value - tilt.distance - aversion * tilt.risk)}
        report(f"UtiliMax at aversion {aversion:g}, seconds", {"sources": sources, "tasks": tasks}, seconds, **more)


def fitted(times: int, peer: bool) -> None:
    runs, sources, tasks, kl = 128, 24, 20, 0.05
    random = np.random.default_rng(0)
    shares_N = random.dirichlet(np.full(sources, 2.0))
    weights_RN = np.array([random.dirichlet(random.uniform(0.5, 5) * sources * shares_N) for _ in range(runs)])
    losses_RT = random.uniform(0.3, 1.0, tasks) + np.exp(weights_RN @ random.normal(-0.5, 0.7, (tasks, sources)).T)
    losses_RT += 0.1 * losses_RT.std(axis=0) * random.normal(size=losses_RT.shape)
    table = Ablations.of(
        tuple(f"s{i:02}" for i in range(sources)), tuple(f"t{i:02}" for i in range(tasks)), weights_RN, losses_RT
    )
    supply = Supply.of(dict(zip(table.sources, shares_N, strict=True)), 2.0)
    shape = {"runs": runs, "sources": sources, "tasks": tasks}

    law, seconds = timed(lambda: log_linear.fit_law(table.weights_RN, table.losses_RT), times)
    report("log-linear law, fit, seconds", shape, seconds)
    even_T = np.full(tasks, 1 / tasks)
    found, seconds = timed(lambda: log_linear.propose(law, even_T, shares_N, supply.caps_N, kl), times)
    more: dict[str, Any] = {"gap": digits(found.gap)}
    if peer:

        def build(cvxpy: Any) -> tuple[Any, list[Any]]:
            w = cvxpy.Variable(sources)
            cost = even_T @ cvxpy.exp(law.slope_TN @ w) + kl * cvxpy.sum(cvxpy.rel_entr(w, shares_N))
            return cost, [w >= 0, w <= supply.caps_N, cvxpy.sum(w) == 1]

        theirs, took = solved(build)
        value = log_linear.objective(law, even_T, shares_N, kl, np.maximum(theirs, 0))
        more |= {
            "peer": f"cvxpy with Clarabel, {took:.3g} s",
            "ratio": digits(took / statistics.median(seconds)),
            "worse_by": digits(value - found.value),
        }
    report("log-linear law, best mix, seconds", shape, seconds, **more)
    for what, fit in (("log-linear", log_linear.fit_law), ("ridge", regmix.ridge), ("trees", regmix.trees(0))):
        predicted_RT, seconds = timed(lambda fit=fit: left_out(table.weights_RN, table.losses_RT, fit), 1)
        correlation = np.mean([rank_correlation(predicted_RT[:, t], table.losses_RT[:, t]) for t in range(tasks)])
        report(
            f"{what}, tenths left out, seconds", shape, seconds, rank_correlation_of_a_task=digits(float(correlation))
        )
    _, seconds = timed(lambda: regmix.draw_candidates(supply, 100_000, 0), times)
    report("RegMix, candidates within caps, seconds", {"candidates": 100_000, "sources": sources}, seconds)


def drawn(documents: int, sources: int, times: int) -> None:
    random = np.random.default_rng(0)
    uids, groups = random.integers(0, 2**64, documents, np.uint64), random.integers(0, sources, documents)
    tokens = np.ceil(random.lognormal(6, 1.2, documents)).astype(np.int64)
    totals_G = np.bincount(groups, weights=tokens, minlength=sources)
    wanted_G = np.rint(totals_G * random.uniform(0.01, 4, sources)).astype(np.int64)
    bits = draw.bits_for(sources)

    def both_passes() -> tuple[Any, Any]:
        hashes = draw.draw_hashes(uids, 0)
        planned = draw.plan(draw.histogram(draw.bins_of(hashes, bits), tokens, groups, sources, bits), wanted_G)
        near = draw.in_cut_bin(bits, planned.bin_G, hashes, groups)
        cuts = draw.exact_cuts(planned, uids[near], hashes[near], tokens[near], groups[near])
        return draw.copies(cuts, uids, hashes, groups), near

    (copies, near), seconds = timed(both_passes, times)
    got_G = np.bincount(groups, weights=copies * tokens.astype(np.float64), minlength=sources)
    report(
        "the draw, both passes, documents a second", {"documents": documents, "sources": sources},
        [documents / s for s in seconds],
        off_by_share_of_budget=digits(abs(float(got_G.sum() - wanted_G.sum())) / float(wanted_G.sum())),
        worst_source_off_by_tokens=int(np.abs(got_G - wanted_G).max()), read_in_pass_two=int(near.sum()),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--sources", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="leave cvxpy out")
    arguments = parser.parse_args()
    with threadpool_limits(limits=1):
        utility(arguments.sources, arguments.tasks, arguments.times, arguments.peer)
        fitted(arguments.times, arguments.peer)
        for sources in (10, 1000):
            drawn(arguments.documents, sources, arguments.times)


if __name__ == "__main__":
    main()
