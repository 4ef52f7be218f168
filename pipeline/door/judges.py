"""Judges from Python: trained, opened, used and compressed as objects; texts labelled and sources rated by language
models. The commands of `gristmill judge` call these, and show what they return."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Group
from rich.text import Text

from gristmill.kernels.common.device import on_device
from gristmill.pipeline.door.scripts import refuse_in_a_worker
from gristmill.pipeline.door.views import View
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.columns import files_of
from gristmill.pipeline.judging import judge_plan, labelling, lessons, medu, scoring, show as views, train as judging
from gristmill.pipeline.recipe.plans import LoadedPlan, of_options

Plan = Mapping[str, Any] | str | Path


class TrainedJudge:
    """A judge in its folder: its figures on held-out texts, scores of texts, and the words that moved a score.

    In a recipe it is `{"judge": {"judge_path": judge.folder}}`.
    """

    def __init__(self, folder: str | Path, device: str = "auto") -> None:
        self.folder = str(folder)
        self._judge = scoring.judge_at(self.folder, device)

    @property
    def card(self) -> dict[str, Any]:
        """What is known of it: kind, heads, training, metrics on held-out texts, versions."""
        return self._judge.card.as_json()

    @property
    def figures(self) -> View:
        """How well it does on texts of groups (hosts, sources) that it has not seen."""
        return View(self.card, Group(*views.card_view(self._judge.card)))

    def score(self, texts: Sequence[str] | pa.Array | pa.ChunkedArray) -> dict[str, list[float]]:
        """Scores of texts by head, as the stage `judge` adds them."""
        found = self._judge.score(column_of(texts))
        return {name: [float(each) for each in scores] for name, scores in found.items()}

    def explain(self, text: str, head: str | None = None, most: int = 10) -> list[tuple[str, float]]:
        """The words of a text that moved its score most, strongest first; above 0 they raise it. Not every kind can."""
        return self._judge.explain(text, head or self._judge.card.heads[0].name, most)

    def score_text(self, text: str, explain: bool = False) -> View:
        """Score one text; `explain` adds the words that moved its score most."""
        return self._scores(scoring.score_text(self._judge, text), explain)

    def score_files(
        self,
        files: str | Path | Sequence[str | Path],
        out: str | Path | None = None,
        *,
        text: str = "text",
        explain: bool = False,
        show: int = 3,
        seen: Callable[[int], None] = lambda texts: None,
    ) -> View:
        """Score the texts of files (Parquet, JSON lines, CSV or text; folders, globs): quantiles, and the best and
        worst texts, `show` of each. `out`: a Parquet file with every score, and its file, row and URL. `text` is the
        column with the text; `explain` adds the words that moved the shown scores most; `seen` is told of texts so
        far."""
        paths = files_of(paths_in(files), "texts")
        found = scoring.score_files(self._judge, paths, text, None if out is None else str(out), show, seen)
        return self._scores(found, explain)

    def _scores(self, found: Sequence[scoring.HeadScores], explain: bool) -> View:
        unexplained = scoring.explain(self._judge, found) if explain else ""
        return View(scoring.as_json(found, unexplained), Group(*views.scores_view(found, unexplained)))

    def compress(
        self,
        texts: str | Path | Sequence[str | Path],
        out: str | Path,
        *,
        weights: str = "int8",
        sparse: bool = False,
        layers: int | None = None,
        epochs: float = 3.0,
        calibration: int = 256,
        text: str = "text",
        group: str = "url",
        hold_out: float = 0.2,
        seed: int = 0,
        device: str = "auto",
        note: Callable[[str], None] = lambda line: None,
    ) -> TrainedJudge:
        """A smaller and faster copy of a neural judge in the new folder `out`, from files of texts like those that it
        will score; `figures` says how well it keeps the order of scores.

        `weights`: int8, int4 or float32. `sparse` removes two of every four weights. `layers` that stay, and `epochs`
        of distillation follow. `calibration`: texts by which errors are made up for. `group`: a column whose values are
        held out as a whole, `hold_out` as a share of them. `note` is told how far it is.
        """
        refuse_in_a_worker()
        folder, place = judging.room_for(str(out)), on_device(device)
        if self._judge.card.kind != "neural":
            raise RecipeError(f"{self.folder}: a {self._judge.card.kind} judge; only neural judges can be compressed")
        settings = {
            "weights": weights, "sparse": sparse, "layers": layers, "epochs": epochs,
            "calibration": calibration, "held_out": hold_out, "seed": seed,
        }  # fmt: skip
        with scoring.judge_errors():
            compression = import_module("gristmill.classifiers.neural.compression")  # it wants torch
            how = compression.Compression(**settings)
            some = lessons.texts_in_groups(paths_in(texts), text, group)
            judging.check_writable(folder)
            note(f"compressing on {place}, with {len(some):,} texts")
            whole = scoring.judge_at(self.folder)
            small = compression.compress(
                whole, some, how, place, lambda facts: note(", ".join(f"{name} {facts[name]}" for name in facts))
            )
            small.save(folder)
        return TrainedJudge(folder, device)

    def __repr__(self) -> str:
        heads = ", ".join(head.name for head in self._judge.card.heads)
        return f"TrainedJudge({self.folder!r}, {self._judge.card.kind}: {heads})"

    def _repr_html_(self) -> str:
        return self.figures._repr_html_()


def column_of(texts: Sequence[str] | pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Texts as a column; TypeError says what is no list of them."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"a list of texts was expected, not one {type(texts).__name__}: score([text])")
    if isinstance(texts, pa.Array | pa.ChunkedArray):
        if texts.null_count:
            raise TypeError(f"text {pc.index(pc.is_null(texts), True).as_py()} is null: leave it out, or give ''")
        return texts
    column = list(texts)
    for place, text in enumerate(column):
        if not isinstance(text, str):
            said = "None: leave it out, or give ''" if text is None else f"{type(text).__name__}, no text"
            raise TypeError(f"text {place} is {said}")
    return pa.array(column, pa.large_string())


def train_judge(
    plan: Plan, out: str | Path | None = None, *, note: Callable[[str], None] = lambda line: None
) -> TrainedJudge:
    """Train a judge as `gristmill judge train` does, into a new folder `out` (unless the plan names one).

    `plan` is a YAML file, or the same settings as a dictionary, whose paths are relative to the folder that Python runs
    in. `note` is told how far it is. Raises `GristmillError` with a message for people.
    """
    refuse_in_a_worker()
    ready = judging.prepare(plan_of_judge(plan), out)
    ready.carry_out(note)
    return TrainedJudge(ready.folder)


def plan_of_judge(plan: Plan) -> LoadedPlan[judge_plan.JudgePlan]:
    if isinstance(plan, Mapping):
        return judge_plan.checked(of_options(plan, judge_plan.JudgePlan))
    return judge_plan.load(Path(plan))


def label_texts(
    plan: Plan,
    out: str | Path | None = None,
    *,
    dry_run: bool = False,
    seen: Callable[[int], None] = lambda answers: None,
    note: Callable[[str], None] = lambda line: None,
) -> View:
    """Have a language model label texts by a taxonomy, as `gristmill judge label` does: labels.parquet in the folder,
    a table to train a judge on. `plan` is a YAML file or a dictionary. Run it again to resume. `dry_run` only says what
    would be asked, and what it costs; `seen` is told of answers so far, `note` what is begun."""
    refuse_in_a_worker()
    loaded = of_options(plan, labelling.LabelPlan) if isinstance(plan, Mapping) else labelling.load(Path(plan))
    job = labelling.LabelJob.of(loaded, out)
    if dry_run:
        return View(job.expected, Text(job.expected))
    note(job.expected)
    facts = job.carry_out(seen).facts
    where = Text(f"labels: {job.folder / 'labels.parquet'}")
    return View(facts, Group(*views.labels_view(facts), where))


def rate_sources(
    plan: Plan,
    out: str | Path | None = None,
    *,
    dry_run: bool = False,
    seen: Callable[[int], None] = lambda answers: None,
    note: Callable[[str], None] = lambda line: None,
) -> View:
    """Have a language model say how useful each source is for benchmarks (MEDU), as `gristmill judge rate` does: a
    table that `mix` reads, utilities.csv in the folder. `plan` is a YAML file or a dictionary. Run it again to resume.
    `dry_run` only says what would be asked, and what it costs at most; `seen` is told of answers so far, `note` what is
    begun."""
    refuse_in_a_worker()
    loaded = of_options(plan, medu.RatePlan) if isinstance(plan, Mapping) else medu.load(Path(plan))
    job = medu.RateJob.of(loaded, out)
    if dry_run:
        return View(job.expected.as_dict(job.plan.costs), views.questions_table(job))
    if job.documents:
        sources = {document.source for document in job.documents}
        note(f"documents: {len(job.documents):,}, sources: {len(sources):,}, tasks: {len(job.tasks):,}")
    found = job.carry_out(seen)
    account = json.loads((job.folder / "account.json").read_text(encoding="utf-8"))
    where = Text(f"utilities: {job.folder / 'utilities.csv'}")
    return View(account, Group(*views.ratings_view(found, account["account"]), where))


def paths_in(files: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(files)] if isinstance(files, str | Path) else [str(file) for file in files]


def open_judge(folder: str | Path, device: str = "auto") -> TrainedJudge:
    """The judge in a folder. `device`: where a neural one scores, auto (a GPU if there is one), cpu or cuda."""
    return TrainedJudge(folder, device)
