"""Every public stage by name: `from gristmill.stages import Warc, Extract, Sample`; and what stages of one's own are
written with: `from gristmill.stages import Rule, above`.

A stage is imported when it is first asked for, so that `import gristmill.stages` costs nothing and a fingerprint of
code sees what is used. Type checkers read `__init__.pyi`, which is made of this list.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Where each lives: a new stage is one line here. `python -m gristmill.stages.stub` then tells type checkers of it.
HOMES: dict[str, str] = {
    "Arrow": "gristmill.stages.read.arrow",
    "BadWords": "gristmill.stages.text.bad_words",
    "BenchmarkOverlap": "gristmill.stages.dedup.decontaminate",
    "BloomDedup": "gristmill.stages.dedup.bloom",
    "Boilerplate": "gristmill.stages.text.boilerplate",
    "C4Lines": "gristmill.stages.rules.c4",
    "C4Quality": "gristmill.stages.rules.c4",
    "CapDomains": "gristmill.stages.blend.cap_domains",
    "Cc": "gristmill.stages.read.cc",
    "CorpusEmbed": "gristmill.stages.semantic.corpus_embed",
    "CutContamination": "gristmill.stages.dedup.decontaminate",
    "DatasketchIndex": "gristmill.stages.others.indexes",
    "Datatrove": "gristmill.stages.others.datatrove",
    "DatatroveIndex": "gristmill.stages.others.indexes",
    "Decontaminate": "gristmill.stages.dedup.decontaminate",
    "Difficulty": "gristmill.stages.text.difficulty",
    "DolmaGopher": "gristmill.stages.rules.dolma",
    "Embed": "gristmill.stages.semantic.embed",
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
    "KeepLabels": "gristmill.stages.judge.label",
    "KeepLanguages": "gristmill.stages.rules.language",
    "KeepLicenses": "gristmill.stages.rights.keep_licenses",
    "KeepWhere": "gristmill.stages.judge.judge",
    "Label": "gristmill.stages.judge.label",
    "Language": "gristmill.stages.text.language",
    "LlmLabel": "gristmill.stages.judge.llm_label",
    "LlmScore": "gristmill.stages.judge.llm_score",
    "MinhashDedup": "gristmill.stages.dedup.minhash",
    "Mix": "gristmill.stages.blend.mix",
    "Nemo": "gristmill.stages.others.nemo",
    "Ocr": "gristmill.stages.judge.ocr",
    "OneView": "gristmill.stages.dedup.one_view",
    "OptOut": "gristmill.stages.rights.opt_out",
    "Order": "gristmill.stages.blend.order",
    "Pack": "gristmill.stages.tokens.pack",
    "PageTerms": "gristmill.stages.rights.page_terms",
    "ParagraphDedup": "gristmill.stages.dedup.paragraph",
    "ParagraphLanguages": "gristmill.stages.text.language",
    "Parquet": "gristmill.stages.read.parquet",
    "Pdf": "gristmill.stages.read.html",
    "Perplexity": "gristmill.stages.judge.perplexity",
    "PersonalData": "gristmill.stages.text.personal_data",
    "Plain": "gristmill.stages.read.plain",
    "QuantileBuckets": "gristmill.stages.judge.quantile_buckets",
    "Refine": "gristmill.stages.edits.refine",
    "RefinedwebLines": "gristmill.stages.rules.refinedweb",
    "RefinedwebQuality": "gristmill.stages.rules.refinedweb",
    "Repair": "gristmill.stages.text.repair",
    "Rephrase": "gristmill.stages.edits.rephrase",
    "Sample": "gristmill.stages.sample",
    "SubstringDedup": "gristmill.stages.dedup.substring",
    "SemanticClusters": "gristmill.stages.semantic.clusters",
    "SemanticDedup": "gristmill.stages.semantic.dedup",
    "SimhashDedup": "gristmill.stages.dedup.simhash",
    "SiteFiles": "gristmill.stages.read.site_files",
    "SiteBoilerplate": "gristmill.stages.dedup.site_boilerplate",
    "TextSignals": "gristmill.stages.text.signals",
    "Threshold": "gristmill.stages.judge.threshold",
    "Tokenize": "gristmill.stages.tokens.tokenize",
    "UrlDedup": "gristmill.stages.dedup.url",
    "UrlRules": "gristmill.stages.text.url_rules",
    "Warc": "gristmill.stages.read.warc",
    "Wet": "gristmill.stages.read.wet",
    "Write": "gristmill.stages.write",
}

# What a stage of one's own is written with.
BASES: dict[str, str] = {
    "Annotate": "gristmill.stages.stage",
    "Applied": "gristmill.stages.stage",
    "Global": "gristmill.stages.stage",
    "Map": "gristmill.stages.stage",
    "Reader": "gristmill.stages.stage",
    "Rewrite": "gristmill.stages.stage",
    "Rule": "gristmill.stages.stage",
    "Signals": "gristmill.stages.stage",
    "Sink": "gristmill.stages.stage",
    "Verdict": "gristmill.stages.stage",
    "RecipePath": "gristmill.kernels.common.paths",
    "above": "gristmill.stages.contract",
    "below": "gristmill.stages.contract",
    "with_columns": "gristmill.stages.stage",
}

__all__ = ["BASES", "HOMES", *BASES, *HOMES]


def __getattr__(name: str) -> Any:
    home = HOMES.get(name) or BASES.get(name)
    if home is None:
        from gristmill.kernels.common.settings import no_such_name

        raise no_such_name("gristmill.stages", name, [*HOMES, *BASES])
    globals()[name] = found = getattr(import_module(home), name)  # once: after that the module has it
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
