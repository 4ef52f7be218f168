"""Text cut into the pieces inside which byte-level tokenizers merge: the patterns of GPT-2, GPT-4, Llama 3, Qwen and
ours, as one loop.

All patterns are of one family: `Rules` selects one, and `pattern_of` writes it as the regular expression of a
tokenizer.json. The caller says which characters are letters, marks, numbers and spaces, since each regex engine has its
own version of Unicode. In other tokenizers the regular expression takes most of the time.

ASCII is cut 64 bytes at a time: each class of characters is a mask of bits, and the places where pieces begin follow
from the masks without a branch (`ascii_ends`). Everything else goes character by character (`piece_end`). Both give the
same pieces.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel, point_at
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.wide import bits_of, highest, lowest
from gristmill.kernels.words.words import letters_at

LETTER, MARK, NUMBER, SPACE, BREAK = (
    1,
    2,
    4,
    8,
    16,
)  # bits of a table of classes, uint8[0x110000]; a break is CR or LF, and a space too
ENDLESS = 1 << 62  # longest, where a pattern has no bound

BLOCK = 64  # bytes of ASCII that are cut at once
APOSTROPHE, BLANK = 39, 32
AS_WRITTEN, ANY_CASE = 1, 2
LONG_S = (0xC5, 0xBF)  # ſ, the one letter beyond ASCII that is an s, t, m, d, r, v, l or e where case does not count


_ALL, _ONE, _TWO, _BLOCK = np.uint64((1 << 64) - 1), np.uint64(1), np.uint64(2), np.uint64(BLOCK)
_not_ascii = bits_of(BLOCK, (0x80, 0xFF))
_letters = bits_of(BLOCK, (0x61, 0x7A), with_bits=0x20)
_digits = bits_of(BLOCK, (0x30, 0x39))
_spaces = bits_of(BLOCK, (0x09, 0x0D), (BLANK, BLANK))
_breaks = bits_of(BLOCK, (0x0A, 0x0A), (0x0D, 0x0D))
_blanks = bits_of(BLOCK, (BLANK, BLANK))
_apostrophes = bits_of(BLOCK, (APOSTROPHE, APOSTROPHE))
_s_t_m_d = bits_of(BLOCK, (0x73, 0x74), (0x6D, 0x6D), (0x64, 0x64), with_bits=0x20)
_r_v = bits_of(BLOCK, (0x72, 0x72), (0x76, 0x76), with_bits=0x20)
_e = bits_of(BLOCK, (0x65, 0x65), with_bits=0x20)
_l = bits_of(BLOCK, (0x6C, 0x6C), with_bits=0x20)


class Rules(NamedTuple):
    """Which pattern of the family, as numbers for kernels."""

    word: int  # bits of what makes a word
    any_sign: int  # 1: one sign or space of any kind may go before a word; 0: a blank alone
    contractions: int  # 0: none; AS_WRITTEN or ANY_CASE: 's 't 're 've 'm 'll 'd are pieces
    digits: int  # most of a number; ENDLESS: all, with a blank before them
    # 1: signs take the line ends behind them, and spaces end in the last line end; 0: a line end is a space as any
    breaks: int
    longest: int  # characters of a word, a run of signs, of spaces or of line ends


GPT2 = Rules(LETTER, 0, AS_WRITTEN, ENDLESS, 0, ENDLESS)
GPT4 = Rules(LETTER, 1, ANY_CASE, 3, 1, ENDLESS)  # cl100k; Llama 3
QWEN2 = GPT4._replace(digits=1)
QWEN3_5 = QWEN2._replace(word=LETTER | MARK)


def pattern_of(rules: Rules) -> str:
    """The regular expression, exactly as tokenizers write it."""
    often = "+" if rules.longest == ENDLESS else f"{{1,{rules.longest}}}"
    if_any = "*" if rules.longest == ENDLESS else f"{{0,{rules.longest}}}"
    endings = "'s|'t|'re|'ve|'m|'ll|'d"
    letters = r"\p{L}\p{M}" if rules.word & MARK else r"\p{L}"
    word = f"[{letters}]" if rules.word & MARK else letters
    before = (
        letters if rules.longest < ENDLESS else r"\p{L}"
    )  # where words are endless it is one whether marks are named here
    number = (
        rf" ?\p{{N}}{often}"
        if rules.digits == ENDLESS
        else r"\p{N}"
        if rules.digits == 1
        else rf"\p{{N}}{{1,{rules.digits}}}"
    )
    choices = [
        {0: "", AS_WRITTEN: endings, ANY_CASE: f"(?i:{endings})"}[rules.contractions],
        (rf"[^\r\n{before}\p{{N}}]?" if rules.any_sign else " ?") + word + often,
        number,
        rf" ?[^\s{letters}\p{{N}}]{often}" + (rf"[\r\n]{if_any}" if rules.breaks else ""),
        rf"\s{if_any}[\r\n]{often}" if rules.breaks else "",
        rf"\s{often}(?!\S)|\s{often}",
    ]
    return "|".join(choice for choice in choices if choice)


@inlined
def piece_end(data, i, stop, classes, rules):
    """The end of the piece that begins at byte i < stop."""
    byte = data[i]
    if rules.contractions and byte == APOSTROPHE:
        length = contraction(data, i, stop, rules.contractions)
        if length:
            return i + length
    point, size = point_at(data, i, stop)
    kind = classes[point]
    if kind & rules.word:
        return word_end(data, i, stop, classes, rules)
    if kind & NUMBER:
        return run_end(data, i, stop, classes, NUMBER, rules.digits)
    j, kind_behind = i + size, np.uint8(0)
    if j < stop:
        kind_behind = classes[point_at(data, j, stop)[0]]
    if kind_behind & rules.word and (byte == BLANK or (rules.any_sign and not kind & BREAK)):
        return word_end(data, j, stop, classes, rules)
    if byte == BLANK and kind_behind & NUMBER and rules.digits == ENDLESS:
        return run_end(data, j, stop, classes, NUMBER, rules.digits)
    if not kind & SPACE:
        return signs_end(data, i, stop, classes, rules)
    if byte == BLANK and j < stop and not kind_behind & (SPACE | NUMBER | rules.word):
        return signs_end(data, j, stop, classes, rules)
    return spaces_end(data, i, stop, classes, rules)


@inlined
def word_end(data, i, stop, classes, rules):
    remaining = rules.longest
    while i < stop and remaining > 0:
        if data[i] < 0x80 and i + 16 <= len(data):
            letters = min(letters_at(data, i), stop - i, remaining)
            i += letters
            remaining -= letters
            if letters == 16:
                continue
            if i >= stop or remaining == 0 or data[i] < 0x80:
                break
        point, size = point_at(data, i, stop)
        if not classes[point] & rules.word:
            break
        i += size
        remaining -= 1
    return i


@helper
def run_end(data, i, stop, classes, wanted, most):
    """The end of a run of characters of a class, of `most` characters at most."""
    while i < stop and most > 0:
        point, size = point_at(data, i, stop)
        if not classes[point] & wanted:
            break
        i += size
        most -= 1
    return i


@helper
def signs_end(data, i, stop, classes, rules):
    remaining = rules.longest
    while i < stop and remaining > 0:
        point, size = point_at(data, i, stop)
        if classes[point] & (SPACE | NUMBER | rules.word):
            break
        i += size
        remaining -= 1
    return run_end(data, i, stop, classes, BREAK, rules.longest) if rules.breaks else i


@helper
def spaces_end(data, i, stop, classes, rules):
    """Up to the last line end; else all but the last space, which belongs to the next piece; else all."""
    last, behind_break, count = i, np.int64(-1), np.int64(0)
    while i < stop and count < rules.longest:
        point, size = point_at(data, i, stop)
        kind = classes[point]
        if not kind & SPACE:
            break
        last = i
        i += size
        count += 1
        if kind & BREAK:
            behind_break = i
    following = np.uint8(0)
    if i < stop:
        following = classes[point_at(data, i, stop)[0]]
    if rules.breaks:
        if following & BREAK:  # the run is longer than the longest
            return run_end(data, i, stop, classes, BREAK, rules.longest)
        if behind_break >= 0:
            return behind_break
    return i if i == stop or following & SPACE or count == 1 else last


@helper
def contraction(data, i, stop, case):
    """The length of 's 't 're 've 'm 'll 'd at the apostrophe; 0 if there is none."""
    if i + 1 >= stop:
        return 0
    fold = np.uint8(0x20 if case == ANY_CASE and data[i + 1] >= 0x40 else 0)
    first = data[i + 1] | fold
    if first == 115 or first == 116 or first == 109 or first == 100:  # s t m d
        return 2
    if i + 2 >= stop:
        return 0
    if case == ANY_CASE and data[i + 1] == LONG_S[0] and data[i + 2] == LONG_S[1]:
        return 3
    second = data[i + 2] | np.uint8(0x20 if case == ANY_CASE and data[i + 2] >= 0x40 else 0)
    if ((first == 114 or first == 118) and second == 101) or (first == 108 and second == 108):  # re ve ll
        return 3
    return 0


