"""Which encoding bytes are in that no declaration explains: uchardet's answer, weighed against the letters that
languages use.

uchardet tells scripts and multi-byte encodings apart, but often errs between encodings of one script, and where accents
are rare. So each single-byte encoding is also scored as each of its languages: how probable the bytes are, if letters
beyond ASCII are as frequent as the language has them. Scores are log probabilities (nats). Measured on texts in 31
encodings: docs/extraction.md, benchmarks/text/charsets.py.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array

# Of a thousand letters of a language, how many are beyond ASCII, and which those are, the most frequent first.
LETTERS = {
    "ar": (950, "اليمونترعةبدهسفقكحأجشطصىخإذضزثئغءظًؤآ"),
    "be": (950, "анірыскелтдяовмупцзўгбьчэхйшжюёф"),
    "bg": (950, "аиеотнрсвдклпмзябъгучцщжйхшфью"),
    "ca": (25, "óàéèíòúçïü·"),
    "cs": (119, "íáěéřčýžšůúňťďó"),
    "da": (29, "åæøé"),
    "de": (17, "üäößé"),
    "el": (950, "οατιενσρκπημςυλίάόέγδήωχθύφώβξζψϊ"),
    "en": (1, "éïñèç"),
    "es": (22, "óíáéñú¿¡ü"),
    "et": (36, "äõüöžš"),
    "fa": (950, "ایردنهومتبسلکشزفگعقخجپحطصچغثضذئكي"),
    "fi": (45, "äöå"),
    "fr": (35, "éàèêôîâçûùïëœ"),
    "ga": (71, "íáéóú"),
    "he": (950, "ויהלרתבמאשנםעדקחפסכגטצןזךףץ"),
    "hr": (32, "čšćžđ"),
    "hu": (117, "áéöóíüőúű"),
    "is": (129, "ðáíþóæöúéý"),
    "it": (7, "àèìùòé"),
    "lt": (69, "ėųšžąįūčę"),
    "lv": (107, "āīēšūņļžģķč"),
    "mk": (950, "аоиетнрсвдклпмугјзбчшцжфњхќљџѓѕ"),
    "nl": (2, "ëéèöïüáóíê"),
    "pl": (68, "łąężóśćńź"),
    "pt": (33, "ãçáéíóõêúàâôü"),
    "ro": (35, "ăţîşâ"),
    "ru": (950, "оеаинтсврлкмдпуяыьгзбчйжхшюцщэфёъ"),
    "sk": (100, "áíýčžšúéťľôňďóä"),
    "sl": (29, "čšž"),
    "sq": (82, "ëç"),
    "sr": (950, "аиоенрстуквјдмлпзгбчцшњхљжћфђџ"),
    "sv": (51, "äöåé"),
    "th": (950, "ารนกัมอง่เวย้สีิทลบดคตะปพหจชุแ์ขศำืูโไใธณผภษ็ึญถซฟฉฐฎฮฏฤฆฬๆฯ"),
    "tr": (110, "ıüşçöğâî"),
    "uk": (950, "оанивтіресклудпмязьгбчйхцюжїшєщфґ"),
    "ur": (950, "اترنسمدبلجعقفشزحخطصءآظضذثغئيكهوںپچگ"),
    "vi": (280, "đàáưêôảóâăơíúạãéèìòùýõ\u0301\u0300\u0323\u0309\u0303"),
}
WESTERN = "en de fr es it pt nl ca sv da fi is ga sq et"
CENTRAL = "cs sk pl hu hr sl ro sq de"
BALTIC = "lt lv et"
# What each single-byte encoding of the web is used for. Of encodings that explain the bytes equally well, the first is
# taken.
LANGUAGES = {
    "cp1252": WESTERN, "cp1251": "ru uk bg be sr mk", "cp1250": CENTRAL, "cp1254": "tr", "cp1253": "el",
    "cp1257": BALTIC, "cp1255": "he",
    "cp1256": "ar fa ur", "cp874": "th", "cp1258": "vi", "koi8-r": "ru bg", "koi8-u": "uk", "iso8859-2": CENTRAL,
    "iso8859-15": WESTERN,
    "iso8859-5": "ru bg be sr mk uk", "iso8859-7": "el", "iso8859-8": "he", "iso8859-6": "ar", "iso8859-13": BALTIC,
    "iso8859-4": BALTIC,
    "cp866": "ru be", "mac-cyrillic": "ru uk bg",
}  # fmt: skip
# The commonest characters of what each multi-byte encoding is used for: a quarter to two thirds of its text, and hardly
# any of text that is misread in it.
KANA = "のいでしてにながとるすはたまをかりれもうらっこくあきんさだけえどそおよやめつせわちスンルトイッラーリアクフシド"
HAN = "的一是不人了有在我大中上到以他和年也生法能可自成得地家用方多心那下行好日小出今同本心之要多天分手高事入作"
SIMPLIFIED = "这为会个时来国就出对们现发说于过与经后学还当面进无从动两间没开长关点见问样头业给让车电书气马门东"
TRADITIONAL = (
    "這為會個時來國就對們現發說於過與經後學還當面進無從動兩間沒開長關點見問樣頭業給讓車電書氣馬門東喺嘅咗佢唔啲哋嚟"
)
HANGUL = (
    "이다는에의을가고지로한하서대은사기를도자정인수시해으리부했전국있일나아어들제원장주라만보스과상것적회선문그경게위면"
)
COMMON = {
    "cp932": KANA, "euc_jp": KANA, "gb18030": HAN + SIMPLIFIED + TRADITIONAL, "big5hkscs": HAN + TRADITIONAL,
    "cp949": HANGUL,
}  # fmt: skip
MULTI_BYTE = tuple(COMMON)
MARKS = "\xa0’“”–…‘„—«»©®™•·°€£§‹›\xad‚"  # in texts of any language, the most frequent first
# How probable a character beyond ASCII is to be a small letter, a capital, such a mark, any other, and one that no text
# holds (controls, ¤).
SMALL, CAPITAL, MARK, OTHER, NEVER = 0.8, 0.1, 0.1, 1e-3, 1e-6

# Evidence besides the letters, in nats.
USUAL = {
    "cp1252": 2,
    "iso8859-15": -1,
    "cp1258": -2,
    "iso8859-13": -2,
    "iso8859-4": -3,
    "cp866": -3,
    "mac-cyrillic": -3,
}
HINT = 3.0  # for what uchardet answers, what was declared, and the language that the page names
SPARSE = (
    -6.0
)  # at most, for more or fewer letters beyond ASCII than the language has: menus and names in other languages count too
ODD = -3.0  # for each place that no text has
CLOSE = -50.0  # candidates that are behind by more are not looked at for such places
POOR, POOR_ALWAYS = (
    -5.5,
    -10.0,
)  # nats a character and in all, marks aside, below which nothing explains the bytes: noise has -5.7
LOST = 0.05  # the share of characters that a multi-byte encoding may lose
USUAL_SHARE = 0.15  # of common characters, from which on a multi-byte encoding is believed
ANSWERED = 0.1  # more of them, for uchardet's answer

SAMPLE, PART, HEAD = 1 << 16, 1 << 13, 1 << 12
TAG = re.compile(rb"<[^<>]*+>")
LANG = re.compile(rb"<html\b[^>]{0,400}?\blang\s*+=\s*+[\"']?\s*+([a-z]{2})\b", re.IGNORECASE)
IS_LETTER, IS_LATIN, IS_SMALL, IS_CAPITAL, IS_MARK, IS_SPACE, IS_CLOSING = (1 << bit for bit in range(7))


def guess_codec(data: bytes, declared: str | None, python_name: Callable[[str | None], str | None]) -> str | None:
    """Python's name of the encoding of bytes that are not UTF-8; None where nothing explains them. `declared` counts as
    a hint."""
    from resiliparse.parse.encoding import detect_encoding

    sample = b"\n".join(part for part in TAG.split(data) if not part.isascii())[:SAMPLE]
    answer = detect_encoding(sample, html5_compatible=False)
    answer = (
        "cp1250" if answer == "iso8859-16" else python_name(answer) or answer
    )  # the same letters; no page is in iso8859-16
    multi_byte = answer or declared
    if answer is None or multi_byte in MULTI_BYTE:
        shares = {codec: share_common(sample, codec) + ANSWERED * (codec == multi_byte) for codec in MULTI_BYTE}
        best = max(shares, key=lambda codec: shares[codec])
        if shares[best] >= USUAL_SHARE + ANSWERED * (best == multi_byte):
            return best
        if multi_byte in MULTI_BYTE and shares[multi_byte] >= 0:
            return multi_byte
    return guess_single_byte(sample, (answer, declared), language_of(data))


def share_common(sample: bytes, codec: str) -> float:
    """Of the letters beyond ASCII, the share that is common where a multi-byte encoding is used; -1 if it loses too
    much."""
    beyond = [character for character in sample[:PART].decode(codec, "replace") if character > "\x7f"]
    if beyond.count("\ufffd") > LOST * len(beyond):
        return -1.0
    letters = [character for character in beyond if character.isalpha()]
    return sum(map(COMMON[codec].__contains__, letters)) / max(1, len(letters))


def language_of(page: bytes) -> str | None:
    lang = LANG.search(page[:HEAD])
    return lang[1].decode("ascii").lower() if lang else None


def guess_single_byte(sample: bytes, hints: tuple[str | None, ...], language: str | None) -> str | None:
    models = candidates()
    data = np.frombuffer(sample, np.uint8)
    counts = np.bincount(data, minlength=256)
    beyond, ascii_letters = int(counts[128:].sum()), int(counts[ASCII_LETTERS].sum())
    letters = models.letters @ counts[128:]
    density = beyond * np.log(models.density) + ascii_letters * np.log(1 - models.density)
    scores = letters + np.maximum(density - density.max(), SPARSE) + models.usual
    scores += HINT * (sum(models.codecs == hint for hint in hints) + (models.languages == language))
    close = np.flatnonzero(scores > scores.max() + CLOSE)
    odd = {codec: odd_places(data, codec) for codec in dict.fromkeys(models.codecs[close].tolist())}
    best = close[np.argmax([scores[row] + ODD * odd[models.codecs[row]] for row in close])]
    codec = str(models.codecs[best])
    unmarked = counts[128:] * [character not in MARKS for character in characters_of(codec)[128:]]
    return codec if models.letters[best] @ unmarked >= POOR * unmarked.sum() + POOR_ALWAYS else None


def odd_places(data: Array, codec: str) -> int:
    """A capital after a small letter, a mark between letters, two scripts in a word, a closing quotation mark before
    one."""
    kinds = kinds_of_bytes(codec)[data]
    a, b, c = kinds[:-2], kinds[1:-1], kinds[2:]
    capital = (b & IS_SMALL != 0) & (c & IS_CAPITAL != 0)
    mark = (a & IS_LETTER != 0) & (b & IS_MARK != 0) & (c & IS_LETTER != 0)
    scripts = (b & c & IS_LETTER != 0) & ((b ^ c) & IS_LATIN != 0)
    closing = (a & IS_SPACE != 0) & (b & IS_CLOSING != 0) & (c & IS_LETTER != 0)
    return int(np.count_nonzero(capital | mark | scripts | closing))


ASCII_LETTERS = [byte for byte in range(128) if chr(byte).isalpha()]


class Candidates(NamedTuple):
    """Each codec with each of its languages."""

    codecs: Array
    languages: Array
    letters: Array  # a row a candidate: the log probabilities of the bytes 0x80 to 0xFF
    density: Array  # of letters beyond ASCII
    usual: Array


@lru_cache(1)
def candidates() -> Candidates:
    pairs = [(codec, language) for codec, languages in LANGUAGES.items() for language in languages.split()]
    rows = []
    for codec, language in pairs:
        probabilities = probabilities_of(language)
        rows.append(
            [probabilities.get(c, NEVER if c in "\ufffd¤" or c < "\xa0" else OTHER) for c in characters_of(codec)[128:]]
        )
    codecs, languages = (np.array(names) for names in zip(*pairs, strict=True))
    density = np.array([LETTERS[language][0] / 1000 for language in languages])
    return Candidates(codecs, languages, np.log(rows), density, np.array([USUAL.get(codec, 0.0) for codec in codecs]))


def probabilities_of(language: str) -> dict[str, float]:
    letters = LETTERS[language][1]
    small, marks = falling(len(letters), SMALL), falling(len(MARKS), MARK)
    capitals = {
        letter.upper(): p * CAPITAL / SMALL
        for letter, p in zip(letters, small, strict=True)
        if len(letter.upper()) == 1
    }
    return dict(zip(MARKS, marks, strict=True)) | capitals | dict(zip(letters, small, strict=True))


def falling(count: int, total: float) -> list[float]:
    """Probabilities that fall with the rank, as those of letters do, and add up to `total`."""
    weights = 1 / (np.arange(count) + 2)
    return [float(p) for p in weights / weights.sum() * total]


@lru_cache(32)
def kinds_of_bytes(codec: str) -> Array:
    return np.array([kind_of(character) for character in characters_of(codec)], np.uint8)


def kind_of(character: str) -> int:
    category = unicodedata.category(character)
    if category.startswith("L"):
        latin = IS_LATIN if "LATIN" in unicodedata.name(character) else 0
        return IS_LETTER | latin | {"Ll": IS_SMALL, "Lu": IS_CAPITAL}.get(category, 0)
    if character in " \t\n\r’":
        return IS_CLOSING if character == "’" else IS_SPACE
    return IS_MARK if category[0] in "SP" and character not in "'’·-\ufffd" else 0


def characters_of(codec: str) -> list[str]:
    return [bytes([byte]).decode(codec, "replace") for byte in range(256)]
