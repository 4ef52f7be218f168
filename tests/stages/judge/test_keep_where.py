"""A rule on any signal, at its bounds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages import KeepWhere
from tests.pipeline.runs import go, save


def test_a_bound_is_rounded_as_its_signal_was() -> None:
    table = pa.table({"score": pa.array([0.7, 0.8, None], pa.float32())})
    assert KeepWhere(signal="score", at_least=0.7)(table).num_rows == 2
    assert KeepWhere(signal="score", at_most=0.7)(table).num_rows == 1
    nothing = [{"text": "a", "score": None}]
    assert KeepWhere(signal="score", at_least=0)(nothing) == []
    with pytest.raises(SettingsError, match="at_least is not a number"):
        KeepWhere(signal="score", at_least=float("nan"))


@pytest.mark.parametrize(
    ("setting", "said"), [("", "above 50% its setting `alarm_above`"), (", alarm_above: 0.8", None)]
)
def test_the_alarm_says_who_expects_what(setting: str, said: str | None, tmp_path: Path) -> None:
    lines = "".join(f'{{"text": "word {n}", "score": {n}}}\n' for n in range(4))
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "a.jsonl", lines)
    where = f"{{signal: score, at_least: 3{setting}}}"
    stages = f"stages:\n  - from_meta: {{numbers: {{score: score}}}}\n  - keep_where: {where}\n  - write\n"
    recipe = save(tmp_path / "r.yaml", f"name: r\nsources: {{a: {{jsonl: {{path: in}}}}}}\n{stages}")
    alarms = go(recipe, tmp_path / "out")[0].alarms
    assert [said in alarm for alarm in alarms] == [True] if said else alarms == []
