"""Whatever a server does, every request is answered once, by its first whole reply, and the answers are those of a
healthy run."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from gristmill.classifiers.llm import http
from gristmill.classifiers.llm.account import Account, Prices
from gristmill.classifiers.llm.cache import AnswerCache, answer_all
from gristmill.classifiers.llm.http import Endpoint, HttpModel
from gristmill.classifiers.llm.http_forms import NoAnswer, by_text, entry_of, form_of
from gristmill.classifiers.llm.model import ABSENT, LanguageModelError, Request, request_key
from tests.classifiers.llm.llm_server import WHOLE, LanguageServer, chat_reply, prompt_of, text_reply

LABELS = ("Great", "Good", "Okay", "Poor", "Useless")
TROUBLES = [
    "429", "503", "500", "cut json", "no json", "deep json", "no choices", "disconnect", "cut body", "long header", "huge",
]  # fmt: skip


def rule(path: str, body: dict) -> dict:
    """Text and label probabilities by a hash of the prompt."""
    digest = hashlib.sha256(prompt_of(body).encode()).digest()
    likely = {f" {label}": -1.75 - digest[i] / 64 for i, label in enumerate(LABELS)} if body.get("logprobs") else None
    if path.endswith("/chat/completions"):
        return chat_reply(f"said {digest.hex()[:8]}", likely)
    return text_reply(f"said {digest.hex()[:8]}", likely)


def pick(prompt: str, choices: list[str], salt: str) -> str:
    return choices[int.from_bytes(hashlib.sha256((salt + prompt).encode()).digest()[:4], "big") % len(choices)]


def endpoint(server: LanguageServer, **settings) -> Endpoint:
    return Endpoint(
        **{
            "url": server.url,
            "model": "m",
            "timeout": 5.0,
            "first_pause": 0.01,
            "longest_pause": 0.05,
            "connections": 16,
            **settings,
        }
    )


def requests(count: int, **settings) -> list[Request]:
    return [Request(shared="The rubric. ", own=f"document {i}", **settings) for i in range(count)]


def said(model: HttpModel, asked: list[Request]) -> dict[int, tuple]:
    pairs = [
        (i, (a.text, a.logprobs, a.prompt_tokens, a.completion_tokens, a.cached_tokens, a.failure))
        for i, a in model.answers(asked)
    ]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


@pytest.mark.parametrize("form", ["chat", "completions"])
@pytest.mark.parametrize("labels", [(), LABELS])
def test_nothing_is_lost_or_scored_twice_whatever_the_server_does(form, labels):
    asked = requests(120, labels=labels)

    def mood(prompt: str, before: int) -> str:
        return pick(prompt, TROUBLES, str(before)) if before < pick_count(prompt) else pick(prompt, list(WHOLE), "end")

    def pick_count(prompt: str) -> int:
        return int(pick(prompt, ["0", "1", "2", "3"], "count"))

    with LanguageServer(rule) as healthy:
        wanted = said(HttpModel(endpoint(healthy, form=form)), asked)
        assert sum(healthy.asked.values()) == 120
    with LanguageServer(rule, mood) as ill:
        found = said(HttpModel(endpoint(ill, form=form)), asked)
        counts = {prompt: pick_count(prompt) for prompt in ill.asked}
    assert len(wanted) == 120 and found == wanted and not any(answer[-1] for answer in found.values())
    assert len(ill.asked) == 120 and len(set(counts.values())) == 4
    assert ill.asked == {prompt: count + 1 for prompt, count in counts.items()}
    assert ill.delivered == dict.fromkeys(counts, 1)
    assert all(len(names) == 1 for names in ill.names.values())


def test_as_many_are_on_their_way_as_there_are_connections():
    def slow(path: str, body: dict) -> dict:
        time.sleep(0.05)
        return rule(path, body)

    with LanguageServer(slow) as server:
        assert len(said(HttpModel(endpoint(server, connections=8)), requests(48))) == 48
        assert 4 <= server.most_at_once <= 8


def test_an_idle_connection_that_the_server_closed_costs_no_try_and_a_broken_one_does():
    with LanguageServer(rule, lambda prompt, before: "close quietly") as server:
        found = said(HttpModel(endpoint(server, connections=1, attempts=1)), requests(10))
    assert len(found) == 10 and not any(answer[-1] for answer in found.values()) and set(server.asked.values()) == {1}
    with LanguageServer(rule, lambda prompt, before: "disconnect") as server:
        ((_, answer),) = HttpModel(endpoint(server, attempts=1)).answers(requests(1))
    assert answer.failure == "disconnected" and set(server.asked.values()) == {1}


@pytest.mark.parametrize("trouble", ["hang", "drip"])
def test_a_server_that_dawdles_is_given_up_in_time(trouble):
    asked = requests(8)
    with LanguageServer(rule, lambda prompt, before: trouble if before == 0 else "") as server:
        found = said(HttpModel(endpoint(server, timeout=2.0)), asked)
    assert not any(answer[-1] for answer in found.values()) and len(found) == 8
    assert set(server.asked.values()) == {2} and set(server.delivered.values()) == {1}


def test_what_never_works_is_a_failure_of_its_kind_and_the_others_are_answered():
    kinds = {"429": "rate_limited", "500": "server_error", "cut json": "bad_json", "no choices": "no_choices", "disconnect": "disconnected",
             "400": "refused", "drip": "timeout"}  # fmt: skip
    asked = [Request(own=kind) for kind in kinds] + requests(5)
    with LanguageServer(rule, lambda prompt, before: prompt if prompt in kinds else "") as server:
        found = dict(HttpModel(endpoint(server, attempts=3, timeout=2.0)).answers(asked))
    assert [found[i].failure for i in range(len(kinds))] == list(kinds.values())
    assert all(found[i].detail for i in range(len(kinds)))
    assert [found[len(kinds) + i].failure for i in range(5)] == [""] * 5
    assert server.asked["400"] == 1 and server.asked["500"] == server.asked["429"] == 3


def test_retry_after_holds_all_connections_back():
    arrivals = []

    def mood(prompt: str, before: int) -> str:
        arrivals.append((time.monotonic(), prompt))
        return "429" if prompt.endswith("document 0") and before == 0 else ""

    asked = requests(40)
    with LanguageServer(rule, mood, retry_after="0.5") as server:
        found = said(HttpModel(endpoint(server, connections=1)), asked)
    assert len(found) == 40 and arrivals[1][0] - arrivals[0][0] >= 0.5
    with LanguageServer(rule, lambda prompt, before: "429", retry_after="9999") as server:
        ((_, answer),) = HttpModel(endpoint(server)).answers(asked[:1])
    assert (
        answer.failure == "rate_limited" and "asks to wait 9999 s" in answer.detail and sum(server.asked.values()) == 1
    )


@pytest.mark.parametrize(
    "said",
    ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:00 +99999999999999999", "inf"],
)
def test_a_malformed_retry_after_delays_its_request_and_ends_nothing(said):
    with LanguageServer(rule, lambda prompt, before: "429" if before == 0 else "", retry_after=said) as server:
        found = dict(HttpModel(endpoint(server)).answers(requests(10)))
    assert (
        len(found) == 10 and not any(answer.failure for answer in found.values()) and set(server.asked.values()) == {2}
    )


@pytest.mark.parametrize(
    ("trouble", "message"), [("404", "no such model or path"), ("302", "redirects are not followed")]
)
def test_what_cannot_pass_stops_at_once_and_says_why(trouble, message):
    with (
        LanguageServer(rule, lambda prompt, before: trouble) as server,
        pytest.raises(LanguageModelError, match=message),
    ):
        said(HttpModel(endpoint(server)), requests(1000))
    assert sum(server.asked.values()) <= 32


def test_the_key_comes_from_the_environment_and_is_told_to_nobody_else(monkeypatch):
    monkeypatch.setenv("OUR_KEY", "s3cret")
    with LanguageServer(rule, key="s3cret") as server:
        model = HttpModel(endpoint(server, key_variable="OUR_KEY"))
        assert len(said(model, requests(3))) == 3
        assert "s3cret" not in repr(vars(model)) + repr(model.identity) + repr(model.endpoint)
        monkeypatch.setenv("OUR_KEY", "wr0ng")
        with pytest.raises(LanguageModelError, match="key is missing or wrong") as caught:
            said(model, requests(3))
        assert "wr0ng" not in str(caught.value)
        monkeypatch.setenv("OUR_KEY", "a\r\nHost: b")
        with pytest.raises(LanguageModelError, match="no key has"):
            said(model, requests(3))
        monkeypatch.delenv("OUR_KEY")
        with pytest.raises(LanguageModelError, match="OUR_KEY is empty"):
            said(model, requests(3))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a/b",
        "file:///etc/passwd",
        "http://",
        "http://me:pw@host/v1",
        "http://h/v1?key=1",
        "http://h:99999/",
        "http://h/a b",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match=r"expected|out of range|space"):
        Endpoint(url=url, model="m")


def test_a_slash_at_the_end_of_an_address_is_none():
    def path_of(path: str, body: dict) -> dict:
        return chat_reply(path)

    with LanguageServer(path_of) as server:
        ((_, answer),) = HttpModel(endpoint(server, url=server.url + "/")).answers(requests(1))
    assert answer.text == "/v1/chat/completions"


def test_a_reply_without_bound_is_given_up(monkeypatch):
    monkeypatch.setattr(http, "MOST_BODY", 100_000)
    with LanguageServer(lambda path, body: chat_reply("x" * 200_000)) as server:
        ((_, answer),) = HttpModel(endpoint(server, attempts=2)).answers(requests(1))
    assert (answer.failure, sum(server.asked.values())) == ("disconnected", 2) and "over 100000 bytes" in answer.detail


def test_a_model_that_was_asked_before_a_fork_is_asked_after_it():
    with LanguageServer(rule) as server:
        model = HttpModel(endpoint(server))
        wanted = said(model, requests(20))
        child = multiprocessing.get_context("fork").Process(
            target=lambda: sys.exit(said(model, requests(20)) != wanted)
        )
        child.start()
        child.join(30)
    assert child.exitcode == 0 and sum(server.asked.values()) == 40


def test_ctrl_c_stops_at_once():
    main = threading.main_thread()
    if threading.current_thread() is not main:
        pytest.skip("signals come to the main thread")

    def mood(prompt: str, before: int) -> str:
        if sum(server.asked.values()) == 16:
            signal.pthread_kill(main.ident, signal.SIGINT)
        return "hang"

    with LanguageServer(rule, mood) as server:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            said(HttpModel(endpoint(server, timeout=60.0)), requests(50))
        assert time.monotonic() - start < 10 and sum(server.asked.values()) == 16
    assert not any(thread.name == "llm-http" for thread in threading.enumerate())


def test_a_run_that_is_stopped_keeps_what_it_had_and_asks_no_more(tmp_path):
    asked = requests(200)
    with LanguageServer(rule) as server:
        model = HttpModel(endpoint(server, connections=4))
        with AnswerCache(tmp_path / "answers") as cache:
            going = answer_all(model, asked, Account(), cache)
            for _ in range(50):
                next(going)
            going.close()
            assert len(cache) == 50
        time.sleep(0.3)  # what was on its way has arrived
        first = sum(server.asked.values())
        assert first <= 50 + 16 and threading.active_count() < 20
        with AnswerCache(tmp_path / "answers") as cache:
            account = Account()
            assert len(dict(answer_all(model, asked, account, cache))) == 200
            assert (account.kept, account.calls) == (50, 150)
        assert first + 150 == sum(server.asked.values())


def test_a_consumer_that_takes_its_time_makes_no_timeouts():
    with LanguageServer(rule) as server:
        found = []
        for pair in HttpModel(endpoint(server, timeout=2.0, connections=2)).answers(requests(6)):
            time.sleep(0.5)
            found.append(pair)
    assert len(found) == 6 and set(server.asked.values()) == {1} and not any(answer.failure for _, answer in found)


def test_no_requests_are_no_answers():
    assert list(HttpModel(Endpoint(url="http://127.0.0.1:1/v1", model="m", key_variable="UNSET_KEY")).answers([])) == []


def test_an_endpoint_nobody_listens_at_is_a_failure():
    with LanguageServer(rule) as server:
        url = server.url
    ((_, answer),) = HttpModel(Endpoint(url=url, model="m", attempts=2, first_pause=0.01)).answers(requests(1))
    assert answer.failure == "disconnected" and "no connection to 127.0.0.1" in answer.detail


def test_one_token_is_asked_for_and_all_likely_ones_are_read():
    with LanguageServer(rule) as server:
        said(HttpModel(endpoint(server, body={"seed": 3})), requests(1, labels=LABELS))
        said(HttpModel(endpoint(server, form="completions")), [Request(own="x", opening="Final Score:", labels=LABELS)])
    chat, text = server.bodies
    assert (chat["max_tokens"], chat["logprobs"], chat["top_logprobs"], chat["seed"]) == (1, True, 20, 3)
    assert (text["max_tokens"], text["logprobs"], text["prompt"]) == (1, 5, "xFinal Score:")


def test_models_that_think_first_are_asked_in_their_own_way():
    with LanguageServer(rule) as server:
        model = HttpModel(endpoint(server, form="thinking"))
        said(model, requests(1))
        with pytest.raises(LanguageModelError, match="take the reading `reasoned`"):
            said(model, requests(1, labels=LABELS))
    (body,) = server.bodies
    assert body["max_completion_tokens"] == requests(1)[0].max_tokens and not {
        "temperature",
        "max_tokens",
        "logprobs",
    } & set(body)


def test_tokens_count_for_the_label_they_begin():
    found = by_text(
        listed({" Great": -2.0, "Great": -2.5, "Use": -3.0, "G": -4.0, "the": -1.5, "": -1.2, "Goodness": -1.7}), LABELS
    )
    assert found[0] == pytest.approx(-1.5259, abs=1e-4) and found[4] == pytest.approx(-3.0)
    assert [found[1], found[2], found[3]] == [ABSENT] * 3
    for likely in ({"the": -0.1}, {"G": -0.1}, {}):
        with pytest.raises(NoAnswer, match="none of the labels"):
            by_text(listed(likely), LABELS)
    with pytest.raises(NoAnswer, match="labels begin alike"):
        by_text(listed({"G": -2.0, "Poor": -1.0}), LABELS)  # `Great` and `Good` would get nothing of it


def test_a_label_in_other_capitals_counts_only_where_it_is_whole():
    found = by_text(listed({"great": -0.1, "GREAT": -3.0, "okay": -4.0, "use": -5.0}), LABELS)
    assert found[0] == pytest.approx(math.log(math.exp(-0.1) + math.exp(-3.0)))
    assert found[2] == pytest.approx(-4.0) and found[4] == ABSENT


def listed(likely: dict[str, float]) -> list[tuple[str, float, bytes | None]]:
    return [(token, value, None) for token, value in likely.items()]


@pytest.mark.parametrize("form", ["chat", "completions"])
def test_labels_of_which_one_begins_another_are_refused_as_text(form):
    ten = tuple(str(mark) for mark in range(11))
    with pytest.raises(LanguageModelError, match="label '1' is the beginning of label '10'"):
        form_of(form, "m", 0, {}, None).bodies(Request("shared", "own", labels=ten))


@pytest.mark.parametrize("reply", [
    {"choices": [{"message": {"content": None}}]}, {"choices": [{}]}, {"choices": [3]}, {"choices": [{"message": "x"}]},
    {"choices": [{"message": {"content": "x"}, "logprobs": {"content": []}}]},
    {"choices": [{"message": {"content": "x"}, "logprobs": {"content": [{"top_logprobs": [{"token": "Great", "logprob": "low"}]}]}}]},
])  # fmt: skip
def test_a_reply_of_another_shape_is_a_failure_and_no_crash(reply):
    with LanguageServer(lambda path, body: reply) as server:
        ((_, answer),) = HttpModel(endpoint(server)).answers(requests(1, labels=LABELS))
    assert answer.failure in ("no_labels", "no_choices") and json.dumps(answer.detail)


def test_a_second_reply_to_one_request_is_no_answer_to_the_next() -> None:
    def echo(path: str, body: dict) -> dict:
        return chat_reply(prompt_of(body))

    asked = requests(6)
    with LanguageServer(
        echo, lambda prompt, before: "twice" if prompt.endswith(("1", "3")) and not before else ""
    ) as server:
        found = said(HttpModel(endpoint(server, connections=1)), asked)
    assert [found[i][0] for i in range(6)] == [request.shared + request.own for request in asked]
    assert not any(answer[-1] for answer in found.values()) and sum(server.asked.values()) <= 8


def with_usage(usage: object, **message: object) -> dict:
    reply = chat_reply("Final Score: Great")
    reply["choices"][0]["message"].update(message)
    return {**reply, "usage": usage}


@pytest.mark.parametrize(("usage", "guessed"), [
    ({"prompt_tokens": 7, "completion_tokens": 3}, False), (None, True), ({"prompt_tokens": 10**30, "completion_tokens": 3}, True),
    ({"prompt_tokens": 7, "completion_tokens": -3}, True), ({"prompt_tokens": math.nan, "completion_tokens": 3}, True),
    ({"prompt_tokens": True, "completion_tokens": "3"}, True),
    ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 10**9}}, False),
])  # fmt: skip
def test_tokens_that_no_server_can_have_spent_are_estimated_and_counted_as_such(usage: object, guessed: bool) -> None:
    account = Account()
    with LanguageServer(lambda path, body: with_usage(usage)) as server:
        list(answer_all(HttpModel(endpoint(server)), requests(1), account))
        size = len(json.dumps(server.bodies[0]))
    assert account.guessed == guessed and 0 <= account.cached_tokens <= account.prompt_tokens
    assert 1 <= account.prompt_tokens <= size and 1 <= account.completion_tokens <= 100
    assert 0 < account.cost(Prices(1.0, 1.0, 0.1)) < 1e-3
    assert account.as_dict()["tokens_guessed"] == guessed


def test_answers_that_are_of_no_use_are_paid_for_all_the_same() -> None:
    replies = {
        "document 0": with_usage({"prompt_tokens": 7, "completion_tokens": 3}, content=None),
        "document 1": {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
        "document 3": with_usage({"prompt_tokens": 7, "completion_tokens": 3}, content="half \ud800 a sign"),
        "document 4": with_usage({"prompt_tokens": 7, "completion_tokens": 3}, content="nul \0"),
        "document 2": chat_reply("Final Score: Gr", finish="content_filter"),
    }
    account = Account()
    with LanguageServer(lambda path, body: replies[prompt_of(body).removeprefix("The rubric. ")]) as server:
        list(answer_all(HttpModel(endpoint(server, attempts=3)), requests(5), account))
    assert account.failures == {"no_text": 1, "no_choices": 1, "filtered": 1, "bad_text": 2}
    assert (account.prompt_tokens, account.completion_tokens) == (7 * 7, 3 * 7)  # document 1 was asked three times


def test_kept_answers_still_say_who_gave_them_and_what_they_cost(tmp_path: Path) -> None:
    def swapped(path: str, body: dict) -> dict:
        return {**chat_reply("x"), "model": "small" if prompt_of(body).endswith("3") else "large"}

    with LanguageServer(swapped) as server, AnswerCache(tmp_path / "a") as cache:
        first, again = Account(), Account()
        for account in (first, again):
            list(answer_all(HttpModel(endpoint(server)), requests(4), account, cache))
    prices = Prices(3.0, 15.0)
    assert (
        again.as_dict(prices)["cost"] == 0 and again.as_dict(prices)["kept_cost"] == first.as_dict(prices)["cost"] > 0
    )
    assert again.kept == 4 and first.as_dict()["answered_by"] == again.as_dict()["answered_by"] == {
        "large": 3,
        "small": 1,
    }


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        ("insufficient_system_resource", "aborted"),
        ("tool_calls", "aborted"),
        ("SAFETY", "filtered"),
        ("content_filter", "filtered"),
        ("abort", "aborted"),
        ("error", "aborted"),
    ],
)
@pytest.mark.parametrize("labels", [(), LABELS])
def test_an_answer_that_the_server_gave_up_is_no_answer_and_is_not_kept(finish, kind, labels, tmp_path):
    likely = dict.fromkeys(labels, -1.0)
    reply = chat_reply("It says of itself: Final Score: Great", likely or None, finish)
    with LanguageServer(lambda path, body: reply) as server, AnswerCache(tmp_path / "a") as cache:
        ((_, answer),) = answer_all(HttpModel(endpoint(server)), requests(1, labels=labels), Account(), cache)
        assert (answer.failure, len(cache)) == (kind, 0) and finish in answer.detail


def test_probabilities_that_are_no_numbers_are_no_answer():
    with pytest.raises(NoAnswer, match="no number"):
        entry_of("Good", math.nan)


def test_a_body_does_not_say_what_requests_say():
    for name, value in {"temperature": 0.7, "max_tokens": 5, "stream": True, "model": "other"}.items():
        with pytest.raises(ValueError, match=f"body names {name}"):
            Endpoint("http://localhost:1/v1", "m", body={"seed": 1, name: value})


def test_replies_are_asked_for_as_they_are_and_compressed_ones_named():
    with LanguageServer(rule, lambda prompt, before: "gzip") as server:
        with pytest.raises(LanguageModelError, match=r"compresses its replies \('gzip'\)"):
            list(HttpModel(endpoint(server)).answers(requests(1)))
        assert server.headers[0]["Accept-Encoding"] == "identity"


def test_token_ids_ask_for_exact_labels():
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer

    from gristmill.classifiers.llm.tokens import PromptTokens
    from tests.classifiers.llm.llm_models import chat_tokenizer

    tokens = PromptTokens(chat_tokenizer(), chat=True)

    def exact(path: str, body: dict) -> dict:
        assert path == "/v1/completions" and body["return_tokens_as_token_ids"] and body["logprobs"] == 1
        return text_reply("x", {f"token_id:{token}": -3 - token / 100 for token in [1, *body["logprob_token_ids"]]})

    for labels in (LABELS, ("Gzzq", "Gzzv")):
        request = Request(own="a <|im_end|>", opening="Final Score:", labels=labels)
        tree = tokens.labels(request)
        with LanguageServer(exact) as server:
            ((_, answer),) = HttpModel(endpoint(server, form="tokens"), tokens).answers([request])
        assert answer.logprobs == pytest.approx(
            tree.logprobs([[-3 - token / 100 for token in q.tokens] for q in tree.questions])
        )
        assert len(server.bodies) == len(tree.questions)
        assert server.bodies[0]["prompt"] == tokens.prompts([request])[0]
    written = tokens.tokenizer.backend_tokenizer.to_str()
    same, framed = (chat_tokenizer(Tokenizer.from_str(written)) for _ in range(2))
    framed.chat_template = "Be brief. " + framed.chat_template
    one = Endpoint("http://localhost:1/v1", "m", form="tokens")
    keys = [
        request_key(Request(own="a"), HttpModel(one, made).identity)
        for made in (tokens, PromptTokens(same, True), PromptTokens(framed, True))
    ]
    assert keys[0] == keys[1] != keys[2]
    with LanguageServer(rule) as server:  # knows nothing of token ids
        ((_, answer),) = HttpModel(endpoint(server, form="tokens"), tokens).answers(
            [Request(own="a", opening="Final Score:", labels=LABELS)]
        )
    assert answer.failure == "no_labels" and "Use form `completions`" in answer.detail
    with pytest.raises(LanguageModelError, match="needs the model's tokenizer"):
        HttpModel(endpoint(server, form="tokens"))
