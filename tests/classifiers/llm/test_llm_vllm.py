"""Our way with vLLM, against an engine that is made up; and that one against the real vLLM where it is installed."""

from __future__ import annotations

import importlib.util
import inspect
import json
from dataclasses import fields
from types import SimpleNamespace

import pytest

from gristmill.classifiers.llm.feeding import Feeding
from gristmill.classifiers.llm.http import Endpoint, HttpModel
from gristmill.classifiers.llm.model import LanguageModelError, Request, request_key
from gristmill.classifiers.llm.tokens import PromptTokens
from gristmill.classifiers.llm.vllm import VllmModel, VllmSettings
from tests.classifiers.llm import fake_vllm
from tests.classifiers.llm.llm_models import chat_tokenizer
from tests.classifiers.llm.llm_server import LanguageServer, text_reply

pytest.importorskip("transformers")

LABELS = ("Great", "Good", "Okay", "Poor", "Useless")
RUBRIC = "the document describes facts about trees and rivers. " * 4


@pytest.fixture(scope="module")
def tokens() -> PromptTokens:
    return PromptTokens(chat_tokenizer(), chat=True)


def model(tokens: PromptTokens, vllm=fake_vllm, **settings) -> VllmModel:
    return VllmModel("org/name", VllmSettings(**{"engine_tokenizer": False, **settings}), tokens, vllm)


def requests(count: int, **settings) -> list[Request]:
    return [Request(shared=RUBRIC, own=f"document {i} " * (1 + i % 5), **settings) for i in range(count)]


def test_every_request_is_answered_once_with_the_labels_the_engine_saw(tokens):
    asked = requests(500, opening="Final Score:", labels=LABELS)
    found = list(model(tokens, in_flight=64).answers(asked))
    assert sorted(i for i, _ in found) == list(range(500)) and [i for i, _ in found] != sorted(i for i, _ in found)
    for i, answer in found:
        prompt = tokens.prompts([asked[i]])[0]
        wanted = tokens.labels(asked[i]).questions[0].tokens
        assert answer.logprobs == tuple(fake_vllm.chance(prompt, token) for token in wanted)
        assert (answer.prompt_tokens, answer.completion_tokens, answer.failure) == (len(prompt), 1, "")
    assert sum(answer.cached_tokens > 0 for _, answer in found) > 400
    assert not any(answer.cached_tokens for _, answer in model(tokens, prefix_caching=False).answers(asked))


def test_labels_that_share_a_token_take_more_passes(tokens):
    asked = requests(30, opening="Final Score:", labels=("Gzzq", "Gzzv", "Poor"))
    questions = tokens.labels(asked[0]).questions
    assert len(questions) > 1
    mine = model(tokens)
    for i, answer in mine.answers(asked):
        prompt = tokens.prompts([asked[i]])[0]
        found = [[fake_vllm.chance([*prompt, *q.path], token) for token in q.tokens] for q in questions]
        assert answer.logprobs == tokens.labels(asked[i]).logprobs(found)
        assert answer.completion_tokens == len(questions)
    assert mine._llm.llm_engine.added == 30 * len(questions)


def test_generated_answers_come_as_text(tokens):
    asked = requests(40, max_tokens=6, temperature=0.7)
    found = dict(model(tokens, seed=4).answers(asked))
    assert len(found) == 40 and all(
        answer.completion_tokens == 6 and answer.finish == "length" and answer.text for answer in found.values()
    )


def test_a_prompt_that_is_too_long_fails_alone(tokens):
    asked = [*requests(5, labels=LABELS), Request(own="word " * 5000, labels=LABELS), *requests(5, labels=LABELS)]
    found = dict(model(tokens, longest_prompt=400).answers(asked))
    assert [found[i].failure for i in range(11)] == [""] * 5 + ["refused"] + [""] * 5 and "longer" in found[5].detail


def test_an_answer_that_the_engine_gave_up_is_a_failure(tokens, monkeypatch):
    mine = model(tokens)
    step = mine._llm.llm_engine.step

    def with_error():
        outputs = step()
        outputs[0].outputs[0].finish_reason = "error"
        return outputs

    monkeypatch.setattr(mine._llm.llm_engine, "step", with_error)
    found = dict(mine.answers(requests(20)))
    assert len(found) == 20 and {answer.failure for answer in found.values()} == {"", "engine"}


