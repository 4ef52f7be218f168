"""Every public stage by name: `from gristmill.stages import Warc, Extract, Sample`.

A stage is imported when it is first asked for, so that `import gristmill.stages` costs nothing and a fingerprint of
code sees what is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.blend.mix import Mix
    from gristmill.stages.blend.order import Order
    from gristmill.stages.dedup.bloom import BloomDedup
    from gristmill.stages.dedup.decontaminate import BenchmarkOverlap, CutContamination, Decontaminate
    from gristmill.stages.dedup.exact import ExactDedup
    from gristmill.stages.dedup.minhash import MinHashDedup
    from gristmill.stages.dedup.paragraph import ParagraphDedup
    from gristmill.stages.dedup.simhash import SimHashDedup
    from gristmill.stages.dedup.substring import SubstringDedup
    from gristmill.stages.dedup.url import UrlDedup
    from gristmill.stages.extract.stage import Extract
    from gristmill.stages.from_meta import FromMeta
    from gristmill.stages.judge.judge import Judge, KeepWhere
    from gristmill.stages.judge.llm_score import LlmScore
    from gristmill.stages.judge.quantile_buckets import QuantileBuckets
    from gristmill.stages.judge.threshold import Threshold
    from gristmill.stages.read.arrow import Arrow
    from gristmill.stages.read.html import Html
    from gristmill.stages.read.jsonl import Jsonl
    from gristmill.stages.read.parquet import Parquet
    from gristmill.stages.read.plain import Plain
    from gristmill.stages.read.warc import Warc
    from gristmill.stages.read.wet import Wet
    from gristmill.stages.rules.c4 import C4Lines, C4Quality
    from gristmill.stages.rules.dolma import DolmaGopher
    from gristmill.stages.rules.fineweb import FinewebQuality
    from gristmill.stages.rules.gopher import GopherQuality, GopherRepetition
    from gristmill.stages.rules.language import KeepLanguages
    from gristmill.stages.rules.refinedweb import RefinedwebLines, RefinedwebQuality
    from gristmill.stages.rules.replacements import FewReplacementCharacters
    from gristmill.stages.sample import Sample
    from gristmill.stages.text.bad_words import BadWords, FewBadWords
    from gristmill.stages.text.boilerplate import Boilerplate
    from gristmill.stages.text.difficulty import Difficulty
    from gristmill.stages.text.language import Language, ParagraphLanguages
    from gristmill.stages.text.personal_data import PersonalData
    from gristmill.stages.text.repair import Repair
    from gristmill.stages.text.signals import TextSignals
    from gristmill.stages.text.url_rules import UrlRules
    from gristmill.stages.tokens.pack import Pack
    from gristmill.stages.tokens.tokenize import Tokenize
    from gristmill.stages.write import Write

# Where each lives; a new stage is one line here, one above, and one in __all__.
HOMES: dict[str, str] = {
    "Arrow": "gristmill.stages.read.arrow",
    "BadWords": "gristmill.stages.text.bad_words",
    "BenchmarkOverlap": "gristmill.stages.dedup.decontaminate",
    "BloomDedup": "gristmill.stages.dedup.bloom",
    "Boilerplate": "gristmill.stages.text.boilerplate",
    "C4Lines": "gristmill.stages.rules.c4",
    "C4Quality": "gristmill.stages.rules.c4",
    "CutContamination": "gristmill.stages.dedup.decontaminate",
    "Decontaminate": "gristmill.stages.dedup.decontaminate",
    "Difficulty": "gristmill.stages.text.difficulty",
    "DolmaGopher": "gristmill.stages.rules.dolma",
    "ExactDedup": "gristmill.stages.dedup.exact",
    "Extract": "gristmill.stages.extract.stage",
    "FewBadWords": "gristmill.stages.text.bad_words",
    "FewReplacementCharacters": "gristmill.stages.rules.replacements",
    "FinewebQuality": "gristmill.stages.rules.fineweb",
    "FromMeta": "gristmill.stages.from_meta",
    "GopherQuality": "gristmill.stages.rules.gopher",
    "GopherRepetition": "gristmill.stages.rules.gopher",
    "Html": "gristmill.stages.read.html",
    "Jsonl": "gristmill.stages.read.jsonl",
    "Judge": "gristmill.stages.judge.judge",
    "KeepLanguages": "gristmill.stages.rules.language",
    "KeepWhere": "gristmill.stages.judge.judge",
    "Language": "gristmill.stages.text.language",
    "LlmScore": "gristmill.stages.judge.llm_score",
    "MinHashDedup": "gristmill.stages.dedup.minhash",
    "Mix": "gristmill.stages.blend.mix",
    "Order": "gristmill.stages.blend.order",
    "Pack": "gristmill.stages.tokens.pack",
    "ParagraphDedup": "gristmill.stages.dedup.paragraph",
    "ParagraphLanguages": "gristmill.stages.text.language",
    "Parquet": "gristmill.stages.read.parquet",
    "PersonalData": "gristmill.stages.text.personal_data",
    "Plain": "gristmill.stages.read.plain",
    "QuantileBuckets": "gristmill.stages.judge.quantile_buckets",
    "RefinedwebLines": "gristmill.stages.rules.refinedweb",
    "RefinedwebQuality": "gristmill.stages.rules.refinedweb",
    "Repair": "gristmill.stages.text.repair",
    "Sample": "gristmill.stages.sample",
    "SubstringDedup": "gristmill.stages.dedup.substring",
    "SimHashDedup": "gristmill.stages.dedup.simhash",
    "TextSignals": "gristmill.stages.text.signals",
    "Threshold": "gristmill.stages.judge.threshold",
    "Tokenize": "gristmill.stages.tokens.tokenize",
    "UrlDedup": "gristmill.stages.dedup.url",
    "UrlRules": "gristmill.stages.text.url_rules",
    "Warc": "gristmill.stages.read.warc",
    "Wet": "gristmill.stages.read.wet",
    "Write": "gristmill.stages.write",
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
        raise AttributeError(f"module 'gristmill.stages' has no stage {name!r}; there are {', '.join(HOMES)}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
