"""The commands as `gristmill --help` lists them: by what a person wants to do, one line each that fits in 80 columns;
and examples below each command's own help."""

from __future__ import annotations

import typer

from gristmill.pipeline.help_pages import HelpfulCommand

START, RUN, LOOK, SHARE, JUDGE, TRAIN, KEEP = (
    "Start", "Run a recipe", "Look at a run", "Hand on and take back", "Judges and labels", "Train and decide", "Upkeep",
)  # fmt: skip

# command: panel, what it does, examples
MENU: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "demo": (START, "make a small crawl with a known truth, run and check it", ("demo", "demo --out /tmp/demo")),
    "init": (START, "write a recipe for a folder of your files", ("init data/", "init data/ --like fineweb")),
    "new": (
        START,
        "begin a stage of your own, with its test",
        ("new stage my_rule", "new stage my_signal --kind measure"),
    ),
    "doctor": (START, "what this machine can run, and what to do next", ("doctor",)),
    "run": (
        RUN,
        "run it, or resume it; only what changed is done again",
        ("run recipe.yaml --limit 1000", "run recipe.yaml --workers 8", "run recipe.yaml --cluster slurm.yaml"),
    ),
    "plan": (RUN, "what would run, what is up to date, and why", ("plan recipe.yaml",)),
    "estimate": (
        RUN,
        "time, cost, memory and disk of the whole input",
        ("run recipe.yaml --sample 1%", "estimate recipe.yaml --workers 64 --memory 4GB --core-hour 0.04"),
    ),
    "inspect": (
        LOOK,
        "the funnel, what a stage dropped, one document's history",
        (
            "inspect out/mine",
            "inspect out/mine gopher_quality --reason too_few_words",
            "inspect out/mine --url https://example.org/",
            "inspect out/mine --id doc-17",
        ),
    ),
    "report": (LOOK, "rewrite report.html; of two runs, what differs", ("report out/mine", "report out/a out/b")),
    "tune": (
        LOOK,
        "what another threshold would keep and drop, in seconds",
        ("tune out/mine gopher_quality.min_words=80",),
    ),
    "explore": (LOOK, "search and read documents in a browser", ("explore out/mine",)),
    "find": (LOOK, "find a passage in the shards, and where it came from", ('find out/mine --text "to be or not"',)),
    "summary": (LOOK, "the public summary of training content, and a card", ("summary out/mine --for eu",)),
    "export": (
        SHARE,
        "shards or documents in the format of another tool",
        ("export out/mine/shards/2048 --to megatron meg/",),
    ),
    "import": (SHARE, "tokens or judges of another tool", ("import tokens/ shards/ --from datatrove",)),
    "push": (SHARE, "documents to a Hugging Face hub", ("push out/mine owner/name",)),
    "forget": (SHARE, "take documents out of a run, its shards and exports", ("forget out/mine --list ids.txt",)),
    "train-judge": (JUDGE, "train a judge on labelled texts", ("train-judge judge.yaml",)),
    "compress-judge": (
        JUDGE,
        "a neural judge in fewer bits or layers",
        ("compress-judge judges/grade pages.parquet --out judges/small",),
    ),
    "judge": (JUDGE, "score texts with a judge", ("judge judges/mine texts.parquet",)),
    "label": (
        JUDGE,
        "have a language model label texts by a taxonomy",
        ("label t.parquet --taxonomy topic --model m --out labels",),
    ),
    "medu": (JUDGE, "have a language model rate sources for benchmarks", ("medu medu.yaml",)),
    "predictive": (
        JUDGE,
        "a judge from the losses of several models",
        ("predictive losses.parquet --scores scores.csv --out judges/new",),
    ),
    "train": (TRAIN, "train a decoder on token shards", ("train plan.yaml --dry-run", "train plan.yaml")),
    "ablate": (TRAIN, "train arms and a control, and say which data to adopt", ("ablate candidates.yaml",)),
    "clean": (KEEP, "remove a finished run's intermediates", ("clean out/mine --dry-run",)),
    "verify": (KEEP, "check every byte and count of a run", ("verify out/mine",)),
    "warm": (KEEP, "compile kernels ahead, or pack them for other machines", ("warm",)),
    "schema": (
        KEEP,
        "the JSON schema of recipes and plans, for editors",
        ("schema > recipe.schema.json", "schema train > train.schema.json"),
    ),
}


def arrange(app: typer.Typer) -> None:
    """Panels, short lines and examples for the commands of the program, in the order of the menu."""
    order = list(MENU)
    for command in app.registered_commands:
        name = command.name or str(getattr(command.callback, "__name__", ""))
        command.rich_help_panel, command.short_help, examples = MENU[name]
        command.cls = HelpfulCommand
        command.epilog = "\n\n".join(f"gristmill {example}" for example in examples)
    app.registered_commands.sort(
        key=lambda command: order.index(command.name or str(getattr(command.callback, "__name__", "")))
    )
