"""Texts to token ids for an encoder: cut before they are tokenised, tokenised ahead by other threads or processes. The
text itself is never touched.

A judge that reads 512 tokens need not tokenise a book. So a text is cut at 6 characters a token first; one that gives
too few tokens then, though it went on, is cut at 4 times as many, and so on. The ids are those of the whole text's
beginning: a cut can change the tokens of the word that it falls into, so MARGIN tokens behind the last one used must
have been made before it (WordPiece makes 100 of a word at most). A special token that a page spells out is text, not a
special token.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import current_process, get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.classifiers.card import JudgeError
from gristmill.kernels.base.types import Array

CHARACTERS_A_TOKEN, LONGER = 6, 4
MARGIN = 128
FIRST_TEXTS, SHARE_OF_SEEN = 32, 16


class TextTokens(NamedTuple):
    """Of several texts, end to end."""

    ids: Array  # int32
    lengths: Array  # int64_N, at least 1


@dataclass(frozen=True)
class Ahead:
    """By whom texts are tokenised ahead: `processes` of their own, or else `workers` threads, which share Python's lock
    with what feeds the device.

    Processes are started once for a tokenizer and kept. A daemonic process may not start any and uses threads (Dask's
    workers are daemonic, unless `distributed.worker.daemon` is false).
    """

    workers: int = 1
    processes: int = 0
    texts: int = 512  # of a piece of work, at most


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer of the Hugging Face kind (tokenizer.json, as text) and how many tokens of a text are read, special
    ones among them."""

    json: str
    most: int

    def __post_init__(self) -> None:
        if not isinstance(self.most, int) or self.most <= len(self.frame[0]) + len(self.frame[1]):
            raise JudgeError(f"{self.most!r} tokens of a text leave no room for the text")

    @property
    def vocabulary(self) -> int:
        """One more than the highest id."""
        return 1 + max(_tokenizer(self.json).get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def frame(self) -> tuple[Array, Array]:
        """The special tokens before and behind a text."""
        return _frame(self.json)

    def tokens(self, texts: pa.Array) -> TextTokens:
        """Null counts as empty. A text without any token, where there are no special ones, is the token 0."""
        before, behind = self.frame
        room = self.most - len(before) - len(behind)
        tokenizer = _tokenizer(self.json)
        whole = texts.cast(pa.large_string()).fill_null("")
        encoded: list[Array] = [behind] * len(whole)
        unfinished, characters = np.arange(len(whole)), room * CHARACTERS_A_TOKEN
        while len(unfinished):
            wanted = whole.take(pa.array(unfinished))
            cut = pc.utf8_slice_codeunits(wanted, 0, characters)
            encodings = tokenizer.encode_batch_fast(cut.to_pylist(), add_special_tokens=False)
            ended = (pc.binary_length(cut).to_numpy() == pc.binary_length(wanted).to_numpy()).tolist()
            again = []
            for row, encoding, all_of_it in zip(unfinished.tolist(), encodings, ended, strict=True):
                if all_of_it or len(encoding) >= room + MARGIN:
                    encoded[row] = np.array(encoding.ids[:room], np.int32)
                else:
                    again.append(row)
            unfinished, characters = np.array(again, np.int64), characters * LONGER
        ids = [np.concatenate([before, inner, behind]) for inner in encoded]
        ids = [row_ids if len(row_ids) else np.zeros(1, np.int32) for row_ids in ids]
        lengths = np.array([len(row_ids) for row_ids in ids], np.int64)
        return TextTokens(np.concatenate(ids) if ids else np.empty(0, np.int32), lengths)


def read_tokenizer(path: Path, most: int) -> TextTokenizer:
    try:
        return TextTokenizer(path.read_text(encoding="utf-8"), most)
    except (OSError, UnicodeDecodeError) as error:
        raise JudgeError(f"{path}: no tokenizer that can be read ({error})") from error


def tokenise(batches: Iterable[pa.Array], tokenizer: TextTokenizer, ahead: Ahead) -> Iterator[TextTokens]:
    """Of all texts in their order, in pieces of `ahead.texts` at most."""
    pieces = pieces_of(batches, ahead.texts)
    if ahead.processes and not current_process().daemon:
        # A slice would travel with the whole buffer that it lies in.
        yield from _through(
            _processes(tokenizer, ahead.processes),
            tokenizer,
            (pa.concat_arrays([piece]) for piece in pieces),
            ahead.processes,
        )
    elif ahead.workers > 1:
        with ThreadPoolExecutor(ahead.workers, thread_name_prefix="tokenise") as threads:
            yield from _through(threads, tokenizer, pieces, ahead.workers)
    else:
        yield from map(tokenizer.tokens, pieces)


def pieces_of(batches: Iterable[pa.Array], most: int) -> Iterator[pa.Array]:
    """Small ones first, a sixteenth of what there was before them, so that the first tokens come soon; by whom they are
    tokenised changes nothing."""
    seen = 0
    for batch in batches:
        start = 0
        while start < len(batch):
            piece = batch[start : start + min(most, max(FIRST_TEXTS, seen // SHARE_OF_SEEN))]
            start, seen = start + len(piece), seen + len(piece)
            yield piece


def _through(
    executor: Executor, tokenizer: TextTokenizer, pieces: Iterable[pa.Array], workers: int
) -> Iterator[TextTokens]:
    waiting: deque[Future[TextTokens]] = deque()
    try:
        for piece in pieces:
            waiting.append(executor.submit(_tokens_of, tokenizer, piece))
            if len(waiting) > 3 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        _processes.cache_clear()
        raise JudgeError("a process that tokenises died (out of memory?); use threads, or fewer processes") from error
    finally:
        for future in waiting:
            future.cancel()


@lru_cache(maxsize=2)
def _processes(tokenizer: TextTokenizer, count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin, initargs=(tokenizer,))


def _begin(tokenizer: TextTokenizer) -> None:
    """A process of its own uses one core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer(tokenizer.json)


def _tokens_of(tokenizer: TextTokenizer, piece: pa.Array) -> TextTokens:
    return tokenizer.tokens(piece)


@lru_cache(maxsize=8)
def _tokenizer(json: str) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(json)
    except Exception as error:  # the library raises nothing narrower
        raise JudgeError(f"the tokenizer cannot be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


@lru_cache(maxsize=8)
def _frame(json: str) -> tuple[Array, Array]:
    tokenizer = _tokenizer(json)
    whole, inner = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    start = next(i for i in range(len(whole) + 1) if whole[i : i + len(inner)] == inner)
    return np.array(whole[:start], np.int32), np.array(whole[start + len(inner) :], np.int32)