def test_who_stops_early_leaves_nothing_in_the_engine(tokens):
    mine = model(tokens, in_flight=50)
    going = mine.answers(requests(300))
    for _ in range(10):
        next(going)
    going.close()
    engine = mine._llm.llm_engine
    assert not engine.waiting and engine.aborted and engine.added < 100
    assert len(dict(mine.answers(requests(20)))) == 20


def test_settings_reach_the_engine_and_the_identity(tokens, tmp_path):
    mine = model(tokens, tensor_parallel=4, quantization="fp8", revision="abc", engine_options={"enforce_eager": True})
    said = mine._llm.arguments
    assert (said["tensor_parallel_size"], said["quantization"], said["enforce_eager"], said["trust_remote_code"]) == (
        4,
        "fp8",
        True,
        False,
    )
    assert (mine.identity["quantization"], mine.identity["revision"], mine.identity["model"]) == (
        "fp8",
        "abc",
        "org/name",
    )
    with pytest.raises(LanguageModelError, match="engine_options names seed"):
        model(tokens, engine_options={"seed": 1})


def test_options_of_the_engine_are_part_of_a_kept_answers_key(tokens):
    overrides = {"num_hidden_layers": 1, "rope_parameters": {"factor": 4.0, "rope_type": "yarn"}}
    given = [{}, {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "auto"}, {"hf_overrides": overrides},
             {"hf_overrides": overrides, "kv_cache_dtype": "fp8"}]  # fmt: skip
    keys = [request_key(Request(own="x"), model(tokens, engine_options=options).identity) for options in given]
    assert len(set(keys)) == len(given) == 5
    turned = {"kv_cache_dtype": "fp8", "hf_overrides": {name: overrides[name] for name in reversed(overrides)}}
    mine = model(tokens, engine_options=turned)
    assert request_key(Request(own="x"), mine.identity) == keys[-1]
    turned["kv_cache_dtype"] = "auto"  # what the engine was started with counts
    assert request_key(Request(own="x"), mine.identity) == keys[-1]
    assert "engine_options" not in model(tokens).identity  # answers that were kept without options stay good


def test_answers_of_another_cut_are_other_answers(tokens):
    keys = [request_key(Request(own="x"), model(tokens, longest_prompt=longest).identity) for longest in (4096, 8192)]
    assert keys[0] != keys[1] == request_key(Request(own="x"), model(tokens).identity)


@pytest.mark.parametrize("value", [lambda config: config, object(), {1, 2}, {("a", "b"): 1}, b"x"])
def test_an_option_without_a_lasting_name_is_refused_before_the_engine_starts(tokens, value):
    started = []
    engine = SimpleNamespace(LLM=lambda **arguments: started.append(arguments))
    with pytest.raises(LanguageModelError, match="engine_options: expected plain data"):
        model(tokens, engine, engine_options={"hf_overrides": value})
    assert not started


def test_another_vllm_is_refused_only_for_what_it_lacks(tokens):
    def without(**changes):
        parts = {name: getattr(fake_vllm, name) for name in ("LLM", "SamplingParams", "sampling_params")}
        return SimpleNamespace(**{**parts, "__version__": "0.11.0", **changes})

    def old_params(**arguments):
        if "logprob_token_ids" in arguments:
            raise TypeError("unexpected keyword argument 'logprob_token_ids'")
        return fake_vllm.SamplingParams(**arguments)

    assert len(list(model(tokens, without()).answers(requests(3, labels=LABELS)))) == 3
    old = model(tokens, without(SamplingParams=old_params))
    assert len(list(old.answers(requests(3)))) == 3
    with pytest.raises(LanguageModelError, match=r"vLLM 0\.11\.0 is not like 0\.26.*logprob_token_ids"):
        list(old.answers(requests(3, labels=LABELS)))
    with pytest.raises(LanguageModelError, match="no add_request, step"):
        model(tokens, without(LLM=lambda **arguments: SimpleNamespace(llm_engine=SimpleNamespace())))
    with pytest.raises(LanguageModelError, match="is not like"):
        model(tokens, without(LLM=lambda model: None))


def test_without_vllm_the_message_says_what_to_install(tokens):
    if importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is installed")
    with pytest.raises(LanguageModelError, match=r"pip install .\.\[llm\]"):
        VllmModel("org/name", VllmSettings(), tokens)


