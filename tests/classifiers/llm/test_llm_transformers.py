"""A tiny Llama by transformers: labels are the model's own log-probabilities, answers do not hang on neighbours."""

from __future__ import annotations

import pytest

from gristmill.classifiers.llm.model import Request
from gristmill.classifiers.llm.transformers import TransformersModel
from tests.classifiers.llm.llm_models import tiny_llama

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

LABELS = ("Great", "Good", "Okay", "Poor", "Useless")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("llama"))


def test_labels_are_read_off_one_pass(folder):
    model = TransformersModel(str(folder))
    request = Request(shared="the cat sat. ", own="on a mat <|im_end|>", opening="Final Score:", labels=LABELS)
    ((_, answer),) = model.answers([request])
    prompt = model.tokens.prompts([request])[0]
    logits = model._model(torch.tensor([prompt])).logits[0, -1]
    wanted = torch.log_softmax(logits.float(), -1)[list(model.tokens.labels(request).questions[0].tokens)]
    assert answer.logprobs == pytest.approx(wanted.tolist(), abs=1e-5)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.failure) == (len(prompt), 1, "")


def test_longer_labels_are_their_likelihood(folder):
    model = TransformersModel(str(folder))
    labels = ("Gzzq", "Gzzv", "Poor")
    request = Request(own="the cat", opening="Final Score:", labels=labels)
    ((_, answer),) = model.answers([request])
    prompt = model.tokens.prompts([request])[0]
    for label, value in zip(labels, answer.logprobs, strict=True):
        before = model.tokens.plain(["Final Score:"])[0]
        ids = model.tokens.plain([f"Final Score: {label}"])[0][len(before) :]
        likely = torch.log_softmax(model._model(torch.tensor([[*prompt, *ids]])).logits[0].detach().float(), -1)
        steps = [float(likely[len(prompt) - 1 + i, token]) for i, token in enumerate(ids)]
        own = len(ids) if label != "Poor" else 1
        assert value == pytest.approx(sum(steps[:own]), abs=1e-4)


def test_generation_is_the_same_whatever_was_asked_before(folder):
    model = TransformersModel(str(folder))
    asked = [Request(own=f"document {i}", max_tokens=12, temperature=t) for i in range(3) for t in (0.0, 1.0)]
    found = dict(model.answers(asked))
    torch.manual_seed(99)
    assert found[1].text != dict(TransformersModel(str(folder), seed=5).answers(asked))[1].text
    assert {i: answer.text for i, answer in found.items()} == {
        i: dict(model.answers([asked[i]]))[0].text for i in range(6)
    }
    assert all(0 < answer.completion_tokens <= 12 and answer.finish in ("stop", "length") for answer in found.values())


def test_a_prompt_beyond_the_model_fails_alone(folder):
    found = dict(
        TransformersModel(str(folder)).answers(
            [Request(own="word " * 2000, labels=LABELS), Request(own="word", labels=LABELS)]
        )
    )
    assert found[0].failure == "refused" and not found[1].failure


def test_identity_is_that_of_the_files(folder, tmp_path):
    first = TransformersModel(str(folder)).identity
    same, other = tmp_path / "same", tmp_path / "other"
    same.mkdir(), other.mkdir()
    assert TransformersModel(str(tiny_llama(same))).identity == first
    assert TransformersModel(str(tiny_llama(other, seed=1))).identity != first
