"""What stands twice, in plain Python: the references that `gristmill.kernels.duplicates.anchors`,
`gristmill.kernels.duplicates.suffix` and `gristmill.kernels.duplicates.seams` equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from operator import mul

from gristmill.kernels.base.splitmix import ALL, mixed_plain
from gristmill.kernels.base.unicode import DENSE, SPACE, properties
from gristmill.kernels.words.token_rules import SHINGLE_STEP, tokens_plain

Spans = list[tuple[int, int]]


def anchors_plain(hashes: Sequence[int], window: int, gram: int) -> list[tuple[int, int, int]]:
    """(key, low, high): windows that begin at tokens low to high have the n-gram of this key, at one place, for an
    anchor; of more than two of one key in a row the second reaches to the last."""
    steps = [pow(SHINGLE_STEP, gram - 1 - k, 1 << 64) for k in range(gram)]
    keys = [mixed_plain(sum(map(mul, hashes[i : i + gram], steps)) & ALL) for i in range(len(hashes) - gram + 1)]
    chosen = [min(range(p, p + window - gram + 1), key=lambda i: (keys[i], i)) for p in range(len(hashes) - window + 1)]
    made: list[tuple[int, int, int]] = []
    for i in sorted(set(chosen)):
        low, high = chosen.index(i), chosen.index(i) + chosen.count(i) - 1
        if [key for key, _, _ in made[-2:]] == [keys[i]] * 2:
            made[-1] = keys[i], made[-1][1], high
        else:
            made.append((keys[i], low, high))
    return made


def suffix_array_plain(values: Sequence[int], depth: int) -> tuple[list[int], list[int]]:
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    heads = [tuple(numbers[value] for value in values[p : p + depth]) for p in range(len(values))]
    ranks = {head: rank for rank, head in enumerate(sorted(set(heads)))}
    return sorted(range(len(values)), key=lambda p: (heads[p], p)), [ranks[head] for head in heads]


def repeats_plain(documents: Sequence[Sequence[Hashable]], window: int, keep_first: bool) -> list[Spans]:
    """The tokens to remove from each document, of which the first is in the order given: all that lie in a window that
    stands earlier too; of one that overlaps its own first occurrence, what lies behind that. Where none is kept, all
    that lie in a window that stands twice."""
    where = [[(d, p) for p in range(len(tokens) - window + 1)] for d, tokens in enumerate(documents)]
    runs = {(d, p): tuple(documents[d][p : p + window]) for places in where for d, p in places}
    times, first = Counter(runs.values()), dict[tuple[Hashable, ...], tuple[int, int]]()
    removed: list[set[int]] = [set() for _ in documents]
    for (d, p), run in runs.items():
        at, q = first.setdefault(run, (d, p))
        if not keep_first:
            removed[d].update(range(p, p + window) if times[run] > 1 else ())
        elif (at, q) != (d, p):
            removed[d].update(range(max(p, q + window) if at == d else p, p + window))
    return [_spans(tokens) for tokens in removed]


def _spans(tokens: set[int]) -> Spans:
    spans: Spans = []
    for token in sorted(tokens):
        if spans and spans[-1][1] == token:
            spans[-1] = spans[-1][0], token + 1
        else:
            spans.append((token, token + 1))
    return spans


def mended_plain(text: str, spans: Spans) -> str:
    """The text without these tokens."""
    data = text.encode()
    tokens = [(a, b) for a, b, _ in tokens_plain(text)]
    made, at = b"", 0
    for begin, stop in spans:
        run, end = tokens[begin][0], tokens[stop - 1][1]
        before = tokens[begin - 1][1] if begin else 0
        after = tokens[stop][0] if stop < len(tokens) else len(data)
        left, right = data[before:run].decode(), data[end:after].decode()
        made += data[at:before]
        if begin == 0 and stop == len(tokens):
            seam = ""
        elif begin == 0:
            seam = _from_white(right).lstrip(WHITE) if _from_white(right) else ("" if left else right)
        elif stop == len(tokens):
            seam = _to_white(left).rstrip(WHITE) if _to_white(left) else left
        else:
            seam = _between(left, right)
            if not seam and not (_kind(data[:before].decode()[-1]) | _kind(data[after:].decode()[0])) & DENSE:
                seam = " "
        made += seam.encode()
        at = after
    return (made + data[at:]).decode()


def _between(left: str, right: str) -> str:
    kept, rest = _to_white(left) or left, _from_white(right) or ("" if left else right)
    white, other = kept[len(kept.rstrip(WHITE)) :], rest[: len(rest) - len(rest.lstrip(WHITE))]
    if white and other:
        return kept.rstrip(WHITE) + rest if other.count("\n") > white.count("\n") else kept + rest.lstrip(WHITE)
    return kept + rest


WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


def _to_white(text: str) -> str:
    """Up to the end of the last white space."""
    return text[: max((i for i, character in enumerate(text, 1) if _kind(character) & SPACE), default=0)]


def _from_white(text: str) -> str:
    return text[min((i for i, character in enumerate(text) if _kind(character) & SPACE), default=len(text)) :]


def _kind(character: str) -> int:
    return int(properties()[ord(character)])
