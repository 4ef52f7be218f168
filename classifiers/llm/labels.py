"""How likely each of a few labels is as the next words: by the first tokens that no other label shares.

Mostly the first token of each label is its own, and one forward pass that reads their log-probabilities is all. Where
labels begin alike (` Great`, ` Grey` as ` Gr` + ...) the tree of their tokens is walked: one more pass for each place
with two or more labels beyond it, and the log-probabilities along a label's path add up. Passes of one prompt share all
of it but a token or two, so a prefix cache makes them cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.classifiers.llm.model import LanguageModelError

Path = tuple[int, ...]


@dataclass(frozen=True)
class NextTokenQuestion:
    """After the prompt and `path`, how likely is each of `tokens` to come next?"""

    path: Path
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class LabelTree:
    questions: tuple[NextTokenQuestion, ...]  # the first is that after the bare prompt
    steps: tuple[
        tuple[tuple[int, int], ...], ...
    ]  # of each label: its question and its place among the tokens there, from the root

    def logprobs(self, by_question: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """Of each label, from what was found for each question."""
        return tuple(sum(by_question[question][place] for question, place in steps) for steps in self.steps)


def label_tree(labels: Sequence[str], tokens: Sequence[Path]) -> LabelTree:
    for i, path_of_label in enumerate(tokens):
        for j, other in enumerate(tokens):
            if i != j and other[: len(path_of_label)] == path_of_label:
                raise LanguageModelError(
                    f"in this tokenizer label {labels[i]!r} is the beginning of label {labels[j]!r} (tokens "
                    f"{list(path_of_label)} and {list(other)}), "
                    "so one cannot be told from the other by what comes next. Use labels that differ before one of "
                    "them ends"
                )
    nexts: dict[Path, list[int]] = {}
    for path in _shared_paths(tokens):
        nexts[path] = list(
            dict.fromkeys(path_of_label[len(path)] for path_of_label in tokens if path_of_label[: len(path)] == path)
        )
    places = {path: number for number, path in enumerate(nexts)}
    steps = []
    for path_of_label in tokens:
        inner = [path_of_label[:depth] for depth in range(len(path_of_label)) if path_of_label[:depth] in places]
        steps.append(tuple((places[path], nexts[path].index(path_of_label[len(path)])) for path in inner))
    return LabelTree(tuple(NextTokenQuestion(path, tuple(tokens)) for path, tokens in nexts.items()), tuple(steps))


def _shared_paths(tokens: Sequence[Path]) -> list[Path]:
    """Beginnings of two or more labels, shortest first."""
    prefixes = [path_of_label[:depth] for path_of_label in tokens for depth in range(len(path_of_label))]
    return sorted(
        {path for path in prefixes if sum(path_of_label[: len(path)] == path for path_of_label in tokens) > 1},
        key=lambda path: (len(path), path),
    )
