"""What benchmarks/judges/neural_judge.py measures on: lengths and texts of pages, labelled texts, and a tokenizer
trained on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CUT = 512
COMMON = frozenset(
    [
        "the",
        "of",
        "and",
        "to",
        "in",
        "a",
        "is",
        "that",
        "it",
        "for",
        "was",
        "on",
        "are",
        "as",
        "with",
        "his",
        "they",
        "be",
        "at",
        "one",
        "have",
        "this",
        "from",
        "or",
        "had",
        "by",
        "not",
        "but",
        "what",
        "all",
        "were",
    ]
)


def say(what: str, **facts: Any) -> None:
    print(
        json.dumps({"what": what, **{k: round(v, 5) if isinstance(v, float) else v for k, v in facts.items()}}),
        flush=True,
    )


def make(folder: Path, pages: Path, verdicts: Path, prose: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hosts = {
        p: urlsplit(u).hostname or p
        for p, u in zip(*(pq.read_table(pages)[c].to_pylist() for c in ("page", "url")), strict=True)
    }
    table = pq.read_table(verdicts, columns=["page", "kind", "text"])
    whole, main_texts = (table.filter(pc.field("kind") == kind) for kind in ("page", "main"))
    texts = [
        (text, "page", hosts[page])
        for text, page in zip(whole["text"].to_pylist(), whole["page"].to_pylist(), strict=True)
        if text
    ]
    judged = [text for text in main_texts["text"].to_pylist() if text]
    good = pq.read_table(prose)
    prose_rows = [
        (text, "prose", work) for text, work in zip(good["text"].to_pylist(), good["work"].to_pylist(), strict=True)
    ]
    rows = [*texts, *prose_rows]
    labelled = {
        "text": [text for text, _, _ in rows],
        "quality": [kind for _, kind, _ in rows],
        "common_words": [share_of_common(text) for text, _, _ in rows],
        "host": [host for _, _, host in rows],
    }
    pq.write_table(pa.table(labelled), folder / "labelled.parquet", compression="zstd", compression_level=12)
    pq.write_table(pa.table({"text": judged}), folder / "texts.parquet", compression="zstd", compression_level=12)
    tokenizer = trained_tokenizer([text[:20_000] for text, _, _ in rows], 16_000)
    found = tokenizer.tokens(pa.array(judged, pa.large_string()))
    np.save(folder / "lengths.npy", found.lengths.astype(np.int32))
    (folder / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
    say(
        "made",
        texts=len(judged),
        labelled=len(rows),
        mean_length=float(found.lengths.mean()),
        full=float((found.lengths == CUT).mean()),
    )


def share_of_common(text: str) -> float:
    words = text[:2000].lower().split()
    return sum(word in COMMON for word in words) / max(1, len(words))


def trained_tokenizer(texts: list[str], vocabulary: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    from gristmill.classifiers.neural.text_tokens import TextTokenizer

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["[PAD]", "[CLS]", "[SEP]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return TextTokenizer(made.to_str(), CUT)
