"""Every public stage by name: `from stages import Warc, Extract, Sample`.

A stage is imported when it is first asked for, so that `import stages` costs nothing and a fingerprint of code sees what is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stages.blend.mix import Mix
    from stages.blend.order import Order
    from stages.dedup.bloom import BloomDedup
    from stages.dedup.decontaminate import BenchmarkOverlap, CutContamination, Decontaminate
    from stages.dedup.exact import ExactDedup
    from stages.dedup.minhash import MinHashDedup
    from stages.dedup.paragraph import ParagraphDedup
    from stages.dedup.simhash import SimHashDedup
    from stages.dedup.substring import SubstringDedup
    from stages.dedup.url import UrlDedup
    from stages.extract.stage import Extract
    from stages.from_meta import FromMeta
    from stages.judge.judge import Judge, KeepWhere
    from stages.judge.llm_score import LlmScore
    from stages.judge.quantile_buckets import QuantileBuckets
    from stages.judge.threshold import Threshold
    from stages.read.arrow import Arrow
    from stages.read.html import Html
    from stages.read.jsonl import Jsonl
    from stages.read.parquet import Parquet
    from stages.read.plain import Plain
    from stages.read.warc import Warc
    from stages.read.wet import Wet
    from stages.rules.c4 import C4Lines, C4Quality
    from stages.rules.dolma import DolmaGopher
    from stages.rules.fineweb import FinewebQuality
    from stages.rules.gopher import GopherQuality, GopherRepetition
    from stages.rules.language import KeepLanguages
    from stages.rules.refinedweb import RefinedwebLines, RefinedwebQuality
    from stages.rules.replacements import FewReplacementCharacters
    from stages.sample import Sample
    from stages.text.bad_words import BadWords, FewBadWords
    from stages.text.boilerplate import Boilerplate
    from stages.text.difficulty import Difficulty
    from stages.text.language import Language, ParagraphLanguages
    from stages.text.personal_data import PersonalData
    from stages.text.repair import Repair
    from stages.text.signals import TextSignals
    from stages.text.url_rules import UrlRules
    from stages.tokens.pack import Pack
    from stages.tokens.tokenize import Tokenize
    from stages.write import Write

# Where each lives; a new stage is one line here, one above, and one in __all__.
HOMES: dict[str, str] = {
    "Arrow": "stages.read.arrow",
    "BadWords": "stages.text.bad_words",
    "BenchmarkOverlap": "stages.dedup.decontaminate",
    "BloomDedup": "stages.dedup.bloom",
    "Boilerplate": "stages.text.boilerplate",
    "C4Lines": "stages.rules.c4",
    "C4Quality": "stages.rules.c4",
    "CutContamination": "stages.dedup.decontaminate",
    "Decontaminate": "stages.dedup.decontaminate",
    "Difficulty": "stages.text.difficulty",
    "DolmaGopher": "stages.rules.dolma",
    "ExactDedup": "stages.dedup.exact",
    "Extract": "stages.extract.stage",
    "FewBadWords": "stages.text.bad_words",
    "FewReplacementCharacters": "stages.rules.replacements",
    "FinewebQuality": "stages.rules.fineweb",
    "FromMeta": "stages.from_meta",
    "GopherQuality": "stages.rules.gopher",
    "GopherRepetition": "stages.rules.gopher",
    "Html": "stages.read.html",
    "Jsonl": "stages.read.jsonl",
    "Judge": "stages.judge.judge",
    "KeepLanguages": "stages.rules.language",
    "KeepWhere": "stages.judge.judge",
    "Language": "stages.text.language",
    "LlmScore": "stages.judge.llm_score",
    "MinHashDedup": "stages.dedup.minhash",
    "Mix": "stages.blend.mix",
    "Order": "stages.blend.order",
    "Pack": "stages.tokens.pack",
    "ParagraphDedup": "stages.dedup.paragraph",
    "ParagraphLanguages": "stages.text.language",
    "Parquet": "stages.read.parquet",
    "PersonalData": "stages.text.personal_data",
    "Plain": "stages.read.plain",
    "QuantileBuckets": "stages.judge.quantile_buckets",
    "RefinedwebLines": "stages.rules.refinedweb",
    "RefinedwebQuality": "stages.rules.refinedweb",
    "Repair": "stages.text.repair",
    "Sample": "stages.sample",
    "SubstringDedup": "stages.dedup.substring",
    "SimHashDedup": "stages.dedup.simhash",
    "TextSignals": "stages.text.signals",
    "Threshold": "stages.judge.threshold",
    "Tokenize": "stages.tokens.tokenize",
    "UrlDedup": "stages.dedup.url",
    "UrlRules": "stages.text.url_rules",
    "Warc": "stages.read.warc",
    "Wet": "stages.read.wet",
    "Write": "stages.write",
}

__all__ = [
    "HOMES",
    "Arrow",
    "BadWords",
    "BenchmarkOverlap",
    "BloomDedup",
    "Boilerplate",
    "C4Lines",
    "C4Quality",
    "CutContamination",
    "Decontaminate",
    "Difficulty",
    "DolmaGopher",
    "ExactDedup",
    "Extract",
    "FewBadWords",
    "FewReplacementCharacters",
    "FinewebQuality",
    "FromMeta",
    "GopherQuality",
    "GopherRepetition",
    "Html",
    "Jsonl",
    "Judge",
    "KeepLanguages",
    "KeepWhere",
    "Language",
    "LlmScore",
    "MinHashDedup",
    "Mix",
    "Order",
    "Pack",
    "ParagraphDedup",
    "ParagraphLanguages",
    "Parquet",
    "PersonalData",
    "Plain",
    "QuantileBuckets",
    "RefinedwebLines",
    "RefinedwebQuality",
    "Repair",
    "Sample",
    "SubstringDedup",
    "SimHashDedup",
    "TextSignals",
    "Threshold",
    "Tokenize",
    "UrlDedup",
    "UrlRules",
    "Warc",
    "Wet",
    "Write",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'stages' has no stage {name!r}; there are {', '.join(HOMES)}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
