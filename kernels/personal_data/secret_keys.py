"""Keys and tokens in the formats of their issuers: AWS, GitHub, GitLab, Google, Slack, Stripe, OpenAI and Anthropic,
Hugging Face, npm, PyPI, SendGrid, DigitalOcean, JSON web tokens, private keys in PEM. Each begins with a prefix, has a
known length, and stands alone. And `user:password` in an address."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from gristmill.kernels.base.compiled import helper
from gristmill.kernels.personal_data.patterns import alnum, digit, letter


@helper
def _alone(data, i, start):
    return i >= start and (i == start or not (alnum(data[i - 1]) or data[i - 1] == 95 or data[i - 1] == 45))


@helper
def _is(data, i, end, text):
    if i + len(text) > end:
        return False
    same = True
    for k in range(len(text)):
        same &= data[i + k] == text[k]
    return same


@helper
def _run(data, i, end, extra):
    """The end of letters and digits; `extra` 1 takes `_` too, 2 takes `-` too."""
    while i < end and (alnum(data[i]) or (extra >= 1 and data[i] == 95) or (extra >= 2 and data[i] == 45)):
        i += 1
    return i


@helper
def _token(data, i, end, extra, least, most):
    """The end of a run of `least` to `most`, or -1."""
    stop = _run(data, i, end, extra)
    if stop < end and data[stop] == 95:
        return -1
    return stop if least <= stop - i <= most else -1


@helper
def _mixed(data, i, stop):
    """Whether digits, upper and lower case all occur, so that it is no name of a class or a file."""
    digits, upper, lower = False, False, False
    for j in range(i, stop):
        digits |= digit(data[j])
        upper |= 65 <= data[j] <= 90
        lower |= 97 <= data[j] <= 122
    return digits and upper and lower


@helper
def from_capital_a(data, i, start, end):
    """AKIA, ASIA (AWS) and 16 capitals or digits; AIza (Google) and 35."""
    if not _alone(data, i, start):
        return -1
    if _is(data, i, end, b"AIza"):
        return _token(data, i + 4, end, 2, 35, 35)
    if _is(data, i, end, b"AKIA") or _is(data, i, end, b"ASIA"):
        stop = _token(data, i + 4, end, 0, 16, 16)
        for j in range(i + 4, max(stop, i + 4)):
            if data[j] >= 97:
                return -1
        return stop
    return -1


@helper
def from_underscore(data, at, start, end):
    """gh?_ github_pat_ (GitHub), sk_live_ sk_test_ rk_live_ (Stripe), hf_ npm_ dop_v1_. `at` is the first
    underscore."""
    i = at
    while i > start and at - i < 7 and letter(data[i - 1]):
        i -= 1
    if not _alone(data, i, start):
        return -1, -1
    stop = -1
    if at - i == 3 and data[i] == 103 and data[i + 1] == 104:
        kind = data[i + 2]
        if kind == 112 or kind == 111 or kind == 117 or kind == 115 or kind == 114:  # p o u s r
            stop = _token(data, at + 1, end, 0, 36, 255)
    elif _is(data, i, end, b"github_pat_"):
        stop = _token(data, i + 11, end, 1, 22, 255)
    elif _is(data, i, end, b"sk_live_") or _is(data, i, end, b"sk_test_") or _is(data, i, end, b"rk_live_"):
        stop = _token(data, i + 8, end, 0, 16, 255)
    elif _is(data, i, end, b"hf_"):
        stop = _token(data, i + 3, end, 0, 30, 40)
        stop = stop if stop > 0 and _cased(data, i + 3, stop) else -1
    elif _is(data, i, end, b"npm_"):
        stop = _token(data, i + 4, end, 0, 36, 36)
    elif _is(data, i, end, b"dop_v1_"):
        stop = _token(data, i + 7, end, 0, 64, 64)
    return i, stop


@helper
def _cased(data, i, stop):
    upper, lower = False, False
    for j in range(i, stop):
        upper |= 65 <= data[j] <= 90
        lower |= 97 <= data[j] <= 122
    return upper and lower


@helper
def from_hyphen(data, at, start, end):
    """xox?- (Slack), sk- (OpenAI, Anthropic, DeepSeek, OpenRouter), glpat- (GitLab), pypi-AgE, and -----BEGIN ...
    PRIVATE KEY-----. `at` is the first hyphen."""
    if at > start and data[at - 1] == 45:
        return -1, -1
    if _is(data, at, end, b"-----BEGIN "):
        return at, _private_key(data, at, end)
    i = at
    while i > start and at - i < 6 and letter(data[i - 1]):
        i -= 1
    if at - i < 2 or not _alone(data, i, start):
        return -1, -1
    stop = -1
    if _is(data, i, end, b"sk-"):
        stop = _token(data, i + 3, end, 2, 20, 255)
        long = stop - i - 3 >= 32
        stop = stop if stop > 0 and ((long and _mixed(data, i + 3, stop)) or _dense(data, i + 3, stop)) else -1
    elif _is(data, i, end, b"xox") and at - i == 4:
        stop = _token(data, at + 1, end, 2, 20, 255)
        stop = stop if stop > 0 and digit(data[at + 1]) else -1
    elif _is(data, i, end, b"glpat-"):
        stop = _token(data, i + 6, end, 2, 20, 64)
    elif _is(data, i, end, b"pypi-AgE"):
        stop = _token(data, i + 8, end, 2, 50, 1024)
    return i, stop


@helper
def _dense(data, i, stop):
    """Whether there is a run of 20 letters and digits with three of each. Names of classes and pages have hyphens,
    words no digits."""
    letters, digits = 0, 0
    for j in range(i, stop):
        if digit(data[j]):
            digits += 1
        elif letter(data[j]):
            letters += 1
        else:
            letters, digits = 0, 0
        if letters + digits >= 20 and letters >= 3 and digits >= 3:
            return True
    return False


@helper
def from_scheme(data, colon, start, end):
    """`user:password` of `scheme://user:password@host` (RFC 3986; no quotes, brackets or commas in either), from the
    scheme's colon."""
    if colon == start or not letter(data[colon - 1]) or not _is(data, colon, end, b"://"):
        return -1, -1
    first = colon + 3
    middle = _user_info(data, first, min(end, first + 64))
    if middle >= end or data[middle] != 58:
        return -1, -1
    stop = _user_info(data, middle + 1, min(end, middle + 256))
    if stop == middle + 1 or stop + 1 >= end or data[stop] != 64 or not (alnum(data[stop + 1]) or data[stop + 1] == 91):
        return -1, -1
    return first, stop


