"""Settings are checked at once, survive JSON, and say which runs are the same."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.pipeline_plan import schedule_for
from gristmill.trainer.run.guard import Guard
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.settings import WAYS, Training, differences
from gristmill.trainer.run.unlocking import Unlocking
from gristmill.trainer.step.muon import Muon
from gristmill.trainer.step.optim import AdamW

FULL = Training(
    updates=100,
    rows_per_update=24,
    rows_per_step=6,
    optimizer=AdamW(rate=0.01, faster=(("head.", 2.0),)),
    schedule=RateSchedule("stable", 0.1, 0.3, 0.0, "sqrt"),
    precision="fp16",
    recompute="full",
    zero=2,
    compile=False,
    deterministic=True,
    guard=Guard(None, 9.0, 50, 20, 3),
    unlocking=Unlocking(below=2.0, stalled=None),
)


@pytest.mark.parametrize(
    "training",
    [
        Training(10, 4),
        FULL,
        Training(
            10, 4, optimizer=Muon(rate=0.02, adamw=AdamW(rate=0.5, betas=(0.8, 0.9), faster=(("embedding.", 3.0),)))
        ),
    ],
)
def test_settings_come_back_from_json(training: Training) -> None:
    assert Training.from_facts(json.loads(json.dumps(training.facts(), allow_nan=False))) == training


def test_plain_facts_are_enough() -> None:
    assert Training.from_facts(
        {"updates": 3, "rows_per_update": 8, "schedule": {"kind": "cosine"}, "optimizer": {"rate": 0.5}}
    ) == Training(3, 8, schedule=RateSchedule("cosine"), optimizer=AdamW(rate=0.5))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"update": 3}, r"training\.update: no such field; did you mean updates\?"),
        ({"guard": {"windov": 3}}, r"training\.guard\.windov: no such field; did you mean window\?"),
        ({"optimizer": {"name": "sgd"}}, r"optimizer\.name 'sgd': there are adamw, muon"),
        (
            {"optimizer": {"name": "muon", "adamw": {"rat": 1}}},
            r"training\.optimizer\.adamw\.rat: no such field; did you mean rate\?",
        ),
        ({"updates": 0}, r"training\.updates: Input should be greater than or equal to 1, not 0"),
        ({"updates": True}, r"training\.updates: Input should be a valid integer, not True"),
        ({"rows_per_step": 9}, "rows_per_step 9 is more than the 8 rows of an update"),
        ({"precision": "half"}, r"training\.precision: Input should be 'float32', 'bf16' or 'fp16', not 'half'"),
        ({"zero": 4}, r"training\.zero: Input should be 0, 1, 2 or 3, not 4"),
        ({"average": 3}, "average 3 needs as many checkpoints; keep is 2"),
        ({"average": 2, "checkpoint_every": 5}, "average 2: 5 updates leave fewer checkpoints, one every 5"),
        ({"checkpoint_every": None, "average": 2}, "needs checkpoints"),
        ({"guard": {"loss_times": -1}}, r"training\.guard\.loss_times: Input should be greater than 0, not -1"),
        ({"guard": {"least": 200}}, "least 200 of a window of 128"),
        ({"unlocking": {"stalled": None, "at_most": None}}, r"training\.unlocking: .* nothing would ever be opened"),
        ({"unlocking": {"at_most": 3, "at_least": 4}}, "at_most 3 is less than at_least 4"),
        ({"schedule": {"warmup": 2}}, r"training\.schedule\.warmup: Input should be less than or equal to 1, not 2"),
        (
            {"schedule": {"kind": "stable", "warmup": 0.5, "decay": 0.6}},
            r"training\.schedule: warmup 0\.5 .* fit into 1",
        ),
        (
            {"schedule": {"kind": "cosin"}},
            r"training\.schedule\.kind: Input should be 'constant', 'linear', .*, not 'cosin'",
        ),
        (
            {"schedule": {"kind": "stable", "fall": "root"}},
            r"training\.schedule\.fall: Input should be 'linear' or 'sqrt', not 'root'",
        ),
        ({"schedule": {"floor": 1.5}}, r"training\.schedule\.floor: Input should be less than or equal to 1, not 1\.5"),
        ({"schedule": {"warmup": "a tenth"}}, r"training\.schedule\.warmup: .* number, .*, not 'a tenth'"),
        ({"schedule": "cosine"}, r"training\.schedule: Input should be a dictionary .*, not 'cosine'"),
        ({"optimizer": {"rate": math.inf}}, r"training\.optimizer\.rate: Input should be a finite number, not inf"),
        ({"optimizer": {"clip": 0}}, r"training\.optimizer\.clip: Input should be greater than 0, not 0"),
        ({"optimizer": "muon"}, r"training\.optimizer: a mapping was expected, .*, not 'muon'"),
        ({"optimizer": {"rate": -0.1}}, r"training\.optimizer\.rate: Input should be greater than .*, not -0\.1"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, r"training\.optimizer\.betas\.1: Input should be less than 1, not 1\.0"),
        ({"optimizer": {"name": "muon", "rate": -0.1}}, r"training\.optimizer\.rate: Input should be .*, not -0\.1"),
        (
            {"optimizer": {"name": "muon", "adamw": {"weight_decay": -1}}},
            r"optimizer\.adamw\.weight_decay: Input .*, not -1",
        ),
        ({"offload": "maybe"}, r"training\.offload: Input should be a valid boolean, .*, not 'maybe'"),
        ({"deterministic": None}, r"training\.deterministic: Input should be a valid boolean, not None"),
        ({"guard": None}, r"training\.guard: Input should be a dictionary .*, not None"),
        ({"grams_per_kwh": -1}, r"training\.grams_per_kwh: Input should be greater than or equal to 0, not -1"),
        ({"updates": 0, "keep": 0}, r"training\.updates: .*, not 0; training\.keep: .*, not 0"),
        (
            {"guard": {"least": 0}, "seed": -1},
            r"guard\.least: .*, not 0; training\.seed|training\.seed.*; training\.guard",
        ),
    ],
)
def test_what_is_wrong_is_said(facts: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Training.from_facts({"updates": 5, "rows_per_update": 8, **facts})


def test_texts_of_a_yaml_file_become_the_numbers_that_they_are() -> None:
    training = Training.from_facts(
        {"updates": 5, "rows_per_update": 8, "optimizer": {"rate": "3e-4", "clip": math.inf}, "grams_per_kwh": 400}
    )
    assert (training.optimizer.rate, training.optimizer.clip, training.grams_per_kwh) == (3e-4, math.inf, 400.0)
    assert Training.from_facts(json.loads(json.dumps(training.facts()))) == training


def test_rows_must_fit_ranks_and_steps() -> None:
    with pytest.raises(ValueError, match="rows_per_update 24 cannot be shared equally by 5 ranks; take 25"):
        FULL.rank_rows(5)
    FULL.check_step(2)
    with pytest.raises(
        ValueError, match="rows_per_step 5 does not divide the 12 rows that a rank has of an update; take 4 or 6"
    ):
        dataclasses.replace(FULL, rows_per_step=5).check_step(2)


def test_how_the_machine_does_it_is_not_what_the_run_is() -> None:
    training = FULL
    other = dataclasses.replace(
        training,
        rows_per_step=3,
        recompute="none",
        zero=0,
        tensor=2,
        context=2,
        replicas=2,
        experts=2,
        offload=True,
        compile=True,
        deterministic=False,
        checkpoint_every=7,
        keep=9,
        metrics_every=3,
        grams_per_kwh=400.0,
    )
    staged = dataclasses.replace(other, replicas=1, pipeline=2, pipeline_schedule="interleaved")
    assert other != training and other.identity() == staged.identity() == training.identity()
    for name in WAYS:  # none is forgotten here
        assert {repr(getattr(one, name)) for one in (other, staged)} != {repr(getattr(training, name))}
    assert differences(FULL.identity(), dataclasses.replace(FULL, seed=3, optimizer=AdamW(rate=0.02)).identity()) == [
        "optimizer.faster is [['head.', 2.0]], there it is []",
        "optimizer.rate is 0.01, there it is 0.02",
        "seed is 0, there it is 3",
    ]


def test_when_checkpoints_are_made_is_what_the_run_is_where_they_are_averaged() -> None:
    training = Training(100, 8, checkpoint_every=10, average=2)
    assert differences(dataclasses.replace(training, checkpoint_every=20, keep=5).identity(), training.identity()) == [
        "checkpoint_every is 20, there it is 10"
    ]


def test_checkpoints_are_due_at_the_end_too() -> None:
    assert [made for made in range(1, 15) if Training(14, 8, checkpoint_every=4).checkpoint_due(made)] == [4, 8, 12, 14]
    assert not any(Training(14, 8, checkpoint_every=None).checkpoint_due(made) for made in range(1, 15))


def test_pipelines_read_the_same_rows_and_choose_their_schedule() -> None:
    training = Training(5, 64, precision="float32", pipeline=2, tensor=2)
    readers = [training.reader(rank, 16) for rank in range(16)]
    assert readers == [(rank % 8 // 2, 4) for rank in range(16)] and training.most_step_rows(4) == 2
    shape = DecoderShape(97, 32, 8, 4, 2, 48, context=64)
    assert schedule_for(training, shape) == "1f1b"
    deep = dataclasses.replace(training, pipeline=4, tensor=1)
    assert schedule_for(deep, shape) == "zbv"
    assert schedule_for(deep, dataclasses.replace(shape, layers=7)) == "zb1p"  # too few for two stages of a rank
    # Weights whose gradients do not wait.
    whole = [{"precision": "bf16", "linears": "fp8"}, {"precision": "fp16"}, {"compile": True}]
    assert {schedule_for(dataclasses.replace(deep, **each), shape) for each in whole} == {"interleaved"}
    assert schedule_for(dataclasses.replace(training, pipeline_schedule="zbv"), shape) == "zbv"
    for wrong, match in (
        ({"zero": 2}, "zero 0 or 1"),
        ({"pipeline": 1, "pipeline_schedule": "1f1b"}, "but pipeline is 1"),
        ({"precision": "fp16", "pipeline_schedule": "zbv"}, "take '1f1b' or 'interleaved'"),
        ({"precision": "bf16", "linears": "fp8", "pipeline_schedule": "zb1p"}, "neither fp8"),
    ):
        with pytest.raises(ValueError, match=match):
            dataclasses.replace(training, **wrong)


def test_the_order_of_rows_has_a_seed_of_its_own() -> None:
    one, other = (
        Training(updates=1, rows_per_update=1, seed=3),
        Training(updates=1, rows_per_update=1, seed=3, data_seed=4),
    )
    assert (one.order_seed, other.order_seed, other.seed) == (3, 4, 3)
    assert one.identity()["data_seed"] is None and other.identity()["data_seed"] == 4
