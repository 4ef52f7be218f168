# Made by stub.py.
from gristmill.kernels.common.paths import RecipePath as RecipePath
from gristmill.stages.blend.cap_domains import CapDomains as CapDomains
from gristmill.stages.blend.mix import Mix as Mix
from gristmill.stages.blend.order import Order as Order
from gristmill.stages.contract import above as above, below as below
from gristmill.stages.dedup.bloom import BloomDedup as BloomDedup
from gristmill.stages.dedup.decontaminate import (
    BenchmarkOverlap as BenchmarkOverlap,
    CutContamination as CutContamination,
    Decontaminate as Decontaminate,
)
from gristmill.stages.dedup.exact import ExactDedup as ExactDedup
from gristmill.stages.dedup.minhash import MinhashDedup as MinhashDedup
from gristmill.stages.dedup.one_view import OneView as OneView
from gristmill.stages.dedup.paragraph import ParagraphDedup as ParagraphDedup
from gristmill.stages.dedup.simhash import SimhashDedup as SimhashDedup
from gristmill.stages.dedup.site_boilerplate import SiteBoilerplate as SiteBoilerplate
from gristmill.stages.dedup.substring import SubstringDedup as SubstringDedup
from gristmill.stages.dedup.url import UrlDedup as UrlDedup
from gristmill.stages.edits.refine import Refine as Refine
from gristmill.stages.edits.rephrase import Rephrase as Rephrase
from gristmill.stages.extract.stage import Extract as Extract
from gristmill.stages.from_meta import FromMeta as FromMeta
from gristmill.stages.judge.judge import Judge as Judge, KeepWhere as KeepWhere
from gristmill.stages.judge.label import KeepLabels as KeepLabels, Label as Label
from gristmill.stages.judge.llm_label import LlmLabel as LlmLabel
from gristmill.stages.judge.llm_score import LlmScore as LlmScore
from gristmill.stages.judge.ocr import Ocr as Ocr
from gristmill.stages.judge.perplexity import Perplexity as Perplexity
from gristmill.stages.judge.quantile_buckets import QuantileBuckets as QuantileBuckets
from gristmill.stages.judge.threshold import Threshold as Threshold
from gristmill.stages.others.datatrove import Datatrove as Datatrove
from gristmill.stages.others.indexes import DatasketchIndex as DatasketchIndex, DatatroveIndex as DatatroveIndex
from gristmill.stages.others.nemo import Nemo as Nemo
from gristmill.stages.read.arrow import Arrow as Arrow
from gristmill.stages.read.cc import Cc as Cc
from gristmill.stages.read.html import Html as Html, Pdf as Pdf
from gristmill.stages.read.jsonl import Jsonl as Jsonl
from gristmill.stages.read.parquet import Parquet as Parquet
from gristmill.stages.read.plain import Plain as Plain
from gristmill.stages.read.site_files import SiteFiles as SiteFiles
from gristmill.stages.read.warc import Warc as Warc
from gristmill.stages.read.wet import Wet as Wet
from gristmill.stages.rights.keep_licenses import KeepLicenses as KeepLicenses
from gristmill.stages.rights.opt_out import OptOut as OptOut
from gristmill.stages.rights.page_terms import PageTerms as PageTerms
from gristmill.stages.rules.c4 import C4Lines as C4Lines, C4Quality as C4Quality
from gristmill.stages.rules.dolma import DolmaGopher as DolmaGopher
from gristmill.stages.rules.fineweb import FinewebQuality as FinewebQuality
from gristmill.stages.rules.gopher import GopherQuality as GopherQuality, GopherRepetition as GopherRepetition
from gristmill.stages.rules.language import KeepLanguages as KeepLanguages
from gristmill.stages.rules.refinedweb import RefinedwebLines as RefinedwebLines, RefinedwebQuality as RefinedwebQuality
from gristmill.stages.rules.replacements import FewReplacementCharacters as FewReplacementCharacters
from gristmill.stages.sample import Sample as Sample
from gristmill.stages.semantic.clusters import SemanticClusters as SemanticClusters
from gristmill.stages.semantic.corpus_embed import CorpusEmbed as CorpusEmbed
from gristmill.stages.semantic.dedup import SemanticDedup as SemanticDedup
from gristmill.stages.semantic.embed import Embed as Embed
from gristmill.stages.stage import (
    Annotate as Annotate,
    Applied as Applied,
    Global as Global,
    Map as Map,
    Reader as Reader,
    Rewrite as Rewrite,
    Rule as Rule,
    Signals as Signals,
    Sink as Sink,
    Verdict as Verdict,
    with_columns as with_columns,
)
from gristmill.stages.text.bad_words import BadWords as BadWords, FewBadWords as FewBadWords
from gristmill.stages.text.boilerplate import Boilerplate as Boilerplate
from gristmill.stages.text.difficulty import Difficulty as Difficulty
from gristmill.stages.text.language import Language as Language, ParagraphLanguages as ParagraphLanguages
from gristmill.stages.text.personal_data import PersonalData as PersonalData
from gristmill.stages.text.repair import Repair as Repair
from gristmill.stages.text.signals import TextSignals as TextSignals
from gristmill.stages.text.url_rules import UrlRules as UrlRules
from gristmill.stages.tokens.pack import Pack as Pack
from gristmill.stages.tokens.tokenize import Tokenize as Tokenize
from gristmill.stages.write import Write as Write

BASES: dict[str, str]
HOMES: dict[str, str]