@helper
def _user_info(data, i, end):
    """The end of letters, digits and - . _ ~ % ! $ & * + =."""
    while i < end:
        byte = data[i]
        marked = (
            byte == 33
            or 36 <= byte <= 38
            or 42 <= byte <= 43
            or 45 <= byte <= 46
            or byte == 61
            or byte == 95
            or byte == 126
        )
        if not (alnum(byte) or marked):
            break
        i += 1
    return i


@helper
def _private_key(data, i, end):
    """The end of the PEM block that begins at i. Its body has no five hyphens, so the next five must be `-----END`."""
    j = i + 11
    while j < end and j - i < 48 and (65 <= data[j] <= 90 or data[j] == 32):
        j += 1
    if j - i < 22 or not _is(data, j - 11, end, b"PRIVATE KEY-----"):
        return -1
    j += 5
    while j < end:
        if data[j] == 45 and _is(data, j, end, b"-----"):
            if not _is(data, j, end, b"-----END "):
                return -1
            j += 9
            last = min(end, j + 37)
            while j < last and data[j] != 45:
                j += 1
            return j + 5 if _is(data, j, end, b"-----") else -1
        j += 1
    return -1


@helper
def from_capital_j(data, at, start, end):
    """A JSON web token: eyJ..., `.`, eyJ..., `.`, a signature."""
    i = at - 2
    if not _alone(data, i, start) or data[i] != 101 or data[i + 1] != 121 or (i > start and data[i - 1] == 46):
        return -1
    j = _run(data, i, end, 2)
    if j - i < 12 or not _is(data, j, end, b".eyJ"):
        return -1
    k = _run(data, j + 1, end, 2)
    if k - j < 12 or k >= end or data[k] != 46:
        return -1
    stop = _run(data, k + 1, end, 2)
    return stop if stop - k >= 16 else -1


@helper
def from_capital_g(data, at, start, end):
    """SG. (SendGrid), 22, a dot, 43."""
    i = at - 1
    if not _alone(data, i, start) or data[i] != 83 or not _is(data, i, end, b"SG."):
        return -1
    j = _token(data, i + 3, end, 2, 22, 22)
    if j < 0 or j >= end or data[j] != 46:
        return -1
    return _token(data, j + 1, end, 2, 43, 43)
