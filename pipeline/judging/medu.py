"""MEDU from files to a table of utilities: development sets, documents of each source, a model's answers, and what all
of it took (docs/medu.md).

Files are read twice: once for how many tokens each document has, once for the texts of those that were drawn.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from pydantic import Field

from gristmill.classifiers.llm.account import Account, Prices
from gristmill.classifiers.llm.model import LanguageModel, LanguageModelError
from gristmill.classifiers.rating import medu, prompts
from gristmill.classifiers.rating.prompts import LABELS
from gristmill.classifiers.rating.reading import UNREAD, Agreement
from gristmill.classifiers.rating.sample import BYTES_A_TOKEN, cut_texts, sample
from gristmill.mixing.weights.utility import Utilities
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.inputs.columns import files_of, pieces_of, texts_in
from gristmill.pipeline.judging.asking import AskingPlan, kept_answers
from gristmill.pipeline.recipe import plans
from gristmill.pipeline.recipe.plans import LoadedPlan, Paths, Where, in_words
from gristmill.stages.blend.groups import NO_VALUE
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.columns import SUFFIXES
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


class RatePlan(AskingPlan):
    """How useful each source is for each benchmark, as a language model sees it."""

    out: Annotated[str | None, Field(description="folder for utilities.csv, descriptions, scores and the account")] = (
        None
    )
    sources: Annotated[dict[str, Paths], Field(default_factory=dict, description="files of each source by its name")]
    documents: Annotated[
        Paths | None, Field(description="files with a column that names each document's source, or a run's folder")
    ] = None
    by: Annotated[str, Field(description="the column that names it")] = "source"
    tasks: Annotated[dict[str, Paths], Field(min_length=1, description="a benchmark's development set by its name")]
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
    def readings(self) -> tuple[medu.Reading, ...]:
        return ("reasoned", "at_once") if self.reading == "both" else (self.reading,)


def load(path: Path) -> LoadedPlan[RatePlan]:
    return plans.load(path, RatePlan, EXAMPLE)


@dataclass(frozen=True)
class RateJob:
    """A plan with all that it names read: what is asked, about which documents."""

    plan: RatePlan
    folder: Path
    tasks: Mapping[str, list[str]]
    documents: list[medu.SampledDocument]

    @classmethod
    def of(cls, loaded: LoadedPlan[RatePlan], out: str | Path | None) -> RateJob:
        """RecipeError says where the plan is wrong."""
        plan = loaded.plan
        if not plan.named:
            raise loaded.wrong((), "give `sources`, by name, or `documents`, files with a column that names the source")
        folder, tasks = Path(loaded.out(out)), development_sets(plan.tasks, loaded.where)
        return cls(plan, folder, tasks, documents_of(plan, loaded.where))

    @property
    def expected(self) -> Account:
        """What asking takes at most."""
        return estimate_of(self.tasks, self.documents, self.plan)

    def carry_out(self, seen: Callable[[int], None] = lambda answers: None) -> MeduFindings:
        """Ask, and write what comes of it into the folder."""
        try:
            model = self.plan.model.watched(seen)
            findings = find(model, self.tasks, self.documents, self.plan, self.folder / "answers")
        except (LanguageModelError, ValueError) as error:
            raise RunFailed(str(error)) from error
        save(findings, self.folder, model.name, self.plan.costs)
        return findings


@dataclass(frozen=True)
class MeduFindings:
    utilities: Utilities
    documents: list[medu.SampledDocument]
    descriptions: Mapping[str, medu.Description]
    labels: list[medu.Labels]
    agreements: Mapping[str, Agreement]
    account: Account


def development_sets(named: Mapping[str, Sequence[str]], where: Where = in_words) -> dict[str, list[str]]:
    """Examples by task: one task a file (JSON lines, a table, or plain text with empty lines between examples); those
    of a name with several have the file's name too."""
    examples: dict[str, list[str]] = {}
    for name, paths in named.items():
        files = files_of(paths, where("tasks", name))
        for file in files:
            task = name if len(files) == 1 else f"{name}_{Path(file.path).stem}"
            if task in examples:
                raise RecipeError(f"{where('tasks', name)}: two tasks are called {task!r}; give each file a name")
            examples[task] = _examples(file, where("tasks", name))
    return examples


def documents_of(how: RatePlan, where: Where = in_words) -> list[medu.SampledDocument]:
    """A sample of each source. The output folder of a run stands for what it wrote."""
    streams = [
        (name, files_of(_of_run(path), where("sources", name) if name else where("documents")))
        for name, path in how.named
    ]
    sources, uids, tokens = _counted(streams, how, where)
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


