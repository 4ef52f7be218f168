"""What `refine` and `rephrase` share: settings, asking, what is refused, what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.common.paths import PathRole
from gristmill.kernels.common.settings import PLACEMENT
from gristmill.stages.edits.passages import BYTES_A_TOKEN
from gristmill.stages.figures import Block, FactList, Report, StageFigures, Table, relative
from gristmill.stages.judge.back_end import BackEnd
from gristmill.stages.judge.cost import Cost, doubts
from gristmill.stages.judge.llm_score import answers_in, opened
from gristmill.stages.stage import CannotRun, Rewrite

if TYPE_CHECKING:
    from gristmill.classifiers.llm.model import Answer, Request

SHOWN, EXCERPT = 3, 120
REFUSED = "refused:"  # what begins a reason among the counts


class Editor(BackEnd, Rewrite):
    """A language model that is asked about documents, passage by passage."""

    passage_tokens: Annotated[
        int, Field(description="of a passage, 4 bytes each; longer documents have more", ge=16)
    ] = 1024
    max_tokens: Annotated[int, Field(description="of an answer; one that is cut there is refused", ge=16)] = 2048
    most_failures: Annotated[
        float,
        Field(
            description="the share of passages of a batch with a refused answer beyond which the run stops", ge=0, le=1
        ),
    ] = 0.3
    prompt_price: Annotated[
        float, Field(description="dollars for a million tokens of prompts", ge=0, json_schema_extra=PLACEMENT)
    ] = 0.0
    completion_price: Annotated[float, Field(description="and of answers", ge=0, json_schema_extra=PLACEMENT)] = 0.0
    tokens_per_second: Annotated[
        float,
        Field(
            description="that the model writes, for estimates of hours; 0: unknown", ge=0, json_schema_extra=PLACEMENT
        ),
    ] = 0.0
    cache_path: Annotated[
        str,
        PathRole(is_name=bool),
        Field(
            description="a folder in which answers are kept for other runs: one that is there, or a whole path",
            json_schema_extra=PLACEMENT,
        ),
    ] = ""

    costly: ClassVar[bool] = True
    patience: ClassVar[float] = 86_400.0
    answer_share: ClassVar[float] = 0.5  # tokens of an answer for one of its passage, for estimates

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if self.form == "completions":
            raise ValueError("form: instructions are followed in a chat; a base model takes none")
        if self.cache_path and not (Path(self.cache_path).is_absolute() or Path(self.cache_path).is_dir()):
            raise ValueError(
                f"cache_path: there is no folder {self.cache_path} beside the recipe; make it, or give a whole path"
            )
        return self

    def requests_for(self, text: str) -> list[Request]:
        """All that is asked about a document."""
        raise NotImplementedError

    def instructions(self) -> list[str]:
        """What stands before each passage, once for each time that it is asked about."""
        raise NotImplementedError

    def cost_ahead(self, documents: float, text_bytes: float) -> Cost:
        """Before any work: tokens of 4 bytes, passages as long as they may be."""
        passages = max(documents, text_bytes / (self.passage_tokens * BYTES_A_TOKEN))
        asked = self.instructions()
        fixed = sum(len(text.encode()) for text in asked) / BYTES_A_TOKEN + 100 * len(asked)
        prompts = passages * fixed + len(asked) * text_bytes / BYTES_A_TOKEN
        answers = min(
            self.answer_share * len(asked) * text_bytes / BYTES_A_TOKEN, passages * len(asked) * self.max_tokens
        )
        return Cost.of(
            passages * len(asked), prompts, answers, (self.prompt_price, self.completion_price), self.tokens_per_second
        )

    def ask(self, requests: Sequence[Request], noted: Counter[str]) -> list[Answer]:
        """Every request's answer, in their order; what it took is noted."""
        from gristmill.classifiers.llm.account import Account, Prices
        from gristmill.classifiers.llm.cache import answer_all
        from gristmill.classifiers.llm.model import LanguageModelError

        answers: dict[int, Answer] = {}
        if not requests:
            return []
        account = Account()
        try:
            model = opened(BackEnd(**{name: getattr(self, name) for name in BackEnd.model_fields}))
            cache = answers_in(self.cache_path) if self.cache_path else None
            answers.update(answer_all(model, requests, account, cache))
        except LanguageModelError as error:
            raise CannotRun(str(error)) from error
        except Exception as error:  # of an engine or a full disk no document is to be blamed
            raise CannotRun(f"{type(error).__name__}: {error}") from error
        noted.update(
            {
                "asked": len(requests),
                **account.counts(),
                "microdollars": round(1e6 * account.cost(Prices(self.prompt_price, self.completion_price))),
            }
        )
        return [answers[row] for row in range(len(requests))]

    def gate(self, batch: pa.RecordBatch, reasons: Sequence[tuple[int, str, Answer]]) -> None:
        """`reasons`: of each passage its document's row, why its answer was refused (or nothing), and the answer."""
        refused = [(row, reason, answer) for row, reason, answer in reasons if reason]
        if len(refused) <= (max(1.0, self.most_failures * len(reasons)) if self.most_failures else 0):
            return
        counts = Counter(reason for _, reason, _ in refused).most_common()
        examples = "".join(
            f"\n  document {batch.column('uid')[row].as_py():016x}: {reason}: {excerpt(answer)}"
            for row, reason, answer in refused[:SHOWN]
        )
        raise CannotRun(
            f"{len(refused):,} of {len(reasons):,} answers were refused "
            f"({', '.join(f'{count:,} {reason}' for reason, count in counts)}), more than {self.most_failures:.1%}. "
            f"Some of them:{examples}"
        )


