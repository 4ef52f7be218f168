"""MEDU from files to a table of utilities: development sets (or tasks in words, or marks that the documents have),
documents of each source, a model's answers, and what all of it took (docs/medu.md).

Files are read twice: once for how many tokens each document has, once for the texts of those that were drawn.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from pydantic import BeforeValidator, Field, model_validator

from gristmill.classifiers.llm.account import Account, Prices
from gristmill.classifiers.llm.model import LanguageModel, LanguageModelError, Request
from gristmill.classifiers.rating import medu, prompts
from gristmill.classifiers.rating.reading import UNREAD, Agreement
from gristmill.classifiers.rating.rubric import Asking, ByDescription, ByRubric, Reading
from gristmill.classifiers.rating.sample import BYTES_A_TOKEN, cut_texts, sample
from gristmill.classifiers.teaching.passages import text_hashes
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.common.settings import Settings
from gristmill.mixing.weights.utility import Utilities, judged
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.inputs.columns import cast_to, files_of, pieces_of, texts_in
from gristmill.pipeline.json_types import Also
from gristmill.pipeline.judging.asking import AskingPlan, kept_answers
from gristmill.pipeline.recipe import plans
from gristmill.pipeline.recipe.plans import LoadedPlan, Paths, Where
from gristmill.stages.blend.groups import NO_VALUE
from gristmill.stages.inputs import InputFile
from gristmill.stages.judge.back_end import BackEnd
from gristmill.stages.judge.llm_score import MEDU_LABELS
from gristmill.stages.read.plain import Plain

EXAMPLE = "recipes/mixing/utilities.yaml"
EXAMPLE_COLUMNS = (
    "text",
    "question",
    "prompt",
    "input",
    "query",
    "problem",
    "choices",
    "options",
    "answer",
    "target",
    "solution",
)
FEWEST_DOCUMENTS = 2
EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")  # blanks are nothing


class RateTask(Settings):
    """What documents are rated for: a benchmark by its development set, a description of what is wanted, a rubric, or
    marks that the documents have already."""

    files: Annotated[Paths | None, Field(description="a benchmark's development set")] = None
    description: Annotated[str, Field(description="what is wanted, in your words: educational value")] = ""
    description_file: Annotated[RecipePath, Field(description="the same in a file, as in `descriptions/`")] = ""
    rubric: Annotated[str, Field(description="what to judge, in your words; each label's meaning too")] = ""
    labels: Annotated[
        dict[str, float], Field(description="of a rubric: the words that a mark may be, each from 0 to 1")
    ] = MEDU_LABELS
    signal: Annotated[str, Field(description="a column of the documents with marks from 0 to 1 (of `llm_score`)")] = ""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        ways = ("files", "description", "description_file", "rubric", "signal")
        given = [name for name in ways if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"a task is one of {', '.join(ways)}; given are {' and '.join(given) or 'none'}")
        if self.labels != MEDU_LABELS and not self.rubric:
            raise ValueError("`labels` are for a `rubric`; MEDU has its own")
        if given[0] in ("description", "description_file", "rubric"):
            self.asking("at_once", 16)
        return self

    def asking(self, reading: Reading, max_tokens: int) -> Asking:
        if self.rubric:
            return ByRubric(self.rubric, self.labels, reading, max_tokens)
        return ByDescription(self.words, reading, max_tokens)

    @property
    def words(self) -> str:
        """The description."""
        if not self.description_file:
            return self.description
        try:
            return Path(self.description_file).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"description_file: {self.description_file} cannot be read: {error}") from error


def _task_from(value: Any) -> Any:
    """Files alone are a development set."""
    return {"files": value} if isinstance(value, str | list | tuple) else value


Task = Annotated[RateTask, BeforeValidator(_task_from), Also("string"), Also("array")]


class RatePlan(AskingPlan):
    """How useful each source is for each task, as a language model sees it."""

    model: BackEnd | None = None
    out: Annotated[str | None, Field(description="folder for utilities.csv, descriptions, scores and the account")] = (
        None
    )
    sources: Annotated[dict[str, Paths], Field(default_factory=dict, description="files of each source by its name")]
    documents: Annotated[Paths | None, Field(description="files with a column that names each document's source")] = (
        None
    )
    by: Annotated[str, Field(description="the column that names it")] = "source"
    tasks: Annotated[dict[str, Task], Field(min_length=1, description="development sets, or what is wanted, by name")]
    reading: Annotated[Literal["at_once", "reasoned", "both"], Field(description="both: and how well they agree")] = (
        "at_once"
    )
    most: Annotated[int, Field(ge=2, description="documents scored per source")] = 256
    max_tokens: Annotated[int, Field(ge=16, description="limit of a reasoned answer")] = 1024

    @property
    def named(self) -> list[tuple[str, str]]:
        """Each path of documents with its source; "": the files say it."""
        of_sources = [(name, path) for name, paths in self.sources.items() for path in paths]
        return of_sources + [("", path) for path in self.documents or ()]

    @property
    def readings(self) -> tuple[Reading, ...]:
        return ("reasoned", "at_once") if self.reading == "both" else (self.reading,)


def load(path: Path) -> LoadedPlan[RatePlan]:
    return plans.load(path, RatePlan, EXAMPLE)


@dataclass(frozen=True)
class RateJob:
    """A plan with all that it names read: what is asked, about which documents."""

    plan: RatePlan
    folder: Path
    tasks: Mapping[str, list[str] | RateTask]  # examples of development sets; other tasks as they are
    documents: list[medu.SampledDocument]
    marked: Mapping[str, Utilities]  # by tasks whose marks the documents have

    @classmethod
    def of(cls, loaded: LoadedPlan[RatePlan], out: str | Path | None) -> RateJob:
        """RecipeError says where the plan is wrong."""
        plan = loaded.plan
        if not plan.named:
            raise loaded.wrong((), "give `sources`, by name, or `documents`, files with a column that names the source")
        folder, tasks = Path(loaded.out(out)), tasks_of(plan.tasks, loaded.where)
        signals = {name: task.signal for name, task in tasks.items() if isinstance(task, RateTask) and task.signal}
        asks = len(signals) < len(tasks)
        if asks and plan.model is None:
            raise loaded.wrong(
                (), "`model` is missing: the language model that is asked about tasks without a `signal`"
            )
        if not asks and plan.model is not None:
            raise loaded.wrong(("model",), "is not asked: all tasks have a `signal`")
        documents = documents_of(plan, loaded.where) if asks else []
        return cls(plan, folder, tasks, documents, marks_of(plan, signals, loaded.where) if signals else {})

    @property
    def expected(self) -> Account:
        """What asking takes at most."""
        return estimate_of(self.tasks, self.documents, self.plan)

    def carry_out(self, seen: Callable[[int], None] = lambda answers: None) -> MeduFindings:
        """Ask, and write what comes of it into the folder."""
        try:
            model = self.plan.model.opened() if self.plan.model else None
            findings = find(model, self.tasks, self.documents, self.plan, self.marked, self.folder / "answers", seen)
        except (LanguageModelError, ValueError) as error:
            raise RunFailed(str(error)) from error
        save(findings, self.folder, model.name if model else "", self.plan.costs)
        return findings


@dataclass(frozen=True)
class MeduFindings:
    utilities: Utilities
    documents: list[medu.SampledDocument]
    descriptions: Mapping[str, medu.Description]
    labels: list[medu.Labels]
    agreements: Mapping[str, Agreement]
    account: Account


def tasks_of(named: Mapping[str, RateTask], where: Where) -> dict[str, list[str] | RateTask]:
    """By name, in the plan's order. Each file of a development set is a task, with its examples (JSON lines, a table,
    or plain text with empty lines between examples); of several files tasks have the file's name too."""
    tasks: dict[str, list[str] | RateTask] = {}
    for name, given in named.items():
        some: list[tuple[str, list[str] | RateTask]] = [(name, given)]
        if given.files:
            files = files_of(given.files, where("tasks", name))
            names = [name if len(files) == 1 else f"{name}_{Path(file.path).stem}" for file in files]
            some = [(task, _examples(file, where("tasks", name))) for task, file in zip(names, files, strict=True)]
        for task, what in some:
            if task in tasks:
                raise RecipeError(f"{where('tasks', name)}: two tasks are called {task!r}; give each a name of its own")
            tasks[task] = what
    return tasks


