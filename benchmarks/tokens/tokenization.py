"""Speed of `tokenize` against the fastest packages, with the same tokenizer on the same texts, on one core; and of
training.

    python -m benchmarks.tokens.tokenization [--wheels WHEELS] [--rounds 3] [--only NAME...]

A race as `benchmarks.races` runs them; its `--install` fills WHEELS. Cold is the first pass of a process that has loaded
the tokenizer and encoded three short texts. The answers of sides are the number of ids and their hash; ours are compared
with the package `tokenizers`.

Unequal: the packages get a list of Python strings, ours an Arrow column. Ours returns ids of 16 bits, the others of 32,
gigatoken as an awkward array. `tokenizers` and tiktoken return Python lists, and get 4 MB of each set, so their answers
differ.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.races import DATA, Side, Work, processor, race
from gristmill.kernels.bpe.pieces import GPT4, pattern_of
from gristmill.stages import Tokenize
from gristmill.stages.tokens.byte_level import byte_of
from gristmill.stages.tokens.encoding import TextEncoder
from gristmill.stages.tokens.training import SPECIALS, trained
from gristmill.stages.tokens.vocabulary import TokenizerVocabulary

SHORT = ["a short text", "and one more", "three"]
SLOW = 4_000_000  # bytes of a set for packages that would take minutes


# --- contenders: each makes its tokenizer, encodes three short texts, and encodes the set again and again ------------


def work(run: Callable[[Any], Any], flat: Callable[[Any], Any], texts: Any, short: Any, size: int) -> Work:
    run(short)

    def answer(found: Any) -> object:
        ids = np.asarray(flat(found)).astype(np.uint32)
        return len(ids), hashlib.blake2b(ids.tobytes()).hexdigest()[:16]

    return Work(lambda: run(texts), size / 1e6, answer)


def texts_of(path: str, most: int = 1 << 62) -> tuple[list[str], int]:
    """And their bytes."""
    texts: list[str] = []
    size = 0
    for text in pq.read_table(path)["text"].to_pylist():
        if texts and size + len(text) > most:
            break
        texts.append(text)
        size += len(text.encode())
    return texts, size


def column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def ours(texts: str, tokenizer: str) -> Work:
    given, size = texts_of(texts)
    encoder = TextEncoder(Path(tokenizer).read_text())
    assert encoder.kernels is not None
    return work(encoder.encode, lambda found: found.ids, column(given), column(SHORT), size)


def in_batches(texts: str, tokenizer: str) -> Work:
    """The stage, in batches of 512."""
    given, size = texts_of(texts)
    stage, rows = Tokenize(), TokenizerVocabulary("same", Path(tokenizer).read_text(), dict(SPECIALS)).table()

    def table(texts: list[str]) -> pa.Table:
        return pa.table({"uid": np.arange(len(texts), dtype=np.uint64), "text": pa.array(texts, pa.large_string())})

    def run(docs: pa.Table) -> list[Any]:
        return [stage.encode(docs.slice(i, 512), rows) for i in range(0, len(docs), 512)]

    return work(run, lambda found: [], table(given), table(SHORT), size)


def gigatoken(texts: str, tokenizer: str) -> Work:
    import gigatoken

    given, size = texts_of(texts)
    encoder = gigatoken.Tokenizer.from_json(Path(tokenizer).read_text())
    return work(
        lambda some: encoder.encode_batch(some, parallel=False),
        lambda found: found.layout.content.data,
        given,
        SHORT,
        size,
    )


def fastokens(texts: str, tokenizer: str) -> Work:
    import fastokens

    given, size = texts_of(texts)
    encoder = fastokens.Tokenizer.from_json_str(Path(tokenizer).read_text())
    return work(
        lambda some: encoder.encode_batch_flat(some, split_special_tokens=True),
        lambda found: np.frombuffer(found[0], np.uint32), given, SHORT, size,
    )  # fmt: skip


def quicktok(texts: str, tokenizer: str) -> Work:
    os.environ["QUICKTOK_DATA"] = tempfile.mkdtemp(prefix="quicktok-", dir=Path(tokenizer).parent)
    import quicktok

    given, size = texts_of(texts)
    quicktok.import_tokenizer(tokenizer, "same")
    encoder = quicktok.get_encoding("same")
    return work(lambda some: encoder.encode_batch(some, 1, False), lambda found: found[0], given, SHORT, size)


def tokenizers(texts: str, tokenizer: str) -> Work:
    from tokenizers import Tokenizer

    given, size = texts_of(texts, SLOW)
    encoder = Tokenizer.from_file(tokenizer)
    return work(
        lambda some: [one.ids for one in encoder.encode_batch_fast(some, add_special_tokens=False)],
        np.concatenate, given, SHORT, size,
    )  # fmt: skip


def tiktoken(texts: str, tokenizer: str) -> Work:
    import tiktoken

    given, size = texts_of(texts, SLOW)
    pattern, ranks = for_tiktoken(Path(tokenizer).read_text())
    encoder = tiktoken.Encoding("same", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return work(lambda some: [encoder.encode_ordinary(one) for one in some], np.concatenate, given, SHORT, size)


SIDES = {
    "ours": Side(ours),
    "ours, the stage in batches of 512": Side(in_batches),
    "gigatoken": Side(gigatoken, ("gigatoken",)),
    "fastokens": Side(fastokens, ("fastokens",)),
    "quicktok": Side(quicktok, ("quicktok-v1",)),
    "tokenizers": Side(tokenizers, ("tokenizers",)),
    "tiktoken": Side(tiktoken, ("tiktoken",)),
}


def for_tiktoken(tokenizer: str) -> tuple[str, dict[bytes, int]]:
    """The pattern, and the vocabulary as tiktoken wants it: tokens by rank, which are the ids, for later merges have
    larger ones."""
    settings = json.loads(tokenizer)
    byte, specials = byte_of(), {token["content"] for token in settings["added_tokens"]}
    ranks = {
        bytes(byte[c] for c in token): number
        for token, number in settings["model"]["vocab"].items()
        if token not in specials
    }
    return settings["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"], ranks


# --- texts -----------------------------------------------------------------------------------------------------------


def web(data: Path) -> list[str]:
    """Main texts of the pages as `extract` finds them, and all visible text of those that were reviewed."""
    import gristmill

    texts = []
    for file in ("pages", "pages_more", "wild_pages"):
        if (data / f"{file}.parquet").exists():
            for html in pq.read_table(data / f"{file}.parquet", columns=["html"])["html"].to_pylist():
                texts.append(gristmill.extract(html).text or "")
    reviewed = pq.read_table(data / "rule_verdicts.parquet", columns=["kind", "text"]).to_pylist()
    texts += [row["text"] for row in reviewed if row["kind"] == "page"]
    random.Random(3).shuffle(texts)
    return [text for text in texts if text]


def languages(data: Path) -> list[str]:
    """Sentences of 75 languages, fifteen of one language in a text."""
    by_language: dict[str, list[str]] = {}
    for row in pq.read_table(data / "languages.parquet").to_pylist():
        by_language.setdefault(row["language"], []).append(row["text"])
    return [" ".join(rows[i : i + 15]) for rows in by_language.values() for i in range(0, len(rows), 15)]


def scripts(data: Path, most: int = 10_000_000) -> list[str]:
    """Minified JavaScript out of the pages."""
    element = re.compile(rb"<script[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
    found: dict[str, None] = {}
    for html in pq.read_table(data / "pages.parquet", columns=["html"])["html"].to_pylist():
        for script in element.findall(html):
            if len(script) > 8000 and script.count(b"\n") * 200 < len(script) and b"function" in script[:3000]:
                found[script.decode(errors="replace")] = None
    chosen, size = [], 0
    for script in sorted(found, key=len, reverse=True)[20:]:  # the longest few are data
        if size < most:
            chosen.append(script)
            size += len(script)
    return chosen


def hostile(texts: list[str]) -> Iterator[tuple[str, list[str]]]:
    draw = random.Random(5)
    yield "base64", [base64.b64encode(draw.randbytes(75_000)).decode() for _ in range(50)]
    digests = [[hashlib.md5(f"{i} {j}".encode()).hexdigest() for j in range(3000)] for i in range(100)]
    yield "hashes in hex", [" ".join(row) for row in digests]
    line = " ".join(texts).replace("\n", " ")
    yield "one line", [(line * (10_000_000 // len(line) + 1))[:10_000_000]]


def llama_pattern(texts: list[str], vocab_size: int) -> str:
    """A vocabulary under the pattern of Llama 3."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern_of(GPT4)), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIALS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    text: str = tokenizer.to_str()
    return text


