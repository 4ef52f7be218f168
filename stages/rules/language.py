"""Which languages stay, and how sure the model must be: one threshold, or one for each language (as FineWeb2 sets
them)."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import yaml
from pydantic import Field, field_validator, model_validator

from gristmill.kernels.base.types import Array, Integers
from gristmill.kernels.common.paths import RecipePath
from gristmill.stages.stage import Bound, Limit, Mask, Rule, Signals, Verdict, below

Score = Annotated[float, Field(ge=0, le=1)]

# Names that people write and models do not (DataTrove's issue 388): ISO 639-1, 639-3 and 639-2/B, English name.
MISTAKEN = """
af afr afrikaans|ar ara arb arabic|az aze azerbaijani|be bel belarusian|bg bul bulgarian|bn ben bengali|bs bos bosnian
ca cat catalan|cs ces cze czech|cy cym wel welsh|da dan danish|de deu ger german|el ell gre greek|en eng english
eo epo esperanto|es spa spanish|et est estonian|eu eus baq basque|fa fas per persian|fi fin finnish|fr fra fre french
ga gle irish|gl glg galician|gu guj gujarati|he heb hebrew|hi hin hindi|hr hrv croatian|hu hun hungarian
hy hye arm armenian|id ind indonesian|is isl ice icelandic|it ita italian|ja jpn japanese|ka kat geo georgian
kk kaz kazakh|km khm khmer|kn kan kannada|ko kor korean|la lat latin|lt lit lithuanian|lv lav latvian
mk mkd mac macedonian|ml mal malayalam|mn mon mongolian|mr mar marathi|ms msa may malay|my mya bur burmese
ne nep nepali|nl nld dut dutch|no nor nob norwegian|pa pan punjabi|pl pol polish|pt por portuguese|ro ron rum romanian
ru rus russian|si sin sinhala|sk slk slo slovak|sl slv slovenian|so som somali|sq sqi alb albanian|sr srp serbian
sv swe swedish|sw swa swh swahili|ta tam tamil|te tel telugu|th tha thai|tl tgl tagalog|tr tur turkish
uk ukr ukrainian|ur urd urdu|uz uzb uzbek|vi vie vietnamese|yi yid yiddish|zh zho chi cmn chinese
"""
UNKNOWN = "unknown"  # of documents without a language
LIKE_A_LABEL = re.compile(r"[a-z]{2,3}(_[A-Z][a-z]{3})?")


class KeepLanguages(Rule):
    """Keep documents in some languages, where the model is sure enough.

    Languages are named as the model names them: `en` for lid.176, `eng_Latn` for GlotLID.
    """

    languages: Annotated[list[str], Field(description="what stays, as the model names it", min_length=1)]
    at_least: Annotated[Score, Field(description="the lowest score that stays")] = 0.65
    thresholds: Annotated[
        dict[str, Score], Field(description="the lowest score for some languages of their own", default_factory=dict)
    ]
    thresholds_file: Annotated[
        RecipePath | None,
        Field(description="YAML or JSON of the same kind for many languages; `thresholds` go before it"),
    ] = None

    needs: ClassVar[tuple[str, ...]] = ("language", "language_score")
    expect_drops: ClassVar[float] = 0.95  # of a crawl of the whole web, for one language

    @field_validator("languages")
    @classmethod
    def _are_labels(cls, languages: list[str]) -> list[str]:
        for language in languages:
            if wrong := what_is_wrong(language):
                raise ValueError(wrong)
        return languages

    @model_validator(mode="after")
    def _thresholds_are_of_use(self) -> KeepLanguages:
        for language in self.thresholds:
            if language not in self.languages:
                raise ValueError(
                    f"thresholds: {language!r} is not among the languages that stay ({', '.join(self.languages)})"
                )
        self.lowest()
        return self

    @property
    def limits(self) -> tuple[Limit, ...]:  # type: ignore[override]
        own = (below("language_score", f"thresholds.{language}", "low_score") for language in self.thresholds)
        return (below("language_score", "at_least", "low_score"), *own)

    def own_thresholds(self) -> dict[str, float]:
        """Of languages that have one."""
        return (thresholds_of(self.thresholds_file) if self.thresholds_file else {}) | self.thresholds

    def lowest(self) -> list[float]:
        """The threshold of each language."""
        own = self.own_thresholds()
        keys = [key_for(language, own) for language in self.languages]
        return [self.at_least if key is None else own[key] for key in keys]

    def verdict(self, signals: Signals) -> Verdict:
        names, codes, which = self._languages(signals)
        unknown = np.array([name == UNKNOWN for name in names], bool)[codes]
        languages = [names[code] for code in codes.tolist()]
        limit = self.limits[0]
        low = limit.beyond(self.values([limit], signals)[0], self._lowest_of(which))
        return (
            Verdict.keep(len(signals))
            .drop(unknown, "unknown_language")
            .drop((which < 0) & ~unknown, "other_language", languages)
            .drop(low, limit.reason, languages)
        )

    def values(self, limits: Sequence[Limit], signals: Signals) -> list[Array]:
        score: Array = np.nan_to_num(signals.language_score, nan=0.0)  # an input may name a language and no score
        return [score] * len(limits)

    def bounds(self, limits: Sequence[Limit], signals: Signals) -> list[Bound]:
        """Those of each document's language; the score of any other is above it."""
        return [self._lowest_of(self._languages(signals)[-1])] * len(limits)

    def _lowest_of(self, which: Integers) -> Array:
        return np.array([*self.lowest(), -np.inf], np.float32)[which]

    def governed(self, limit: Limit, signals: Signals) -> Mask:
        setting = str(limit.setting).removeprefix("thresholds.")
        own = self.own_thresholds()
        keys = [(language, key_for(language, own)) for language in self.languages]
        mine = [language == setting or (setting == "at_least" and key is None) for language, key in keys]
        return np.array([*mine, False])[self._languages(signals)[-1]]

    def _languages(self, signals: Signals) -> tuple[list[str], Integers, Integers]:
        """The languages, which of them each document has, and its place among those that stay; -1 is none of them."""
        values, codes = signals.coded("language")
        names = [UNKNOWN if value is None else value for value in values]
        places = np.array([self.languages.index(name) if name in self.languages else -1 for name in names], np.int64)
        return names, codes, places[codes]