def excerpt(answer: Answer) -> str:
    text = answer.detail or answer.text
    return repr(text if len(text) <= EXCERPT else text[:EXCERPT] + "...")


def refused_before(answer: Answer) -> str:
    """What is wrong with an answer whatever it says."""
    return answer.failure or ("cut" if answer.finish == "length" else "")


def prefixed(noted: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {f"{prefix}_{name}": count for name, count in sorted(noted.items()) if count}


def editor_figures(report: Report, prefix: str, title: str, facts: Sequence[tuple[str, str]]) -> StageFigures | None:
    """What came of it: passages asked, accepted and refused by reason, tokens and money."""
    noted = {
        name.removeprefix(f"{prefix}_"): int(count)
        for name, count in report.get("noted", {}).items()
        if name.startswith(f"{prefix}_")
    }
    asked = noted.get("asked", 0)
    if not asked:
        return None
    dollars, documents = noted.get("microdollars", 0) / 1e6, noted.get("documents", 0)
    money = f"{dollars:,.{2 if dollars >= 1 else 4}f}, {1e6 * dollars / max(1, documents):,.2f} a million documents"
    refused = sorted(
        ((name.removeprefix(REFUSED), count) for name, count in noted.items() if name.startswith(REFUSED)),
        key=lambda item: (-item[1], item[0]),
    )
    pairs = [
        ("documents", f"{documents:,}"),
        ("passages asked", f"{asked:,}, of which {noted.get('kept_answers', 0):,} were known from earlier runs"),
        ("accepted", f"{noted.get('accepted', 0):,}"),
        ("refused", f"{sum(count for _, count in refused):,}"),
        *facts,
        ("tokens", f"{noted.get('prompt_tokens', 0):,} of prompts, {noted.get('answer_tokens', 0):,} of answers"),
        *doubts(noted, ""),
        ("dollars", money if dollars else "no price was given"),
    ]
    blocks: list[Block] = [FactList("", pairs)]
    if refused:
        rows = [(reason.replace("_", " "), f"{count:,}", f"{count / asked:.1%}") for reason, count in refused]
        bars = relative([count for _, count in refused])
        blocks.append(Table.of("Answers refused, by reason", ("reason", "answers", "share"), rows, 1, bars))
    return StageFigures(title, blocks)
