"""Every setting of the stages that see the whole data set, with a value that changes what they do."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.stages import ExactDedup, MinhashDedup
from gristmill.stages.extract.choices import TURNED
from gristmill.stages.stage import CannotRun, Global, Stage
from tests.stages.scattered import Scattered
from tests.stages.settings_shown import Change, Elsewhere, Lab, Subject, flowed, in_order, to

Changes = dict[str, Change | Elsewhere]


def table(texts: list[str], **columns: Any) -> pa.Table:
    """Documents with uids of their own."""
    made = {
        "uid": pa.array([(n * 0x0123456789ABCDEF + 1) % 2**63 for n in range(len(texts))], pa.uint64()),
        "url": pa.array([f"https://a.example/{n}" for n in range(len(texts))]),
        "source": pa.array(["a"] * len(texts)).dictionary_encode(),
        "date": pa.array([""] * len(texts)),
        "text": pa.array(texts, pa.string()),
    }
    return pa.table(
        made | {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    )


def words(count: int, seed: int) -> str:
    dice = random.Random(seed)
    return " ".join(f"{dice.choice('bcdfgklmnprst')}{dice.choice('aeiou')}{dice.randrange(90)}" for _ in range(count))


# --- deduplication
#   -----------------------------------------------------------------------------------------------------

PAGE = words(60, 1)


def alike(texts: list[str], **columns: Any) -> pa.Table:
    """Three documents that are taken for the same, of which each is the best by another policy."""
    return table(
        texts,
        source=pa.array(["a", "b", "c"]).dictionary_encode(),
        date=["2024-01-01", "2023-01-01", "2022-01-01"],
        good=[0.1, 0.9, 0.5],
        better=[0.9, 0.1, 0.5],
        **columns,
    )


POLICY: Changes = {
    "prefer": to(["earliest"], prefer=["longest"]),
    "sources": to(["c"], prefer=["source"], sources=["b"]),
    "best": to("better", prefer=["best"], best="good"),
}
LONGEST_FIRST = [PAGE + " and three more words", PAGE + " and more", PAGE]
SAME = [PAGE + " " * 9, PAGE + "   ", PAGE]
LINE, OTHER, THIRD = words(15, 2), words(15, 3), words(15, 4)
SHORT = words(8, 5)
REPEATS = [
    f"{LINE}\n{OTHER}\n{THIRD}",
    f"{LINE}\n{words(20, 6)}\n\n{SHORT}",
    f"{LINE}\n\n{words(30, 7)}\n{SHORT}",
    f"{OTHER}\n{words(5, 8)}",
]
PAGES = [f"{words(9, 60)}\n{words(20, 70 + n)}\n{words(3, 61)}\n{words(3, 62)}\n{words(20, 80 + n)}" for n in range(4)]
PAGES += [words(30, 90 + n) for n in range(2)]
NEW_LINES = ["\n".join(words(13, 100 + 10 * n + line) for line in range(10)) for n in range(20)]
PART_KNOWN = [words(40, 9), words(40, 9).rsplit(" ", 18)[0] + " " + words(18, 10), words(40, 11)]
POEM = [LINE, LINE + "\n" + "\n".join(words(4, 20 + n) for n in range(12)), words(30, 12)]


def with_an_index(lab: Lab, stage: Stage, given: pa.Table) -> Any:
    """A run before it has saved the index `old`, of one document that is like the first two."""
    assert isinstance(stage, Global)

    def before(flow: Scattered) -> None:
        MinhashDedup(save_index="old").run(
            flow.parts(table([PAGE]).set_column(0, "uid", pa.array([7], pa.uint64()))), flow
        )

    return flowed(stage, given, 1, before)[0]


def with_hashes(lab: Lab, stage: Stage, given: pa.Table) -> Any:
    """A run before it has saved the index `old`, of one document that has the text of the first two."""
    assert isinstance(stage, Global)

    def before(flow: Scattered) -> None:
        ExactDedup(save_index="old").run(
            flow.parts(table([SAME[0]]).set_column(0, "uid", pa.array([7], pa.uint64()))), flow
        )

    return flowed(stage, given, 1, before)[0]


def or_why_not(lab: Lab, stage: Stage, given: pa.Table) -> Any:
    """What comes of it, or the complaint."""
    assert isinstance(stage, Global)
    try:
        return flowed(stage, given, 1)[0]
    except CannotRun as error:
        return str(error)


def placement(lab: Lab, stage: Stage, given: Any) -> bool:
    """Does it ask for workers that have a GPU?"""
    return stage.gpu


NEAR_CHANGES: Changes = {
    "threshold": to(0.99),
    "ngram": to(40),
    "hashes": to(64, save_index="kept"),
    "recall": to(0.5, save_index="kept"),
    "bands": to(4, bands=2, rows=2, save_index="kept"),
    "rows": to(3, bands=2, rows=2, save_index="kept"),
    "seed": to(1, save_index="kept"),
    "against": to(["old"], see=with_an_index),
    "within": to(False, see=with_an_index, against=["old"], given=alike([words(30, 30)] * 3)),
    "save_index": to("kept"),
    "device": to("gpu", see=placement),
}
SIM = words(200, 13)
DEDUP = [
    Subject("ExactDedup", POLICY | {"normalise": to(False), "against": to(["old"], see=with_hashes), "save_index": to("kept")}, given=alike(SAME)),
    Subject(
        "UrlDedup",
        POLICY | {"ignored": to(("x",)), "more_ignored": to(("ref",))},
        given=alike(LONGEST_FIRST, ).set_column(1, "url", pa.array(["https://a.example/?utm_source=1", "https://a.example/?utm_source=2", "https://a.example/?ref=3"])),
    ),
    Subject("OneView", {"prefer": to(["precise", "full"])}, given=table([PAGE, PAGE + " and more"], view=["full", "precise"]).set_column(0, "uid", pa.array([7, 7 ^ int(TURNED)], pa.uint64()))),
    Subject("MinhashDedup", POLICY | NEAR_CHANGES, given=alike(LONGEST_FIRST)),
    Subject(
        "SimhashDedup",
        POLICY | {
            "bits": to(128),
            "distance": to(0),
            "ngram": to(1),
            "blocks": to(12, distance=10, blocks=11, see=lambda lab, stage, given: stage.sign(given).num_rows),
            "seed": to(1),
        },
        given=alike([SIM + " and three more words", SIM + " and more", SIM]),
        base={"distance": 20, "blocks": 21},
    ),
    Subject(
        "ParagraphDedup",
        POLICY | {"unit": to("paragraph"), "min_words": to(5, min_left=5), "copies": to(2), "min_left": to(1)},
        given=table(REPEATS, good=[0.1, 0.9, 0.5, 0.2], better=[0.9, 0.1, 0.5, 0.3]).set_column(2, "source", pa.array(list("abcd")).dictionary_encode()).set_column(3, "date", pa.array(["2024-01-01", "2023-01-01", "2022-01-01", "2021-01-01"])),
    ),
    Subject(
        "SiteBoilerplate",
        {
            "min_pages": to(5),
            "min_share": to(0.9, run_words=6),
            "alone_share": to(0.9),
            "min_words": to(10),
            "run_words": to(6),
            "min_left": to(50),
            "most_pages": to(100, given=table([f"{words(30, n)}\n{words(9, n % 40 + 900)}\n{n}" for n in range(400)]), min_share=0.01, alone_share=0.02, most_pages=1000),
        },
        given=table(PAGES),
    ),
    Subject("SubstringDedup", {"tokens": to(10), "keep": to("none", tokens=10), "min_left": to(9, tokens=10)}, given=table(REPEATS)),
    Subject(
        "BloomDedup",
        {
            "remove": to("lines", given=table([REPEATS[0], REPEATS[0]])),
            "ngram": to(40, given=table(PART_KNOWN), threshold=0.3),
            "min_ngram": to(5),
            "threshold": to(0.1, given=table(PART_KNOWN)),
            "judged_share": to(0, given=table(POEM)),
            "false_positives": to(0.5, given=table(NEW_LINES)),
            "seed": to(1, given=table(NEW_LINES), false_positives=0.5),
            "shards": to(2),
            "memory": to(1024, given=table(NEW_LINES * 9), refuses="Raise memory"),
        },
        given=table(REPEATS),
    ),
]  # fmt: skip

# --- blending
#   ----------------------------------------------------------------------------------------------------------


def blended(count: int = 300) -> pa.Table:
    dice = random.Random(6)
    return table(
        [""] * count,
        source=pa.array([dice.choice(["web"] * 6 + ["code"] * 2 + ["books"]) for _ in range(count)]),
        language=[dice.choice(["en", "de"]) for _ in range(count)],
        tokens=pa.array([dice.randint(1, 2000) for _ in range(count)], pa.int32()),
        copies=pa.array([dice.randint(1, 2) for _ in range(count)], pa.uint16()),
        hard=[dice.gauss(0, 1) for _ in range(count)],
        good=[float(dice.randint(0, 5)) for _ in range(count)],
    ).drop_columns(["url", "date"])


SITES = pa.array([f"https://{'abcdefg'[n * n % 7]}.example/{n}" for n in range(300)])
UTILITIES = (
    "source,science,science_se,code,code_se,noise,noise_se\nbooks,0.8,0.02,0.3,0.02,0.5,0.3\n"
    "code,0.3,0.02,0.9,0.02,0.6,0.3\nweb,0.4,0.02,0.4,0.02,0.55,0.3\n"
)


def ablations(slope: float = 1.0) -> str:
    dice = random.Random(2)
    lines = ["weight:web,weight:code,weight:books,loss:science,loss:code"]
    for _ in range(7):  # each is left out once, so that few runs are quick
        web, code, books = (dice.random() for _ in range(3))
        total = web + code + books
        web, code, books = web / total, code / total, books / total
        lines.append(f"{web},{code},{books},{3 - slope * books + 0.5 * web**2},{2 - code + 0.3 * books**2}")
    return "\n".join(lines) + "\n"


def of_file(name: str, text: str) -> Any:
    return lambda lab: lab.file(name, text)


UTILITIES_FILE = of_file("utilities.csv", UTILITIES)
OTHER_UTILITIES = of_file("others.csv", UTILITIES.replace("0.8", "0.1"))
RUNS_FILE, OTHER_RUNS = of_file("runs.csv", ablations()), of_file("other_runs.csv", ablations(0.2))


def by(method: str, **settings: Any) -> dict[str, Any]:
    return {"method": {method: settings}, "budget": 40_000}


UTILIMAX = by("utilimax", utilities_file=UTILITIES_FILE)
MOST_UTILITY = by("most_utility", utilities_file=UTILITIES_FILE)
REGMIX = by("regmix", ablations_file=RUNS_FILE, regressor="ridge", candidates=500, best=10)
LOG_LINEAR = by("log_linear", ablations_file=RUNS_FILE)
GIVEN = by("given", weights={"web": 1, "code": 1, "books": 1})
ASCENDING: dict[str, Any] = {"by": "hard", "schedule": "ascending"}


def of_the_mix(lab: Lab, stage: Any, given: Any) -> Any:
    """The facts for the report: larger runs change no weight, only what is said of it."""
    flow = Scattered(0)
    stage.run(flow.parts(given), flow)
    return flow.metrics["mix"]


def paced(schedule: str, **settings: Any) -> dict[str, Any]:
    return {"by": "hard", "schedule": {schedule: settings}}


SCORES: dict[str, Any] = {"by": ["good", "hard"]}
QUANTILES: Changes = {"weigh": to("tokens"), "within": to(["language"]), "seed": to(1)}

BLEND = [
    Subject(
        "Mix",
        {
            "by": to(["source", "language"], method="unimax", budget=40_000),
            "method": to("unimax", budget=40_000),
            "method.given.weights": to({"web": 3, "code": 1, "books": 1}, **GIVEN),
            "method.temperature.temperature": to(5.0, **by("temperature", temperature=1.0)),
            "method.utilimax.utilities_file": to(OTHER_UTILITIES, **UTILIMAX),
            "method.utilimax.noise": to("flag", **UTILIMAX),
            "method.utilimax.scale": to("as_given", **UTILIMAX),
            "method.utilimax.aversion": to(0.0, **UTILIMAX),
            "method.most_utility.utilities_file": to(OTHER_UTILITIES, **MOST_UTILITY),
            "method.most_utility.noise": to("flag", **MOST_UTILITY),
            "method.most_utility.scale": to("as_given", **MOST_UTILITY),
            "method.most_utility.task_weights": to({"science": 1, "code": 9}, **MOST_UTILITY),
            "method.regmix.ablations_file": to(OTHER_RUNS, **REGMIX),
            "method.regmix.task_weights": to({"science": 9, "code": 1}, **REGMIX),
            "method.regmix.regressor": to("trees", **REGMIX),
            "method.regmix.confirmed_file": to(OTHER_RUNS, see=of_the_mix, **REGMIX),
            "method.regmix.candidates": to(300, **REGMIX),
            "method.regmix.best": to(1, **REGMIX),
            "method.log_linear.ablations_file": to(OTHER_RUNS, **LOG_LINEAR),
            "method.log_linear.task_weights": to({"science": 9, "code": 1}, **LOG_LINEAR),
            "method.log_linear.confirmed_file": to(OTHER_RUNS, see=of_the_mix, **LOG_LINEAR),
            "method.log_linear.kl": to(5.0, **LOG_LINEAR),
            "method.log_linear.prior": to({"web": 1, "code": 1, "books": 8}, **LOG_LINEAR),
            "budget": to(40_000),
            "max_epochs": to(1.0, method="unimax", budget=150_000),
            "least_tokens": to(120_000.0, method="unimax", budget=40_000),
            "small_cells": to("refuse", least_tokens=120_000.0, see=or_why_not),
            "stands_for": to(400_000, **GIVEN | {"max_epochs": 100}),
            "seed": to(1, budget=40_000),
        },
        given=lambda lab: blended().drop_columns(["copies"]),
    ),
    Subject(
        "CapDomains",
        {
            "by": to(["language"]),
            "share": to(0.02),
            "documents": to(3),
            "seed": to(1),
        },
        given=lambda lab: blended().drop_columns(["copies"]).append_column("url", SITES),
        base={"documents": 9},
    ),
    Subject(
        "Order",
        {
            "by": to("good", **ASCENDING),
            "descending": to(True, **ASCENDING),
            "schedule": to("ascending", by="hard"),
            "schedule.stages.stages": to(2, **paced("stages")),
            "schedule.warm_up.share": to(0.5, **paced("warm_up")),
            "schedule.interleaved.passes": to(2, **paced("interleaved")),
            "schedule.pacing.power": to(1.0, **paced("pacing")),
            "schedule.pacing.start": to(0.4, **paced("pacing")),
            "schedule.pacing.until": to(0.9, **paced("pacing")),
            "schedule.steps.stages": to(8, **paced("steps")),
            "schedule.steps.start": to(0.5, **paced("steps")),
            "schedule.steps.until": to(0.3, **paced("steps")),
            "schedule.anneal.share": to(0.4, **paced("anneal")),
            "schedule.anneal.best": to(0.3, **paced("anneal", share=0.4)),
            "within": to(["language"], **ASCENDING),
            "sources": to({"code": {"by": "good", "schedule": "ascending"}}, **ASCENDING),
            "buckets": to(4, **ASCENDING),
            "resolution": to(1, given=lambda lab: blended(3000), **ASCENDING),
            "seed": to(1),
        },
        given=lambda lab: blended(),
    ),
    Subject(
        "Threshold",
        QUANTILES | {"by": to("hard"), "keep": to(0.9), "lowest": to(True)},
        given=lambda lab: blended(),
        base={"by": "good", "keep": 0.3},
    ),
    Subject(
        "QuantileBuckets",
        QUANTILES | {
            "by": to(["hard"]),
            "buckets": to(10, along={"tiers": {"low": 10}}),
            "combine": to("mean"),
            "weights_of": to({"good": 9, "hard": 1}, combine="mean"),
            "tiers": to({"poor": 5, "rich": 20}),
            "called_after": to("worth"),
        },
        given=lambda lab: blended(),
        base=SCORES,
    ),
]  # fmt: skip

# --- tokens
#   ------------------------------------------------------------------------------------------------------------

TOKENIZER = {"name": "bytes", "hash": "0" * 64, "vocab_size": 300, "bos_id": None, "eos_id": 256, "pad_id": 256}
CORPUS = [
    f"The mill of {words(30, n)} has 2024 wheels, and 77 of them turn: mill, miller, milling. {n * 12345}"
    for n in range(40)
]


def tokenised(count: int = 200) -> pa.Table:
    dice = random.Random(3)
    ids = [np.array([*(dice.randrange(256) for _ in range(dice.randint(1, 90))), 256], np.uint16) for _ in range(count)]
    return table(
        [""] * count,
        source=pa.array([dice.choice(["web", "code"]) for _ in ids]),
        token_ids=pa.array([one.tobytes() for one in ids], pa.large_binary()),
        tokens=pa.array([len(one) for one in ids], pa.int32()),
        copies=pa.array([dice.randint(1, 2) for _ in ids], pa.uint16()),
    )


def with_tokenizer(flow: Scattered) -> None:
    flow.run.share("tokenizer", TOKENIZER)
    flow.run.share("tokenizer_json", "{}")


def packed(lab: Lab, stage: Stage, given: pa.Table) -> Any:
    return flowed(stage, given, 1, with_tokenizer)[0] if isinstance(stage, Global) else None


def license_for_the_card(lab: Lab, stage: Stage, given: pa.Table) -> Any:
    return (
        flowed(stage, given, 1, with_tokenizer)[1].metrics["packing"]["license"] if isinstance(stage, Global) else None
    )


def saved_tokenizer(lab: Lab, name: str, size: int) -> str:
    from gristmill.stages.tokens.training import trained

    folder = lab.folder / name
    if not folder.exists():
        lab.file(f"{name}/tokenizer.json", trained(CORPUS, size, 2, ["<|endoftext|>", "<|begin_of_text|>", "<|pad|>"]))
        lab.file(f"{name}/tokenizer_config.json", json.dumps({"eos_token": "<|endoftext|>"}))
    return str(folder)


def trained_and_run(lab: Lab, stage: Stage, given: pa.Table) -> Any:
    """With what it hands on to `pack`."""
    assert isinstance(stage, Global)
    made, flow = flowed(stage, given, 1)
    return made, in_order(pa.table({"shared_values": [json.dumps(flow.shared_values, default=repr, sort_keys=True)]}))


TOKENS = [
    Subject(
        "Tokenize",
        {
            "tokenizer": to(lambda lab: saved_tokenizer(lab, "given", 290), along={"vocab_size": 32_768}),
            "revision": Elsewhere(
                "tests/stages/tokens/test_tokenize.py::test_a_hub_id_is_fetched_with_what_says_its_specials"
            ),
            "vocab_size": to(280),
            "sample_bytes": to(400),
            "digits": to(1),
            "bos": to(True),
            "eos": to(False),
            "bos_token": to("<s>", bos=True),
            "eos_token": to("</s>"),
            "pad_token": to("<none>"),
            "seed": to(1, sample_bytes=400),
        },
        given=table(CORPUS),
        base={"vocab_size": 300},
        see=trained_and_run,
    ),
    Subject(
        "Pack",
        {
            "row_length": to([64, 128]),
            "packer": to("concatenate"),
            "window_tokens": to(1024),
            "by": to(["source"]),
            "seed": to(1),
            "license": to("odc-by", see=license_for_the_card),
        },
        given=lambda lab: tokenised(),
        base={"row_length": 64},
        see=packed,
    ),
]
