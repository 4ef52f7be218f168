"""Commands of the command line that train judges, score texts with them, and ask a language model what sources are
worth."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli import old_options
from gristmill.pipeline.cli.old_options import old
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output")]
TextColumn = Annotated[str, typer.Option("--text", help="the column with the text")]
PlanArgument = Annotated[
    list[str] | None, typer.Argument(metavar="PLAN", help="the plan, a YAML file", show_default=False)
]
DEVICES = ("auto", "cpu", "cuda")


def train_judge(
    context: typer.Context,
    plan: PlanArgument = None,
    out: Annotated[
        str | None, typer.Option("--out", help="a new folder for the judge; default: the plan's `out`")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show what would be trained on what")
    ] = False,
    as_json: AsJson = False,
    kind: Annotated[str | None, old("--kind")] = None,
    good: Annotated[list[str] | None, old("--good")] = None,
    bad: Annotated[list[str] | None, old("--bad")] = None,
    text: Annotated[str | None, old("--text")] = None,
    label: Annotated[str | None, old("--label")] = None,
    good_label: Annotated[list[str] | None, old("--good-label")] = None,
    classes: Annotated[str | None, old("--classes")] = None,
    unordered: Annotated[bool, old("--unordered")] = False,
    fewest: Annotated[int | None, old("--fewest")] = None,
    balance: Annotated[bool, old("--balance")] = False,
    weight: Annotated[str | None, old("--weight")] = None,
    group: Annotated[list[str] | None, old("--group")] = None,
    head: Annotated[str | None, old("--head")] = None,
    meaning: Annotated[str | None, old("--meaning")] = None,
    hold_out: Annotated[float | None, old("--hold-out")] = None,
    seed: Annotated[int | None, old("--seed")] = None,
    preset: Annotated[str | None, old("--preset")] = None,
    epochs: Annotated[float | None, old("--epochs")] = None,
    threads: Annotated[int | None, old("--threads")] = None,
    tokenizer: Annotated[str | None, old("--tokenizer")] = None,
    encoder: Annotated[str | None, old("--encoder")] = None,
    tokens: Annotated[int | None, old("--tokens")] = None,
    most_bytes: Annotated[int | None, old("--most-bytes")] = None,
    device: Annotated[str | None, old("--device")] = None,
) -> None:
    """Train a judge on labelled texts or on another judge's scores, and report how well it does on hosts that it has
    not seen."""
    given = old_options.given_in(context)
    path = old_options.plan_alone(given, "recipes/judges/quality.yaml")

    from gristmill.classifiers.card import JudgeError
    from gristmill.pipeline.judging import judge_plan, train as judging
    from gristmill.pipeline.judging.show_judge import show_figures
    from gristmill.pipeline.judging.show_training import foreseen
    from gristmill.pipeline.recipe.plans import of_options

    if path is not None:
        loaded = judge_plan.load(path)
    else:
        facts = old_options.judge_facts(given)
        loaded = judge_plan.checked(of_options(facts, judge_plan.JudgePlan))
        old_options.advise("train-judge", facts)
    folder = judging.room_for(loaded.out(out), loaded.where("out") if not out else "--out")
    screen = console(stderr=True)
    try:
        ready = judging.prepare(loaded)
        if dry_run:
            console().print(foreseen(ready, folder))
            return
        judging.check_writable(folder)
        trained = judging.train(ready, lambda line: screen.print(escape(line), soft_wrap=True))
        judging.save(ready, trained, folder)
    except JudgeError as error:
        raise RecipeError(str(error)) from error
    grouped = ready.lesson.grouped
    if as_json:
        print(json.dumps(trained.card.as_json() | {"folder": str(folder), "grouped_by": grouped}))
    else:
        show_figures(console(), trained.card, grouped if loaded.plan.hold_out else "")
        console().print(f"judge: {escape(str(folder))}", soft_wrap=True)


def judge(
    folder: Annotated[str, typer.Argument(help="the judge's folder", show_default=False)],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Parquet, JSON lines, CSV or text files; none: the text from standard input, else the judge's card",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="a Parquet file with every score, and its file, row and URL")
    ] = None,
    text: TextColumn = "text",
    explain: Annotated[bool, typer.Option("--explain", help="show the words that moved each score most")] = False,
    show: Annotated[
        int, typer.Option("--show", min=0, max=100, help="how many of the best and worst texts to show")
    ] = 3,
    device: Annotated[str, typer.Option("--device", help="for a neural judge: auto, cpu or cuda")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Score texts with a judge: quantiles, the best and the worst, and every score in a file."""
    one_of("--device", device, DEVICES)

    from gristmill.classifiers.card import JudgeError
    from gristmill.pipeline.judging import show_judge

    try:
        from gristmill.classifiers.judge import load_judge

        loaded = load_judge(folder, device_for(folder, device))
    except (JudgeError, KeyError, FileNotFoundError, NotADirectoryError) as error:
        raise RecipeError(judge_error(folder, error)) from error
    try:
        if not texts:
            one = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "replace")
            if not one.strip():
                if as_json:
                    print(json.dumps(loaded.card.as_json()))
                else:
                    show_judge.show_card(console(), loaded.card)
                return
            found = show_judge.of_one_text(loaded, one, explain)
        else:
            from gristmill.pipeline.inputs.columns import files_of
            from gristmill.pipeline.judging.scoring import score_files

            files = files_of(texts, "texts")
            with counting("texts scored") as seen:
                found = show_judge.of_files(loaded, score_files(loaded, files, text, out, show, seen), explain)
    except JudgeError as error:
        raise RecipeError(str(error)) from error
    if as_json:
        print(json.dumps(found.plain()))
    else:
        found.show(console())
        if out:
            console().print(f"scores: {escape(out)}", soft_wrap=True)


