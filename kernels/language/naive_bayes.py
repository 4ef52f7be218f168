"""The language of a text by naive Bayes over the byte strings in it, in one walk through an automaton.

Each byte leads from a state to the next, and a step may end a string (Lui and Baldwin 2012). A text's score for a class
is the class's prior and, for each string, log(1 + how often it occurs) times its weight. Divided by the square root of
the text's bytes, scores become probabilities that are right as often as they say, from five letters to pages
(docs/languages.md).

Most steps of a state are those that its last byte alone leads to. Only the others are stored, all in one array: a step
of state s on byte b is at s + b if the entry there is one of b, else it is that of the last byte and b in `pairs`. Both
are read at once, so that no branch is taken. Weights are whole numbers above a class's lowest, so that those of strings
that occur equally often are added as integers.
"""

from __future__ import annotations

from math import factorial
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined
from gristmill.kernels.base.compiled import intrinsic, ir, kernel, types
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.wide import larger, prefetch

# An entry, from its lowest bit: the byte of the step with KNOWN, the next state, and from bit 32 on the number of the
# string that ends (from 1; 0 is none).
STATE, STRING, MOST_STATES = np.uint64(9), np.uint64(32), 1 << 23
BYTE, KNOWN = np.uint64(511), np.uint64(256)
NOTHING = 256  # in place of the last byte, where a text begins
TOGETHER = 64  # texts whose strings are looked up before they are counted
LANES = 4  # walks at once, of several texts or of parts of a long one: each waits for its step before
MANY = 256  # times that a string occurs; most occur once
OFTEN = 8  # strings that occur less often are added up as integers, apart by how often
AT_ONCE = 4  # rows that are added up together
FLUSH = 256  # weights of one byte that two bytes can add up; a multiple of AT_ONCE
LINE = 64  # bytes that come together
FAR = np.float32(17)  # e to the minus 17th is less than float32 tells from nothing beside 1
LOG2_OF_E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
ONE, HALF, THIRD, FOURTH, FIFTH, SIXTH = (np.float32(1 / factorial(n)) for n in range(1, 7))  # the series of e
WINDOW, CERTAIN = 96, np.float32(0.99)  # bytes of each part of a long text that are enough if they are so certain
LONG = 2 * LANES * WINDOW


class Bayes(NamedTuple):
    """A model for kernels."""

    steps: Array  # uint64: entries
    pairs: Array  # uint64: entries by the last byte (or NOTHING) and the next, 256 for each
    weights: Array  # uint8_FW, F from 1: above the class's lowest; W is C, or more zeros
    unit: Array  # float32_1: what 1 of a weight is
    lowest: Array  # float32_C
    priors: Array  # float32_C
    label: Array  # int32_C: the class's label, its own number for the first ones; the others share one with these
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
    steps, pairs, weights, unit, lowest, priors, label, longest, count_of_labels, data, offsets, wanted,
    labels_NK, scores_NK,
) -> None:  # fmt: skip
    """Fills the best labels and their probabilities. Of a long text, windows all over it are read first, and the rest
    where they leave any doubt. While the weights of a text are on their way, those of the text before are added up."""
    width, count, most = weights.shape[1], len(offsets) - 1, len(weights)
    times, found = np.zeros(most, np.int32), np.empty(most + 1, np.uint32)
    groups, lengths = np.empty((2, OFTEN, most + AT_ONCE), np.uint32), np.zeros((2, OFTEN), np.int64)
    frequent = np.empty((2, most), np.int32)
    small = np.zeros(width, np.uint16)
    sums, scratch = np.zeros(width, np.float32), np.empty(width, np.float32)
    logs = np.empty(MANY, np.float32)
    for k in range(MANY):
        logs[k] = np.log1p(np.float64(k))
    segments, places = np.empty((LANES * TOGETHER, 3), np.uint64), np.zeros(TOGETHER + 1, np.int64)
    strings, entries = np.empty(TOGETHER * LONG, np.uint32), np.empty(LANES, np.uint64)
    for first in range(0, count, TOGETHER):
        last = min(first + TOGETHER, count)
        many = cut(offsets, wanted, first, last, segments, places)
        walk_segments(steps, pairs, data, segments, many, entries, strings)
        for d in range(first, last + 1):
            if d < last and wanted[d]:
                many = 0
                for k in range(places[d - first], places[d - first + 1]):
                    many = noted(strings[k], times, found, many)
                group(many, found, times, weights, groups[d & 1], lengths[d & 1], frequent[d & 1])
            before = d - 1
            if d == first or not wanted[before]:
                continue
            now, size = before & 1, offsets[d] - offsets[before]
            known = lengths[now].any()
            if known:
                total = add_up(groups[now], lengths[now], frequent[now], weights, logs, small, sums)
                read = size if size < LONG else LANES * WINDOW
                finish(sums, total, unit, lowest, priors, label, count_of_labels, read, scratch)
            if size >= LONG and not (known and largest(sums, count_of_labels) >= CERTAIN):
                many = walk(steps, pairs, longest, data, offsets[before], offsets[d], entries, times, found)
                group(many, found, times, weights, groups[now], lengths[now], frequent[now])
                known = many > 0
                total = add_up(groups[now], lengths[now], frequent[now], weights, logs, small, sums)
                finish(sums, total, unit, lowest, priors, label, count_of_labels, size, scratch)
            if known:
                take_best(sums, count_of_labels, labels_NK[before], scores_NK[before])


