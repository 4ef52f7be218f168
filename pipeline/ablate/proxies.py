"""Proxy runs: many small models of one seed, each on its own mix, for the table that `regmix` and `log_linear` read.

Mixes are drawn around the shares of tokens as RegMix draws them (mixing/weights/regmix.py). The control is the mix by
tokens. Nothing is compared, so there is no verdict: what comes of it is ablations.csv, with a weight for every set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.regmix import draw_candidates
from gristmill.mixing.weights.supply import Supply
from gristmill.pipeline.ablate.measures import Scores, levels_of, measures_of
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan, Arm, Loaded, Proxies
from gristmill.pipeline.ablate.results import unmeasured
from gristmill.pipeline.look.token_sets import the_set
from gristmill.pipeline.report.ablation_record import ArmRecord, MeasureRecord, ProxyRecord
from gristmill.shards.format import BadShards
from gristmill.shards.reader import open_shards

LEAST = 0.002  # of a run's tokens; a set with less is left out of the mix, for rows are read in thousandths
BLOCK = 64  # mixes drawn at a time
TIMES = 8  # mixes drawn for each that is wanted: without the smallest weights some are the same


def with_mixes(loaded: Loaded) -> Loaded:
    """A plan with proxies has its mixes as arms; any other stays as it is."""
    plan = loaded.plan
    if plan.proxies is None:
        return loaded
    tokens = {}
    for name, corpus in plan.sets.items():
        try:
            folder = loaded.place(str(corpus.shards))
            tokens[name] = float(open_shards(the_set(str(folder), None)).index.total("tokens"))
        except BadShards as error:
            raise loaded.wrong(("sets", name), str(error)) from error
    try:
        mixes = drawn(Supply.of(tokens, float(plan.stands_for or plan.tokens), plan.proxies.max_epochs), plan.proxies)
    except ValueError as error:
        raise loaded.wrong(("proxies",), str(error)) from error
    control = mixes.pop(CONTROL)
    arms = {name: Arm(mix=mix, training={}) for name, mix in mixes.items()}
    changes = {"control": Arm(mix=control, training={}), "arms": arms, "seeds": (plan.proxies.seed,)}
    return replace(loaded, plan=plan.model_copy(update=changes))


def drawn(supply: Supply, proxies: Proxies) -> dict[str, dict[str, float]]:
    """Different mixes by name, the control by tokens among them. More runs leave the first as they are."""
    names = {tuple(usable(supply.tokens_N / supply.tokens_N.sum()).tolist()): CONTROL}
    for block in range(1 + TIMES * proxies.runs // BLOCK):
        for weights_N in draw_candidates(supply, BLOCK, proxies.seed << 16 | block):
            if len(names) <= proxies.runs:
                names.setdefault(tuple(usable(weights_N).tolist()), f"mix-{len(names):04d}")
    if len(names) <= proxies.runs:
        raise ValueError(f"runs: {proxies.runs}, but only {len(names) - 1} mixes of these sets differ")
    return {
        name: {each: weight for each, weight in zip(supply.names, weights, strict=True) if weight}
        for weights, name in names.items()
    }


def usable(weights_N: Floats) -> Floats:
    """Weights without those that are too small to be read, and in sum 1."""
    kept_N = np.where(weights_N >= LEAST, weights_N, 0.0)
    if not kept_N.any():
        kept_N = np.where(weights_N == weights_N.max(), weights_N, 0.0)
    rounded_N: Floats = np.round(kept_N / kept_N.sum(), 6)
    return rounded_N


def proxies_of(
    plan: AblationPlan, scores: Scores, problems: Mapping[str, str]
) -> tuple[list[MeasureRecord], list[ArmRecord], list[ProxyRecord]]:
    """Measures, and what each run came to, the best by the target first."""
    arms = []
    for arm in plan.arms:
        seeds = [seed for seed in plan.seeds if (arm, seed) in scores]
        status = "done" if seeds else "failed" if arm in problems else "not run"
        arms.append(unmeasured(plan, arm, status, problems.get(arm), seeds))
    if not scores:
        return [], arms, []
    measures = measures_of(plan.evaluate, scores)
    first = (CONTROL, plan.seeds[0]) if (CONTROL, plan.seeds[0]) in scores else next(iter(scores))
    target = next(m for m in measures if m.role == "target" and m.domain is None)
    runs: list[ProxyRecord] = []
    for arm, seed in scores:
        levels = {m.task: levels_of(scores, arm, [seed], m)[seed] for m in measures}
        runs.append({"name": arm, "levels": levels})
    sign = 1 if target.better == "lower" else -1
    runs.sort(key=lambda run: (sign * run["levels"][target.task], run["name"]))
    return [measure.facts(levels_of(scores, first[0], [first[1]], measure)) for measure in measures], arms, runs