def documents_of(how: RatePlan, where: Where) -> list[medu.SampledDocument]:
    """A sample of each source."""
    streams = streams_of(how, where)
    sources, uids, tokens, _ = _counted(streams, how, where)
    names, which = np.unique(np.array(sources, dtype=object).astype(str), return_inverse=True)
    taken: dict[int, tuple[str, float]] = {}
    for number, source in enumerate(names.tolist()):
        rows = np.flatnonzero(which == number)
        of_source = sample(uids[rows], tokens[rows], how.most, how.cut, how.seed)
        taken |= {
            int(rows[row]): (source, float(weight))
            for row, weight in zip(of_source.rows, of_source.weights, strict=True)
        }
    drawn_of = Counter(source for source, _ in taken.values())
    _check_enough(
        {name: drawn_of[name] for name in dict.fromkeys([*(name for name, _ in streams if name), *names.tolist()])}
    )
    documents = []
    start = 0
    for _, _, table in _pieces(streams, how, where):
        wanted = [row for row in range(start, start + len(table)) if row in taken]
        texts = (
            table[how.text].take(pa.array([row - start for row in wanted], pa.int64())).to_pylist() if wanted else []
        )
        for row, text in zip(wanted, cut_texts([text or "" for text in texts], how.cut), strict=True):
            documents.append(medu.SampledDocument(taken[row][0], int(uids[row]), text, taken[row][1]))
        start += len(table)
    return sorted(documents, key=lambda document: (document.source, document.uid))


