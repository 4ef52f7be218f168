"""How often each document is seen: weights of sources (stages/blend/methods.py), turned into copies by a draw on the
uid (mixing/draw.py).

Weights are shares of the tokens of training, so tokens are counted first. A source gives whole epochs and a fraction of
one; which documents make the fraction is by hash. No pass reads texts, and no list of all documents is ever held: sums
by hash, then the documents at the cut alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.settings import in_a_sentence, nearest
from gristmill.mixing import draw
from gristmill.mixing.weights.supply import ShortSupply, Supply, simulated_epoching
from gristmill.stages.blend.cells import caps_of, is_by_part, joined, smaller_than
from gristmill.stages.blend.copies import COPIES
from gristmill.stages.blend.examples import CellExamples
from gristmill.stages.blend.figures import mix_figures
from gristmill.stages.blend.groups import group_names, parts_of
from gristmill.stages.blend.methods import AnyMethod, ChosenMix, Given, Proportional, Regmix, choose
from gristmill.stages.checks import Complaint, RecipeContext
from gristmill.stages.figures import Report, StageFigures, TokenCounts
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.one_of import OneOf, name_of
from gristmill.stages.sample import chances
from gristmill.stages.stage import CannotRun, Global

BITS = 12  # of the hash, by which tokens are summed: the documents at the cut are one in 4,096
BITS_OF_CELLS = 8  # of groups by three columns and more, of which there may be ten thousand
PROXY = 0x70726F7879  # added to the seed: which documents a proxy run keeps says nothing about which it draws


class Mix(Global):
    """Mix sources: each gives its share of the token budget, in whole epochs and a fraction that is drawn.

    Documents get `copies`; one that is not drawn goes (`not_drawn`). A source is never off by more than half of one
    document. A weight that would repeat a source past `max_epochs` is an error that says which source runs short, and
    by how much. Needs `tokens`: put `tokenize` before it.
    """

    by: list[str] = Field(
        default=["source"],
        description="columns that tell sources apart: source, language, a topic, a bucket of quality",
    )
    method: Annotated[AnyMethod, OneOf("method")] = Field(
        default_factory=Proportional, description="where weights come from (chapter Mixing); proportional unless given"
    )
    budget: Annotated[
        float | None, Field(description="tokens of training; null: as many as there are", gt=0, allow_inf_nan=False)
    ] = None
    max_epochs: Annotated[
        float | dict[str, float],
        Field(
            description=(
                "how often a token may be seen; for all sources, for each, or by part: `{topic=science: 8, others: 4}`"
            )
        ),
    ] = 4.0
    least_tokens: Annotated[
        float,
        Field(
            description="groups of `by` with fewer tokens are joined: those that differ only in the last column first",
            ge=0,
            allow_inf_nan=False,
        ),
    ] = 0.0
    small_cells: Annotated[
        Literal["join", "refuse"], Field(description="groups below `least_tokens` are joined, or end the run")
    ] = "join"
    stands_for: Annotated[
        float | None,
        Field(
            description=(
                "the budget of the large run that this one is a proxy of: sources are thinned so that they "
                "repeat as they will there"
            ),
            gt=0,
            allow_inf_nan=False,
        ),
    ] = None
    seed: Annotated[int, Field(description="of the draw", ge=0)] = 0

    adds: ClassVar[tuple[str, ...]] = (COPIES,)
    groups_by: ClassVar[str] = "by"
    expect_drops: ClassVar[float] = 1.0

    @field_validator("max_epochs")
    @classmethod
    def _epochs_can_be(cls, given: float | dict[str, float]) -> float | dict[str, float]:
        caps = given if isinstance(given, dict) else {"": given}
        for name, cap in caps.items():
            if not (math.isfinite(cap) and cap >= 0):
                raise ValueError(
                    f"{cap:g} epochs{f' of {name!r}' if name else ''}; a finite number, 0 or more, was expected"
                )
        if not any(caps.values()):
            raise ValueError("0 epochs leave nothing to train on")
        return given

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if not self.by:
            raise ValueError("by: name at least one column")
        if self.stands_for is not None and (self.budget is None or self.stands_for < self.budget):
            raise ValueError(
                "stands_for is the budget of a larger run: give `budget`, the proxy's own, and it must not "
                "be the larger of the two"
            )
        return self

    @property
    def wants(self) -> tuple[str, ...]:
        return ("tokens",)

    @property
    def read(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("uid", "tokens", *self.by)))

    @property
    def bits(self) -> int:
        return BITS if len(self.by) < 3 else BITS_OF_CELLS

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        with_trees = isinstance(self.method, Regmix) and self.method.regressor == "trees"
        return () if with_trees else ("sklearn", "threadpoolctl")

    @property
    def examples(self) -> CellExamples:
        return CellExamples(tuple(self.by), self.seed)

    @property
    def round_helpers(self) -> tuple[object, ...]:
        return (self.examples,)

    def check_recipe(self, context: RecipeContext) -> list[Complaint]:
        """A mix by source must speak of the sources that come to it and of no others: it is asked after all the work
        before it."""
        if self.by != ["source"]:
            return []
        here = context.arriving
        complaints: list[Complaint] = []
        for place, names in self.mentioned().items():
            meant: set[str] = set()
            for name in names:
                if name not in here:
                    near = nearest(name, here)
                    meant |= {*near}
                    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(here) or 'none'}"
                    complaints.append(Complaint(f"no such source comes here; {hint}", (*place, name)))
            lacking = [name for name in here if name not in {*names, *meant}]
            if lacking:
                zero = " (0 leaves a source out)" if place[-1] == "weights" else ""
                complaints.append(Complaint(f"says nothing of {in_a_sentence(lacking)}{zero}", place))
        return complaints

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        return StageFigures("Mix", mix_figures(report)) if "mix" in report else None

    @classmethod
    def token_counts(cls, report: Report) -> TokenCounts | None:
        """Those drawn of each source."""
        if "mix" not in report:
            return None
        mix = report["mix"]
        if mix.get("by") != ["source"]:
            return TokenCounts(None)
        pairs = zip(mix["sources"], mix["drawn"], strict=True)
        return TokenCounts({str(source["source"]): int(drawn["drawn"]) for source, drawn in pairs})

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        first = (*self.read, "copies", "bucket")
        sums = flow.gather(flow.combine(self.summed, flow.map(self.counted, docs, columns=first, by="key"), by="key"))
        if not len(sums):
            raise CannotRun("no document is left to mix")
        try:
            cell_of = self.cells(sums)
        except ValueError as error:
            raise CannotRun(str(error)) from error
        place = pc.index_in(sums["group"], value_set=pa.array(list(cell_of)))
        sums = sums.set_column(0, "group", pa.array(list(cell_of.values())).take(place))
        present = {*cell_of.values()}
        names = sorted(present | self.without_documents(present))
        there_N, table_GB = totals_of(sums, names, self.bits)
        bits = min(self.bits, draw.bits_for(len(names)))
        table_GB = table_GB.reshape(len(names), 1 << bits, -1).sum(axis=2)
        wanted = self.budget or float(there_N.sum())
        try:
            tokens = dict(zip(names, there_N.tolist(), strict=True))
            mix, budget = self.chosen(tokens, wanted, flow.run.partial, cell_of)
            self.check_proxy(names, mix.weights_N, table_GB)
            planned = draw.plan(table_GB, draw.tokens_wanted(mix.weights_N, budget))
        except (ValueError, ArithmeticError) as error:
            raise CannotRun(str(error)) from error
        place_of = {name: place for place, name in enumerate(names)}
        cell = np.array([place_of[name] for name in cell_of.values()], np.int64)  # by group of `by`
        groups = pa.array(list(cell_of), pa.string())
        beside = pa.table({"group": groups, "bin": planned.bin_G[cell], "bits": [bits] * len(groups)})
        at_cut = flow.gather(flow.map(self.at_the_cut, docs, columns=self.read, by="hash", broadcast=beside))
        cuts = draw.exact_cuts(planned, *self.columns_of(at_cut, cell_of, place_of))
        facts = {**mix.facts, **self.account(planned, cuts, there_N), **self.facts_of_cells(cell_of, names)}
        nothing = [repr(names[n]) for n in np.flatnonzero((planned.wanted_G > 0) & (cuts.drawn_G == 0)).tolist()]
        if nothing:
            facts["warnings"] = [
                *facts["warnings"],
                f"no document is drawn of {in_a_sentence(nothing)}: less is wanted than half of the first document",
            ]
        if budget < wanted:
            facts["warnings"] = [
                *facts["warnings"],
                f"of a part of the input: the budget of {wanted:,.0f} tokens was lowered to {budget:,.0f}",
            ]
        if self.by != ["source"]:
            cells = pa.table({"group": groups, "cell": pa.array(list(cell_of.values()), pa.string())})
            facts["examples"] = self.examples.gather(docs, flow, cells)
        flow.report("mix", facts)
        drawn = {name: column[cell] for name, column in asdict(cuts).items()}
        return flow.mark(self.drawn, docs, columns=self.read, broadcast=pa.table({"group": groups, **drawn}))

    def cells(self, sums: pa.Table) -> dict[str, str]:
        """The cell of each group of `by`: its own name, or that of the small ones that it is joined with."""
        rows = sums.group_by("group").aggregate([("all", "sum")]).sort_by("group").to_pydict()
        tokens = dict(zip(rows["group"], map(float, rows["all_sum"]), strict=True))
        small = smaller_than(tokens, self.least_tokens)
        if small and self.small_cells == "refuse":
            raise ValueError(
                f"{len(small):,} of {len(tokens):,} cells have fewer than {self.least_tokens:,.0f} tokens:"
                f" {in_a_sentence([f'{name!r} {tokens[name]:,.0f}' for name in small])}. Lower least_tokens, leave a"
                " column out of `by`, or take small_cells: join"
            )
        return joined(tokens, len(self.by), self.least_tokens) if small else {name: name for name in tokens}

    def facts_of_cells(self, cell_of: dict[str, str], names: list[str]) -> dict[str, Any]:
        """Values of each cell by column, and which groups were joined into which cell."""
        merged = {name: cell for name, cell in cell_of.items() if name != cell}
        return {"parts": [parts_of(name, len(self.by)) for name in names], **({"joined": merged} if merged else {})}

    def chosen(
        self, tokens: dict[str, float], wanted: float, partial: bool, cell_of: dict[str, str]
    ) -> tuple[ChosenMix, float]:
        """The mix and its budget. Of a part of the input (`--limit`) sources of which it has nothing are left out, and
        the budget is lowered until there is enough of every other."""
        budget, method, empty = wanted, self.method, list[str]()
        if partial and isinstance(method, Given):
            empty = [name for name, number in method.weights.items() if number and tokens.get(name) == 0]
            weights = {name: number * (name not in empty) for name, number in method.weights.items()}
            method = method.model_copy(update={"weights": weights})
        caps = self.max_epochs
        if isinstance(caps, dict) and is_by_part(caps, self.by):
            small = {name: cell for name, cell in cell_of.items() if name != cell}
            caps = caps_of(caps, self.by, tokens, partial, small)
        while True:
            scale = budget / wanted
            supply = Supply.of(tokens, self.stands_for * scale if self.stands_for else budget, caps)
            try:
                mix = choose(supply, method, self.seed)
                warnings = (
                    [f"of a part of the input: no document of {', '.join(map(repr, empty))} is in it"] if empty else []
                )
                return replace(mix, facts={**mix.facts, "warnings": mix.facts["warnings"] + warnings}), budget
            except ShortSupply:
                if not partial or budget < 1:
                    raise
            budget /= 1.25

    def check_proxy(self, names: list[str], weights_N: Array, table_GB: Array) -> None:
        lost = [
            name
            for name, weight, tokens in zip(names, weights_N, table_GB.sum(axis=1), strict=True)
            if weight > 0 and tokens == 0
        ]
        if lost:
            raise CannotRun(
                f"thinned for the proxy, {', '.join(map(repr, lost))} keep no document at all: raise the "
                "budget, or lower stands_for"
            )

    def without_documents(self, present: set[str]) -> set[str]:
        """Sources that settings speak of and that have no document left: they are there, with no tokens. Not where a
        setting says nothing of a source that has documents: there a name may be mistyped."""
        mentioned = [{*names} for names in self.mentioned().values()]
        return set().union(*mentioned) - present if all(present <= names for names in mentioned) else set()

    def mentioned(self) -> dict[tuple[str, ...], Collection[str]]:
        """The sources that settings speak of, by the setting's place."""
        below = ("method", name_of(self.method))
        mentioned = {(*below, setting): names for setting, names in self.method.mentioned().items()}
        caps = self.max_epochs
        return mentioned | ({("max_epochs",): caps} if isinstance(caps, dict) and not is_by_part(caps, self.by) else {})

    def groups(self, docs: pa.Table) -> pa.Array:
        """What tells sources apart, as one text."""
        return group_names(docs, self.by, "to tell sources apart by")

    def hashes(self, docs: pa.Table) -> Array:
        return draw.draw_hashes(docs["uid"].to_numpy(), self.seed)

    def takes_part(self, docs: pa.Table) -> Array:
        """All documents; of a proxy run the share that keeps repeats as they are in the run it stands for."""
        if self.stands_for is None or self.budget is None:
            return np.ones(len(docs), bool)
        share = simulated_epoching(self.budget, self.stands_for)
        chosen: Array = chances(docs["uid"].to_numpy(), self.seed + PROXY) / 2.0**64 < share
        return chosen

    def counted(self, docs: pa.Table) -> pa.Table:
        """Tokens by source and by the top bits of the hash: of all documents, and of those that take part."""
        if "copies" in docs.column_names:
            raise CannotRun("documents were mixed before: one `mix` says how often each is seen")
        if "bucket" in docs.column_names:
            raise CannotRun("documents have their places in training already: put `mix` before `order`")
        tokens = docs["tokens"].to_numpy().astype(np.int64)
        rows = {
            "group": self.groups(docs),
            "bin": draw.bins_of(self.hashes(docs), self.bits),
            "all": tokens,
            "tokens": tokens * self.takes_part(docs),
            "key": np.zeros(len(docs), np.uint64),
        }
        return self.summed([pa.table(rows)])

    def summed(self, tables: list[pa.Table]) -> pa.Table:
        rows = pa.concat_tables([table.select(["group", "bin", "all", "tokens", "key"]) for table in tables])
        rows = rows.group_by(["group", "bin"]).aggregate([("all", "sum"), ("tokens", "sum"), ("key", "min")])
        return rows.rename_columns({"all_sum": "all", "tokens_sum": "tokens", "key_min": "key"})

    def at_the_cut(self, docs: pa.Table, planned: pa.Table) -> pa.Table:
        """The documents among which the fraction of an epoch ends."""
        hashes, groups = self.hashes(docs), self.groups(docs)
        group = pc.index_in(groups, value_set=planned["group"].combine_chunks()).to_numpy()
        here = draw.in_cut_bin(planned["bits"][0].as_py(), planned["bin"].to_numpy(), hashes, group) & self.takes_part(
            docs
        )
        rows = {
            "uid": docs["uid"].to_numpy()[here],
            "hash": hashes[here],
            "tokens": docs["tokens"].to_numpy()[here].astype(np.int64),
        }
        return pa.table({**rows, "group": groups.filter(pa.array(here))})

    def columns_of(
        self, rows: pa.Table, cell_of: dict[str, str], place_of: dict[str, int]
    ) -> tuple[Array, Array, Array, Array]:
        if not len(rows):
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        group = np.array([place_of[cell_of[name]] for name in rows["group"].to_pylist()], np.int64)
        return rows["uid"].to_numpy(), rows["hash"].to_numpy(), rows["tokens"].to_numpy(), group

    def drawn(self, docs: pa.Table, told: pa.Table) -> pa.Table:
        """Row by row: how often the document is seen."""
        names = told["group"].combine_chunks()
        cuts = draw.Cuts(*(told[name].to_numpy() for name in ("whole_G", "hash_G", "uid_G", "drawn_G")))
        group = pc.index_in(self.groups(docs), value_set=names).to_numpy().astype(np.int64)
        takes_part = self.takes_part(docs)
        copies = draw.copies(cuts, docs["uid"].to_numpy(), self.hashes(docs), group) * takes_part
        reason = np.where(takes_part, "not_drawn", "not_in_proxy")
        return pa.table(
            {
                "uid": docs["uid"],
                "reason": pa.array(reason, pa.string(), mask=copies > 0),
                "detail": pa.nulls(len(docs), pa.string()),
                "copies": pa.array(copies.astype(np.uint16)),
            }
        )

    def account(self, planned: draw.DrawPlan, cuts: draw.Cuts, there_N: Array) -> dict[str, Any]:
        """What was drawn, beside what was wanted."""
        columns = zip(
            planned.wanted_G.tolist(), cuts.drawn_G.tolist(), planned.total_G.tolist(), there_N.tolist(), strict=True
        )
        return {
            "by": self.by,
            "drawn": [
                dict(zip(("wanted", "drawn", "taking_part", "there"), column, strict=True)) for column in columns
            ],
        }


def totals_of(sums: pa.Table, names: list[str], bits: int) -> tuple[Array, Array]:
    """Tokens that each source has, and by hash those of documents that take part."""
    group = pc.index_in(sums["group"], value_set=pa.array(names)).to_numpy().astype(np.int64)
    there_N = np.bincount(group, weights=sums["all"].to_numpy(), minlength=len(names))
    return there_N, draw.histogram(sums["bin"].to_numpy(), sums["tokens"].to_numpy(), group, len(names), bits)
