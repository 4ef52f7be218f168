"""A tokenizer of the corpus's own: byte-level BPE (Sennrich et al. 2016; bytes as Radford et al. 2019), trained on a
sample of it.

Text is split as GPT-4 splits it (the pattern of cl100k_base), but for four things. Marks belong to the letters before
them: GPT-4 breaks Hindi, Thai and vocalised Arabic words at every vowel sign. Numbers go in groups of two digits, not
three, for a thousand entries are much of a small vocabulary (nanochat measured two to be best for 32,768). English
contractions have no rule of their own: an apostrophe begins a piece as any other sign does, and `'song` is not cut
behind its `'s`. And no piece is longer than 64 characters, so that a megabyte of base64 is no word: it costs nothing to
learn or to encode, and no token is the length of a line.

Training ends in the same vocabulary for the same texts in any order, on any number of threads: pairs that are equally
frequent are merged in order of their ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gristmill.kernels.bpe.pieces import LETTER, MARK, Rules, pattern_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIALS = {"eos": "<|endoftext|>", "bos": "<|begin_of_text|>", "pad": "<|pad|>"}  # ids 0, 1, 2
LEAST = 256 + len(SPECIALS)  # every byte has a token, so that every text has
LONGEST_PIECE = 64  # characters


def rules_of(digits: int) -> Rules:
    """What stays together: a word with one sign or space before it; digits; signs with the end of their line; spaces,
    the last of which goes with the word."""
    return Rules(word=LETTER | MARK, any_sign=1, contractions=0, digits=digits, breaks=1, longest=LONGEST_PIECE)


def untrained(digits: int) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern_of(rules_of(digits))), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def trained(texts: Iterable[str], vocab_size: int, digits: int, specials: list[str]) -> str:
    """The `tokenizer.json` of a vocabulary of `vocab_size` (fewer where the texts have no more pairs that come
    twice)."""
    from tokenizers import pre_tokenizers, trainers

    tokenizer = untrained(digits)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    text: str = tokenizer.to_str()
    return text