def test_in_process_and_over_http_say_the_same(tokens):
    """The same requests to the engine, and to a server around it, by token ids."""

    def serve(path: str, body: dict) -> dict:
        likely = fake_vllm.likely_of(body["prompt"], body["logprob_token_ids"])
        return text_reply("x", {f"token_id:{token}": value for token, value in likely.items()})

    for labels in (LABELS, ("Gzzq", "Gzzv", "Poor")):
        asked = requests(50, opening="Final Score:", labels=labels)
        with LanguageServer(serve) as server:
            over_http = dict(
                HttpModel(Endpoint(url=server.url, model="m", form="tokens", connections=8), tokens).answers(asked)
            )
        here = dict(model(tokens).answers(asked))
        assert {i: a.logprobs for i, a in here.items()} == {i: a.logprobs for i, a in over_http.items()} and len(
            here
        ) == 50


def test_tokens_are_guessed_ahead_by_vllms_own_words(tokens):
    mine = model(tokens, speculative="ngram", speculative_tokens=3)
    config = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 3}
    assert mine._llm.arguments["speculative_config"] == config == mine.identity["speculative"]
    drafted = model(tokens, speculative="org/draft")
    config = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 5}
    assert drafted._llm.arguments["speculative_config"] == config
    assert drafted.identity["speculative"] == {**config, "revision": "main"}
    assert "speculative_config" not in model(tokens)._llm.arguments and "speculative" not in model(tokens).identity
    assert len(dict(drafted.answers(requests(20, max_tokens=4)))) == 20


class Clock:
    """A second a token that the cache does not spare, and a wait where few are in flight."""

    def __init__(self, engine, monkeypatch) -> None:
        self.now, step = 0.0, engine.step

        def timed():
            in_flight, outputs = len(engine.waiting), step()
            fresh = sum(len(o.prompt_token_ids) - o.num_cached_tokens for o in outputs)
            self.now += fresh + (200.0 if in_flight < 20 else 0.0)
            return outputs

        monkeypatch.setattr(engine, "step", timed)
        monkeypatch.setattr("gristmill.classifiers.llm.vllm.time.perf_counter", lambda: self.now)


def test_the_fastest_way_of_feeding_is_found_and_answers_do_not_depend_on_it(tokens, monkeypatch):
    monkeypatch.setattr("gristmill.classifiers.llm.vllm.TURN", 64)
    asked = requests(64 * 14 + 20, opening="Final Score:", labels=LABELS)
    plain = {i: a.logprobs for i, a in model(tokens).answers(asked)}
    mine = model(tokens, measure_feeding=True, in_flight=16)
    Clock(mine._llm.llm_engine, monkeypatch)
    assert mine.feeding == "still measuring"
    found = list(mine.answers(asked))
    assert sorted(i for i, _ in found) == list(range(len(asked))) and {i: a.logprobs for i, a in found} == plain
    assert mine.feeding.startswith("with prefix cache") and mine.feeding.endswith(", 256 at a time")
    assert len(dict(mine.answers(requests(5, labels=LABELS)))) == 5

    def without_gain(self, ids, params):
        return 0 if params.skip_reading_prefix_cache else -100  # a cache that costs more than it spares

    monkeypatch.setattr(fake_vllm.Engine, "_cached", without_gain)
    slow = model(tokens, measure_feeding=True, in_flight=300)
    Clock(slow._llm.llm_engine, monkeypatch)
    assert len(dict(slow.answers(asked))) == len(asked) and slow.feeding.startswith("without prefix cache")


def test_orders_put_equal_beginnings_together():
    asked = [Request(shared=s, own="x" * n) for s, n in (("b", 3), ("a", 9), ("b", 1), ("a", 2))]
    assert Feeding(sorted=True).order(asked, range(4)) == [3, 1, 2, 0]
    assert Feeding().order(asked, range(1, 3)) == [1, 2]


