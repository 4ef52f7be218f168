"""Settings of vLLM in every stage that asks a language model, on the made-up engine: what reaches it, and what is
refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.classifiers.llm.model import Request, request_key
from gristmill.classifiers.llm.tokens import PromptTokens
from gristmill.kernels.common.settings import SettingsError
from gristmill.pipeline.engine import cluster
from gristmill.pipeline.engine.cluster import Where, gpus_of_workers
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.judging import labelling, medu
from gristmill.pipeline.recipe.fingerprint import identity_of
from gristmill.stages import LlmLabel, LlmScore, Ocr, Refine, Rephrase
from gristmill.stages.judge import llm_score
from gristmill.stages.judge.back_end import ENGINE_OPTIONS, BackEnd
from gristmill.stages.stage import Map
from tests.classifiers.llm import fake_vllm
from tests.classifiers.llm.llm_models import chat_tokenizer
from tests.stages.pdf.made_pdfs import SCAN, pdf

pytest.importorskip("transformers")

TEXT = "The document describes facts about trees and rivers. " * 5
STAGES: dict[str, tuple[type[Map], dict[str, Any]]] = {
    "llm_score": (LlmScore, {"rubric": "Is it useful?"}),
    "llm_label": (LlmLabel, {"taxonomy": "format"}),
    "refine": (Refine, {}),
    "rephrase": (Rephrase, {}),
    "ocr": (Ocr, {"longest_side": 64}),
}
SETTINGS = {
    "tensor_parallel": 2,
    "gpu_memory": 0.5,
    "dtype": "float16",
    "engine_options": {"kv_cache_dtype": "fp8", "max_num_seqs": 8},
}
ARGUMENTS = {  # of vLLM's `LLM`, by our settings
    "tensor_parallel_size": 2,
    "gpu_memory_utilization": 0.5,
    "dtype": "float16",
    "kv_cache_dtype": "fp8",
    "max_num_seqs": 8,
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments that each engine was started with."""
    arguments: list[dict[str, Any]] = []

    class Noted(fake_vllm.LLM):
        def __init__(self, **given: Any) -> None:
            arguments.append(given)
            super().__init__(**given)

    monkeypatch.setattr(fake_vllm, "LLM", Noted)
    monkeypatch.setattr("gristmill.classifiers.llm.vllm._imported", lambda: fake_vllm)
    tokens = PromptTokens(chat_tokenizer(), chat=True)
    monkeypatch.setattr(PromptTokens, "load", staticmethod(lambda *model: tokens))
    monkeypatch.setattr(
        PromptTokens, "prompts", lambda self, some: [self.plain([one.shared + one.own])[0] for one in some]
    )
    llm_score.opened.cache_clear()
    return arguments


def documents() -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "uid": pa.array([1, 2], pa.uint64()),
        "text": [TEXT, TEXT + "Again."],
        "html": pa.array([pdf([SCAN]), None], pa.binary()),
        **{name: pa.array([None, None], pa.string()) for name in ("charset", "url", "meta")},
    }
    return pa.table(columns).to_batches()[0]


def made(name: str, **settings: Any) -> Any:
    kind, own = STAGES[name]
    return kind.model_validate({"model": "org/name", "most_failures": 1.0, **own, **settings})


@pytest.mark.parametrize("name", STAGES)
def test_settings_of_a_stage_reach_the_engine(name: str, started: list[dict[str, Any]]) -> None:
    if name == "ocr":
        pytest.importorskip("pypdfium2")
    done = made(name, **SETTINGS).apply(documents())
    assert len(started) == 1 and {key: started[0][key] for key in ARGUMENTS} == ARGUMENTS
    asked = {"ocr": "ocr_pages", "refine": "refine_asked", "rephrase": "rephrase_asked"}.get(name, "llm_asked")
    assert done.noted[asked] >= 1
    made(name, **SETTINGS).apply(documents())
    assert len(started) == 1  # equal settings share an engine
    made(name).apply(documents())
    plain = {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.9, "dtype": "auto"}
    assert {key: started[1].get(key) for key in ARGUMENTS} == {**dict.fromkeys(ARGUMENTS), **plain}