@helper
def take_best(chances, count, labels, scores):
    for k in range(len(labels)):
        score, best = largest(chances, count), 0
        while chances[best] != score and best < count - 1:
            best += 1
        labels[k], scores[k] = best, score
        chances[best] = -1


@helper
def group(many, found, times, weights, groups, lengths, frequent):
    """Lists strings by how often they occur, those that occur OFTEN or more as group 0 with their `frequent` times;
    forgets the times, and asks for the weights."""
    lengths[:] = 0
    for k in range(many):
        string = np.uint64(found[k])
        for line in range(0, weights.shape[1], LINE):
            prefetch(weights, string * np.uint64(weights.shape[1]) + np.uint64(line))
        often = times[string]
        times[string] = 0
        which = often if often < OFTEN else 0
        if which == 0:
            frequent[lengths[0]] = often
        groups[which, lengths[which]] = np.uint32(string)
        lengths[which] += 1


@helper
def add_up(groups, lengths, frequent, weights, logs, small, sums):
    """Sums log(1 + times) times the weight above the lowest, by class. Returns the sum of the logarithms."""
    width = weights.shape[1]
    sums[:] = 0
    all_of_them = np.float32(0)
    for k in range(lengths[0]):
        often, weight = frequent[k], weights[groups[0, k]]
        much = logs[often] if often < MANY else np.float32(np.log1p(np.float64(often)))
        all_of_them += much
        for c in range(width):
            sums[c] += much * np.float32(weight[c])
    for often in range(1, OFTEN):
        if lengths[often]:
            all_of_them += logs[often] * np.float32(lengths[often])
            add_rows(groups[often], lengths[often], weights, logs[often], small, sums)
    return all_of_them


@helper
def add_rows(strings, count, weights, factor, small, sums):
    """Adds rows of weights, times a factor."""
    width = weights.shape[1]
    while count % AT_ONCE:  # the row of no string is zeros
        strings[count] = 0
        count += 1
    for first in range(0, count, FLUSH):
        small[:] = 0
        for k in range(first, min(first + FLUSH, count), AT_ONCE):
            a, b, c, d = weights[strings[k]], weights[strings[k + 1]], weights[strings[k + 2]], weights[strings[k + 3]]
            for i in range(width):
                small[i] += np.uint16(a[i]) + np.uint16(b[i]) + np.uint16(c[i]) + np.uint16(d[i])
        for i in range(width):
            sums[i] += factor * np.float32(small[i])


