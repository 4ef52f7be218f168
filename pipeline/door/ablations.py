"""`gristmill.train`, `gristmill.ablate` and `gristmill.open_ablation`: models trained from Python, and the verdicts of
an ablation as an object."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.console import Group
from rich.text import Text

from gristmill.pipeline.ablate import show
from gristmill.pipeline.ablate.plan import load, one_arm
from gristmill.pipeline.door.scripts import needs_packages, refuse_in_a_worker
from gristmill.pipeline.door.views import View
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import nearest, one_line
from gristmill.pipeline.report.ablation_record import AblationRecord, remarks

CALLED = Path("<plan>")  # in messages; paths are relative to the folder that Python runs in


class Ablation:
    """The folder of an ablation: which arms to adopt, by how much they differ, and how sure that is."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        try:
            self.record: AblationRecord = json.loads((self.out / "ablation.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RecipeError(
                f"{out}: no ablation is here (there is no ablation.json); give its plan to run it"
            ) from None
        except ValueError as error:
            raise RunFailed(f"{out}/ablation.json: not JSON ({error})") from error

    @property
    def verdicts(self) -> View:
        """Every arm beside the control: difference of the target, its interval, the guard, what to do and why."""
        record, proxies = self.record, self.record.get("proxies") is not None
        table = show.proxy_runs(record) if proxies else show.verdicts(record)
        return View(record["arms"], Group(table, *map(Text, [*show.reasons(record), *remarks(record)])))

    @property
    def others(self) -> View:
        """All other measures: the guard, domains, and those that decide nothing."""
        return View([arm["differences"] for arm in self.record["arms"]], show.others(self.record))

    def verdict(self, arm: str) -> str:
        """adopt, reject, disagree or inconclusive."""
        arms = {each["name"]: each for each in self.record["arms"]}
        if arm not in arms:
            raise RecipeError(f"no arm {one_line(arm)!r} in this ablation{nearest(arm, list(arms))}")
        verdict = arms[arm]["verdict"]
        if verdict is None:
            raise RunFailed(f"{arm}: {arms[arm]['error'] or arms[arm]['status']}")
        return verdict["word"]

    def __repr__(self) -> str:
        return f"Ablation({str(self.out)!r}, {self.record['status']})"

    def _repr_html_(self) -> str:
        return self.verdicts._repr_html_()


def ablate(
    plan: Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    only: str | None = None,
    progress: bool = True,
) -> Ablation:
    """Train every arm and the control with several seeds, as `gristmill ablate` does. Run it again to resume.

    `plan` is a YAML file, or the same settings as a dictionary, whose paths are relative to the folder that Python runs
    in. `workers` are processes, one a GPU or one for every two cores by default; 0 trains in this one. `only` is one
    arm. `progress`: a line on standard error for each tenth of a job; log.txt has them in any case. An arm that failed
    has no verdict, and `verdict` says why; the others have theirs.
    """
    refuse_in_a_worker()
    needs_packages("ablate")
    from gristmill.pipeline.ablate.run import run
    from gristmill.pipeline.ablate.workers import crew_of

    text = yaml.safe_dump(dict(plan), sort_keys=False) if isinstance(plan, Mapping) else None
    loaded = load(CALLED if isinstance(plan, Mapping) else Path(plan), text)
    if only is not None:
        one_arm(loaded, only)  # says so if there is no such arm
    folder = Path(loaded.out(out)).resolve()
    run(
        loaded,
        folder,
        crew_of(workers, scheduler, loaded.plan.ranks or 1),
        show.AblationUi(folder, sys.stderr if progress else io.StringIO()),
        only,
    )
    return Ablation(folder)


def open_ablation(out: str | Path) -> Ablation:
    """The finished ablation in a folder."""
    return Ablation(out)


def train(plan: str | Path, out: str | Path | None = None, *, ranks: int | None = None) -> dict[str, Any]:
    """Train a decoder on token shards by a plan, a YAML file, as `gristmill train` does, in processes of its own. Run
    it again to resume. `ranks` are processes, one a GPU by default. Returns the result, with the path of the model.

    Progress, and what is wrong, goes to standard error as the command prints it.
    """
    refuse_in_a_worker()
    where = [] if out is None else ["--out", str(out)]
    each = [] if ranks is None else ["--ranks", str(ranks)]
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "train", str(plan), *where, *each, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        kind = RecipeError if done.returncode == RecipeError.exit_code else RunFailed
        raise kind(f"{plan}: training ended with exit code {done.returncode}; why is on standard error")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
