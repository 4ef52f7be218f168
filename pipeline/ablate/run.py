"""An ablation carried out: checks, the base, a run of each arm and seed, and what they say together.

OUT/ablation.json   plan as resolved, jobs, differences, verdicts (docs/ablations.md)      ablation.html   the same for
  eyes
    utilities.csv or ablations.csv   for `mix`
    plan.json  log.txt  base/  jobs/ARM/seed-N/  (pipeline/ablate/jobs.py)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from gristmill.mixing.verdicts.paired import effective, errors, numbered
from gristmill.pipeline.ablate.checks import CheckedPlan, check_plan
from gristmill.pipeline.ablate.corpora import pack_corpora
from gristmill.pipeline.ablate.jobs import BASE, arm_jobs, base_job
from gristmill.pipeline.ablate.length import in_words, weights_of
from gristmill.pipeline.ablate.measures import Runs, compared, measures_of, scores_of
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan, Loaded
from gristmill.pipeline.ablate.proxies import proxies_of, with_mixes
from gristmill.pipeline.ablate.results import (
    VERSION,
    Judged,
    ablations_csv,
    clean,
    cost_of,
    job_facts,
    judged,
    machine_facts,
    utilities_csv,
)
from gristmill.pipeline.ablate.rules import OnTheWay, power_before, power_in_words, readings_of
from gristmill.pipeline.ablate.show import AblationUi
from gristmill.pipeline.ablate.work import ITEMS_FILE, carry_out, finished
from gristmill.pipeline.ablate.workers import Crew, Team, Work
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.report.ablation_record import AblationRecord, CurveRecord, PowerRecord
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.train.evaluation import LEAST_CLUSTERS, documents_of, evaluation_spec, is_wrapped
from gristmill.pipeline.train.progress import PROGRESS
from gristmill.pipeline.train.records import EvaluationSpec, Job, JobResult, run_of
from gristmill.pipeline.train.work import BITS
from gristmill.trainer.evaluation.multiple_choice import BadQuestions, encode_questions, read_questions

RECORD = "ablation.json"
MOST_WRAPPED = 0.05  # of a set's characters, in texts with line breaks that may decide


class PreparedAblation:
    """What a plan comes to on this machine, before anything is trained."""

    def __init__(
        self, loaded: Loaded, out: Path, crew: Crew, note: Callable[[str], None], only_planned: bool = False
    ) -> None:
        self.packed = pack_corpora(loaded, out, crew.processes == 0, note)
        loaded = with_mixes(self.packed.loaded)
        self.loaded, self.out, self.crew = loaded, out, crew
        self.checked: CheckedPlan = check_plan(loaded, out, note, crew.device == "cuda", only_planned)
        self.evaluate = _evaluation(loaded, self.checked.length.updates)
        warnings, clusters = _looked_at(self.evaluate, self.checked, bool(self.packed.left_out))
        self.readings, of_reading = readings_of(self.checked.epochs, self.checked.sizes)
        of_reading = of_reading if self.plan.match == "tokens" else []  # as the plan asks for
        self.warnings = [*self.packed.warnings, *self.checked.warnings, *warnings]
        self.power: PowerRecord | None = None
        if self.plan.proxies is None:  # nothing is compared
            self.warnings += of_reading
            parameters, tokens = self.checked.shape.parameters, self.checked.length.tokens
            of_target = clusters[self.plan.evaluate.target]
            self.power = power_before(self.plan, out, self.unit, of_target, parameters, tokens)
        self.base = base_job(loaded, self.checked, out, crew.device, crew.threads)
        self.jobs = arm_jobs(
            loaded,
            self.checked,
            out,
            self.evaluate,
            self.base["fingerprint"] if self.base else None,
            crew.device,
            crew.threads,
        )

    @property
    def plan(self) -> AblationPlan:
        return self.loaded.plan

    @property
    def unit(self) -> str:
        """Of the target."""
        choices = self.plan.evaluate.choices.get(self.plan.evaluate.target)
        return "bits per byte" if choices is None or choices.score == "bits_per_byte" else "accuracy"


def _evaluation(loaded: Loaded, updates: int) -> EvaluationSpec:
    """The target is measured on the way, on some documents, for the curves of the report."""
    asked = loaded.plan.evaluate
    every = asked.every or (-(-updates // asked.points) if asked.points else None)
    bits = asked.target in asked.texts or asked.choices[asked.target].score == BITS
    watched = {asked.target: f"target_{BITS if bits else 'accuracy'}"} if every is not None else {}
    return evaluation_spec(loaded.folder, asked, every, watched, asked.point_documents, asked.guard)


def run(
    loaded: Loaded, out: Path, crew: Crew, face: AblationUi, only: str | None = None, work: Work = carry_out
) -> AblationRecord:
    """The record, as it stands in ablation.json. What is done already is not done again."""
    start = time.perf_counter()
    store = Store(str(out))
    store.make_root()
    with one_run_at_a_time(store):
        store.remove_temporary()
        ready = PreparedAblation(loaded, out, crew, face.note)
        loaded = ready.loaded
        store.write_json("plan.json", loaded.plan.model_dump(mode="json"))
        face.note(in_words(ready.plan, ready.checked.length))
        if ready.power is not None:
            face.note(power_in_words(ready.power, ready.unit))
        for warning in ready.warnings:
            face.note(f"warning: {warning}")
        wanted = [job for job in ready.jobs if only is None or job["arm"] in (CONTROL, only)]
        results: dict[str, JobResult] = {}
        everything = [*([ready.base] if ready.base else []), *wanted]
        with Team(crew, work) as team, face.watching(everything, crew.processes):
            if ready.base is not None:
                results |= _worked(team, [ready.base], face)
                if "failed" in results[ready.base["folder"]]:
                    _keep(store, _record(ready, results, {}, start))
                    raise RunFailed(f"the base could not be trained: {results[ready.base['folder']]['failed']}")
            for jobs in _looks(ready.plan, wanted):
                given_up = hopeless_arms(ready.plan, results, wanted)
                for arm in given_up:
                    face.note(f"{arm}: its interval leaves no room for a gain; its other seeds are not run")
                results |= _worked(team, [job for job in jobs if job["arm"] not in given_up], face)
        for job in ready.jobs:  # of arms that were not asked for now
            if job["folder"] not in results and (done := finished(job)) is not None:
                results[job["folder"]] = done
        runs = _runs(results, ready.jobs)
        record, scores = _record(ready, results, runs, start), scores_of(runs, loaded.plan.orders)
        _keep(store, record)
        for name, text in (
            ("utilities.csv", utilities_csv(loaded.plan, scores)),
            ("ablations.csv", ablations_csv(loaded.plan, scores, ready.checked.length)),
        ):
            if text is None:
                store.remove([name])  # of another plan, or of arms that there are no more
            else:
                store.write(name, text.encode())
    return record


def _runs(results: dict[str, JobResult], jobs: Iterable[Job]) -> Runs:
    """Items of the runs that are done."""
    return {
        run_of(job): pq.read_table(Path(job["folder"]) / ITEMS_FILE)
        for job in jobs
        if _is_done(results.get(job["folder"]))
    }


def _looks(plan: AblationPlan, jobs: list[Job]) -> list[list[Job]]:
    """Jobs between which arms may be given up: all at once, or the first seeds, and then one seed after another."""
    if plan.hopeless is None:
        return [jobs]
    first, more = plan.seeds[: plan.hopeless], plan.seeds[plan.hopeless :]
    return [[job for job in jobs if job["seed"] in seeds] for seeds in (first, *((seed,) for seed in more))]


def hopeless_arms(plan: AblationPlan, results: dict[str, JobResult], jobs: Iterable[Job]) -> list[str]:
    """Arms whose interval of the target leaves no room for a gain. What is left of the plan's confidence is shared
    among the looks, so that all of them together give up a good arm as rarely as one verdict rejects it."""
    if plan.hopeless is None:
        return []
    scores = scores_of(_runs(results, jobs), plan.orders)
    control = [seed for seed in plan.seeds if (CONTROL, seed) in scores]
    given_up = []
    for arm in plan.arms:
        seeds = [seed for seed in control if (arm, seed) in scores]
        if len(seeds) < plan.hopeless:
            continue
        target = next(m for m in measures_of(plan.evaluate, scores) if m.role == "target" and m.domain is None)
        looks = max(1, len(plan.seeds) - plan.hopeless)
        low, high = errors(compared(scores, arm, seeds, target)).interval(1 - (1 - plan.confidence) / looks)
        if (low > 0) if target.better == "lower" else (high < 0):
            given_up.append(arm)
    return given_up


def _keep(store: Store, record: AblationRecord) -> None:
    """The record, and the page that shows it."""
    from gristmill.pipeline.look.run_folder import RunFolder
    from gristmill.pipeline.report.ablation import build_page

    store.write_json(RECORD, record)
    store.write("ablation.html", build_page(RunFolder(store.address)).encode("utf-8", "replace"))


def _worked(team: Team, jobs: Iterable[Job], face: AblationUi) -> dict[str, JobResult]:
    """Results by folder; those that are there already are only read."""
    results: dict[str, JobResult] = {}
    to_do = []
    for job in jobs:
        done = finished(job)
        if done is None:
            to_do.append(job)
            (Path(job["folder"]) / PROGRESS).unlink(missing_ok=True)  # of a session that was killed
        else:
            results[job["folder"]] = {**done, "anew": False}
            face.ends(job, results[job["folder"]])
    for job, result in team.done(to_do, face.begins):
        results[job["folder"]] = result
        face.ends(job, result)
    return results


def _on_the_way(ready: PreparedAblation, runs: Runs) -> OnTheWay:
    """What was measured of the target as runs went on."""
    from gristmill.pipeline.look.run_folder import RunFolder
    from gristmill.pipeline.report.ablation import ON_THE_WAY, metrics_of

    folder, found = RunFolder(str(ready.out)), {}
    for job in ready.jobs:
        if run_of(job) in runs:
            values = metrics_of(folder, f"{_below(ready.out, job['folder'])}/metrics.jsonl")
            found[run_of(job)] = {
                name.removeprefix(ON_THE_WAY).removeprefix("/") or None: steps
                for name, steps in values.items()
                if name.startswith(ON_THE_WAY)
            }
    return found


def _curves(ready: PreparedAblation, on_the_way: OnTheWay) -> list[CurveRecord]:
    """Of each arm, and of each domain of the target: means over runs that are as long as the plan says."""
    from gristmill.pipeline.report.ablation import curve_of

    curves: list[CurveRecord] = []
    of_update = ready.checked.length.rows_per_update * ready.checked.length.row_length
    domains = dict.fromkeys(domain for run in on_the_way.values() for domain in run)
    for domain in domains:
        for arm in (CONTROL, *ready.plan.arms):
            of_arm = [
                measured.get(domain, {})
                for run, measured in on_the_way.items()
                if run.arm == arm and not run.second_rate and run.length == 1
            ]
            curve = curve_of(arm, of_arm, of_update)
            if curve is not None:
                task = "/".join(filter(None, (ready.plan.evaluate.target, domain)))
                curves.append({"arm": arm, "task": task, "tokens": [*map(int, curve.at)], "mean": list(curve.mean)})
    return curves


def _record(ready: PreparedAblation, results: dict[str, JobResult], runs: Runs, start: float) -> AblationRecord:
    plan, found = ready.plan, ready.checked
    scores = scores_of(runs, plan.orders)
    problems: dict[str, str] = {}
    for job in ready.jobs:
        result = results.get(job["folder"])
        if result is not None and "failed" in result:
            problems.setdefault(job["arm"], f"{run_of(job).words.partition(', ')[2]}: {result['failed']}")
    for arm in [arm for arm in problems if sum((arm, seed) in scores for seed in plan.seeds) >= 2]:
        del problems[arm]  # its other seeds speak for it
    proxies, curves = None, []
    if plan.proxies is None:
        on_the_way = _on_the_way(ready, runs)
        curves = _curves(ready, on_the_way)
        longer = {arm: length.updates / found.length.updates for arm, length in found.lengths.items()}
        told = judged(plan, runs, problems, on_the_way, found.length.updates, longer)
    else:
        measures, arms, proxies = proxies_of(plan, scores, problems)
        told = Judged(measures, arms)
    measures, arms = told.measures, told.arms
    jobs = [job_facts(job, results.get(job["folder"]), _below(ready.out, job["folder"])) for job in ready.jobs]
    base = job_facts(ready.base, results.get(ready.base["folder"]), BASE) if ready.base else None
    status = "failed" if not measures else "done" if all(arm["status"] == "done" for arm in arms) else "partial"
    for facts in arms if proxies is None else ():  # which of hundreds of mixes would fill the record
        facts["weights"] = weights_of(plan, facts["name"], found.length)
        facts["tokens"] = found.lengths[facts["name"]].tokens
        facts["epochs"] = found.epochs.get(facts["name"])
        facts["reading"] = ready.readings.get(facts["name"])
    schedule = ready.jobs[0]["training"]["schedule"] if ready.jobs else None
    record: AblationRecord = {
        "version": VERSION,
        "name": plan.name,
        "description": plan.description,
        "status": status,
        "seconds": round(time.perf_counter() - start, 3),
        "plan": plan.model_dump(mode="json"),
        "protocol": {
            "name": plan.protocol.name,
            "new": plan.protocol.new,
            "before": found.length.before / found.length.updates,
            "schedule": schedule,
        },
        "model": {
            "shape": found.shape.facts(),
            "parameters": found.shape.parameters,
            "base": plan.base.model if plan.base else None,
        },
        "tokens": found.length.tokens,
        "updates": found.length.updates,
        "rows_per_update": plan.training.rows_per_update,
        "row_length": found.meta.row_length,
        "seeds": list(plan.seeds),
        "confidence": plan.confidence,
        "sets": {
            name: {
                "folder": str(found.folders[name]),
                "fingerprint": found.fingerprints[name],
                "share": found.share,
                "left_out": ready.packed.left_out.get(name),
                "rows": found.sizes[name].rows,
                "tokens": found.sizes[name].tokens,
            }
            for name in found.folders
        },
        "control": {
            "mix": dict(plan.control.weights),
            "weights": weights_of(plan, CONTROL, found.length),
            "epochs": found.epochs.get(CONTROL),
            "reading": ready.readings.get(CONTROL),
        },
        "warnings": ready.warnings,
        "measures": measures,
        "arms": arms,
        "match": plan.match if proxies is None else None,
        "curves": curves,
        "proxies": proxies,
        "winner": told.winner,
        "power": ready.power,
        "changed_places": told.changed_places,
        "base": base,
        "jobs": jobs,
        "cost": cost_of([*([base] if base else []), *jobs]),
        "machine": machine_facts() | {"workers": ready.crew.processes, "device": ready.crew.device},
        "versions": next((result["versions"] for result in results.values() if "versions" in result), {}),
    }
    return cast(AblationRecord, clean(record))  # type: ignore[arg-type]


def _of_line_breaks(name: str, texts: list[str], of_tools: bool) -> list[str]:
    """A warning where line breaks of the evaluation may decide: inside sentences, and between paragraphs where sets are
    of several tools, which join these by one newline or by two."""
    wrapped = [text for text in texts if is_wrapped(text)]
    where = "inside sentences, as few web pages do"
    if not wrapped and of_tools:
        wrapped, where = (
            [text for text in texts if "\n" in text],
            "between paragraphs, by one newline or two as a tool has it",
        )
    if sum(map(len, wrapped)) <= MOST_WRAPPED * sum(map(len, texts)):
        return []
    return [
        f"evaluate.texts.{name}: {len(wrapped):,} of {len(texts):,} texts break lines {where}; this alone can turn a"
        " verdict round: `unwrap: true` puts each text in one line"
    ]


def _looked_at(evaluate: EvaluationSpec, found: CheckedPlan, of_tools: bool) -> tuple[list[str], dict[str, float]]:
    """Warnings, and of each set as how many clusters of one size its own count. Every file of the evaluation is read
    once before anything is trained."""
    warnings, counts = [], {}
    for name, texts in evaluate["texts"].items():
        documents = documents_of(name, texts)
        warnings += _of_line_breaks(name, documents.texts, of_tools)
        sizes_C = np.bincount(numbered(documents.clusters), [len(text.encode()) for text in documents.texts])
        clusters, alike = len(sizes_C), effective(sizes_C / sizes_C.sum())
        counts[name] = alike
        if alike <= 1:
            words = (
                f"evaluate.texts.{name}: all its documents are of one cluster ({texts['cluster']}), so that nothing"
                " can be said beyond it"
            )
            if name == evaluate["target"]:
                raise RecipeError(f"{words}; name another column, or take other texts for the target")
            warnings.append(words + ("; a guard like this lets no arm be adopted" if name == evaluate["guard"] else ""))
        elif alike < LEAST_CLUSTERS:
            of_size = f", by their sizes as good as {alike:.1f} that are alike" if alike < clusters - 0.5 else ""
            warnings.append(
                f"evaluate.texts.{name}: {clusters} clusters{of_size}; what is said beyond them rests on little."
                f" Take {LEAST_CLUSTERS} or more"
            )
    for name, choices in evaluate["choices"].items():
        try:
            questions = read_questions(Path(choices["file"]))
            encode_questions(
                questions,
                Tokenizer.from_file(str(found.tokenizer)),
                found.meta.row_length,
                found.before,
            )
        except BadQuestions as error:
            raise RecipeError(f"evaluate.choices.{name}: {error}") from error
        of_domains = np.bincount(numbered([question.domain for question in questions]))
        by_domain = choices["cluster"] == "domain"
        counts[name] = effective(of_domains / of_domains.sum()) if by_domain else float(len(questions))
    return warnings, counts


def _is_done(result: JobResult | None) -> bool:
    return result is not None and "failed" not in result


def _below(out: Path, folder: str) -> str:
    return str(Path(folder).relative_to(out))
