#!/usr/bin/env python3
"""Personal data: speed on real texts, and what is found of what was planted. One JSON line a result.

    python -m benchmarks.text.personal_data [--data FOLDER] [--datatrove PYTHON]

Speed is on the texts of rule_verdicts.parquet, Arrow column to Arrow column; beside it compiled regular expressions for
the same kinds (one alternation, `re.sub` with a function), and DataTrove's PIIFormatter (e-mail and IPv4 only) where
the Python of an environment that has it is named. Precision and recall are on paragraphs of prose.parquet into which
spans and near misses were planted from a printed seed; a span counts as found when all of it is gone, a near miss as
wrong when any of it is. CPU seconds, one core.
"""

import argparse
import json
import os
import platform
import random
import re
import statistics
import string
import subprocess
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.personal_data.spans import IBAN_LENGTHS
from gristmill.stages import PersonalData

SEED = 11

PEER = """
import json, sys, time
from datatrove.pipeline.formatters.pii import PIIFormatter
texts = json.load(open(sys.argv[1]))
formatter = PIIFormatter(email_replacement="<email>", ip_replacement="<ip>")
started = time.process_time()
done = [formatter.format(text) for text in texts]
seconds = time.process_time() - started
json.dump(done, open(sys.argv[2], "w"))
print(json.dumps(seconds))
"""

# What one would write in an afternoon.
REGEX = re.compile(
    r"(?P<email>\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}\b)"
    r"|(?P<iban>\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b)"
    r"|(?P<card>\b(?:\d[ -]?){13,19}\b)"
    r"|(?P<ip>\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{1,4}\b)"
    r"|(?P<phone>\+\d[\d ().-]{7,17}\d|\(?\b\d{3}\)?[ .-]\d{3}[ .-]\d{4}\b)"
    r"|(?P<key>\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_\w{36,}|\bsk_(?:live|test)_\w{16,}|\bsk-[\w-]{32,}|\beyJ[\w-]+\.eyJ[\w-]+\.[\w-]+)"
)