@pytest.mark.parametrize("name", STAGES)
def test_what_may_move_an_answer_counts_and_where_it_runs_does_not(name: str) -> None:
    def fingerprint(**settings: Any) -> str:
        return identity_of(made(name, **settings), {"code": None}).fingerprint  # type: ignore[typeddict-item]

    plain = fingerprint()
    assert fingerprint(tensor_parallel=2) == fingerprint(gpu_memory=0.5) == plain
    moved = [fingerprint(**{name: SETTINGS[name]}) for name in ("dtype", "engine_options")]
    assert len({plain, *moved}) == 3
    assert fingerprint(engine_options={"max_num_seqs": 8, "kv_cache_dtype": "fp8"}) == moved[1]


def test_answers_of_another_dtype_or_option_are_kept_apart(started: list[dict[str, Any]]) -> None:
    def key(**settings: Any) -> str:
        return request_key(Request(own="x"), BackEnd(model="org/name", **settings).opened().identity)

    assert key() == key(tensor_parallel=2) == key(gpu_memory=0.3)
    assert len({key(), key(dtype="float16"), key(engine_options={"kv_cache_dtype": "fp8"})}) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"engine_options": {"worker_cls": "mine.Worker"}},
            "worker_cls: not among the arguments of vLLM that are known",
        ),
        ({"engine_options": {"trust_remote_code": True}}, "trust_remote_code: not among"),
        ({"engine_options": {"logits_processors": ["mine:Own"]}}, "logits_processors: not among"),
        ({"engine_options": {"load_format": "pt"}}, "load_format: not among"),
        ({"engine_options": {"kv_cach_dtype": "fp8"}}, r"did you mean kv_cache_dtype\?"),
        ({"engine_options": {"dtype": "float16"}}, "dtype: has a setting of its own, `dtype`"),
        ({"engine_options": {"max_model_len": 9}}, "a setting of its own, `longest_prompt`"),
        ({"engine_options": {"hf_overrides": {"a": object()}}}, "expected numbers, text, lists and mappings"),
        ({"engine_options": {"cpu_offload_gb": float("nan")}}, "expected numbers, text, lists and mappings"),
        ({"dtype": "float16", "engine": "transformers"}, "`dtype` is for vllm in this process"),
        ({"tensor_parallel": 2, "endpoint": "http://localhost:1/v1"}, "`tensor_parallel` is for vllm in this process"),
        ({"gpu_memory": 0.5, "engine": "transformers"}, "`gpu_memory` is for vllm in this process"),
        ({"engine_options": {"block_size": 32}, "engine": "transformers"}, "`engine_options` is for vllm in this"),
        ({"gpu_memory": 1.5}, "gpu_memory"),
        ({"dtype": "int3"}, "dtype"),
    ],
)
def test_options_that_may_run_code_or_reach_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LlmScore(model="m", rubric="r", **settings)


def test_all_options_are_arguments_of_the_engine() -> None:
    assert set(ENGINE_OPTIONS) <= fake_vllm.LLM_ARGUMENTS


def test_plans_that_ask_take_the_same_settings(started: list[dict[str, Any]], tmp_path: Path) -> None:
    written = "{model: org/name, tensor_parallel: 2, gpu_memory: 0.5, dtype: float16, engine_options: "
    written += "{kv_cache_dtype: fp8, max_num_seqs: 8}}"
    for load, rest in (
        (labelling.load, "texts: a.txt\ntaxonomy: topic\n"),
        (medu.load, "sources: {a: a.txt}\ntasks: {quiz: a.txt}\n"),
    ):
        (tmp_path / "plan.yaml").write_text(f"out: o\nmodel: {written}\n{rest}")
        load(tmp_path / "plan.yaml").plan.model.opened()  # type: ignore[attr-defined]
    assert [{key: one[key] for key in ARGUMENTS} for one in started] == [ARGUMENTS] * 2


def test_workers_have_as_many_gpus_as_a_model_is_shared_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("llm_score", tensor_parallel=4).gpus == 4 and made("llm_score").gpus == 1
    assert made("llm_score", endpoint="http://localhost:1/v1").gpus == 0
    monkeypatch.setattr(cluster, "gpus_here", lambda: ["0", "1", "2", "5", "7"])
    assert gpus_of_workers(Where(8, gpus=2)) == ["0,1", "2,5"]
    assert gpus_of_workers(Where(1, gpus=2)) == ["0,1"] and gpus_of_workers(Where(3, gpus=1)) == ["0", "1", "2"]
    assert gpus_of_workers(Where(3)) == []
    with pytest.raises(RecipeError, match=r"shares its model over 8 GPUs \(`tensor_parallel`\); this machine has 5"):
        gpus_of_workers(Where(1, gpus=8))