def training(texts: list[str], vocab_size: int) -> str:
    start = time.process_time()
    tokenizer = trained(texts, vocab_size, 2, list(SPECIALS.values()))
    seconds, megabytes = time.process_time() - start, sum(len(text.encode()) for text in texts) / 1e6
    line = {"what": f"training a vocabulary of {vocab_size:,}, MB/s", "median": megabytes / seconds}
    print(json.dumps(line | {"sizes": {"MB": megabytes}, "machine": processor()}), flush=True)
    return tokenizer


def check(name: str, texts: list[str], tokenizer: str) -> None:
    """Are ids those of the package?"""
    encoder, some, size = TextEncoder(tokenizer), [], 0
    for text in texts:
        if not some or size + len(text) <= SLOW:
            some.append(text[:SLOW])
            size += len(text)
    ids = encoder.encode(pa.chunked_array([pa.array(some, pa.large_string())])).ids
    if encoder.kernels is None or ids.tolist() != encoder.by_package(some).ids.tolist():
        sys.exit(f"{name}: ids are not those of the package")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--wheels", type=Path, help="the folder that peers were installed to with pip --target")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=32_768)
    parser.add_argument("--texts", type=Path, help="a Parquet file with a column `text`, for the web texts")
    parser.add_argument("--only", nargs="*", help="names of sets")
    arguments = parser.parse_args()
    for file in ("pages", "prose", "rule_verdicts", "languages"):
        if not (arguments.data / f"{file}.parquet").exists():
            sys.exit(f"{arguments.data / file}.parquet is not here")
    multi = languages(arguments.data)
    sample = pq.read_table(arguments.data / "prose.parquet")["text"].to_pylist() + multi[::3]
    reviewed = pq.read_table(arguments.data / "rule_verdicts.parquet", columns=["kind", "text"]).to_pylist()
    sample += [row["text"] for row in reviewed if row["kind"] == "main"]
    of_web = pq.read_table(arguments.texts)["text"].to_pylist() if arguments.texts else web(arguments.data)
    sets = {"web": of_web, "75 languages": multi, "minified scripts": scripts(arguments.data), **dict(hostile(of_web))}
    own, llama = training(sample, arguments.vocab_size), llama_pattern(sample, arguments.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        for pattern, tokenizer, names in (("Llama 3's pattern", llama, [*sets]), ("our pattern", own, ["web"])):
            path = Path(folder) / "tokenizer.json"
            path.write_text(tokenizer)
            for name in names:
                if (arguments.only and name not in arguments.only) or not sets[name]:
                    continue
                check(name, sets[name], tokenizer)
                texts = Path(folder) / "texts.parquet"
                pq.write_table(pa.table({"text": pa.array(sets[name], pa.large_string())}), texts)
                where = {"texts": str(texts), "tokenizer": str(path)}
                race(f"tokens, {name}, {pattern}", "MB", SIDES, where, arguments.rounds, arguments.wheels)


if __name__ == "__main__":
    main()