def test_the_benchmark_runs_through_on_the_made_up_engine(tmp_path, capsys):
    from benchmarks.judges import medu_vllm

    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{i % 977} is the {i}th of many." for i in range(20_000)))
    options = medu_vllm.options_of([str(text), "--work", str(tmp_path), "--tiny"])
    medu_vllm.prepare(options)
    medu_vllm.in_process(options, caching=True)
    medu_vllm.serve(options)
    medu_vllm.in_process(options, caching=False)
    said = {
        (line["what"], line.get("prefix_caching")): line
        for line in map(json.loads, capsys.readouterr().out.splitlines())
    }
    assert (
        said["server against in process", None]["largest_difference"] == 0
        and said["server against in process", None]["documents"] == 30
    )
    assert said["documents a second: one pass, five labels", True]["sizes"]["cached_tokens"] >= 352
    assert said["documents a second: one pass, five labels", False]["sizes"]["cached_tokens"] == 0
    assert said["documents a second: medu.label, all answers kept", None]["account"]["kept"] == 60


def test_the_benchmark_of_serving_runs_through_on_the_made_up_engine(tmp_path, capsys, monkeypatch):
    from benchmarks.judges import serving_vllm

    monkeypatch.setattr("gristmill.classifiers.llm.vllm.TURN", 64)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{i % 977} is the {i}th of many." for i in range(20_000)))
    words = [
        str(text),
        "--work",
        str(tmp_path),
        "--tiny",
        "--draft",
        str(tmp_path),
        "--checkpoint",
        f"sparse={tmp_path}",
    ]
    serving_vllm.main(words)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    labels = {line["point"]: line for line in said if line["what"] == "documents a second: one pass, five labels"}
    reasoned = {line["point"]: line for line in said if line["what"] == "documents a second: reasoning"}
    assert set(labels) == {"plain", "feeding", "fp8", "sparse"} and set(reasoned) == {*labels, "ngram", "draft"}
    assert {line["spearman_to_plain"] for line in labels.values()} == {1.0}
    assert labels["feeding"]["feeding"] != "still measuring" and labels["plain"]["sizes"]["documents"] == 30


def test_all_stages_run_through_on_the_made_up_engine(tmp_path, capsys, monkeypatch):
    pytest.importorskip("pypdfium2")
    from benchmarks.judges import vllm_stages
    from gristmill.stages.judge import llm_score

    for name in ("TURN", "_imported"):  # which the script sets
        monkeypatch.setattr(f"gristmill.classifiers.llm.vllm.{name}", getattr(vllm_stages.back_end, name))
    llm_score.opened.cache_clear()
    vllm_stages.main(["--work", str(tmp_path), "--engine", "fake"])
    lines = {line["what"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    names = [f"stage: {name}" for name in vllm_stages.points(vllm_stages.options_of(["--work", str(tmp_path)]))]
    assert [what for what in lines if what.startswith("stage: ")] == names and len(names) == 12
    assert not [line for line in lines.values() if "failed" in line]
    assert all({"vllm", "torch"} <= lines[name]["versions"].keys() for name in names)
    marks = [lines[f"stage: {name}"]["marks"] for name in ("llm_score", "feeding", "options")]
    assert marks == [20, 15 * 64, 20] and lines["stage: options"]["largest_difference_to_plain"] == 0
    assert any(name.startswith("fed: with") for name in lines["stage: feeding"]["noted"])
    assert lines["stage: ocr"]["noted"]["ocr_pages"] == 4 and lines["stage: refine"]["noted"]["refine_asked"] >= 20
    assert lines["stage: judge rate"]["tasks"] == ["educational", "depth"]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_made_up_engine_takes_nothing_that_the_real_one_would_not():
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.logprobs import FlatLogprobs, Logprob
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    real = set(inspect.signature(vllm.LLM.__init__).parameters) | {field.name for field in fields(EngineArgs)}
    assert real >= fake_vllm.LLM_ARGUMENTS
    assert set(vllm.SamplingParams.__struct_fields__) >= {field.name for field in fields(fake_vllm.SamplingParams)}
    for name in ("add_request", "step", "has_unfinished_requests", "abort_request"):
        real_parameters = list(inspect.signature(getattr(LLMEngine, name)).parameters)
        mine = list(inspect.signature(getattr(fake_vllm.Engine, name)).parameters)
        assert real_parameters[: len(mine)] == mine
    assert RequestOutputKind.FINAL_ONLY.name == fake_vllm.RequestOutputKind.FINAL_ONLY.name
    flat = FlatLogprobs()
    flat.append({7: Logprob(-1.0), 9: Logprob(-2.0)})
    assert flat[0][9].logprob == -2.0
