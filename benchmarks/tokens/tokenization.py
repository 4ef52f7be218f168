"""Speed of `tokenize` against the fastest packages, with the same tokenizer on the same texts, on one core; and of
training.

    pip install --target WHEELS fastokens==0.3.5 gigatoken==0.10.0 quicktok-v1==0.4.0 tokenizers==0.23.3 tiktoken
    python -m benchmarks.tokens.tokenization --wheels WHEELS

Every contender encodes a set of texts in processes of its own, in turns, `--rounds` times. Cold is the first pass of a
process that has loaded the tokenizer and encoded three short texts; warm is the two passes after it. Seconds are of the
processor, with the system's; `user` is without them. Memory is what the process grew by in the first pass.
Contenders whose ids are not those of ours are reported as `other ids`; ours are compared with the package `tokenizers`.

Unequal: the packages get a list of Python strings, ours an Arrow column. Ours returns ids of 16 bits, the others of 32,
gigatoken as an awkward array. `tokenizers` and tiktoken return Python lists, and get 4 MB of each set.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.bpe.pieces import GPT4, pattern_of
from gristmill.stages.tokens.byte_level import byte_of
from gristmill.stages.tokens.encoding import TextEncoder
from gristmill.stages.tokens.training import SPECIALS, trained

SHORT = ["a short text", "and one more", "three"]
SLOW = 4_000_000  # bytes of a set for packages that would take minutes
PASSES = 3
PEERS = {  # name of the package, and a program that makes `encode`, from texts to ids in a flat array
    "gigatoken": """
import gigatoken
tokenizer = gigatoken.Tokenizer.from_json(text)
run = lambda texts: tokenizer.encode_batch(texts, parallel=False)
flat = lambda found: np.asarray(found.layout.content.data)
""",
    "fastokens": """
import fastokens
tokenizer = fastokens.Tokenizer.from_json_str(text)
run = lambda texts: tokenizer.encode_batch_flat(texts, split_special_tokens=True)
flat = lambda found: np.frombuffer(found[0], np.uint32)
""",
    "quicktok-v1": """
import os, quicktok
os.environ["QUICKTOK_DATA"] = folder
quicktok.import_tokenizer(path, "same")
tokenizer = quicktok.get_encoding("same")
run = lambda texts: tokenizer.encode_batch(texts, 1, False)
flat = lambda found: found[0]
""",
    "tokenizers": """
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_str(text)
run = lambda texts: [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
flat = lambda found: np.concatenate([np.array(ids, np.uint32) for ids in found])
""",
    "tiktoken": """
import tiktoken
given = json.loads(ranks)
tokens = {bytes(content): number for content, number in given["ranks"]}
tokenizer = tiktoken.Encoding("same", pat_str=given["pattern"], mergeable_ranks=tokens, special_tokens={})
run = lambda texts: [tokenizer.encode_ordinary(one) for one in texts]
flat = lambda found: np.concatenate([np.array(ids, np.uint32) for ids in found])
""",
}
OURS = {
    "ours": """
import pyarrow as pa
from gristmill.stages.tokens.encoding import TextEncoder
tokenizer = TextEncoder(text)
assert tokenizer.kernels is not None
column = lambda texts: pa.chunked_array([pa.array(texts, pa.large_string())])
run = lambda texts: tokenizer.encode(texts)
flat = lambda found: found.ids
""",
    "ours, the stage in batches of 512": """
import pyarrow as pa
from gristmill.stages import Tokenize
from gristmill.stages.tokens.training import SPECIALS
from gristmill.stages.tokens.vocabulary import TokenizerVocabulary
stage, rows = Tokenize(), TokenizerVocabulary("same", text, dict(SPECIALS)).table()
uids = lambda count: np.arange(count, dtype=np.uint64)
column = lambda texts: pa.table({"uid": uids(len(texts)), "text": pa.array(texts, pa.large_string())})
run = lambda docs: [stage.encode(docs.slice(i, 512), rows) for i in range(0, len(docs), 512)]
flat = lambda found: np.zeros(0, np.uint32)
""",
}
PROGRAM = """
import hashlib, json, os, resource, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy as np, pyarrow.parquet as pq
given = json.load(sys.stdin)
path, folder, ranks, most = given["tokenizer"], given["folder"], given["ranks"], given["most"]
text = open(path).read()
exec(given["program"])
texts, size = [], 0
for one in pq.read_table(given["texts"])["text"].to_pylist():
    if texts and size + len(one) > most:
        break
    texts.append(one)
    size += len(one)
megabytes = sum(len(one.encode()) for one in texts) / 1e6
if "column" in globals():
    texts, short = column(texts), column(given["short"])
else:
    short = given["short"]
run(short)
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
before, seconds, user = memory(), [], []
for number in range(given["passes"]):
    found = None
    start, of_user = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    found = run(texts)
    seconds.append(time.process_time() - start)
    user.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime - of_user)
    if number == 0:
        grown, whole = memory() - before, memory()
