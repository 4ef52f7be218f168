"""`gristmill judge from-losses`: from losses of several models and their scores to a judge."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, Seed, TextColumn, one_of
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

ESTIMATORS = ("correlation", "match")


def from_losses(
    documents: Annotated[
        list[str],
        typer.Argument(
            help="texts with a column loss:MODEL for each model (bits per byte)",
            show_default=False,
        ),
    ],
    scores: Annotated[
        str, typer.Option("--scores", help="a CSV: model,TASK,... with a line a model; higher is better")
    ],
    out: Annotated[str, typer.Option("--out", help="a new folder for the judge")],
    estimator: Annotated[
        str, typer.Option("--estimator", help="correlation (perplexity correlations) or match (PreSelect)")
    ] = "correlation",
    share: Annotated[
        float, typer.Option("--share", min=0.001, max=0.5, help="share of the bytes that are good, and that are bad")
    ] = 0.1,
    by: Annotated[
        str | None, typer.Option("--by", help="a column: documents of one value (a domain) are chosen together")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="fasttext or linear")] = "fasttext",
    text: TextColumn = "text",
    hold_out: Annotated[
        float, typer.Option("--hold-out", min=0, max=0.9, help="share of hosts held out for evaluation; 0: none")
    ] = 0.1,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a judge from the losses of several models.

    It learns the documents on which better models have lower losses.
    """
    one_of("--estimator", estimator, ESTIMATORS)

    from gristmill.classifiers.card import JudgeError
    from gristmill.pipeline.judging import predictive, train as judging
    from gristmill.pipeline.judging.show_judge import show_figures

    folder = judging.room_for(out)
    screen = console(stderr=True)
    try:
        chosen = predictive.choose(documents, scores, predictive.Selection(estimator, share, by, seed), text)
        judging.check_writable(folder)
        trained = predictive.train(
            chosen, kind, hold_out, seed, folder, lambda line: screen.print(escape(line), soft_wrap=True)
        )
    except JudgeError as error:
        raise RecipeError(str(error)) from error
    facts = chosen.facts
    if as_json:
        print(json.dumps(trained.card.as_json() | {"folder": str(folder), "selection": facts}))
        return
    show_figures(console(), trained.card, "the host of url" if hold_out else "")
    console().print(
        f"selection: {facts['good']:,} good and {facts['bad']:,} bad of {facts['documents']:,} documents; "
        f"{facts['without_losses']:,} lack a loss. Of {facts['pairs_left_out']:,} pairs of models left out the better "
        f"is found in {facts['found_by_chosen']:.0%} by what is chosen, in {facts['found_by_all']:.0%} by all"
    )
    if facts["found_by_chosen"] < 0.6 or facts["found_by_chosen"] < facts["found_by_all"]:
        console().print("do not trust this selection: it predicts models left out no better than all documents do")
    console().print(f"judge: {escape(str(folder))}", soft_wrap=True)


COMMAND = Command(from_losses, JUDGES, ("judge from-losses losses.parquet --scores s.csv --out judges/new",))
