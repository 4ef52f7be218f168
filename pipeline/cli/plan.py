"""`gristmill plan`: what a run would do."""

from __future__ import annotations

import json
from dataclasses import asdict

from gristmill.pipeline.cli.command import RUN, Command
from gristmill.pipeline.cli.options import AsJson, CheckInputs, OutOption, RecipePath
from gristmill.pipeline.screen import console, say


def plan(recipe: RecipePath, out: OutOption = None, check_inputs: CheckInputs = False, as_json: AsJson = False) -> None:
    """Show what would run, what is up to date, and why the rest is not."""
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.dry_run import foresee, render

    loaded = recipes.load(recipe)
    notes: list[str] = []
    seen = foresee(loaded, loaded.out(out), check_inputs, notes.append)
    if as_json:
        print(json.dumps([asdict(node) for node in seen]))
    else:
        console().print(render(seen))
    for note in notes:
        say(console(stderr=as_json), note, "yellow", "inputs")


COMMAND = Command(plan, RUN, ("plan recipe.yaml",))
