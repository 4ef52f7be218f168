"""`gristmill judge label`: have a language model label texts by a taxonomy, as a table to train judges on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, Seed, TextColumn
from gristmill.pipeline.screen import console, counting, escape


def label(
    texts: Annotated[
        list[str],
        typer.Argument(help="Parquet, JSON lines, CSV or text files, folders, globs", show_default=False),
    ],
    taxonomy: Annotated[
        str, typer.Option("--taxonomy", help="topic or format (24 labels each), or a YAML file of your own")
    ],
    out: Annotated[str, typer.Option("--out", help="folder for labels.parquet, left_out.parquet and the account")],
    model: Annotated[str, typer.Option("--model", help="a model's folder or hub id; of an endpoint, its name there")],
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="an OpenAI-compatible server: http://host:port/v1", show_default=False)
    ] = "",
    engine: Annotated[str, typer.Option("--engine", help="without an endpoint: vllm or transformers")] = "vllm",
    form: Annotated[
        str, typer.Option("--form", help="chat, thinking, completions or tokens, as of judge rate")
    ] = "chat",
    key_variable: Annotated[
        str, typer.Option("--key-variable", help="environment variable with the endpoint's key", show_default=False)
    ] = "",
    revision: Annotated[str, typer.Option("--revision", help="a commit of the model", show_default=False)] = "",
    connections: Annotated[int, typer.Option("--connections", min=1, help="concurrent requests to an endpoint")] = 64,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds per request to an endpoint")] = 300.0,
    reading: Annotated[
        str, typer.Option("--reading", help="at_once (probabilities of all labels) or reasoned")
    ] = "at_once",
    text: TextColumn = "text",
    most: Annotated[int, typer.Option("--most", min=2, help="texts labelled, drawn by hash")] = 10_000,
    cut: Annotated[int, typer.Option("--cut", min=1, help="tokens of each text that the model sees")] = 512,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=16, help="limit of a reasoned answer")] = 512,
    twice: Annotated[
        float,
        typer.Option("--twice", min=0, max=1, help="share asked again, with labels in the contrary order"),
    ] = 0.1,
    second_model: Annotated[
        str,
        typer.Option("--second-model", help="asked instead that second time, by the same engine", show_default=False),
    ] = "",
    most_failures: Annotated[
        float, typer.Option("--most-failures", min=0, max=1, help="highest share of unreadable answers")
    ] = 0.02,
    seed: Seed = 0,
    price_prompt: Annotated[
        float | None, typer.Option("--price-prompt", help="price of a million prompt tokens")
    ] = None,
    price_answer: Annotated[
        float | None, typer.Option("--price-answer", help="price of a million completion tokens")
    ] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="only say what it would cost")] = False,
    as_json: AsJson = False,
) -> None:
    """Have a language model label texts by a taxonomy.

    As a table to train a judge on.
    """
    from gristmill.pipeline.judging.labelling import LabelJob
    from gristmill.pipeline.judging.show_judge import show_labels

    job = LabelJob.of(
        texts, taxonomy=taxonomy, model=model, endpoint=endpoint, engine=engine, form=form, key_variable=key_variable,
        revision=revision, connections=connections, timeout=timeout, reading=reading, text=text, most=most, cut=cut,
        max_tokens=max_tokens, twice=twice, second_model=second_model, most_failures=most_failures, seed=seed,
        price_prompt=price_prompt, price_answer=price_answer,
    )  # fmt: skip
    console(stderr=True).print(escape(job.expected), soft_wrap=True)
    if estimate:
        return
    with counting("answers") as seen:
        findings = job.carry_out(Path(out), seen)
    if as_json:
        print(json.dumps(findings.facts))
    else:
        show_labels(console(), findings.facts)
        console().print(f"labels: {escape(str(Path(out) / 'labels.parquet'))}", soft_wrap=True)


COMMAND = Command(label, JUDGES, ("judge label t.parquet --taxonomy topic --model m --out labels",))