def made(rng: random.Random) -> dict[str, list[tuple[str, str]]]:
    """(text, kind) of spans to find, and with kind "" of what only looks so."""

    def digits(count: int, first: str = "0123456789") -> str:
        return rng.choice(first) + "".join(rng.choices(string.digits, k=count - 1))

    def token(count: int) -> str:
        return "aB3" + "".join(rng.choices(string.ascii_letters + string.digits, k=count - 3))

    def luhn(body: str) -> str:
        total = sum(sum(divmod(int(d) * (2 - place % 2), 10)) for place, d in enumerate(reversed(body)))
        return body + str(-total % 10)

    def iban() -> str:
        country = rng.choice(["DE22", "GB22", "NL18", "ES24", "FR27", "PL28"])
        assert country in IBAN_LENGTHS
        body = digits(int(country[2:]) - 4)
        check = 98 - int(body + "".join(str(int(c, 36)) for c in country[:2]) + "00") % 97
        code = f"{country[:2]}{check:02d}{body}"
        return code if rng.random() < 0.5 else " ".join(code[i : i + 4] for i in range(0, len(code), 4))

    def card() -> str:
        number = luhn(rng.choice(["4", "51", "53", "2221", "6011", "3528"]).ljust(4, "7") + digits(11))
        return number if rng.random() < 0.5 else rng.choice(" -").join(number[i : i + 4] for i in range(0, 16, 4))

    def name() -> str:
        return rng.choice(["ann", "j.smith", "maria_l", "O'Neil", "info+x", "x1", "team-a"]) + str(rng.randrange(99))

    def public() -> str:
        return f"{rng.choice([81, 93, 151, 185, 216])}.{rng.randrange(16, 256)}.{rng.randrange(256)}.{rng.randrange(10, 256)}"

    spans = {
        "email": lambda: f"{name()}@{rng.choice(['mail.example', 'uni.ac.uk', 'bücher.de', 'sub.host.org', 'firma.com'])}",
        "ip": lambda: public() if rng.random() < 0.7 else f"2a01:{rng.getrandbits(16):x}:{rng.getrandbits(12):x}::{rng.getrandbits(16):x}",
        "phone": lambda: rng.choice(["+44 20 {} {}", "+49-30-{}-{}", "+33 1 {} {}"]).format(digits(4),
        digits(4)) if rng.random() < 0.5
        else rng.choice(["({}) {}-{}", "{}-{}-{}", "1-{}-{}-{}"]).format(digits(3, "23456789"), digits(3, "23456789"),
        digits(4)),
        "card": card, "iban": iban,
        "key": lambda: rng.choice(["ghp_" + token(36), "AKIA" + token(16).upper(), "sk_live_" + token(24),
        "sk-proj-" + token(40),
                                   "xoxb-" + digits(11) + "-" + token(24), "AIza" + token(35)]),
    }  # fmt: skip
    near = [
        lambda: f"icon{rng.randrange(99)}@2x.png",
        lambda: f"pkg@{rng.randrange(9)}.{rng.randrange(99)}.{rng.randrange(9)}", lambda: "@" + name(),
        lambda: f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}",
        lambda: f"192.168.{rng.randrange(256)}.{rng.randrange(256)}",
        lambda: f"{rng.randrange(1, 9)}.{rng.randrange(9)}.{rng.randrange(9)}.{rng.randrange(9)}",
        lambda: f"version {public()}",
        lambda: f"{rng.randrange(24)}:{rng.randrange(60):02d}:{rng.randrange(60):02d}",
        lambda: f"2001:db8::{rng.getrandbits(16):x}",
        lambda: f"{rng.randrange(1900, 2030)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}",
        lambda: f"978-0-{digits(3)}-{digits(5)}-{digits(1)}",
        lambda: f"${rng.randrange(1, 99)},{digits(3)},{digits(3)}.{digits(2)}", lambda: digits(10, "1"),
        lambda: str(int(luhn("4" + digits(14))) + 1),
        lambda: digits(13, "1"), lambda: f"{digits(4)} {digits(4)} {digits(4)}", lambda: f"0.{digits(12)}",
        lambda: f"{digits(3, '1')}-{digits(3)}-{digits(4)}",
        lambda: f"DE{digits(2)} {digits(4)} {digits(4)}",
        lambda: "sk-" + "-".join(rng.choices(["wide", "box", "item", "view", "main"], k=9)),
        lambda: token(40), lambda: f"{rng.randrange(1900, 2000)}-{rng.randrange(2000, 2030)}",
        lambda: f"ISSN {digits(4)}-{digits(4)}",
    ]  # fmt: skip
    planted = {kind: [(make(), kind) for _ in range(500)] for kind, make in spans.items()}
    return planted | {"": [(make(), "") for make in near for _ in range(100)]}


def planted_texts(prose: list[str], rng: random.Random) -> tuple[list[str], list[tuple[str, str]]]:
    """One planted thing a text, marked off by words on either side."""
    things = [thing for of_kind in made(rng).values() for thing in of_kind]
    rng.shuffle(things)
    paragraphs = [p for text in prose for p in text.split("\n") if 200 < len(p) < 2000 and not re.search(r"\d{3}|@", p)]
    texts = []
    for text, _ in things:
        words = rng.choice(paragraphs).split(" ")
        at = rng.randrange(1, len(words))
        texts.append(" ".join([*words[:at], rng.choice(["{}", "({})", "{},", "“{}”"]).format(text), *words[at:]]))
    return texts, things


