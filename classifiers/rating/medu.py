"""MEDU (Held et al. 2025, 2501.11747): how useful each source is for each benchmark, as a language model sees it.

1. `describe`: examples of a benchmark's development set, in chunks, become descriptions of what to train on; they are
   merged two by two
   until one is left.
2. `label`: a sample of each source's documents (`sample.py`; 256 each, cut to 512 tokens) is marked Great, Good,
   Okay, Poor or Useless
   for it: by reasoning that ends with a mark, or by one pass that reads the probability of each mark. A description of
   one's own ("educational value"), or a rubric with labels of its own (`rubric.py`), needs no development set.
3. `utilities`: the mean mark of a token of each source, with standard errors, in the form in which mixers read them.

The paper had a model of 70B mark 2.1 million tokens, and found what it says to agree with ablations in 22 of 30
settings at P < .01, at a 200th of the cost. Its known fault: large web corpora are marked too low (docs/medu.md).
"""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappush, heapreplace

import numpy as np

from gristmill.classifiers.llm.account import Account
from gristmill.classifiers.llm.cache import AnswerCache, answer_all
from gristmill.classifiers.llm.model import Answer, LanguageModel, Request
from gristmill.classifiers.rating import prompts
from gristmill.classifiers.rating.reading import UNREAD, Agreement, agreement
from gristmill.classifiers.rating.rubric import Asking, Reading
from gristmill.classifiers.rating.sample import first_bytes
from gristmill.kernels.base.types import Floats, Integers, Mask
from gristmill.mixing.weights.utility import Utilities, judged

CHUNK_BYTES = 16_000
BETWEEN = "\n\n---\n\n"  # examples of a chunk
DESCRIPTION_TOKENS = 1024
SHOWN = 3
EXCERPT = 160


class MeduError(RuntimeError):
    """Answers from which nothing should be concluded."""


@dataclass(frozen=True)
class SampledDocument:
    """`text` is cut already; `weight` is the tokens of its source for which it stands (`Sample.weights`)."""

    source: str
    uid: int
    text: str
    weight: float


@dataclass(frozen=True)
class Description:
    """`missing`: headings that the model left out (small models do)."""

    text: str
    chunks: int
    merges: int
    missing: tuple[str, ...]
    account: Account = field(compare=False)


@dataclass(frozen=True)
class Labels:
    """Of documents, in their order. `label` is UNREAD (-1) and the mark 0 where the answer failed; `readable` says
    where not.

    Reasoned, a mark is that of the label; at once, it is the expected one, and the label the likeliest. `mass` is the
    probability that the model gives to all labels together before they are brought to 1: near 0, it wants to say
    something else, and its marks are weak.
    """

    task: str
    reading: Reading
    scale: Mapping[str, float]  # the mark of each label
    label: Integers
    mark: Floats
    mass: Floats | None
    failures: Mapping[str, Mapping[str, int]]  # by source, by kind
    account: Account

    @property
    def readable(self) -> Mask:
        return np.not_equal(self.label, UNREAD)