def estimate_of(tasks: Mapping[str, list[str]], documents: Sequence[medu.SampledDocument], asked: RatePlan) -> Account:
    """What asking takes at most: descriptions and reasoned answers of full length."""
    account = Account()
    description = "x" * (medu.DESCRIPTION_TOKENS * BYTES_A_TOKEN)
    for examples in tasks.values():
        chunks = medu.chunks_of(examples, seed=asked.seed)
        requests = [prompts.describe(chunk, medu.DESCRIPTION_TOKENS) for chunk in chunks]
        requests += [prompts.merge(description, description, medu.DESCRIPTION_TOKENS)] * (len(chunks) - 1)
        described = len(requests)
        requests += [
            medu.request_of(description, document.text, reading, asked.max_tokens)
            for reading in asked.readings
            for document in documents
        ]
        account.calls += len(requests)
        account.prompt_tokens += sum(len((r.shared + r.own).encode()) for r in requests) // BYTES_A_TOKEN
        account.completion_tokens += described * medu.DESCRIPTION_TOKENS
        account.completion_tokens += len(documents) * sum(
            asked.max_tokens if r == "reasoned" else 1 for r in asked.readings
        )
    return account


def find(
    model: LanguageModel,
    tasks: Mapping[str, list[str]],
    documents: list[medu.SampledDocument],
    asked: RatePlan,
    answers: Path,
) -> MeduFindings:
    """Describe each task, mark all documents for it, and say what sources are worth. Every answer is kept in the folder
    `answers`."""
    account = Account()
    descriptions: dict[str, medu.Description] = {}
    labels: list[medu.Labels] = []
    chosen: list[medu.Labels] = []
    agreements: dict[str, Agreement] = {}
    most, longest, seed = asked.most_failures, asked.max_tokens, asked.seed
    with kept_answers(answers) as cache:
        for task, examples in tasks.items():
            described = descriptions[task] = medu.describe(model, medu.chunks_of(examples, seed=seed), cache, seed)
            of_task = [
                medu.label(model, task, described.text, documents, reading, cache, most, longest)
                for reading in asked.readings
            ]
            for spent in (described.account, *(labels_of.account for labels_of in of_task)):
                account.merge(spent)
            labels += of_task
            chosen.append(of_task[0])
            if len(of_task) == 2:
                agreements[task] = medu.readings_agree(*of_task)
    return MeduFindings(medu.utilities(documents, chosen), documents, descriptions, labels, agreements, account)


def save(findings: MeduFindings, out: Path, model: str, prices: Prices | None) -> None:
    """`utilities.csv`, a description a task, every mark, and the account."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "utilities.csv").write_text(medu.utilities_csv(findings.utilities), encoding="utf-8")
    (out / "descriptions").mkdir(exist_ok=True)
    for task, name in _file_names(list(findings.descriptions)).items():
        (out / "descriptions" / f"{name}.txt").write_text(findings.descriptions[task].text + "\n", encoding="utf-8")
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


def _of_run(path: str) -> list[str]:
    """The folders that a run wrote to, of its output folder; any other path as it is."""
    try:
        run = json.loads((Path(path) / "run.json").read_text(encoding="utf-8"))
        sinks = [str(Path(path) / str(stage["name"])) for stage in run["stages"] if stage["kind"] == "sink"]
    except (OSError, ValueError, KeyError, TypeError):
        return [path]
    if not sinks:
        raise RecipeError(
            f"{path}: this run has no `write` stage; name files of documents ({', '.join(SUFFIXES[:4])}...)"
        )
    return sinks


Streams = Sequence[tuple[str, Sequence[InputFile]]]


def _pieces(streams: Streams, how: RatePlan, where: Where) -> Iterator[tuple[str, InputFile, pa.Table]]:
    for name, files in streams:
        for file, _, table in texts_in(files, how.text, [how.by, "uid", "tokens"], where("text")):
            yield name, file, table


def _counted(
    streams: Streams, how: RatePlan, where: Where
) -> tuple[list[str], npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """Of every document: source, uid, tokens (a token for each 4 bytes, where nobody counted)."""
    sources: list[str] = []
    uids: list[npt.NDArray[np.uint64]] = []
    tokens: list[npt.NDArray[np.float64]] = []
    for name, file, table in _pieces(streams, how, where):
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
            hashes = [xxhash.xxh3_64_intdigest((text or "").encode("utf-8", "replace")) for text in texts.to_pylist()]
            uids.append(np.array(hashes, np.uint64))
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
    return sources, np.concatenate(uids).astype(np.uint64), np.concatenate(tokens)


def _is_a_count(column: pa.ChunkedArray) -> bool:
    """Elsewhere a column of this name may hold the tokens themselves."""
    return (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) and not column.null_count


def _marks(findings: MeduFindings) -> pa.Table:
    tables = []
    for labels in findings.labels:
        read = labels.readable
        tables.append(
            pa.table(
                {
                    "source": [document.source for document in findings.documents],
                    "uid": pa.array([document.uid for document in findings.documents], pa.uint64()),
                    "weight": [document.weight for document in findings.documents],
                    "task": [labels.task] * len(findings.documents),
                    "reading": [labels.reading] * len(findings.documents),
                    "label": pa.array(
                        [None if label == UNREAD else LABELS[label] for label in labels.label.tolist()], pa.string()
                    ),
                    "mark": pa.array(labels.mark, mask=~read),
                    "label_mass": pa.array(labels.mass, pa.float64())
                    if labels.mass is not None
                    else pa.nulls(len(read), pa.float64()),
                }
            )
        )
    return pa.concat_tables(tables)