@helper
def finish(sums, total, unit, lowest, priors, label, labels, size, scratch):
    """From sums of weights to the probabilities of labels, which take the place of the first sums. Those that float32
    cannot tell from zero beside the best are zero."""
    classes = len(priors)
    for c in range(classes):
        sums[c] = priors[c] + total * lowest[c] + sums[c] * unit[0]
    highest, flatness = largest(sums, classes), np.float32(1 / np.sqrt(np.float64(size)))
    for c in range(classes):
        sums[c] = exponential((sums[c] - highest) * flatness)
        scratch[c] = sums[c]
    for c in range(labels, classes):
        sums[label[c]] += sums[c]
    count = classes
    while count > 1:  # by halves, so that vectors can be added
        half = (count + 1) // 2
        for c in range(count - half):
            scratch[c] += scratch[half + c]
        count = half
    total = scratch[0]
    for c in range(labels):
        sums[c] /= total


@inlined
def exponential(x):
    """e to the power of x, which is not above 0, to a few units of the last place; 0 below -FAR. Made of steps that the
    compiler turns into vector instructions, and equal on every machine."""
    near = larger(x, -FAR)
    whole = np.floor(near * LOG2_OF_E + HALF)
    rest = near - whole * LN2_HIGH - whole * LN2_LOW
    power = ((((rest * SIXTH + FIFTH) * rest + FOURTH) * rest + THIRD) * rest + HALF) * rest
    value = ((power + ONE) * rest + ONE) * power_of_two(np.int32(whole))
    return value if x > -FAR else np.float32(0)


@intrinsic
def power_of_two(typing_context, exponent):
    """Of a whole number from -126 to 127."""

    def make(context, builder, signature, arguments):
        number = ir.IntType(32)
        biased = builder.add(arguments[0], ir.Constant(number, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(number, 23)), ir.FloatType())

    return types.float32(types.int32), make


