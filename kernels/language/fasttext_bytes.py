"""The bytes that fastText compares with: its whitespace, `</s>`, `__label__`, and words with one another. For kernels
that read texts as it does.

Compiled bare, so that both kinds of kernel can call them.
"""

from __future__ import annotations

from gristmill.kernels.base.bare import helper, inlined

END, LABEL_PREFIX = b"</s>", b"__label__"


@inlined
def is_space(byte):
    return byte == 32 or 9 <= byte <= 13 or byte == 0


@helper
def begins(data, start, end, what):
    """Does the word begin so?"""
    if end - start < len(what):
        return False
    for i in range(len(what)):  # noqa: SIM110
        if data[start + i] != what[i]:
            return False
    return True


@helper
def spelt(data, start, end, what):
    """Is the word this one?"""
    return end - start == len(what) and begins(data, start, end, what)


@helper
def equal(data, a, b, length):
    for i in range(length):  # noqa: SIM110
        if data[a + i] != data[b + i]:
            return False
    return True