def _check_enough(drawn: Mapping[str, int]) -> None:
    """Before anything is asked: a source without documents has no utility, and one with a single document no error of
    it."""
    few = [f"{name!r} has {count or 'none'}" for name, count in drawn.items() if count < FEWEST_DOCUMENTS]
    if few:
        raise RecipeError(
            f"documents: at least {FEWEST_DOCUMENTS} with text are needed of every source, and {', '.join(few[:10])}"
            + (f" ({len(few) - 10:,} more are so)" if len(few) > 10 else "")
            + "; leave such sources out, or join them to others"
        )


def marks_of(plan: RatePlan, signals: Mapping[str, str], where: Where) -> dict[str, Utilities]:
    """The mean mark of a token of each source, from all documents that have one."""
    streams = streams_of(plan, where)
    columns = sorted(set(signals.values()))
    sources, _, tokens, marks = _counted(streams, plan, where, columns)
    names, source_D = np.unique(np.array(sources, dtype=object).astype(str), return_inverse=True)
    found = {}
    for task, signal in signals.items():
        values = marks[signal]
        marked, with_text = np.isfinite(values), tokens > 0
        for number, name in enumerate(names.tolist()):
            of_source = with_text & (source_D == number)
            missing = int((of_source & ~marked).sum())
            if missing > plan.most_failures * of_source.sum():
                raise RecipeError(
                    f"{where('tasks', task)}: source {name!r}: {missing:,} of {int(of_source.sum()):,} documents have no "
                    f"{signal!r}, more than {plan.most_failures:.1%} (`most_failures`)"
                )
        used = marked & with_text
        try:
            found[task] = judged(
                tuple(names.tolist()), (task,), source_D[used].astype(np.int64), tokens[used], values[used][:, None]
            )
        except ValueError as error:
            raise RecipeError(f"{where('tasks', task)}: {signal}: {error}") from error
    return found


def estimate_of(
    tasks: Mapping[str, list[str] | RateTask], documents: Sequence[medu.SampledDocument], asked: RatePlan
) -> Account:
    """What asking takes at most: descriptions and reasoned answers of full length."""
    account = Account()
    longest = "x" * (medu.DESCRIPTION_TOKENS * BYTES_A_TOKEN)
    for task in tasks.values():
        requests: list[Request] = []
        askings: list[Asking]
        if isinstance(task, RateTask):
            askings = [] if task.signal else [task.asking(reading, asked.max_tokens) for reading in asked.readings]
        else:
            chunks = medu.chunks_of(task, seed=asked.seed)
            requests += [prompts.describe(chunk, medu.DESCRIPTION_TOKENS) for chunk in chunks]
            requests += [prompts.merge(longest, longest, medu.DESCRIPTION_TOKENS)] * (len(chunks) - 1)
            askings = [ByDescription(longest, reading, asked.max_tokens) for reading in asked.readings]
        account.completion_tokens += len(requests) * medu.DESCRIPTION_TOKENS
        requests += [asking.request(document.text) for asking in askings for document in documents]
        account.calls += len(requests)
        account.prompt_tokens += sum(len((r.shared + r.own).encode()) for r in requests) // BYTES_A_TOKEN
        account.completion_tokens += len(documents) * sum(
            asked.max_tokens if asking.reading == "reasoned" else 1 for asking in askings
        )
    return account