ids = np.asarray(flat(found)).astype(np.uint32)
print(json.dumps({"seconds": seconds, "user": user, "megabytes": megabytes, "grown": grown, "whole": whole,
    "tokens": len(ids), "hash": hashlib.blake2b(ids.tobytes()).hexdigest()}))
"""


def run_once(program: str, texts: Path, tokenizer: Path, wheels: Path | None, most: int) -> dict[str, Any] | str:
    """What a process measured, or the last line of its complaint."""
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "program": program,
            "texts": str(texts),
            "tokenizer": str(tokenizer),
            "folder": folder,
            "ranks": for_tiktoken(tokenizer.read_text()),
            "most": most,
            "short": SHORT,
            "passes": PASSES,
        }
        environment = os.environ | {
            "RAYON_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "QUICKTOK_DATA": folder,
        }
        if wheels is not None:
            environment["PYTHONPATH"] = str(wheels)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=json.dumps(given), capture_output=True, text=True, env=environment
        )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["killed"])[-1][:200]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def race(name: str, texts: Path, tokenizer: Path, wheels: Path | None, rounds: int) -> None:
    contenders = {who: (program, None, 1 << 62) for who, program in OURS.items()}
    for peer, program in PEERS.items() if wheels is not None else ():
        slow = peer in ("tokenizers", "tiktoken")
        contenders[peer] = (program, wheels, SLOW if slow else 1 << 62)
    results: dict[str, list[dict[str, Any]]] = {who: [] for who in contenders}
    refused: dict[str, str] = {}
    for number in range(rounds):
        for who, (program, where, most) in contenders.items():
            if who in refused or (number and most == SLOW):
                continue
            found = run_once(program, texts, tokenizer, where, most)
            if isinstance(found, str):
                refused[who] = found
            else:
                results[who].append(found)
    if not results["ours"]:
        sys.exit(f"{name}: {refused['ours']}")
    versions = {peer: installed(wheels, peer) for peer in contenders.keys() & PEERS.keys()}
    ours = results["ours"]
    for who, several in results.items():
        what = f"tokenize, {name}, {who}, MB/s of one core"
        if not several:
            report(what=what, refuses=refused[who], versions=versions)
            continue
        extra: dict[str, Any] = {}
        if who in PEERS:
            equal = several[0]["hash"] == ours[0]["hash"] or (several[0]["megabytes"] < ours[0]["megabytes"])
            extra = {"peer": who, "ids": "equal" if equal else "other ids"}
            extra["ratio"] = {
                state: round(speed(ours, state)["median"] / speed(several, state)["median"], 2)
                for state in ("cold", "warm")
            }
        report(
            what=what,
            sizes={"MB": round(several[0]["megabytes"], 1), "tokens": several[0]["tokens"]},
            cold=speed(several, "cold"),
            warm=speed(several, "warm"),
            user={state: speed(several, state, "user")["median"] for state in ("cold", "warm")},
            memory_MB={"grown": round(several[0]["grown"]), "process": round(several[0]["whole"])},
            versions=versions,
            **extra,
        )


def speed(results: list[dict[str, Any]], state: str, clock: str = "seconds") -> dict[str, Any]:
    passes = slice(0, 1) if state == "cold" else slice(1, None)
    speeds = [found["megabytes"] / max(seconds, 1e-3) for found in results for seconds in found[clock][passes]]
    return {"median": round(statistics.median(speeds), 1), "spread": [round(min(speeds), 1), round(max(speeds), 1)]}


def installed(wheels: Path | None, package: str) -> str:
    for found in Path(wheels or "").glob(f"{package.replace('-', '_')}-*.dist-info"):
        return found.name.removesuffix(".dist-info").rpartition("-")[2]
    return "none"


def report(**result: Any) -> None:
    result["versions"] = {package: version(package) for package in ("gristmill", "numba", "pyarrow")} | result.get(
        "versions", {}
    )
    print(json.dumps(result | {"machine": processor()}), flush=True)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return platform.processor() or platform.machine()


def for_tiktoken(tokenizer: str) -> str:
    """The vocabulary as tiktoken wants it: tokens by rank, which are the ids, for later merges have larger ones."""
    settings = json.loads(tokenizer)
    byte, specials = byte_of(), {token["content"] for token in settings["added_tokens"]}
    ranks = [
        ([byte[c] for c in token], number)
        for token, number in settings["model"]["vocab"].items()
        if token not in specials
    ]
    pattern = settings["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    return json.dumps({"ranks": ranks, "pattern": pattern})


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
    report(what=f"training a vocabulary of {vocab_size:,}, MB/s", sizes={"MB": megabytes}, median=megabytes / seconds)
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
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
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
                if arguments.only and name not in arguments.only:
                    continue
                check(name, sets[name], tokenizer)
                texts = Path(folder) / "texts.parquet"
                pq.write_table(pa.table({"text": pa.array(sets[name], pa.large_string())}), texts)
                race(f"{name}, {pattern}", texts, path, arguments.wheels, arguments.rounds)


if __name__ == "__main__":
    main()
