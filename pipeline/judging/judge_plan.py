"""Settings of `gristmill judge train`: where texts and labels come from, the kind of judge, and how it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gristmill.classifiers.judge import Judge, KindSettings, kind_class, kind_settings
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.common.settings import Settings
from gristmill.pipeline.recipe import plans
from gristmill.pipeline.recipe.plans import LoadedPlan, Paths, Word, Words
from gristmill.stages.judge.llm_score import LlmScore
from gristmill.stages.one_of import OneOf, name_of

EXAMPLE = "recipes/judges/quality.yaml"
Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Labelled(Settings):
    """Files with a column of labels."""

    files: Paths
    label: Annotated[str, Field(description="the column with the label")] = "label"
    good: Annotated[Words, Field(description="labels that mean good; all others mean bad")] = ()
    classes: Annotated[Words, Field(description="all labels from worst to best")] = ()
    unordered: Annotated[
        bool, Field(description="labels without an order (topics, formats): each gets a probability")
    ] = False
    fewest: Annotated[int, Field(ge=1, description="unordered: labels of fewer texts are left out, and counted")] = 10


class Source(Settings):
    """Texts that have one label."""

    files: Paths
    label: Word
    share: Annotated[Share, Field(description="of its label's texts, beside the other sources of this label")] = 1.0
    score: Annotated[str, Field(description="the column that the next three look at")] = "score"
    at_least: Annotated[float | None, Field(description="only texts with this score or a higher one")] = None
    below: Annotated[float | None, Field(description="only texts with a lower score")] = None
    named: Annotated[Words, Field(description="or only texts with one of these words there")] = ()
    most: Annotated[int | None, Field(ge=1, description="texts that are looked at, drawn by hash")] = None


class TrainingSet(Settings):
    """A training set out of several sources: copies leave, and labels are matched (docs/judge_training.md)."""

    sources: Annotated[dict[str, Source], Field(min_length=2)]
    classes: Annotated[Words, Field(description="all labels from worst to best, where they do not say it")] = ()
    texts: Annotated[int | None, Field(ge=2, description="at most so many in all")] = None
    balance: Annotated[
        Words | None,
        Field(description="labels have equally many texts, also for each value of these columns; null: as there are"),
    ] = ()
    steps_of_length: Annotated[
        int, Field(ge=0, description="to each doubling of characters, in which labels are equally many; 0: not matched")
    ] = 0
    window: Annotated[int | None, Field(ge=200, description="characters of a passage; whole texts unless given")] = None
    shortest: Annotated[int, Field(ge=1, description="characters of a text that stays")] = 1
    near_copies: Annotated[
        float | None, Field(gt=0, le=1, description="Jaccard similarity of 5-grams; null: only equal texts are copies")
    ] = 0.8
    stays_under: Annotated[
        Word | None, Field(description="the label that a text of two labels keeps; it leaves both unless given")
    ] = None
    ungrouped: Annotated[
        Literal["source", "text"], Field(description="the group of texts without a column of `group`")
    ] = "source"


class Distil(Settings):
    """A cheaper judge learns the scores of a costlier one, or of a language model."""

    files: Annotated[Paths, Field(description="texts; they need no labels")]
    teacher: Annotated[RecipePath, Field(description="a judge's folder; it scores the texts first")] = ""
    teacher_head: Annotated[str, Field(description="of a teacher with several")] = ""
    scores: Annotated[str, Field(description="or a column with scores (of `llm_score`); null: it could not say")] = ""
    low: Annotated[float, Field(description="lowest score of that column's scale")] = 0.0
    high: Annotated[float, Field(description="its highest")] = 1.0
    form: Annotated[
        Literal["value", "soft", "repeated", "hard"] | None,
        Field(
            description="what is learnt: the score (pooled, neural), weighted labels (linear), repeated labels"
            " (fasttext), or the class by `cuts`; as the kind can unless given"
        ),
    ] = None
    cuts: Annotated[
        tuple[float, ...], Field(description="scores that part classes; the middle of the scale unless given")
    ] = ()


class Losses(Settings):
    """Good are documents on which better models have lower losses; fastText or linear judges learn the difference."""

    files: Annotated[Paths, Field(description="documents with a column of losses for each model, in bits per byte")]
    column: Annotated[
        str,
        Field(
            description="the name of these columns; after `perplexity: {prefix: MODEL_}` it is '{model}_bits_per_byte'",
            pattern=r"\{model\}",
        ),
    ] = "loss:{model}"
    scores: Annotated[RecipePath, Field(description="a CSV: model,TASK,... with a line a model; higher is better")]
    estimator: Annotated[
        Literal["correlation", "match"], Field(description="perplexity correlations, or PreSelect's share of pairs")
    ] = "correlation"
    share: Annotated[
        float, Field(ge=0.001, le=0.5, description="share of the bytes that are good, and that are bad")
    ] = 0.1
    by: Annotated[str | None, Field(description="a column: documents of one value (a domain) are chosen together")] = (
        None
    )


class Verify(Settings):
    """Who labels the candidates of a round: a judge, or a language model asked as the stage `llm_score` asks it."""

    judge: RecipePath = ""
    llm_score: LlmScore | None = None
    cuts: Annotated[tuple[float, ...], Field(min_length=1, description="scores that part the labels")] = (0.5,)


class Iterate(Settings):
    """Rounds of self-training: score a pool, take texts from its top and bottom, verify, train again, keep what
    helps."""

    pool: Annotated[Paths, Field(description="texts without labels")]
    rounds: Annotated[int, Field(ge=1)] = 3
    candidates: Annotated[int, Field(ge=2, description="of a round, half from the top and half from the bottom")] = 1000
    top: Annotated[float, Field(gt=0, lt=1, description="share of the pool by score that candidates come from")] = 0.1
    bottom: Annotated[float, Field(gt=0, lt=1)] = 0.1
    verify: Annotated[
        Verify | None, Field(description="taken as the judge scored them unless given: only the gate decides")
    ] = None
    metric: Annotated[str | None, Field(description="that a round must not lower; auc, of classes kappa_quadratic")] = (
        None
    )
    patience: Annotated[int, Field(ge=1, description="rounds in a row without a gain that end it")] = 1


class JudgePlan(Settings):
    """A judge to be trained. Texts come from `labelled`, `good` and `bad`, `training_set`, `distil` or `losses`."""

    out: Annotated[str | None, Field(description="a new folder for the judge")] = None
    description: str | None = None
    kind: Annotated[KindSettings, OneOf("kind of judge", kind_settings)]
    labelled: Labelled | None = None
    good: Annotated[Paths | None, Field(description="files of good texts")] = None
    bad: Annotated[Paths | None, Field(description="files of bad texts")] = None
    training_set: TrainingSet | None = None
    distil: Distil | None = None
    losses: Losses | None = None
    iterate: Iterate | None = None
    text: Annotated[str, Field(description="the column with the text")] = "text"
    weight: Annotated[str | None, Field(description="the column with the weight of each text")] = None
    group: Annotated[
        Words,
        Field(
            description="columns whose values are held out as a whole (URLs by host); of several the first that a row"
            " has. url and work unless given"
        ),
    ] = ()
    head: Annotated[
        str | None, Field(description="name of the score or label, and of the signal; quality unless given")
    ] = None
    meaning: Annotated[str, Field(description="what a high score means, in a sentence")] = ""
    balance: Annotated[bool, Field(description="all labels weigh the same, however many texts each has")] = False
    hold_out: Annotated[float, Field(ge=0, le=0.9, description="share of groups held out for evaluation; 0: none")] = (
        0.1
    )
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[
        int, Field(ge=1, le=100, description="trainings with seeds one after another; the first is saved")
    ] = 1

    @property
    def kind_name(self) -> str:
        return name_of(self.kind)

    @property
    def judge(self) -> type[Judge]:
        """The class of what is trained."""
        return kind_class(self.kind_name)


def load(path: Path) -> LoadedPlan[JudgePlan]:
    """A checked plan; RecipeError says where it is wrong."""
    return checked(plans.load(path, JudgePlan, EXAMPLE))


def checked(loaded: LoadedPlan[JudgePlan]) -> LoadedPlan[JudgePlan]:
    """What settings must agree on."""
    plan, wrong = loaded.plan, loaded.wrong
    origins: dict[str, object] = {
        "labelled": plan.labelled,
        "good": plan.good or plan.bad,
        "training_set": plan.training_set,
        "distil": plan.distil,
        "losses": plan.losses,
    }
    given = [name for name, value in origins.items() if value is not None]
    if len(given) != 1:
        raise wrong(
            (given[-1],) if given else (),
            f"texts come from one of `labelled`, `good` and `bad`, `training_set`, `distil` and `losses`,"
            f" not from {' and '.join(given) or 'none'}",
        )
    if (plan.good is None) != (plan.bad is None):
        raise wrong(tuple(given), "`good` and `bad` are given together")
    if plan.labelled is not None and plan.labelled.unordered and (plan.labelled.good or plan.labelled.classes):
        raise wrong(("labelled", "unordered"), "such labels have no order: leave out `good` and `classes`")
    if plan.labelled is not None and "fewest" in plan.labelled.model_fields_set and not plan.labelled.unordered:
        raise wrong(("labelled", "fewest"), "is for `unordered: true`")
    if plan.weight and not (plan.labelled or plan.good):
        raise wrong(("weight",), f"`{given[0]}` makes weights of its own")
    if plan.seeds > 1 and not plan.hold_out:
        raise wrong(("seeds",), "judges of several seeds are compared on held-out texts: hold_out is 0")
    if plan.seeds > 1 and not plan.judge.seeded:
        raise wrong(("seeds",), f"training a {plan.kind_name} judge has no chance in it: every seed gives the same")
    if plan.distil is not None:
        _check_distil(loaded, plan.distil)
    if plan.iterate is not None:
        _check_rounds(loaded, plan.iterate)
    return loaded


def _check_distil(loaded: LoadedPlan[JudgePlan], distil: Distil) -> None:
    plan, wrong = loaded.plan, loaded.wrong
    if bool(distil.teacher) == bool(distil.scores):
        raise wrong(("distil",), "scores come from one of `teacher` (a judge) and `scores` (a column)")
    if distil.teacher and distil.model_fields_set & {"low", "high"}:
        raise wrong(("distil",), "`low` and `high` are for `scores`; a teacher knows its own")
    if plan.iterate is not None:
        raise wrong(("iterate",), "rounds add labelled texts, and `distil` learns scores: train one after the other")
    if not plan.hold_out:
        raise wrong(("hold_out",), "0: how far student and teacher agree is measured on held-out texts")


def _check_rounds(loaded: LoadedPlan[JudgePlan], rounds: Iterate) -> None:
    plan, wrong = loaded.plan, loaded.wrong
    if rounds.top + rounds.bottom > 1:
        raise wrong(("iterate",), f"top {rounds.top:g} and bottom {rounds.bottom:g} are shares, together at most 1")
    if rounds.verify is not None and bool(rounds.verify.judge) == (rounds.verify.llm_score is not None):
        raise wrong(("iterate", "verify"), "name one of `judge` and `llm_score`")
    if plan.labelled is not None and plan.labelled.unordered:
        raise wrong(("iterate",), "rounds take from the best and the worst; labels without an order have neither")
    if plan.weight:
        raise wrong(("weight",), "texts that rounds add have no weight: leave one of `weight` and `iterate` out")
    if not plan.hold_out:
        raise wrong(("hold_out",), "0: held-out texts decide which rounds are kept")