@inlined
def cut(data, i, stop, classes, rules, ends, most):
    """Writes the ends of the pieces from byte i on, at least `most` if the text has them and at most BLOCK more;
    returns how many."""
    n = 0
    in_blocks = by_masks(rules)
    while i < stop and n < most:
        if in_blocks and i + BLOCK <= len(data) and data[i] < 0x80 and data[i + 1] < 0x80:
            places = ascii_ends(data, i, stop - i, rules)
            if places:
                while places:
                    ends[n] = i + lowest(places)
                    places &= places - _ONE
                    n += 1
                i = ends[n - 1]
                continue
        i = piece_end(data, i, stop, classes, rules)
        ends[n] = i
        n += 1
    return n


@inlined
def by_masks(rules):
    """Does `ascii_ends` know these rules?"""
    return (
        rules.any_sign == 1
        and rules.breaks == 1
        and rules.contractions != AS_WRITTEN
        and rules.digits <= 3
        and rules.longest >= BLOCK
    )


@inlined
def ascii_ends(data, i, length, rules):
    """Where pieces end that begin at byte i and are known to end in the 64 bytes from there on, as bits; byte i begins
    a piece. `length` bytes remain of the text. Bytes that are not ASCII, and what follows them, decide nothing."""
    high = _not_ascii(data, i)
    size = min(length, BLOCK)
    if high:
        size = min(size, lowest(high))
    within = _ALL if size == BLOCK else (_ONE << np.uint64(size)) - _ONE
    letters, digits, breaks = _letters(data, i) & within, _digits(data, i) & within, _breaks(data, i) & within
    spaces = _spaces(data, i) | ~within
    signs = ~(letters | digits | spaces)

    # A run of signs takes a blank before it, and the line ends behind it.
    sign_begins = signs & ~(signs << _ONE) & ~(_blanks(data, i) << _ONE)
    behind_signs = breaks & (signs << _ONE)
    taken = breaks & ~(breaks + behind_signs)  # the sum carries through each run that begins there

    # A word takes the sign or space before it, if a piece begins with that.
    word_begins = letters & ((digits | breaks | (signs & ~sign_begins)) << _ONE)
    if rules.contractions:
        marks = _apostrophes(data, i) & sign_begins
        if marks:
            short = marks & _s_t_m_d(data, i) >> _ONE
            is_e, is_l = _e(data, i), _l(data, i)
            long = marks & ((_r_v(data, i) >> _ONE & is_e >> _TWO) | (is_l >> _ONE & is_l >> _TWO))
            word_begins |= letters & (short << _TWO | long << np.uint64(3))

    number_begins = digits & ~(digits << _ONE)
    if digits & digits << _ONE:
        step = np.uint64(rules.digits)
        reach = digits
        for back in range(1, rules.digits):
            reach &= digits << np.uint64(back)
        while step < _BLOCK:
            number_begins |= number_begins << step & reach
            reach &= reach << step
            step += step

    # Spaces end in the last line end of their run; else all but the last are a piece, for that goes with what follows.
    others = spaces & ~breaks
    space_begins = (spaces & ~(spaces << _ONE) & ~taken) | (others & ~(spaces >> _ONE)) | (others & taken << _ONE)
    mixed = others & (breaks & ~taken) << _ONE
    if mixed:
        before_break, run, step = breaks, spaces, _ONE
        while step < _BLOCK:
            before_break |= before_break >> step & run
            run &= run >> step
            step += step
        space_begins |= mixed & ~before_break

    begins = (sign_begins | word_begins | number_begins | space_begins) & within
    if size == length and size < BLOCK:
        begins |= _ONE << np.uint64(size)  # the text ends here
    else:  # where the last run of spaces is cut depends on what follows
        solid = ~spaces
        begins &= (_ONE << np.uint64(highest(solid)) << _ONE << _ONE) - _ONE if solid else _ONE
    return begins & ~_ONE


@kernel
def cut_pieces(data, offsets, classes, rules, ends, counts):
    """The ends of the pieces, text after text, and how many each text has. `ends` has BLOCK places more than the texts
    have bytes."""
    n = 0
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        counts[d] = cut(data, i, stop, classes, rules, ends[n:], stop - i)
        n += counts[d]
    return n


def ascii_is_as_masks_have_it(classes: Array) -> bool:
    """Does a table of classes agree with `ascii_ends`?"""
    table = [
        (LETTER if chr(byte).isalpha() else 0)
        | (NUMBER if chr(byte).isdigit() else 0)
        | (SPACE if byte in b" \t\n\v\f\r" else 0)
        | (BREAK if byte in b"\r\n" else 0)
        for byte in range(0x80)
    ]
    return bool(classes[:0x80].tolist() == table)


def pieces_plain(text: str, rules: Rules) -> list[str]:
    """By the regular expression itself, with the Unicode of the package `regex`."""
    import regex

    return [match.group() for match in regex.finditer(pattern_of(rules), text)]
