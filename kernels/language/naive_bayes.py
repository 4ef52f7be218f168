"""The language of a text by naive Bayes over the byte strings in it, in one walk through an automaton.

Each byte leads from a state to the next, and a state may stand for a string that has just ended (Lui and Baldwin 2012).
A text's score for a class is the class's prior and, for each string, log(1 + how often it occurs) times its weight.
Divided by the square root of the text's bytes, scores become probabilities that are right as often as they say, from
five letters to pages (docs/languages.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, point_at
from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.unicode import LOWER, UPPER, properties
from gristmill.kernels.language.word_rows import prefetch

LOW = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
LANES = 4  # parts of a text that are walked at once: each step waits for memory, and they wait together
AHEAD = 8  # rows of weights that are on their way from memory
MANY = 256  # times that a string occurs; most occur once
LINE = 64  # bytes that come together
SHORT = 64  # bytes of a text that is walked as a whole


class Bayes(NamedTuple):
    """A model for kernels. States are rows of 256 steps; those with the same steps share one."""

    steps: Array  # uint64: at row + byte the next row, and above it (SHIFT) the number of the string that ends, from 1
    weights: Array  # int8_FW, each row centered: what all classes share changes nothing; W is C, or more zeros
    units: Array  # float32_F: what 1 of a weight is
    priors: Array  # float32_C
    label: Array  # int32_C: the class's label; two classes may share one
    longest: int  # bytes of a string: after so many, a walk is in the same state wherever it began
    labels: int


def predict(model: Bayes, data: Bytes, offsets: Offsets, wanted: Array, top: int = 1) -> tuple[Array, Array]:
    """labels int32_NK (-1 is none) and probabilities float32_NK, best first, of the texts that are `wanted` and hold
    any known string; the others have none."""
    count, top = len(offsets) - 1, min(top, model.labels)
    labels, scores = np.full((count, top), -1, np.int32), np.zeros((count, top), np.float32)
    score_texts(*model, data, offsets, wanted, labels, scores)
    return labels, scores


@kernel
def score_texts(
    steps, weights, units, priors, label, longest, count_of_labels, data, offsets, wanted, labels_NK, scores_NK
) -> None:
    """Fills the best labels and their probabilities."""
    classes, width = len(priors), weights.shape[1]
    times, found = np.zeros(len(weights) + 1, np.int32), np.empty(len(weights), np.int32)
    sums, chances = np.zeros(width, np.float32), np.empty(count_of_labels, np.float32)
    logs = np.empty(MANY, np.float32)
    for k in range(MANY):
        logs[k] = np.log1p(np.float64(k))
    for d in range(len(offsets) - 1):
        if not wanted[d]:
            continue
        many = walk(steps, longest, data, offsets[d], offsets[d + 1], times, found)
        if many == 0:
            continue
        sums[:classes] = priors
        for k in range(many):
            if k + AHEAD < many:
                place = np.int64(found[k + AHEAD] - 1) * width
                for line in range(0, width, LINE):
                    prefetch(weights, place + line)
            string = found[k]
            often, weight = times[string], weights[string - 1]
            times[string] = 0
            much = (logs[often] if often < MANY else np.float32(np.log1p(np.float64(often)))) * units[string - 1]
            for c in range(width):
                sums[c] += much * np.float32(weight[c])
        share_out(sums[:classes], label, np.float32(1 / np.sqrt(np.float64(offsets[d + 1] - offsets[d]))), chances)
        for k in range(labels_NK.shape[1]):
            best = 0
            for c in range(count_of_labels):
                if chances[c] > chances[best]:
                    best = c
            labels_NK[d, k], scores_NK[d, k] = best, chances[best]
            chances[best] = -1


@helper
def walk(steps, longest, data, begin, end, times, found):
    """Counts the strings of a text in `times`, and lists those that it has in `found`; returns how many."""
    many = 0
    part = (end - begin) // LANES if end - begin >= SHORT else 0
    first, second, third, fourth = begin, begin + part, begin + 2 * part, begin + 3 * part
    a, b = np.uint64(0), row_at(steps, longest, data, begin, second)
    c, d = row_at(steps, longest, data, begin, third), row_at(steps, longest, data, begin, fourth)
    for k in range(part):
        a, b = steps[(a & LOW) + np.uint64(data[first + k])], steps[(b & LOW) + np.uint64(data[second + k])]
        c, d = steps[(c & LOW) + np.uint64(data[third + k])], steps[(d & LOW) + np.uint64(data[fourth + k])]
        many = noted(a, times, found, many)
        many = noted(b, times, found, many)
        many = noted(c, times, found, many)
        many = noted(d, times, found, many)
    for at in range(fourth + part, end):
        d = steps[(d & LOW) + np.uint64(data[at])]
        many = noted(d, times, found, many)
    return many


@helper
def row_at(steps, longest, data, begin, at):
    """The row in which a walk from `begin` is at a place."""
    step = np.uint64(0)
    for k in range(max(begin, at - longest), at):
        step = steps[(step & LOW) + np.uint64(data[k])]
    return step & LOW


@inlined
def noted(step, times, found, many):
    string = np.int64(step >> SHIFT)
    if string > 0:
        if times[string] == 0:
            found[many] = string
            many += 1
        times[string] += 1
    return many


@kernel
def share_out(sums, label, flatness, chances):
    """The probabilities of labels from the sums of classes."""
    highest, total = sums.max(), np.float32(0)
    chances[:] = 0
    for c in range(len(sums)):
        chance = np.float32(np.exp((sums[c] - highest) * flatness))
        chances[label[c]] += chance
        total += chance
    for c in range(len(chances)):
        chances[c] /= total


# What `rewritten` says of a text.
COMPOSABLE, SHOUTED = 1, 2


@kernel
def find_rewritten(data, offsets, wanted, table, suspects, classes_of_marks, found) -> None:
    """Bits for each wanted text: it may change when characters are composed; it has letters in capitals, and none in
    lower case. `suspects` and `classes_of_marks` are tables by code point, below their length."""
    for d in range(len(offsets) - 1):
        found[d] = 0
        if not wanted[d]:
            continue
        i, end = offsets[d], offsets[d + 1]
        small, large, composable, before = False, False, False, 0
        while i < end and not (small and composable):
            if data[i] < 0x80:
                small |= 97 <= data[i] <= 122
                large |= 65 <= data[i] <= 90
                before = 0
                i += 1
                continue
            c, length = point_at(data, i, end)
            i += length
            small |= (table[c] & LOWER) != 0
            large |= (table[c] & UPPER) != 0
            if c >= len(suspects):
                composable |= c < 0x20000 or c >= 0x2F800  # few and old: they are looked at one by one
                continue
            mark = classes_of_marks[c]
            composable |= suspects[c] or 0 < mark < before
            before = mark
        found[d] = (COMPOSABLE if composable else 0) | (SHOUTED if large and not small else 0)


def rewritten(data: Bytes, offsets: Offsets, wanted: Array, suspects: Array, marks: Array) -> Array:
    """uint8_N: COMPOSABLE and SHOUTED."""
    found = np.empty(len(offsets) - 1, np.uint8)
    find_rewritten(data, offsets, wanted, properties(), suspects, marks, found)
    return found