def chunks_of(examples: Sequence[str], most_bytes: int = CHUNK_BYTES, seed: int = 0) -> list[str]:
    """Examples of a development set in random chunks of about equal size, none above `most_bytes`: a longer example is
    cut to that."""
    shuffled = [first_bytes(text, most_bytes) for text in examples if text.strip()]
    random.Random(seed).shuffle(shuffled)
    sizes = [len((text + BETWEEN).encode()) for text in shuffled]
    room = most_bytes + len(BETWEEN)
    count = -(-sum(sizes) // room)
    while len(chunks := _fill_chunks(sizes, count, room)) > count:
        count = len(chunks)  # dealt anew among all, or those that were added last would be small
    return [BETWEEN.join(shuffled[i] for i in sorted(chunk)) for chunk in chunks]


def describe(
    model: LanguageModel,
    chunks: Sequence[str],
    cache: AnswerCache | None = None,
    seed: int = 0,
    max_tokens: int = DESCRIPTION_TOKENS,
) -> Description:
    """One description of what to train on. Descriptions are shuffled, then merged two by two; an odd one waits for the
    next round."""
    if not chunks:
        raise ValueError("no chunks: at least one piece of the development set is needed")
    account = Account()
    level = _texts(
        model, [prompts.describe(chunk, max_tokens) for chunk in chunks], "description of chunk", account, cache
    )
    random.Random(seed).shuffle(level)
    merges = 0
    while len(level) > 1:
        pairs = [(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        odd = level[2 * len(pairs) :]
        asked = [prompts.merge(first, second, max_tokens) for first, second in pairs]
        level = odd + _texts(model, asked, "merged description", account, cache)
        merges += len(pairs)
    text = level[0][: prompts.LONGEST_DESCRIPTION]
    missing = tuple(section for section in prompts.SECTIONS if section.lower() not in text.lower())
    return Description(text, len(chunks), merges, missing, account)


def label(
    model: LanguageModel, task: str, asking: Asking, documents: Sequence[SampledDocument],
    cache: AnswerCache | None = None, most_failures: float = 0.02,
) -> Labels:  # fmt: skip
    """Marks of documents for one task. More than `most_failures` of a source's answers that cannot be read are an
    error; none are guessed."""
    account = Account()
    requests = [asking.request(document.text) for document in documents]
    answers: list[Answer] = [Answer(failure="unanswered")] * len(documents)
    for i, answer in answer_all(model, requests, account, cache):
        answers[i] = answer
    replies = [asking.read(answer) for answer in answers]
    kinds = [reply.failure for reply in replies]
    mass = None
    if asking.reading == "at_once":
        mass = np.array(
            [0.0 if reply.failure else _mass(answer) for reply, answer in zip(replies, answers, strict=True)]
        )
    failures = _check_failures(task, documents, kinds, answers, most_failures)
    return Labels(
        task,
        asking.reading,
        dict(asking.scale),
        np.array([reply.label for reply in replies], np.int64),
        np.clip(np.array([reply.mark or 0.0 for reply in replies]), 0.0, 1.0),
        mass,
        failures,
        _with_unread(account, kinds, answers),
    )


def _mass(answer: Answer) -> float:
    return min(float(np.exp(np.array(answer.logprobs)).sum()), 1.0)


def readings_agree(reasoned: Labels, at_once: Labels) -> Agreement:
    """Of two readings of the same documents for the same task."""
    if reasoned.task != at_once.task or len(reasoned.label) != len(at_once.label):
        raise ValueError("two readings of the same documents for the same task are needed")
    if reasoned.scale != at_once.scale:
        raise ValueError("two readings with the same labels are needed")
    best_first = np.argsort(-np.array(list(reasoned.scale.values())), kind="stable")
    place = np.append(np.argsort(best_first), UNREAD)  # UNREAD is -1, the last
    return agreement(
        place[reasoned.label], place[at_once.label], reasoned.mark, at_once.mark, labels=len(reasoned.scale)
    )


def utilities(documents: Sequence[SampledDocument], labels: Sequence[Labels]) -> Utilities:
    """Sources x tasks: the mean mark of a token, and its standard error, from the documents whose answers could be
    read."""
    sources = tuple(dict.fromkeys(document.source for document in documents))
    numbers = {source: i for i, source in enumerate(sources)}
    source_D = np.array([numbers[document.source] for document in documents], np.int64)
    weights_D = np.array([document.weight for document in documents])
    columns = []
    for of_task in labels:
        read_D = of_task.readable
        columns.append(
            judged(sources, (of_task.task,), source_D[read_D], weights_D[read_D], of_task.mark[read_D][:, None])
        )
    return Utilities(
        sources,
        tuple(of_task.task for of_task in labels),
        np.concatenate([column.values_NT for column in columns], axis=1),
        np.concatenate([column.errors_NT for column in columns], axis=1),
    )


def utilities_csv(table: Utilities) -> str:
    """One line for each source and task, as `gristmill.mixing.weights.tables.utilities` reads it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["source", "task", "value", "error"])
    for i, source in enumerate(table.sources):
        for t, task in enumerate(table.tasks):
            writer.writerow([source, task, repr(float(table.values_NT[i, t])), repr(float(table.errors_NT[i, t]))])
    return out.getvalue()


def _fill_chunks(sizes: Sequence[int], count: int, room: int) -> list[list[int]]:
    """Places by chunk: the largest first, each to the lightest of `count` chunks, or to one more where that has no
    room."""
    chunks: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, number) for number in range(count)]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        size, number = lightest[0]
        if size + sizes[i] <= room:
            chunks[number].append(i)
            heapreplace(lightest, (size + sizes[i], number))
        else:
            chunks.append([i])
            heappush(lightest, (sizes[i], len(chunks) - 1))
    return chunks


def _texts(
    model: LanguageModel, requests: Sequence[Request], what: str, account: Account, cache: AnswerCache | None
) -> list[str]:
    """Every text, or an error that names those that failed: a description of part of a benchmark would describe another
    one."""
    answers: dict[int, Answer] = dict(answer_all(model, requests, account, cache))
    failed = [
        (i, answer)
        for i, answer in sorted(answers.items())
        if answer.failure or not answer.text.strip() or answer.finish == "length"
    ]
    if failed:
        i, answer = failed[0]
        why = (
            f"{answer.failure}: {answer.detail}"
            if answer.failure
            else "cut at its last token"
            if answer.finish == "length"
            else "empty"
        )
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise MeduError(f"{what} {i + 1} of {len(requests)}: {why}{more}. Answers so far are kept; run again to go on")
    return [answers[i].text.strip() for i in range(len(requests))]


def _check_failures(
    task: str, documents: Sequence[SampledDocument], kinds: Sequence[str], answers: Sequence[Answer], most: float
) -> dict[str, dict[str, int]]:
    """Failures by source and kind. The first source with too many is an error that shows some."""
    counts: dict[str, Counter[str]] = {}
    asked = Counter(document.source for document in documents)
    for document, kind in zip(documents, kinds, strict=True):
        if kind:
            counts.setdefault(document.source, Counter())[kind] += 1
    for source, failed in counts.items():
        if failed.total() > most * asked[source]:
            examples = [i for i, document in enumerate(documents) if document.source == source and kinds[i]][:SHOWN]
            excerpts = "".join(f"\n  document {documents[i].uid}: {kinds[i]}: {_end_of(answers[i])}" for i in examples)
            kinds_text = ", ".join(f"{count} {kind}" for kind, count in failed.most_common())
            raise MeduError(
                f"source {source!r}, task {task!r}: {failed.total()} of {asked[source]} answers could not be read "
                f"({kinds_text}), more than "
                f"{most:.1%}. Marks of the others are kept, but would be a choice of easy documents. Some of "
                f"them:{excerpts}"
            )
    return {source: dict(failed) for source, failed in counts.items()}


def _end_of(answer: Answer) -> str:
    text = answer.detail or answer.text
    return repr(text if len(text) <= EXCERPT else "..." + text[-EXCERPT:])


def _with_unread(account: Account, kinds: Sequence[str], answers: Sequence[Answer]) -> Account:
    """Answers that came but could not be read are failures of the account too."""
    unread = Counter(kind for kind, answer in zip(kinds, answers, strict=True) if kind and not answer.failure)
    return replace(account, failures=account.failures + unread)