def find(
    model: LanguageModel | None,
    tasks: Mapping[str, list[str] | RateTask],
    documents: list[medu.SampledDocument],
    asked: RatePlan,
    marked: Mapping[str, Utilities],
    answers: Path,
    seen: Callable[[int], None],
) -> MeduFindings:
    """Describe each task that is not in words, mark all documents for it, and say what sources are worth. Every answer
    is kept in the folder `answers`."""
    account = Account()
    descriptions: dict[str, medu.Description] = {}
    labels: list[medu.Labels] = []
    chosen: list[medu.Labels] = []
    agreements: dict[str, Agreement] = {}
    with kept_answers(answers, seen) if model else nullcontext() as cache:
        for name, task in tasks.items():
            if model is None or name in marked:
                continue
            if isinstance(task, RateTask):
                askings = [task.asking(reading, asked.max_tokens) for reading in asked.readings]
            else:
                described = medu.describe(model, medu.chunks_of(task, seed=asked.seed), cache, asked.seed)
                descriptions[name] = described
                account.merge(described.account)
                askings = [ByDescription(described.text, reading, asked.max_tokens) for reading in asked.readings]
            of_task = [medu.label(model, name, asking, documents, cache, asked.most_failures) for asking in askings]
            for labels_of in of_task:
                account.merge(labels_of.account)
            labels += of_task
            chosen.append(of_task[0])
            if len(of_task) == 2:
                agreements[name] = medu.readings_agree(*of_task)
    tables = [*([medu.utilities(documents, chosen)] if chosen else []), *marked.values()]
    table = beside(tables).of_tasks(tuple(tasks))
    return MeduFindings(table, documents, descriptions, labels, agreements, account)


def beside(tables: Sequence[Utilities]) -> Utilities:
    """Tables of the same sources as one."""
    sources = tables[0].sources
    same = [table.of_sources(sources) for table in tables]
    return Utilities(
        sources,
        tuple(task for table in same for task in table.tasks),
        np.concatenate([table.values_NT for table in same], axis=1),
        np.concatenate([table.errors_NT for table in same], axis=1),
    )


