"""Marks of a language model as a signal: by a rubric of your own, or by what MEDU found a benchmark to ask
(docs/medu.md)."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, Self

import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.common.paths import PathRole, RecipePath
from gristmill.kernels.common.settings import PLACEMENT
from gristmill.stages.contract import signals_of
from gristmill.stages.figures import Block, FactList, Report, StageFigures
from gristmill.stages.judge.back_end import BackEnd
from gristmill.stages.judge.cost import Cost, doubts
from gristmill.stages.judge.figures import score_figures
from gristmill.stages.stage import Annotate, Applied, CannotRun, Verdict, with_columns

if TYPE_CHECKING:
    from gristmill.classifiers.llm.answers import AnswerFolder
    from gristmill.classifiers.llm.model import Answer, LanguageModel, Request
    from gristmill.classifiers.rating.rubric import Asking

MEDU_LABELS = {"Great": 1.0, "Good": 0.75, "Okay": 0.5, "Poor": 0.25, "Useless": 0.0}
SHOWN, EXCERPT = 3, 160
FED = "fed: "  # before how requests were given to the engine, among what is noted
UNREAD = "llm_unread:"  # before the kind of an answer that could not be read


class Puts(Protocol):
    """How a document is put to a model."""

    def request(self, document: str) -> Request: ...


class AsksModel(BackEnd, Annotate):
    """What asks a language model about each text; answers are asked for once, and too many unreadable ones stop the
    run."""

    reading: Annotated[
        Literal["at_once", "reasoned"],
        Field(description=("one pass that reads the probabilities of all labels, or reasoning that ends with a label")),
    ] = "at_once"
    cut: Annotated[int, Field(description="tokens of a document that are shown, of 4 bytes each", ge=1)] = 512
    max_tokens: Annotated[int, Field(description="of a reasoned answer", ge=16)] = 1024
    most_failures: Annotated[
        float, Field(description="the share of unreadable answers in a batch beyond which the run stops", ge=0, le=1)
    ] = 0.02
    cache_path: Annotated[
        str,
        PathRole(is_name=bool),  # one that is not there is made only of a whole path
        Field(
            description="a folder in which answers are kept for other runs: one that is there, or a whole path",
            json_schema_extra=PLACEMENT,
        ),
    ] = ""

    needs: ClassVar[tuple[str, ...]] = ("text",)
    costly: ClassVar[bool] = True
    patience: ClassVar[float] = 86_400.0  # a batch of reasoned answers takes hours on a small machine

    @model_validator(mode="after")
    def _keeps_answers_somewhere(self) -> Self:
        if self.cache_path and not (Path(self.cache_path).is_absolute() or Path(self.cache_path).is_dir()):
            raise ValueError(
                f"cache_path: there is no folder {self.cache_path} beside the recipe; make it, or give a whole path"
            )
        return self

    @model_validator(mode="after")
    def _guesses_what_is_generated(self) -> Self:
        if self.speculative and self.reading == "at_once":
            raise ValueError("`speculative` speeds up `reading: reasoned`; read at once, nothing is generated")
        return self

    def apply(self, batch: pa.RecordBatch) -> Applied:
        """Notes what asking took, which answers could not be read and why, and how the engine was fed where that is
        measured."""
        noted: Counter[str] = Counter()
        signals = signals_of(self.marks(batch, noted), batch, self.added)
        if self.measure_feeding:
            noted[f"{FED}{getattr(self._model(), 'feeding', 'unknown')}"] = len(batch)
        counts = {name: count for name, count in sorted(noted.items()) if count}
        return Applied(with_columns(batch, signals), Verdict.keep(len(batch)), noted=counts)

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        return self.marks(batch, Counter())

    @abstractmethod
    def marks(self, batch: pa.RecordBatch, noted: Counter[str]) -> dict[str, pa.Array]:
        """The signals; what it took goes to `noted`."""

    def _model(self) -> LanguageModel:
        return opened(BackEnd(**{name: getattr(self, name) for name in BackEnd.model_fields}))

    @abstractmethod
    def asking(self) -> Puts:
        """How a document is put to the model."""

    def requests_about(self, texts: Sequence[str]) -> list[Request]:
        from gristmill.classifiers.rating.sample import cut_texts

        asking = self.asking()
        return [asking.request(text) for text in cut_texts(texts, self.cut)]

    def answers(self, texts: Sequence[str], noted: Counter[str]) -> list[Answer]:
        """The model's answer on each text, in their order; what it took is noted."""
        from gristmill.classifiers.llm.account import Account
        from gristmill.classifiers.llm.cache import answer_all
        from gristmill.classifiers.llm.model import LanguageModelError

        requests = self.requests_about(texts)
        answers: dict[int, Answer] = {}
        account = Account()
        try:
            model = self._model()
            cache = answers_in(self.cache_path) if self.cache_path else None
            answers.update(answer_all(model, requests, account, cache))
        except LanguageModelError as error:
            raise CannotRun(str(error)) from error
        except (
            Exception
        ) as error:  # a document's fault is its answer's failure; for an engine or a full disk none is to be blamed
            raise CannotRun(f"{type(error).__name__}: {error}") from error
        noted.update({"llm_asked": len(requests), **{f"llm_{name}": n for name, n in account.counts().items()}})
        return [answers[row] for row in range(len(texts))]

    def gate(self, batch: pa.RecordBatch, kinds: Sequence[str], answers: Sequence[Answer], noted: Counter[str]) -> None:
        """One unreadable answer is a document without a mark; many are a model, a prompt or a server that does not do
        its work."""
        failed = [row for row, kind in enumerate(kinds) if kind]
        noted.update(f"{UNREAD}{kinds[row]}" for row in failed)
        if len(failed) <= (max(1.0, self.most_failures * len(kinds)) if self.most_failures else 0):
            return
        kinds_in_words = ", ".join(
            f"{count:,} {kind}" for kind, count in Counter(kinds[row] for row in failed).most_common()
        )
        examples = "".join(
            f"\n  document {_name(batch, row)}: {kinds[row]}: {_end_of(answers[row])}" for row in failed[:SHOWN]
        )
        raise CannotRun(
            f"{len(failed):,} of {len(kinds):,} answers could not be read ({kinds_in_words}), more than "
            f"{self.most_failures:.1%}. Some of them:{examples}"
        )


