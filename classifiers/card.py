"""What a judge says of itself: its heads, how it prepares a text, what it was trained on and how well it did. Plain
JSON, checked.

The card comes from a folder that somebody else may have written, so that every field is looked at before anything is
done with it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Json = dict[str, Any]
HeadKind = Literal["probability", "classes", "labels", "regression"]  # classes have an order, labels have none

SIGNAL_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
MOST_HEADS, MOST_LABELS, LONGEST_WORDS = 100, 10_000, 10_000
LARGEST = 1e9  # of any bound of a score
UNKNOWN = "unknown"  # in place of a label, where there is none


class JudgeError(ValueError):
    """A judge that cannot be used, or a use that it cannot be put to; the message says which and why."""


class NotExplained(JudgeError):
    """This judge cannot say which words made a score."""


@dataclass(frozen=True)
class Head:
    """One thing that a judge says of a text."""

    name: str  # a signal's name: "quality", "educational_value"
    kind: HeadKind
    # probability: (bad, good), and the score is P(good); classes: from worst to best; labels: any; regression: none
    labels: tuple[str, ...]
    meaning: str  # one sentence: what a high score says; of labels, what they tell apart
    low: float = 0.0  # of scores
    high: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and SIGNAL_NAME.fullmatch(self.name)):
            raise JudgeError(
                f"head {_excerpt(self.name)}: a name is lower-case letters, digits and _, and begins with a letter"
            )
        if self.kind not in get_args(HeadKind):
            raise JudgeError(f"head {self.name}: kind {_excerpt(self.kind)} is none of {', '.join(get_args(HeadKind))}")
        if not isinstance(self.meaning, str) or len(self.meaning) > LONGEST_WORDS:
            raise JudgeError(f"head {self.name}: its meaning is one sentence")
        self._check_labels()
        for bound in (self.low, self.high):
            if isinstance(bound, bool) or not isinstance(bound, int | float) or not abs(bound) <= LARGEST:
                raise JudgeError(
                    f"head {self.name}: scores from {_excerpt(self.low)} to {_excerpt(self.high)} are no range"
                )
        if self.low >= self.high:
            raise JudgeError(f"head {self.name}: scores from {self.low} to {self.high} are no range")
        if self.kind in ("probability", "labels") and (self.low, self.high) != (0, 1):
            raise JudgeError(f"head {self.name}: a probability lies between 0 and 1, not {self.low} and {self.high}")
        if self.kind == "classes" and (self.low, self.high) != (0, len(self.labels) - 1):
            raise JudgeError(
                f"head {self.name}: of {len(self.labels)} classes the expected one lies between 0 and "
                f"{len(self.labels) - 1}"
            )

    def _check_labels(self) -> None:
        labels = self.labels
        if not (
            isinstance(labels, tuple)
            and len(labels) <= MOST_LABELS
            and all(isinstance(a, str) and len(a) <= 1000 for a in labels)
        ):
            raise JudgeError(f"head {self.name}: labels are at most {MOST_LABELS:,} short texts")
        if len(set(labels)) != len(labels):
            raise JudgeError(f"head {self.name}: two labels are the same")
        if self.kind == "probability" and len(labels) != 2:
            raise JudgeError(f"head {self.name}: a probability has two labels, bad and good; here are {len(labels)}")
        if self.kind == "classes" and len(labels) < 2:
            raise JudgeError(f"head {self.name}: classes need at least two labels; here are {len(labels)}")
        if self.kind == "labels" and (len(labels) < 2 or UNKNOWN in labels or "" in labels):
            raise JudgeError(
                f"head {self.name}: two labels or more are needed, none of them empty or {UNKNOWN!r}, which stands for no label"
            )
        if self.kind == "regression" and labels:
            raise JudgeError(f"head {self.name}: a regression has no labels; here are {len(labels)}")

    @property
    def multiclass(self) -> bool:
        """Does it give each label a probability of its own, all of them together 1?"""
        return self.kind in ("classes", "labels")

    @property
    def width(self) -> int:
        """Numbers that `Judge.outputs` gives for a text: one for each class or label, else one."""
        return len(self.labels) if self.multiclass else 1


@dataclass(frozen=True)
class JudgeCard:
    """All that is known of a judge besides its weights. Dictionaries are plain JSON."""

    kind: str  # fasttext, linear, pooled, neural: which module reads the weights
    heads: tuple[Head, ...]
    # what is done to a text before the model sees it: the judge reads it from here, at training and at scoring
    preprocessing: Json
    training: Json = field(default_factory=dict)  # fingerprint of the labelled texts, their counts, settings, seed
    metrics: Json = field(default_factory=dict)  # on held-out texts, by head
    versions: Json = field(default_factory=dict)  # of the packages that made it
    attribution: tuple[str, ...] = ()  # whose data and models it stands on, with licenses

    def __post_init__(self) -> None:
        if not (isinstance(self.kind, str) and SIGNAL_NAME.fullmatch(self.kind)):
            raise JudgeError(f"{_excerpt(self.kind)} is no kind of judge")
        if not 0 < len(self.heads) <= MOST_HEADS:
            raise JudgeError(f"a judge has 1 to {MOST_HEADS} heads, not {len(self.heads)}")
        names = [head.name for head in self.heads]
        if len(set(names)) != len(names):
            raise JudgeError(f"two heads have the same name: {', '.join(names)}")
        for name in ("preprocessing", "training", "metrics", "versions"):
            if not isinstance(getattr(self, name), dict):
                raise JudgeError(f"{name} is {_excerpt(getattr(self, name))}, not an object")
        if not all(isinstance(line, str) and len(line) <= LONGEST_WORDS for line in self.attribution):
            raise JudgeError("attribution is a list of texts")

    def head(self, name: str) -> Head:
        for head in self.heads:
            if head.name == name:
                return head
        raise JudgeError(
            f"this judge has no head {_excerpt(name)}; it has {', '.join(head.name for head in self.heads)}"
        )

    def as_json(self) -> Json:
        facts = asdict(self)
        facts["attribution"] = list(self.attribution)
        facts["heads"] = [asdict(head) | {"labels": list(head.labels)} for head in self.heads]
        return facts


def card_of(facts: Json) -> JudgeCard:
    """The card of a `judge.json`; other keys of it are not looked at."""
    heads, attribution = facts.get("heads"), facts.get("attribution", [])
    if not isinstance(heads, list) or not isinstance(attribution, list):
        raise JudgeError("heads and attribution are lists")
    return JudgeCard(
        kind=_field(facts, "kind"),
        heads=tuple(_head_of(head) for head in heads[: MOST_HEADS + 1]),
        preprocessing=_field(facts, "preprocessing"),
        training=facts.get("training", {}),
        metrics=facts.get("metrics", {}),
        versions=facts.get("versions", {}),
        attribution=tuple(attribution),
    )


def _head_of(facts: object) -> Head:
    if not isinstance(facts, dict):
        raise JudgeError(f"a head is an object with a name and a kind, not {_excerpt(facts)}")
    labels = _field(facts, "labels")
    return Head(
        name=_field(facts, "name"),
        kind=_field(facts, "kind"),
        labels=tuple(labels) if isinstance(labels, list) else labels,
        meaning=_field(facts, "meaning"),
        low=_field(facts, "low"),
        high=_field(facts, "high"),
    )


def _field(facts: Json, name: str) -> Any:
    if name not in facts:
        raise JudgeError(f"there is no field {name!r}")
    return facts[name]


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