def save(findings: MeduFindings, out: Path, model: str, prices: Prices | None) -> None:
    """`utilities.csv`, a description a task, every mark, and the account."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "utilities.csv").write_text(medu.utilities_csv(findings.utilities), encoding="utf-8")
    (out / "descriptions").mkdir(exist_ok=True)
    for task, name in _file_names(list(findings.descriptions)).items():
        (out / "descriptions" / f"{name}.txt").write_text(findings.descriptions[task].text + "\n", encoding="utf-8")
    if findings.labels:
        pq.write_table(_marks(findings), out / "marks.parquet")
    facts = {
        "model": model,
        "documents": len(findings.documents),
        "account": findings.account.as_dict(prices),
        "tasks": {
            task: {"chunks": each.chunks, "merges": each.merges, "headings_missing": list(each.missing)}
            for task, each in findings.descriptions.items()
        },
        "readings": [
            {"task": each.task, "reading": each.reading, **each.account.as_dict(prices), "unread": each.failures}
            for each in findings.labels
        ],
        "agreement": {task: asdict(each) for task, each in findings.agreements.items()},
    }
    (out / "account.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _file_name(task: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in task).lstrip(".") or "task"


def _file_names(tasks: Sequence[str]) -> dict[str, str]:
    """One each, also on systems that do not tell capitals: where two tasks would have one, both end with a hash of
    their own."""
    plain = {task: _file_name(task) for task in tasks}
    often = Counter(name.lower() for name in plain.values())
    return {
        task: name if often[name.lower()] == 1 else f"{name}-{xxhash.xxh3_64_hexdigest(task.encode())[:8]}"
        for task, name in plain.items()
    }


def _examples(file: InputFile, where: str) -> list[str]:
    """Examples as one text each: of a row the fields that tests have."""
    examples: list[str] = []
    for table in pieces_of(file, EXAMPLE_COLUMNS):
        if file.address.lower().endswith(Plain.suffixes):
            lines = re.sub(r"\r\n?", "\n", table["text"][0].as_py())
            examples += [part for part in EMPTY_LINES.split(lines) if part.strip()]
            continue
        for row in table.to_pylist():
            parts = [
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for value in row.values()
                if value is not None
            ]
            examples += ["\n".join(parts)] if any(part.strip() for part in parts) else []
    if not examples:
        raise RecipeError(
            f"{where}: {file.address}: no examples; rows with one of {', '.join(EXAMPLE_COLUMNS)} were expected, or"
            " plain text"
        )
    return examples


Streams = Sequence[tuple[str, Sequence[InputFile]]]


def streams_of(how: RatePlan, where: Where) -> Streams:
    """Files by source; "": the files say it."""
    return [
        (name, files_of([path], where("sources", name) if name else where("documents"))) for name, path in how.named
    ]


def _pieces(
    streams: Streams, how: RatePlan, where: Where, more: Sequence[str] = ()
) -> Iterator[tuple[str, InputFile, pa.Table]]:
    for name, files in streams:
        for file, _, table in texts_in(files, how.text, [how.by, "uid", "tokens", *more], where("text")):
            yield name, file, table


def _counted(
    streams: Streams, how: RatePlan, where: Where, signals: Sequence[str] = ()
) -> tuple[list[str], npt.NDArray[np.uint64], npt.NDArray[np.float64], dict[str, npt.NDArray[np.float64]]]:
    """Of every document: source, uid, tokens (a token for each 4 bytes, where nobody counted), and signals."""
    marks: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in signals}
    sources: list[str] = []
    uids: list[npt.NDArray[np.uint64]] = []
    tokens: list[npt.NDArray[np.float64]] = []
    for name, file, table in _pieces(streams, how, where, signals):
        for signal, values in marks.items():
            values.append(_numbers(table, signal, file, where))
        if not name and how.by not in table.column_names:
            raise RecipeError(
                f"{where('by')}: {file.path}: no column {how.by!r} says which source a document is of; name the source of"
                " such files in `sources`"
            )
        sources += (
            [name] * len(table)
            if name
            else [NO_VALUE if value is None else str(value) for value in table[how.by].to_pylist()]
        )
        texts = table[how.text]
        if "uid" in table.column_names and pa.types.is_uint64(table["uid"].type) and not table["uid"].null_count:
            uids.append(table["uid"].to_numpy())
        else:
            uids.append(text_hashes(texts, 0))
        sizes = pc.fill_null(pc.binary_length(texts), 0).to_numpy().astype(np.float64) / BYTES_A_TOKEN
        if "tokens" in table.column_names and _is_a_count(table["tokens"]):
            counted = table["tokens"].to_numpy().astype(np.float64)
            if not (np.isfinite(counted) & (counted >= 0)).all():
                raise RecipeError(
                    f"{file.address}: the column tokens has numbers that count nothing (below 0, or not finite)"
                )
            sizes = np.where(sizes > 0, counted, 0.0)
        tokens.append(sizes)
    if not sources:
        raise RecipeError("documents: the files hold none")
    together = {name: np.concatenate(values) for name, values in marks.items()}
    return sources, np.concatenate(uids).astype(np.uint64), np.concatenate(tokens), together


def _numbers(table: pa.Table, signal: str, file: InputFile, where: Where) -> npt.NDArray[np.float64]:
    """A column of marks; NaN where there is none."""
    if signal not in table.column_names:
        raise RecipeError(f"{where('tasks')}: {file.address}: no column {signal!r}")
    expected = f"{where('tasks')}: {file.address}: the column {signal!r}: marks are numbers"
    numbers: npt.NDArray[np.float64] = cast_to(table[signal], pa.float64(), expected).to_numpy(zero_copy_only=False)
    return numbers


def _is_a_count(column: pa.ChunkedArray) -> bool:
    """Elsewhere a column of this name may hold the tokens themselves."""
    return (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) and not column.null_count


def _marks(findings: MeduFindings) -> pa.Table:
    documents = findings.documents
    tables: list[pa.Table] = []
    for labels in findings.labels:
        scale, none = [*labels.scale], pa.nulls(len(documents), pa.float64())
        names = [None if label == UNREAD else scale[label] for label in labels.label.tolist()]
        tables.append(
            pa.table(
                {
                    "source": [document.source for document in documents],
                    "uid": pa.array([document.uid for document in documents], pa.uint64()),
                    "weight": [document.weight for document in documents],
                    "task": [labels.task] * len(documents),
                    "reading": [labels.reading] * len(documents),
                    "label": pa.array(names, pa.string()),
                    "mark": pa.array(labels.mark, mask=~labels.readable),
                    "label_mass": none if labels.mass is None else pa.array(labels.mass, pa.float64()),
                }
            )
        )
    return pa.concat_tables(tables)
