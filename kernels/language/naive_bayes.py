"""The language of a text by naive Bayes over the byte strings in it, in one walk through an automaton.

Each byte leads from a state to the next, and a step may end a string (Lui and Baldwin 2012). A text's score for a class
is the class's prior and, for each string, log(1 + how often it occurs) times its weight. Divided by the square root of
the text's bytes, scores become probabilities that are right as often as they say, from five letters to pages
(docs/languages.md).

Most steps of a state are those of its fallback, the state of the same bytes without the first. Only the others are
stored, all in one array: a step of state s on byte b is at s + b if the entry there names s, else it is the fallback's.
The array fits a processor's cache. Weights are whole numbers above a class's lowest, so that those of strings that
occur once, which are most, are added as integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, point_at
from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.unicode import LOWER, UPPER, properties
from gristmill.kernels.base.wide import prefetch

# An entry: the next state, the number of the string that ends (from 1; 0 is none), and the state whose step it is.
BITS = 20
STRING, OWNER = np.uint64(BITS), np.uint64(2 * BITS)
LOW = np.uint64((1 << BITS) - 1)
LANES = 4  # parts of a text that are walked at once: each step waits for the one before, and they wait together
MANY = 256  # times that a string occurs; most occur once
FLUSH = 257  # weights of one byte that two bytes can add up
LINE = 64  # bytes that come together
FAR = np.float32(17)  # e to the minus 17th is less than float32 tells from nothing beside 1
SHORT = 64  # bytes of a text that is walked as a whole
WINDOW, CERTAIN = 96, np.float32(0.99)  # bytes of each part of a long text that are enough if they are so certain


class Bayes(NamedTuple):
    """A model for kernels."""

    steps: Array  # uint64: entries
    fallback: Array  # uint32: by state; of the first, itself
    first: Array  # uint64_256: the entries of the first state, which is 0
    weights: Array  # uint8_FW, F from 1: above the class's lowest; W is C, or more zeros
    unit: Array  # float32_1: what 1 of a weight is
    lowest: Array  # float32_C
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
    steps, fallback, first, weights, unit, lowest, priors, label, longest, count_of_labels, data, offsets, wanted,
    labels_NK, scores_NK,
) -> None:  # fmt: skip
    """Fills the best labels and their probabilities. Of a long text, windows all over it are read first, and the rest
    where they leave any doubt."""
    width = weights.shape[1]
    times, found = np.zeros(len(weights), np.int32), np.empty(len(weights) + 1, np.int32)
    small, whole = np.zeros(width, np.uint16), np.zeros(width, np.int32)
    sums, chances = np.zeros(width, np.float32), np.empty(count_of_labels, np.float32)
    logs = np.empty(MANY, np.float32)
    for k in range(MANY):
        logs[k] = np.log1p(np.float64(k))
    for d in range(len(offsets) - 1):
        if not wanted[d]:
            continue
        begin, end = offsets[d], offsets[d + 1]
        certain = False
        if end - begin >= 2 * LANES * WINDOW:
            many = walk(steps, fallback, first, longest, data, begin, end, WINDOW, weights, times, found)
            if many > 0:
                total = add_up(many, found, times, weights, logs, small, whole, sums)
                finish(sums, total, unit, lowest, priors, label, LANES * WINDOW, chances)
                certain = largest(chances) >= CERTAIN
        if not certain:
            many = walk(steps, fallback, first, longest, data, begin, end, end - begin, weights, times, found)
            if many == 0:
                continue
            total = add_up(many, found, times, weights, logs, small, whole, sums)
            finish(sums, total, unit, lowest, priors, label, end - begin, chances)
        for k in range(labels_NK.shape[1]):
            best = 0
            for c in range(count_of_labels):
                if chances[c] > chances[best]:
                    best = c
            labels_NK[d, k], scores_NK[d, k] = best, chances[best]
            chances[best] = -1


@helper
def add_up(many, found, times, weights, logs, small, whole, sums):
    """Sums log(1 + times) times the weight above the lowest, by class; forgets the times. Returns the sum of the
    logarithms."""
    width = weights.shape[1]
    sums[:], whole[:], small[:] = 0, 0, 0
    once, all_of_them = 0, np.float32(0)
    for k in range(many):
        string = found[k]
        often, weight = times[string], weights[string]
        times[string] = 0
        if often == 1:
            for c in range(width):
                small[c] += weight[c]
            once += 1
            if once % FLUSH == 0:
                for c in range(width):
                    whole[c] += small[c]
                small[:] = 0
            continue
        much = logs[often] if often < MANY else np.float32(np.log1p(np.float64(often)))
        all_of_them += much
        for c in range(width):
            sums[c] += much * np.float32(weight[c])
    for c in range(width):
        sums[c] += logs[1] * np.float32(whole[c] + np.int32(small[c]))
    return all_of_them + logs[1] * np.float32(once)


@helper
def finish(sums, total, unit, lowest, priors, label, size, chances):
    """From sums of weights to the probabilities of labels."""
    classes = len(priors)
    for c in range(classes):
        sums[c] = priors[c] + total * lowest[c] + sums[c] * unit[0]
    share_out(sums[:classes], label, np.float32(1 / np.sqrt(np.float64(size))), chances)


@helper
def walk(steps, fallback, first, longest, data, begin, end, most, weights, times, found):
    """Counts the strings of a text in `times`, and lists those that it has in `found`; returns how many. A text is
    walked in LANES parts, of each at most its first `most` bytes; where that is less than all, each part by itself."""
    many = 0
    part = (end - begin) // LANES if end - begin >= SHORT else 0
    second, third, fourth = begin + part, begin + 2 * part, begin + 3 * part
    a, b, c, d = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    if most >= part:
        b = step_at(steps, fallback, first, longest, data, begin, second)
        c = step_at(steps, fallback, first, longest, data, begin, third)
        d = step_at(steps, fallback, first, longest, data, begin, fourth)
    for k in range(min(part, most)):
        a = step(steps, fallback, first, a, data[begin + k])
        b = step(steps, fallback, first, b, data[second + k])
        c = step(steps, fallback, first, c, data[third + k])
        d = step(steps, fallback, first, d, data[fourth + k])
        many = noted(a, weights, times, found, many)
        many = noted(b, weights, times, found, many)
        many = noted(c, weights, times, found, many)
        many = noted(d, weights, times, found, many)
    if most >= part:
        for at in range(fourth + part, end):
            d = step(steps, fallback, first, d, data[at])
            many = noted(d, weights, times, found, many)
    return many


@inlined
def step(steps, fallback, first, entry, byte):
    """The entry of the next step."""
    state, at = entry & LOW, np.uint64(byte)
    while state != 0:
        following = steps[state + at]
        if following >> OWNER == state:
            return following
        state = np.uint64(fallback[state])
    return first[at]


@helper
def step_at(steps, fallback, first, longest, data, begin, at):
    """The entry at which a walk from `begin` is at a place."""
    entry = np.uint64(0)
    for k in range(max(begin, at - longest), at):
        entry = step(steps, fallback, first, entry, data[k])
    return entry


@inlined
def noted(entry, weights, times, found, many):
    """Counts the string that ends, if one does, without a branch; the weights of a new one are on their way when they
    are needed."""
    string = np.int64(entry >> STRING & LOW)
    before = times[string]
    times[string] = before + 1
    found[many] = string
    place = string * weights.shape[1]
    for line in range(0, weights.shape[1], LINE):
        prefetch(weights, place + line)
    return many + ((string > 0) & (before == 0))


@kernel
def place_states(order, starts, bytes_of, used, state_of):
    """Gives each automaton state its number: the least free one at which none of its own steps falls on another's.
    `order` has those with many steps first; `used` is scratch memory, zeros, as is `state_of` to begin with."""
    crowded, single = np.ones(256, np.int64), np.ones(256, np.int64)  # where to look, by the first byte
    taken = np.zeros(len(used), np.bool_)
    for k in range(len(order)):
        row = order[k]
        start, stop = starts[row], starts[row + 1]
        byte = bytes_of[start] if stop > start else 0
        hints = single if stop - start <= 1 else crowded
        at = hints[byte]
        while True:
            fits = not taken[at]
            for j in range(start, stop):
                fits &= not used[at + bytes_of[j]]
            if fits:
                break
            at += 1
        hints[byte] = at + 1
        taken[at] = True
        state_of[row] = at
        for j in range(start, stop):
            used[at + bytes_of[j]] = True


@inlined
def largest(values):
    best = values[0]
    for c in range(len(values)):
        best = max(best, values[c])
    return best


@helper
def share_out(sums, label, flatness, chances):
    """The probabilities of labels from the sums of classes; those that float32 cannot tell from zero beside the best
    are zero."""
    highest, total = largest(sums), np.float32(0)
    least = highest - FAR / flatness
    chances[:] = 0
    for c in range(len(sums)):
        if sums[c] > least:
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