def key_for(language: str, table: Container[str]) -> str | None:
    """The key that a table has for a language: its name, or its code of two letters where a model adds a script (`de`
    serves `deu_Latn`). None where it has none."""
    if language in table:
        return language
    base, _, script = language.partition("_")
    two = two_letters().get(base) if script else None
    return two if two in table else None


@lru_cache(1)
def two_letters() -> dict[str, str]:
    """ISO 639-1 by the codes of three letters that models use."""
    entries = [entry.split() for entry in MISTAKEN.strip().replace("\n", "|").split("|")]
    return {code: two for two, *others in entries for code in others}


def what_is_wrong(language: str) -> str | None:
    """Why a name can be no model's label, with what was probably meant; None if it can be one."""
    for entry in MISTAKEN.replace("\n", "|").split("|"):
        two, *others = entry.split() or [""]
        if language.lower() in others:
            three = others[0]
            return (
                f"{language!r} is no label of a language model: lid.176 says {two!r}, GlotLID {three!r} and a "
                f"script, as in {three + '_Latn'!r}"
            )
    if language.startswith("__label__"):
        return f"{language!r}: labels are named without `__label__`: {language.removeprefix('__label__')!r}"
    if language == "unknown":
        return "'unknown' is no language: such documents are too short to judge, and leave as `unknown_language`"
    parts = re.split("[-_]", language)
    likely = "_".join([parts[0].lower(), *(part.title() for part in parts[1:] if len(part) == 4)])
    if not LIKE_A_LABEL.fullmatch(language) and LIKE_A_LABEL.fullmatch(likely):
        return f"{language!r} is no label of lid.176 or GlotLID; did you mean {likely!r}?"
    return None


@lru_cache(1024)
def plain_language(label: str) -> str:
    """The ISO 639 code of a model's label, of two letters where there is one: `eng_Latn` and `en` are `en`."""
    code = label.split("_")[0].lower()
    for entry in MISTAKEN.replace("\n", "|").split("|"):
        two, *others = entry.split() or [""]
        if code in others:
            return two
    return code


def thresholds_of(path: str) -> dict[str, float]:
    try:
        return _thresholds_of(path, Path(path).stat().st_mtime_ns)
    except OSError as error:
        raise ValueError(f"thresholds_file: {path} cannot be read ({error.strerror})") from error


@lru_cache(maxsize=8)
def _thresholds_of(path: str, stamp: int) -> dict[str, float]:
    try:
        table = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"thresholds_file: {path} is not YAML ({error})") from error
    if not isinstance(table, dict):
        raise ValueError(f"thresholds_file: {path} must map languages to scores, as in `fra_Latn: 0.82`")
    for language, score in table.items():
        if not (isinstance(language, str) and isinstance(score, int | float) and 0 <= score <= 1):
            raise ValueError(
                f"thresholds_file: {path}: {language}: {score} is not a score between 0 and 1 (quote `no`, "
                "which YAML reads as false)"
            )
        if wrong := what_is_wrong(language):
            raise ValueError(f"thresholds_file: {path}: {wrong}")
    return {language: float(score) for language, score in table.items()}