@helper
def cut(offsets, wanted, first, last, segments, places):
    """What is walked of texts, as segments: first byte, end, and the place of what it finds; returns how many. `places`
    are where the texts begin there."""
    many, place = 0, 0
    for d in range(first, last):
        places[d - first] = place
        if wanted[d]:
            begin, size = offsets[d], offsets[d + 1] - offsets[d]
            if size < LONG:
                segments[many, 0], segments[many, 1], segments[many, 2] = begin, begin + size, place
                many += size > 0
                place += size
            else:
                for k in range(LANES):
                    at = begin + k * (size // LANES)
                    segments[many, 0], segments[many, 1], segments[many, 2] = at, at + WINDOW, place
                    many += 1
                    place += WINDOW
    places[last - first] = place
    return many


@helper
def walk_segments(steps, pairs, data, segments, count, entries, strings):
    """Fills the string that each byte of each segment ends. Four segments are walked at once; where one ends, the next
    takes its place."""
    one, start = np.uint64(1), np.uint64(NOTHING << 8)
    running, following = 0, 0
    while True:
        while running < LANES and following < count:
            # those before `following` are done, or among the first
            at, until, place = segments[following]
            entries[running] = pairs[start | np.uint64(data[at])]
            strings[place] = np.uint32(entries[running] >> STRING)
            segments[running, 0], segments[running, 1], segments[running, 2] = at + one, until, place + one
            running += 1
            following += 1
        if running == 0:
            return
        least = segments[0, 1] - segments[0, 0]
        for k in range(running):
            least = min(least, segments[k, 1] - segments[k, 0])
        if running == LANES:
            walk_four(steps, pairs, data, segments, entries, least, strings)
        else:
            for k in range(running):
                at, _, place = segments[k]
                for further in range(least):
                    entries[k] = step(steps, pairs, entries[k], data, at + further)
                    strings[place + further] = np.uint32(entries[k] >> STRING)
        k = 0
        while k < running:
            segments[k, 0] += least
            segments[k, 2] += least
            if segments[k, 0] < segments[k, 1]:
                k += 1
                continue
            running -= 1  # the last one, which has not gone further yet, takes its place
            for fact in range(3):
                segments[k, fact] = segments[running, fact]
            entries[k] = entries[running]


@inlined
def walk_four(steps, pairs, data, segments, entries, least, strings):
    """`least` further steps of the first four segments."""
    at, _, to = segments[0]
    at2, _, to2 = segments[1]
    at3, _, to3 = segments[2]
    at4, _, to4 = segments[3]
    a, b, c, d = entries[0], entries[1], entries[2], entries[3]
    for further in range(least):
        a = step(steps, pairs, a, data, at + further)
        b = step(steps, pairs, b, data, at2 + further)
        c = step(steps, pairs, c, data, at3 + further)
        d = step(steps, pairs, d, data, at4 + further)
        strings[to + further] = np.uint32(a >> STRING)
        strings[to2 + further] = np.uint32(b >> STRING)
        strings[to3 + further] = np.uint32(c >> STRING)
        strings[to4 + further] = np.uint32(d >> STRING)
    entries[0], entries[1], entries[2], entries[3] = a, b, c, d


@helper
def walk(steps, pairs, longest, data, begin, end, entries, times, found):
    """Counts the strings of a long text in `times`, and lists those that it has in `found`; returns how many. LANES
    parts of it are walked at once."""
    many, part = 0, (end - begin) // LANES
    for k in range(LANES):  # the first step of each part
        at = max(begin, begin + k * part - longest)
        entries[k] = pairs[np.uint64(NOTHING << 8) | np.uint64(data[at])]
        for further in range(at + 1, begin + k * part + 1):
            entries[k] = step(steps, pairs, entries[k], data, np.uint64(further))
        many = noted(np.uint32(entries[k] >> STRING), times, found, many)
    a, b, c, d = entries[0], entries[1], entries[2], entries[3]
    one, two, three, four = (
        np.uint64(begin),
        np.uint64(begin + part),
        np.uint64(begin + 2 * part),
        np.uint64(begin + 3 * part),
    )
    for k in range(np.uint64(1), np.uint64(part)):
        a = step(steps, pairs, a, data, one + k)
        b = step(steps, pairs, b, data, two + k)
        c = step(steps, pairs, c, data, three + k)
        d = step(steps, pairs, d, data, four + k)
        many = noted(np.uint32(a >> STRING), times, found, many)
        many = noted(np.uint32(b >> STRING), times, found, many)
        many = noted(np.uint32(c >> STRING), times, found, many)
        many = noted(np.uint32(d >> STRING), times, found, many)
    for at in range(begin + LANES * part, end):
        d = step(steps, pairs, d, data, np.uint64(at))
        many = noted(np.uint32(d >> STRING), times, found, many)
    return many


@inlined
def step(steps, pairs, entry, data, at):
    """The entry of the step on the byte at a place, which another byte precedes."""
    byte = np.uint64(data[at])
    own = steps[np.uint64(np.uint32(entry) >> np.uint32(STATE)) + byte]
    shared = pairs[np.uint64(data[at - np.uint64(1)]) << np.uint64(8) | byte]
    is_own = np.uint64(0) - np.uint64(own & BYTE == byte + KNOWN)  # all bits or none
    return shared ^ ((own ^ shared) & is_own)


@inlined
def noted(string, times, found, many):
    """Counts a string, if it is one, without a branch."""
    before = times[string]
    times[string] = before + 1
    found[many] = string
    return many + ((string > 0) & (before == 0))


@kernel
def place_states(order, starts, bytes_of, used, state_of):
    """Gives each automaton state its number: the least free one at which none of its own steps falls on another's.
    The first of `order` becomes 0; of the others those with many steps should be early. `used` is scratch memory,
    zeros."""
    crowded, single = np.zeros(256, np.int64), np.zeros(256, np.int64)  # where to look, by the first byte
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


@helper
def largest(values, count):
    best = values[0]
    for k in range(count):
        best = larger(best, values[k])
    return best
