"""Commands of the command line that train judges, score texts with them, and ask a language model what sources are
worth."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output")]
TextColumn = Annotated[str, typer.Option("--text", help="the column with the text")]
KINDS = ("fasttext", "linear", "neural")
READINGS = ("at_once", "reasoned", "both")
DEVICES = ("auto", "cpu", "cuda")


def train_judge(
    out: Annotated[str, typer.Option("--out", help="a new folder for the judge")],
    kind: Annotated[
        str, typer.Option("--kind", help="fasttext (100,000s of texts), linear (few texts; the fastest) or neural")
    ],
    table: Annotated[
        list[str] | None,
        typer.Argument(help="labelled texts: Parquet, JSON lines or CSV; files, folders, globs", show_default=False),
    ] = None,
    good: Annotated[list[str] | None, typer.Option("--good", help="instead of a table: files of good texts")] = None,
    bad: Annotated[list[str] | None, typer.Option("--bad", help="with --good: files of bad texts")] = None,
    text: TextColumn = "text",
    label: Annotated[str, typer.Option("--label", help="the column with the label")] = "label",
    good_label: Annotated[
        list[str] | None, typer.Option("--good-label", help="a label that means good; all others mean bad")
    ] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", help="all labels from worst to best, separated by commas")
    ] = None,
    weight: Annotated[str | None, typer.Option("--weight", help="the column with the weight of each text")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            help="column whose values are held out as a whole (URLs by host); of several, the first that a row has."
            " Default: url",
        ),
    ] = None,
    head: Annotated[str, typer.Option("--head", help="the name of the score; signals have this name")] = "quality",
    meaning: Annotated[
        str, typer.Option("--meaning", help="what a high score means, in a sentence", show_default=False)
    ] = "",
    hold_out: Annotated[
        float, typer.Option("--hold-out", min=0, max=0.9, help="share of groups held out for evaluation; 0: none")
    ] = 0.1,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    preset: Annotated[str | None, typer.Option("--preset", help="fasttext: dclm or ultra_fineweb")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="fasttext, neural: epochs")] = None,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="fasttext: more than 1 is faster but not deterministic")
    ] = 1,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="fasttext: a tokenizer.json, for ultra_fineweb")
    ] = None,
    encoder: Annotated[str | None, typer.Option("--encoder", help="neural: folder or hub id of an encoder")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=16, help="neural: tokens read of each text")] = 512,
    device: Annotated[str, typer.Option("--device", help="neural: auto, cpu or cuda")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a judge on labelled texts, and report how well it does on hosts that it has not seen."""
    one_of("--kind", kind, KINDS)
    one_of("--device", device, DEVICES)
    if bool(table) == bool(good or bad) or bool(good) != bool(bad):
        raise RecipeError(
            "give a table of labelled texts, or both --good FILES and --bad FILES" + labels_are_no_files(table, good)
        )
    for name, given, of in (
        ("--preset", preset is not None, "fasttext"),
        ("--tokenizer", tokenizer is not None, "fasttext"),
        ("--threads", threads != 1, "fasttext"),
        ("--encoder", encoder is not None, "neural"),
        ("--tokens", tokens != 512, "neural"),
        ("--device", device == "cuda", "neural"),
        ("--epochs", epochs is not None, "fasttext or neural"),
    ):
        if given and kind not in of.split(" or "):
            raise RecipeError(f"{name} is for --kind {of}")

    from gristmill.classifiers.card import JudgeError
    from gristmill.pipeline.judging import train as judging
    from gristmill.pipeline.judging.show_judge import show_figures
    from gristmill.stages.judge.judge import on_device

    folder = judging.room_for(out)
    columns = judging.Columns(text, label, weight, tuple(group or ()))
    labelling = judging.Labelling(
        head, tuple(good_label or ()), tuple(part.strip() for part in classes.split(",")) if classes else (), meaning
    )
    how = judging.JudgeTraining(
        kind,
        hold_out,
        seed,
        preset,
        epochs,
        threads,
        tokenizer,
        encoder,
        tokens,
        on_device(device) if kind == "neural" else "cpu",
    )
    screen = console(stderr=True)
    try:
        lesson = (
            judging.lesson_of_table(table, columns, labelling)
            if table
            else judging.lesson_of_two_sets(good or [], bad or [], columns, labelling)
        )
        trained = judging.train(lesson, how, lambda line: screen.print(escape(line), soft_wrap=True))
        trained.save(folder)
    except JudgeError as error:
        raise RecipeError(str(error)) from error
    if as_json:
        print(json.dumps(trained.card.as_json() | {"folder": str(folder), "grouped_by": lesson.grouped}))
    else:
        show_figures(console(), trained.card, lesson.grouped if hold_out else "")
        console().print(f"judge: {escape(str(folder))}", soft_wrap=True)


