"""`gristmill.train_judge` and `gristmill.open_judge`: a judge trained from Python, and what it can do as an object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.classifiers.card import JudgeError
from gristmill.kernels.common.device import on_device
from gristmill.pipeline.door.scripts import refuse_in_a_worker
from gristmill.pipeline.door.views import View, gathered
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.judging import judge_plan, train as judging
from gristmill.pipeline.judging.show import show_figures
from gristmill.pipeline.recipe.plans import of_options
from gristmill.stages.judge.judge import takes_a_gpu

if TYPE_CHECKING:
    from gristmill.classifiers.judge import Judge

NOBODY_KNOWS = "groups"  # a saved card does not say by what texts were held out


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
        return View(card.as_json(), gathered(lambda screen: show_figures(screen, card, NOBODY_KNOWS)))

    def score(self, texts: Sequence[str] | pa.Array | pa.ChunkedArray) -> dict[str, list[float]]:
        """Scores of texts by head, as the stage `judge` adds them."""
        found = self._judge.score(column_of(texts))
        return {name: [float(each) for each in scores] for name, scores in found.items()}

    def explain(self, text: str, head: str | None = None, most: int = 10) -> list[tuple[str, float]]:
        """The words of a text that moved its score most, strongest first; above 0 they raise it. Not every kind can."""
        return self._judge.explain(text, head or self._judge.card.heads[0].name, most)

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
    folder = judging.room_for(loaded.out(out), loaded.where("out"))
    try:
        ready = judging.prepare(loaded)
        judging.check_writable(folder)
        judging.save(ready, judging.train(ready, lambda line: None), folder)
    except JudgeError as error:
        raise RecipeError(str(error)) from error
    return TrainedJudge(folder)


def open_judge(folder: str | Path, device: str = "auto") -> TrainedJudge:
    """The judge in a folder. `device`: where a neural one scores, auto (a GPU if there is one), cpu or cuda."""
    return TrainedJudge(folder, device)