def medu(
    context: typer.Context,
    plan: PlanArgument = None,
    out: Annotated[str | None, typer.Option("--out", help="output folder; default: the plan's `out`")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show what would be asked and its cost at most")
    ] = False,
    as_json: AsJson = False,
    task: Annotated[list[str] | None, old("--task")] = None,
    model: Annotated[str | None, old("--model")] = None,
    endpoint: Annotated[str | None, old("--endpoint")] = None,
    engine: Annotated[str | None, old("--engine")] = None,
    form: Annotated[str | None, old("--form")] = None,
    key_variable: Annotated[str | None, old("--key-variable")] = None,
    revision: Annotated[str | None, old("--revision")] = None,
    tensor_parallel: Annotated[int | None, old("--tensor-parallel")] = None,
    quantization: Annotated[str | None, old("--quantization")] = None,
    connections: Annotated[int | None, old("--connections")] = None,
    timeout: Annotated[float | None, old("--timeout")] = None,
    reading: Annotated[str | None, old("--reading")] = None,
    by: Annotated[str | None, old("--by")] = None,
    text: Annotated[str | None, old("--text")] = None,
    most: Annotated[int | None, old("--most")] = None,
    cut: Annotated[int | None, old("--cut")] = None,
    max_tokens: Annotated[int | None, old("--max-tokens")] = None,
    most_failures: Annotated[float | None, old("--most-failures")] = None,
    seed: Annotated[int | None, old("--seed")] = None,
    price_prompt: Annotated[float | None, old("--price-prompt")] = None,
    price_answer: Annotated[float | None, old("--price-answer")] = None,
) -> None:
    """Have a language model say how useful each source is for each benchmark, as a table that `mix` reads."""
    given = old_options.given_in(context)
    path = old_options.plan_alone(given, "recipes/mixing/utilities.yaml")

    from gristmill.classifiers.llm.account import Prices
    from gristmill.classifiers.llm.model import LanguageModelError
    from gristmill.pipeline.errors import RunFailed
    from gristmill.pipeline.judging import medu as medu_files, medu_plan
    from gristmill.pipeline.judging.asking import Watched
    from gristmill.pipeline.judging.show_medu import foreseen, show_findings
    from gristmill.pipeline.recipe.plans import of_options

    if path is not None:
        loaded = medu_plan.load(path)
    else:
        facts = old_options.medu_facts(given)
        loaded = medu_plan.checked(of_options(facts, medu_plan.MeduPlan))
        old_options.advise("medu", facts)
    wanted = loaded.plan
    folder = Path(loaded.out(out))
    prices = Prices(wanted.prices.prompt, wanted.prices.answer) if wanted.prices else None
    tasks = medu_files.development_sets(wanted.tasks, loaded.where)
    sampling = medu_files.Sampling(wanted.by, wanted.text, wanted.most, wanted.cut, wanted.seed)
    documents = medu_files.documents_of(wanted.named, sampling, loaded.where)
    asked = medu_files.AskSettings(wanted.reading, wanted.most_failures, wanted.max_tokens)
    if dry_run:
        console().print(
            foreseen(tasks, documents, medu_files.estimate_of(tasks, documents, asked, wanted.seed), prices, folder)
        )
        return
    screen = console(stderr=True)
    sources = {document.source for document in documents}
    screen.print(f"documents: {len(documents):,}, sources: {len(sources):,}, tasks: {len(tasks):,}", soft_wrap=True)
    try:
        with counting("answers") as seen:
            watched = Watched(wanted.model.opened(wanted.model.tensor_parallel), seen)
            findings = medu_files.find(watched, tasks, documents, asked, folder / "answers", wanted.seed)
    except (LanguageModelError, ValueError) as error:
        raise RunFailed(str(error)) from error
    medu_files.save(findings, folder, watched.name, prices)
    if as_json:
        print((folder / "account.json").read_text(encoding="utf-8"), end="")
    else:
        show_findings(console(), findings, prices)
        console().print(f"utilities: {escape(str(folder / 'utilities.csv'))}", soft_wrap=True)


def one_of(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise RecipeError(f"{option} {given}: expected {', '.join(known[:-1])} or {known[-1]}")


def device_for(folder: str, device: str) -> str:
    """Torch is asked for a GPU only where the judge takes one."""
    from gristmill.kernels.common.device import on_device
    from gristmill.stages.judge.judge import takes_a_gpu

    try:
        return on_device(device) if takes_a_gpu(folder) else "cpu"
    except (KeyError, TypeError, ValueError):  # whoever loads it says what is wrong
        return "cpu"


def judge_error(folder: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError | KeyError):
        return f"{folder}: no folder of a judge (there is no judge.json that says what it is)"
    return str(error)


@contextlib.contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """How many there are by now, on a terminal."""
    from rich.progress import Progress, TextColumn

    with Progress(
        TextColumn("{task.completed:,} {task.description}"),
        console=console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        counter = bar.add_task(what, total=None)
        yield lambda count: bar.update(counter, completed=count)