class LlmScore(AsksModel):
    """Have a language model mark each document from 0 to 1; a document of which the answer cannot be read has no mark
    (null).

    Answers are asked for once: a run goes on from its journal, and `cache_path` keeps them for other runs too. Too many
    unreadable ones stop the run.
    """

    rubric: Annotated[str, Field(description="what to judge, in your words; each label's meaning too")] = ""
    description_file: Annotated[
        RecipePath, Field(description="instead of a rubric: a description that `gristmill judge rate` wrote")
    ] = ""
    labels: dict[str, float] = Field(
        default=MEDU_LABELS, description="of a rubric: the words that a mark may be, each with its number from 0 to 1"
    )
    signal: Annotated[str, Field(description="the name of the signal", pattern=r"^[a-z][a-z0-9_]*$")] = "llm_score"
    adds: ClassVar[tuple[str, ...]] = ("llm_score",)

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if bool(self.rubric) == bool(self.description_file):
            raise ValueError("give one of `rubric` and `description_file`")
        if self.description_file and self.labels != MEDU_LABELS:
            raise ValueError("`labels` are for a rubric; MEDU has its own")
        try:
            self.asking()
        except OSError as error:
            raise ValueError(f"description_file: {self.description_file} cannot be read ({error.strerror})") from error
        return self

    @property
    def added(self) -> tuple[str, ...]:
        return (self.signal,)

    @property
    def scored_signals(self) -> tuple[str, ...]:
        return self.added

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        blocks = [*(score_figures(report) if "scores" in report else []), *asked_figures(report)]
        fed = {str(name): count for name, count in report.get("noted", {}).items() if str(name).startswith(FED)}
        if fed:
            pairs = [(name.removeprefix(FED), f"{count:,} documents") for name, count in fed.items()]
            blocks = [*blocks, FactList("How requests were given to the engine", pairs)]
        return StageFigures("Scores", blocks) if blocks or "scores" in report else None

    def cost_ahead(self, documents: float, text_bytes: float) -> Cost:
        """Of one request a document; prices are the endpoint's own matter. Without a count, documents are as long as
        they are shown."""
        many = documents or text_bytes / (4 * self.cut)
        shared = len(self.asking().request("").shared.encode()) / 4 + 100
        answers = 1 if self.reading == "at_once" else self.max_tokens
        return Cost.of(many, many * shared + min(text_bytes / 4, many * self.cut), many * answers, (0, 0), 0)

    def asking(self) -> Asking:
        from gristmill.classifiers.rating.rubric import ByDescription, ByRubric

        if self.rubric:
            return ByRubric(self.rubric, self.labels, self.reading, self.max_tokens)
        description = (
            Path(self.description_file).read_text(encoding="utf-8").removesuffix("\n")
        )  # as `judge rate` asked by it
        return ByDescription(description, self.reading, self.max_tokens)

    def marks(self, batch: pa.RecordBatch, noted: Counter[str]) -> dict[str, pa.Array]:
        asking = self.asking()
        answers = self.answers([text or "" for text in batch.column("text").to_pylist()], noted)
        read = [asking.mark(answer) for answer in answers]
        self.gate(batch, [kind for _, kind in read], answers, noted)
        return {self.signal: pa.array([mark for mark, _ in read], pa.float32())}


def asked_figures(report: Report) -> list[Block]:
    """Answers asked for, and those that could not be read, by kind; tokens; who answered."""
    noted = {str(name): int(count) for name, count in report.get("noted", {}).items()}
    asked = noted.get("llm_asked", 0)
    if not asked:
        return []
    unread = {name.removeprefix(UNREAD): n for name, n in noted.items() if name.startswith(UNREAD)}
    facts = [
        ("answers", f"{asked:,}, of which {noted.get('llm_kept_answers', 0):,} were known from earlier runs"),
        ("could not be read", f"{sum(unread.values()):,}, {sum(unread.values()) / asked:.1%}"),
        *((f"  {kind.replace('_', ' ')}", f"{count:,}") for kind, count in sorted(unread.items())),
        (
            "tokens",
            f"{noted.get('llm_prompt_tokens', 0):,} of prompts, {noted.get('llm_answer_tokens', 0):,} of answers",
        ),
        *doubts(noted, "llm_"),
    ]
    return [FactList("Answers of the model", facts)]


@lru_cache(2)
def opened(back_end: BackEnd) -> LanguageModel:
    """Once in each process."""
    return back_end.opened()


@lru_cache(8)
def answers_in(folder: str) -> AnswerFolder:
    """Open while the process lives: it holds the lock on its file."""
    from gristmill.classifiers.llm.answers import AnswerFolder

    return AnswerFolder(folder)


def _name(batch: pa.RecordBatch, row: int) -> str:
    return f"{batch.column('uid')[row].as_py():016x}" if "uid" in batch.schema.names else str(row)


def _end_of(answer: Answer) -> str:
    text = answer.detail or answer.text
    return repr(text if len(text) <= EXCERPT else "..." + text[-EXCERPT:])
