"""The best labels of a text from its hidden vector: softmax, one-vs-all, negative sampling, hierarchical softmax.

As in fastText (loss.cc, MIT), with its oddities: 1e-5 is added before each logarithm, so a probability may be slightly
over 1; one-vs-all and negative sampling read the sigmoid from a table of 512 steps; equal scores come in the order of
its heap.
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.language.vocabulary import float_at

HIERARCHICAL, NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL = 1, 2, 3, 4  # as the file numbers them
LOWEST = np.float32(log(1e-5))  # below this no label is given
SIGMOID_STEPS, SIGMOID_END = 512, 8
ROUNDING = np.float32(4e-5)  # twice what a branch may be better than its parent, by 1e-5 and by single precision


@kernel
def best_labels(model, hidden, counts, labels, scores):
    """Fills labels_NK (-1 where there are no more) and their probabilities scores_NK from hidden_ND. Rows of count 0
    have no label."""
    wanted = labels.shape[1]
    of_labels = np.empty(model.labels, np.float32)
    stack = np.empty(2 * model.labels, np.int32)
    stack_scores = np.empty(2 * model.labels, np.float32)
    heap, heap_labels = np.empty(wanted + 1, np.float32), np.empty(wanted + 1, np.int32)
    for i in range(len(labels)):
        heaped = 0
        if counts[i] > 0:
            if model.loss == HIERARCHICAL:
                least = _likely(model, hidden[i]) - ROUNDING * model.labels if wanted == 1 else LOWEST
                heaped = _walk_tree(model, hidden[i], least, stack, stack_scores, heap, heap_labels)
            else:
                _score_labels(model, hidden[i], of_labels)
                for label in range(model.labels):
                    heaped = _offer(heap, heap_labels, heaped, wanted, _log(of_labels[label]), label)
        for size in range(heaped, 1, -1):
            _pop(heap, heap_labels, size)
        for k in range(wanted):
            score = np.float32(exp(heap[k])) if k < heaped else np.float32(0)
            valid = k < heaped and score == score  # a damaged matrix may hold NaN
            labels[i, k] = heap_labels[k] if valid else -1
            scores[i, k] = score if valid else 0


@helper
def _dot(model, row, vector):
    """Four sums side by side, in an order that is written here: if the compiler chose it (`fastmath`), a score would
    depend on the processor's vectors."""
    start, whole = row * model.dim * 4, model.dim & ~3
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for k in range(0, whole, 4):
        a += float_at(model.output, start + 4 * k) * vector[k]
        b += float_at(model.output, start + 4 * k + 4) * vector[k + 1]
        c += float_at(model.output, start + 4 * k + 8) * vector[k + 2]
        d += float_at(model.output, start + 4 * k + 12) * vector[k + 3]
    for k in range(whole, model.dim):
        a += float_at(model.output, start + 4 * k) * vector[k]
    return (a + b) + (c + d)


@helper
def _log(x):
    return np.float32(log(np.float64(x) + 1e-5))


@helper
def _score_labels(model, vector, scores):
    for label in range(model.labels):
        scores[label] = _dot(model, label, vector)
    if model.loss != SOFTMAX:
        for label in range(model.labels):
            scores[label] = _sigmoid(scores[label])
        return
    highest = scores[0]
    for label in range(model.labels):
        highest = max(highest, scores[label])
    total = np.float32(0)
    for label in range(model.labels):
        scores[label] = np.exp(scores[label] - highest)
        total += scores[label]
    for label in range(model.labels):
        scores[label] /= total


@helper
def _sigmoid(x):
    if x < -SIGMOID_END:
        return np.float32(0)
    if x > SIGMOID_END:
        return np.float32(1)
    if x != x:
        return x
    step = np.int64((x + np.float32(SIGMOID_END)) * np.float32(SIGMOID_STEPS) / np.float32(SIGMOID_END) / np.float32(2))
    middle = np.float32(step * 2 * SIGMOID_END) / np.float32(SIGMOID_STEPS) - np.float32(SIGMOID_END)
    return np.float32(1.0 / (1.0 + np.float64(np.exp(np.float32(-middle)))))


@helper
def _likely(model, vector):
    """The score of the label to which the likelier branches lead: the best one's is no lower."""
    node, score = np.int64(2 * model.labels - 2), np.float32(0)
    while node >= model.labels:
        inner = node - model.labels
        right, left = _branches(model, inner, vector)
        node = np.int64(model.left[inner] if left > right else model.right[inner])
        score += max(left, right)
    return score


@helper
def _branches(model, inner, vector):
    """The logarithms of the probabilities of the right and the left branch of a node."""
    right = np.float32(1.0 / (1.0 + np.float64(np.exp(-_dot(model, inner, vector)))))
    return _log(right), _log(np.float32(1.0 - np.float64(right)))


@helper
def _walk_tree(model, vector, least, stack, stack_scores, heap, heap_labels):
    """Depth first, left before right; a branch that is worse than `least`, or than the worst of the best so far, is
    skipped."""
    wanted = len(heap) - 1
    heaped = 0
    stack[0], stack_scores[0] = 2 * model.labels - 2, 0
    height = 1
    while height > 0:
        height -= 1
        node, score = stack[height], stack_scores[height]
        if score < LOWEST or score < least or (heaped == wanted and score < heap[0]):
            continue
        if node < model.labels:
            heaped = _offer(heap, heap_labels, heaped, wanted, score, node)
            continue
        inner = node - model.labels
        right, left = _branches(model, inner, vector)
        stack[height], stack_scores[height] = model.right[inner], score + right
        stack[height + 1], stack_scores[height + 1] = model.left[inner], score + left
        height += 2
    return heaped


@helper
def _offer(heap, labels, size, wanted, score, label):
    """Puts a label into the heap of the best (worst on top), and drops the worst if there are too many; returns its
    size."""
    if size == wanted and score < heap[0]:
        return size
    _sift_up(heap, labels, size, score, label)
    if size < wanted:
        return size + 1
    _pop(heap, labels, size + 1)
    return size


@helper
def _sift_up(heap, labels, hole, score, label):
    while hole > 0 and heap[(hole - 1) // 2] > score:
        above = (hole - 1) // 2
        heap[hole], labels[hole] = heap[above], labels[above]
        hole = above
    heap[hole], labels[hole] = score, label


@helper
def _pop(heap, labels, size):
    """Moves the top to the end: the hole sinks to the bottom, then the last element rises from there (libstdc++'s order
    among equals)."""
    last = size - 1
    score, label = heap[last], labels[last]
    heap[last], labels[last] = heap[0], labels[0]
    hole = 0
    while 2 * hole + 2 < last:
        below = 2 * hole + 2
        if heap[below] > heap[below - 1]:
            below -= 1
        heap[hole], labels[hole] = heap[below], labels[below]
        hole = below
    if 2 * hole + 2 == last:
        heap[hole], labels[hole] = heap[last - 1], labels[last - 1]
        hole = last - 1
    _sift_up(heap, labels, hole, score, label)