def scored(masked: list[str], texts: list[str], things: list[tuple[str, str]]) -> dict[str, dict[str, float]]:
    found, wrong, near = Counter(), Counter(), 0
    for after, before, (text, kind) in zip(masked, texts, things, strict=True):
        if kind:
            found[kind] += after == before.replace(text, f"<{kind}>", 1)
        else:
            near += 1
            for tag in re.findall("<(email|ip|phone|card|iban|key)>", after):
                wrong[tag] += 1
    many = Counter(kind for _, kind in things)
    return {
        kind: {"recall": round(found[kind] / many[kind], 3),
        "precision": round(found[kind] / max(found[kind] + wrong[kind], 1), 3)}
        for kind in many if kind
    } | {"near_misses": {"masked": sum(wrong.values()), "of": near}}  # fmt: skip


def by_regex(texts: list[str]) -> list[str]:
    return [REGEX.sub(lambda found: f"<{found.lastgroup}>", text) for text in texts]


def line(what: str, megabytes: float, values: list[float], **more: object) -> None:
    speeds = [megabytes / seconds for seconds in values]
    row = {
        "what": what, "machine": f"{platform.machine()} {platform.system()} {os.cpu_count()} CPUs",
        "versions": {name: version(name) for name in ("numba", "pyarrow")}, "sizes": {"megabytes": round(megabytes, 1)},
        "median": round(statistics.median(speeds), 2), "spread": [round(min(speeds), 2), round(max(speeds), 2)],
    }  # fmt: skip
    print(json.dumps(row | more), flush=True)


def timed(function, times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        started = time.process_time()
        function()
        seconds.append(time.process_time() - started)
    return seconds


def datatrove(python: str, texts: list[str]) -> tuple[float, list[str]]:
    with tempfile.TemporaryDirectory() as name:
        before, after = Path(name) / "before.json", Path(name) / "after.json"
        before.write_text(json.dumps(texts))
        done = subprocess.run([python, "-c", PEER, str(before), str(after)], stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout.splitlines()[-1]), json.loads(after.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--datatrove", help="Python of an environment that has DataTrove")
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    if not (arguments.data / "rule_verdicts.parquet").exists():
        raise SystemExit(f"no rule_verdicts.parquet in {arguments.data}; name its folder with --data")
    table = pq.read_table(arguments.data / "rule_verdicts.parquet", columns=["text"]).combine_chunks()
    batch, listed = table.to_batches()[0], table["text"].to_pylist()
    megabytes = sum(len(text.encode()) for text in listed) / 1e6
    stage = PersonalData()
    stage.prepare()
    ours = timed(lambda: stage.apply(batch), arguments.times)
    counts = {name: int(sum(stage.apply(batch).batch[name].to_numpy())) for name in stage.adds}
    line("personal data masked, all kinds, MB/s", megabytes, ours, found=counts)
    regex = timed(lambda: by_regex(listed), 1)
    line("regular expressions, all kinds, MB/s", megabytes, regex, ratio=round(regex[0] / statistics.median(ours), 1))
    fewer = PersonalData(kinds=("email", "ip"))
    pair = timed(lambda: fewer.apply(batch), arguments.times)
    if arguments.datatrove:
        seconds, _ = datatrove(arguments.datatrove, listed)
        line("DataTrove's PIIFormatter, e-mail and IPv4, MB/s", megabytes, [seconds],
        ratio=round(seconds / statistics.median(ours), 1),
             ratio_for_the_same_kinds=round(seconds / statistics.median(pair), 1))  # fmt: skip
    prose = pq.read_table(arguments.data / "prose.parquet", columns=["text"])["text"].to_pylist()
    texts, things = planted_texts(prose, random.Random(SEED))
    results = {"gristmill": stage(pa.table({"text": texts}))["text"].to_pylist(), "regex": by_regex(texts)}
    if arguments.datatrove:
        results["datatrove"] = datatrove(arguments.datatrove, texts)[1]
    for who, masked in results.items():
        print(
            json.dumps(
                {"what": "planted spans", "who": who, "seed": SEED, "texts": len(texts)} | scored(masked, texts, things)
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
