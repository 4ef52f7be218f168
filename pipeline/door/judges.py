"""Judges from Python: trained, opened, used and compressed as objects; texts labelled and sources rated by language
models. Each does what the command of `gristmill judge` does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.classifiers.card import JudgeError
from gristmill.kernels.common.device import on_device
from gristmill.pipeline.door.scripts import refuse_in_a_worker
from gristmill.pipeline.door.views import View, gathered
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.columns import files_of
from gristmill.pipeline.judging import judge_plan, labelling, medu, scoring, train as judging
from gristmill.pipeline.judging.compress import compressed
from gristmill.pipeline.judging.show import show_figures, show_findings, show_labels, show_scores
from gristmill.pipeline.judging.train import room_for
from gristmill.pipeline.recipe.plans import of_options
from gristmill.stages.judge.judge import takes_a_gpu

if TYPE_CHECKING:
    from gristmill.classifiers.judge import Judge


class TrainedJudge:
    """A judge in its folder: its figures on held-out texts, scores of texts, and the words that moved a score.

    In a recipe it is `{"judge": {"judge_path": judge.folder}}`.
    """

    def __init__(self, folder: str | Path, device: str = "auto") -> None:
        from gristmill.classifiers.judge import load_judge

        self.folder = str(folder)
        try:
            place = on_device(device) if takes_a_gpu(self.folder) else "cpu"  # torch is asked only then
            self._judge: Judge = load_judge(self.folder, place)
        except (JudgeError, KeyError, TypeError, ValueError, FileNotFoundError, NotADirectoryError) as error:
            raise RecipeError(f"{self.folder}: no judge: {error}") from error

    @property
    def card(self) -> dict[str, Any]:
        """What is known of it: kind, heads, training, metrics on held-out texts, versions."""
        return self._judge.card.as_json()

    @property
    def figures(self) -> View:
        """How well it does on texts of groups (hosts, sources) that it has not seen."""
        card = self._judge.card
        return View(card.as_json(), gathered(lambda screen: show_figures(screen, card)))

    def score(self, texts: Sequence[str] | pa.Array | pa.ChunkedArray) -> dict[str, list[float]]:
        """Scores of texts by head, as the stage `judge` adds them."""
        found = self._judge.score(column_of(texts))
        return {name: [float(each) for each in scores] for name, scores in found.items()}

    def explain(self, text: str, head: str | None = None, most: int = 10) -> list[tuple[str, float]]:
        """The words of a text that moved its score most, strongest first; above 0 they raise it. Not every kind can."""
        return self._judge.explain(text, head or self._judge.card.heads[0].name, most)

    def score_files(
        self,
        files: str | Path | Sequence[str | Path],
        out: str | Path | None = None,
        *,
        text: str = "text",
        explain: bool = False,
        show: int = 3,
    ) -> View:
        """Score the texts of files (Parquet, JSON lines, CSV or text; folders, globs): quantiles, and the best and
        worst texts, `show` of each. `out`: a Parquet file with every score, and its file, row and URL. `text` is the
        column with the text; `explain` adds the words that moved the shown scores most."""
        paths = files_of(paths_in(files), "texts")
        found = scoring.score_files(self._judge, paths, text, None if out is None else str(out), show)
        unexplained = scoring.explain(self._judge, found) if explain else ""
        facts = scoring.as_json(found, unexplained)
        return View(facts, gathered(lambda screen: show_scores(screen, found, unexplained)))

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
    ) -> TrainedJudge:
        """A smaller and faster copy of a neural judge in the new folder `out`, from files of texts like those that it
        will score; `figures` says how well it keeps the order of scores.

        `weights`: int8, int4 or float32. `sparse` removes two of every four weights. `layers` that stay, and `epochs`
        of distillation follow. `calibration`: texts by which errors are made up for. `group`: a column whose values are
        held out as a whole, `hold_out` as a share of them.
        """
        refuse_in_a_worker()
        folder = room_for(str(out))
        settings = {
            "weights": weights, "sparse": sparse, "layers": layers, "epochs": epochs,
            "calibration": calibration, "held_out": hold_out, "seed": seed,
        }  # fmt: skip
        with judge_errors():
            small = compressed(
                self.folder, paths_in(texts), text, group, settings, on_device(device), folder, lambda line: None
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


def train_judge(plan: Mapping[str, Any] | str | Path, out: str | Path | None = None) -> TrainedJudge:
    """Train a judge as `gristmill judge train` does, into a new folder `out` (unless the plan names one).

    `plan` is a YAML file, or the same settings as a dictionary, whose paths are relative to the folder that Python runs
    in. Raises `GristmillError` with a message for people.
    """
    refuse_in_a_worker()
    if isinstance(plan, Mapping):
        loaded = judge_plan.checked(of_options(plan, judge_plan.JudgePlan))
    else:
        loaded = judge_plan.load(Path(plan))
    folder = room_for(loaded.out(out), loaded.where("out"))
    with judge_errors():
        ready = judging.prepare(loaded)
        judging.check_writable(folder)
        judging.save(ready, judging.train(ready, lambda line: None), folder)
    return TrainedJudge(folder)


def label_texts(plan: Mapping[str, Any] | str | Path, out: str | Path | None = None) -> View:
    """Have a language model label texts by a taxonomy, as `gristmill judge label` does: labels.parquet in the folder,
    a table to train a judge on. `plan` is a YAML file or a dictionary. Run it again to resume."""
    refuse_in_a_worker()
    loaded = of_options(plan, labelling.LabelPlan) if isinstance(plan, Mapping) else labelling.load(Path(plan))
    facts = labelling.LabelJob.of(loaded, out).carry_out().facts
    return View(facts, gathered(lambda screen: show_labels(screen, facts)))


def rate_sources(plan: Mapping[str, Any] | str | Path, out: str | Path | None = None) -> View:
    """Have a language model say how useful each source is for benchmarks (MEDU), as `gristmill judge rate` does: a
    table that `mix` reads, utilities.csv in the folder. `plan` is a YAML file or a dictionary. Run it again to
    resume."""
    refuse_in_a_worker()
    loaded = of_options(plan, medu.RatePlan) if isinstance(plan, Mapping) else medu.load(Path(plan))
    job = medu.RateJob.of(loaded, out)
    found = job.carry_out()
    account = json.loads((job.folder / "account.json").read_text(encoding="utf-8"))
    return View(account, gathered(lambda screen: show_findings(screen, found, job.plan.costs)))


def paths_in(files: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(files)] if isinstance(files, str | Path) else [str(file) for file in files]


@contextmanager
def judge_errors() -> Iterator[None]:
    """What a judge complains of is wrong with what was asked."""
    try:
        yield
    except JudgeError as error:
        raise RecipeError(str(error)) from error


def open_judge(folder: str | Path, device: str = "auto") -> TrainedJudge:
    """The judge in a folder. `device`: where a neural one scores, auto (a GPU if there is one), cpu or cuda."""
    return TrainedJudge(folder, device)