def judge(
    folder: Annotated[str, typer.Argument(help="the judge's folder", show_default=False)],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Parquet, JSON lines, CSV or text files; none: one text from standard input", show_default=False
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
            if sys.stdin.isatty():
                console(stderr=True).print("a text from standard input, ended by Ctrl-D:")
            one = sys.stdin.buffer.read().decode("utf-8", "replace")
            if not one.strip():
                raise RecipeError(
                    "standard input holds no text; name files, or give a text: echo 'A text.' | gristmill judge FOLDER"
                )
            found = show_judge.of_one_text(loaded, one, explain)
        else:
            from gristmill.pipeline.judging.scoring import score_files
            from gristmill.pipeline.judging.tables import files_of

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
    texts: Annotated[
        list[str],
        typer.Argument(
            help="documents: NAME=FILES of one source, or files with a column that names it, or a run",
            show_default=False,
        ),
    ],
    task: Annotated[
        list[str], typer.Option("--task", help="a benchmark's development set: NAME=FILE or FILE; one for each task")
    ],
    out: Annotated[str, typer.Option("--out", help="folder for utilities.csv, descriptions, marks and the account")],
    model: Annotated[str, typer.Option("--model", help="a model's folder or hub id; of an endpoint, its name there")],
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="an OpenAI-compatible server: http://host:port/v1", show_default=False)
    ] = "",
    engine: Annotated[str, typer.Option("--engine", help="without an endpoint: vllm or transformers")] = "vllm",
    form: Annotated[
        str,
        typer.Option(
            "--form",
            help="chat; thinking (OpenAI's reasoning models); completions (base models); tokens (a vLLM server)",
        ),
    ] = "chat",
    key_variable: Annotated[
        str, typer.Option("--key-variable", help="environment variable with the endpoint's key", show_default=False)
    ] = "",
    revision: Annotated[str, typer.Option("--revision", help="a commit of the model", show_default=False)] = "",
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", min=1, help="vllm: GPUs that share the model")
    ] = 1,
    quantization: Annotated[
        str,
        typer.Option("--quantization", help="vllm: quantization, if the checkpoint does not say", show_default=False),
    ] = "",
    connections: Annotated[int, typer.Option("--connections", min=1, help="concurrent requests to an endpoint")] = 64,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds per request to an endpoint")] = 300.0,
    reading: Annotated[
        str, typer.Option("--reading", help="at_once, reasoned, or both and how well they agree")
    ] = "at_once",
    by: Annotated[str, typer.Option("--by", help="the column that names a document's source")] = "source",
    text: TextColumn = "text",
    most: Annotated[int, typer.Option("--most", min=2, help="documents rated per source")] = 256,
    cut: Annotated[int, typer.Option("--cut", min=1, help="tokens of each document that the model sees")] = 512,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=16, help="limit of a reasoned answer")] = 1024,
    most_failures: Annotated[
        float, typer.Option("--most-failures", min=0, max=1, help="highest share of unreadable answers")
    ] = 0.02,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    price_prompt: Annotated[
        float | None, typer.Option("--price-prompt", help="price of a million prompt tokens")
    ] = None,
    price_answer: Annotated[
        float | None, typer.Option("--price-answer", help="price of a million completion tokens")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have a language model say how useful each source is for each benchmark, as a table that `mix` reads."""
    one_of("--reading", reading, READINGS)
    if (price_prompt is None) != (price_answer is None):
        raise RecipeError("give both prices, --price-prompt and --price-answer, or none")
    if tensor_parallel > 1 and (endpoint or engine != "vllm"):
        raise RecipeError("--tensor-parallel is for vllm in this process; a server has its own")

    from pathlib import Path

    from pydantic import ValidationError

    from gristmill.classifiers.llm.account import Prices
    from gristmill.classifiers.llm.model import LanguageModelError
    from gristmill.pipeline.errors import RunFailed
    from gristmill.pipeline.judging import medu as medu_files
    from gristmill.pipeline.judging.show_medu import show_findings
    from gristmill.stages.judge.back_end import BackEnd

    named = {"model_path" if not endpoint and Path(model).is_dir() else "model": model}
    try:
        back_end = BackEnd(
            **named,
            endpoint=endpoint,
            engine=engine,
            form=form,
            key_variable=key_variable,
            revision=revision,
            quantization=quantization,
            connections=connections,
            timeout=timeout,
        )
    except ValidationError as error:
        raise RecipeError(
            "; ".join(f"--{'-'.join(map(str, e['loc'])) or 'model'}: {e['msg']}" for e in error.errors())
        ) from error
    tasks = medu_files.development_sets(task)
    documents = medu_files.documents_of(texts, medu_files.Sampling(by, text, most, cut, seed))
    folder, prices = (
        Path(out),
        Prices(price_prompt, price_answer) if price_prompt is not None and price_answer is not None else None,
    )
    screen = console(stderr=True)
    sources = {document.source for document in documents}
    screen.print(f"documents: {len(documents):,}, sources: {len(sources):,}, tasks: {len(tasks):,}", soft_wrap=True)
    try:
        with counting("answers") as seen:
            asked = medu_files.AskSettings(reading, most_failures, max_tokens)  # type: ignore[arg-type]
            watched = medu_files.Watched(back_end.opened(tensor_parallel), seen)
            findings = medu_files.find(watched, tasks, documents, asked, folder / "answers", seed)
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


def labels_are_no_files(table: list[str] | None, good: list[str] | None) -> str:
    """`--good` is of files; of a label it is another option."""
    if not (table and good):
        return ""
    return (
        f" (is {good[0]!r} a label of the table? --good-label {good[0]};"
        " several files are a pattern in quotes: --good 'crawl/*.parquet')"
    )


def device_for(folder: str, device: str) -> str:
    """Torch is asked for a GPU only where the judge is neural."""
    from gristmill.stages.judge.judge import kind_of, on_device

    try:
        neural = kind_of(folder) == "neural"
    except (KeyError, TypeError, ValueError):  # whoever loads it says what is wrong
        return "cpu"
    return on_device(device) if neural else "cpu"


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
