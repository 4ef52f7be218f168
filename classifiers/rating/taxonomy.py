"""Taxonomies: labels without an order with what each means, and how a language model is asked which one fits a text.

Two come with the package, of 24 labels each (`taxonomies/topic.yaml`, `taxonomies/format.yaml`); a user's own is a file
of the same form. A model may also say `none`; then a text has no label. Answers are read as those of a rubric: the
likeliest of all labels after one pass, or the label that reasoning ends with.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from gristmill.classifiers.card import SIGNAL_NAME, UNKNOWN
from gristmill.classifiers.llm.last_score import last_score
from gristmill.classifiers.llm.model import Answer, Request
from gristmill.classifiers.rating import prompts
from gristmill.classifiers.rating.rubric import Reading

SHIPPED = {"topic": "topic.yaml", "format": "format.yaml"}
NONE = "none"
LABEL = re.compile(r"[^\W_](?:[\w-]{0,38}[^\W_])?")  # a word of fastText's too
FINAL, FINAL_AT = "Final Label:", re.compile(r"final[ \t]{1,3}label", re.IGNORECASE)
MOST_LABELS, LONGEST_FILE, LONGEST_TEXT = 200, 1 << 20, 2_000


class TaxonomyError(ValueError):
    """A file that is no taxonomy; the message says where and why."""


@dataclass(frozen=True)
class TaxonomyLabel:
    name: str
    definition: str
    rubric: str = ""


@dataclass(frozen=True)
class Taxonomy:
    name: str  # of the signal
    question: str
    labels: tuple[TaxonomyLabel, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)


class Labelled(NamedTuple):
    """What an answer says: a label and how likely it is (NaN where the model does not tell), or None and why."""

    label: str | None
    chance: float
    failure: str  # empty: the answer could be read; a readable answer without a label said none


def taxonomy_of(name: str) -> Taxonomy:
    """One that comes with the package by its name, else that of a file."""
    path = Path(__file__).parent / "taxonomies" / SHIPPED[name] if name in SHIPPED else Path(name)
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise TaxonomyError(f"{path}: a taxonomy has at most {LONGEST_FILE:,} bytes")
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TaxonomyError(
            f"{name}: no taxonomy: neither {' nor '.join(SHIPPED)}, nor a file that can be read ({error.strerror})"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise TaxonomyError(f"{path}: not YAML ({' '.join(str(error).split())[:200]})") from error
    try:
        return _taxonomy(facts)
    except TaxonomyError as error:
        raise TaxonomyError(f"{path}: {error}") from None


@dataclass(frozen=True)
class ByTaxonomy:
    """How a text is put to a model, and how its answer is read. `turned`: labels in the contrary order, to see whether
    their places in the prompt sway the model."""

    taxonomy: Taxonomy
    reading: Reading = "at_once"
    max_tokens: int = 512
    turned: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        return (*self.taxonomy.names, NONE)

    def request(self, document: str) -> Request:
        fenced = prompts.fenced(document, "DOCUMENT")
        if self.reading == "at_once":
            own = f"{fenced}\nThe document has ended. Its label:\n"
            return Request(own, self._shared, FINAL, max_tokens=1, labels=self.labels)
        own = f"{fenced}\nThe document has ended. Choose its label, and end with `{FINAL}` and the label.\n"
        return Request(own, self._shared, max_tokens=self.max_tokens)

    def read(self, answer: Answer) -> Labelled:
        if answer.failure:
            return Labelled(None, math.nan, answer.failure)
        if self.reading == "reasoned":
            label, failure = last_score(answer, self.labels, FINAL_AT)
            return Labelled(None if failure or label == NONE else label, math.nan, failure)
        logs = answer.logprobs
        if logs is None or len(logs) != len(self.labels) or not all(math.isfinite(log) for log in logs):
            return Labelled(None, math.nan, "no_labels")
        weights = np.exp(np.array(logs) - max(logs))
        best = int(weights.argmax())
        chance = float(weights[best] / weights.sum())
        return Labelled(None if self.labels[best] == NONE else self.labels[best], chance, "")

    @cached_property
    def _shared(self) -> str:
        labels = [
            f"- {label.name}: {prompts.harmless(f'{label.definition} {label.rubric}').strip()}"
            for label in self.taxonomy.labels
        ]
        listed = "\n".join(reversed(labels) if self.turned else labels)
        last = (
            "Answer with the name of the label alone.\n\n"
            if self.reading == "at_once"
            else "First say in one or two sentences what the document is. Then give the label on a last line of its own, "
            f"written as `{FINAL}` and its name.\n\n"
        )
        return (
            f"You sort one document at a time. {prompts.harmless(self.taxonomy.question)}\n\nThe labels:\n{listed}\n"
            f"- {NONE}: no label fits, or there is too little text to tell.\n\n{prompts.GUARD}{last}"
        )


def _taxonomy(facts: Any) -> Taxonomy:
    if not isinstance(facts, dict) or set(facts) != {"name", "question", "labels"}:
        raise TaxonomyError("expected `name`, `question` and `labels`")
    name, entries = facts["name"], facts["labels"]
    if not isinstance(name, str) or not SIGNAL_NAME.fullmatch(name):
        raise TaxonomyError("`name` is that of a signal: lower-case letters, digits and _, and it begins with a letter")
    if not isinstance(entries, list) or not 2 <= len(entries) <= MOST_LABELS:
        raise TaxonomyError(f"`labels` is a list of 2 to {MOST_LABELS} labels")
    labels = tuple(_label(entry) for entry in entries)
    names = [label.name for label in labels]
    for label in names:
        if label.lower() in (UNKNOWN, NONE):
            raise TaxonomyError(f"the label {label!r} stands for no label; give it another name")
        if names.count(label) > 1 or sum(other.lower() == label.lower() for other in names) > 1:
            raise TaxonomyError(f"two labels are called {label!r}, or differ in capitals alone")
    return Taxonomy(name, _text(facts["question"], "`question`", False), labels)


def _label(entry: Any) -> TaxonomyLabel:
    if not isinstance(entry, dict) or not {"name", "definition"} <= set(entry) <= {"name", "definition", "rubric"}:
        raise TaxonomyError("a label has a `name`, a `definition`, and a `rubric` if you like")
    name = entry["name"]
    if not isinstance(name, str) or not LABEL.fullmatch(name):
        raise TaxonomyError(f"the label {str(name)[:60]!r}: up to 40 letters and digits, with _ or - between")
    definition = _text(entry["definition"], f"the definition of {name}", False)
    return TaxonomyLabel(name, definition, _text(entry.get("rubric", ""), f"the rubric of {name}", True))


def _text(value: Any, what: str, may_be_empty: bool) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not (value.strip() or may_be_empty):
        raise TaxonomyError(f"{what} is a text of at most {LONGEST_TEXT:,} characters")
    return " ".join(value.split())
