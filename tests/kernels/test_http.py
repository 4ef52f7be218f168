"""What clients share: who goes through which proxy, what is tried again, and after which pause."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import httpx2
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.common.http import backoff, causes, may_pass, proxy_for, retry_after


def test_pauses_double_up_to_a_limit_and_lose_at_most_half_to_jitter() -> None:
    longest = [backoff(failures, 0.5, 3.0, lambda low, high: high) for failures in range(1, 6)]
    shortest = [backoff(failures, 0.5, 3.0, lambda low, high: low) for failures in range(1, 6)]
    assert longest == [0.5, 1.0, 2.0, 3.0, 3.0] and shortest == [0.25, 0.5, 1.0, 1.5, 1.5]


def test_what_may_be_answered_otherwise_in_a_moment() -> None:
    assert [status for status in (200, 301, 400, 401, 404, 408, 409, 416, 425, 429, 500, 503) if may_pass(status)] == [
        408, 425, 429, 500, 503,
    ]  # fmt: skip


def test_an_error_is_followed_to_its_first_cause() -> None:
    first, second, last = OSError("refused"), ConnectionError("no connection"), RuntimeError("no answer")
    second.__context__, last.__cause__ = first, second
    assert [*causes(last)] == [last, second, first]


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert retry_after("7", now) == 7 and retry_after("1.5", now) == 1.5 and retry_after("-3", now) == 0
    assert retry_after("Thu, 01 Jan 2026 12:01:00 GMT", now) == 60
    assert (
        retry_after("Thu, 01 Jan 2026 11:00:00 GMT", now) == 0
        and retry_after("Thu, 01 Jan 2026 12:01:00 -0000", now) == 60
    )
    assert [retry_after(said, now) for said in ("", "soon", "nan", "Foo, 99 Bar")] == [None] * 4


NO_DATES = [
    "Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:00 +99999999999999999", "Fri, 31 Dec 9999 23:59:59 -9959",
    "Mon, 01 Jan 2024 99999999999999999999:00:00 GMT", "inf", "-inf", "1e400", "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("said", NO_DATES)
def test_a_date_that_no_calendar_has_says_nothing(said: str) -> None:
    assert retry_after(said, datetime(2026, 1, 1, tzinfo=UTC)) is None


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            ["Mon,", "01", "Jan", "2024", "0", "9" * 25, "00:00:00", ":", "GMT", "+9999", "-9959", "-", "1e999"]
        )
    ).map(" ".join)
)
def test_whatever_a_server_says_a_wait_is_a_number_or_none(said: str) -> None:
    wait = retry_after(said, datetime(2026, 1, 1, tzinfo=UTC))
    assert wait is None or (math.isfinite(wait) and wait >= 0)


def test_who_goes_through_which_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    def proxy_of(url: str) -> str:
        proxy = proxy_for(httpx2.URL(url))
        return str(proxy.url) if proxy else ""

    assert proxy_of("https://model.example/v1") == ""
    monkeypatch.setenv("HTTPS_PROXY", "http://secure.proxy:3128")
    monkeypatch.setenv("HTTP_PROXY", "plain.proxy:8080")
    monkeypatch.setenv("ALL_PROXY", "socks5://any.proxy:1080")  # not spoken here, and not needed
    monkeypatch.setenv("NO_PROXY", "inside.example, .corp.example,10.0.0.7,port.example:443")
    assert proxy_of("https://model.example/v1") == "http://secure.proxy:3128"
    assert proxy_of("http://model.example/v1") == "http://plain.proxy:8080"
    assert proxy_of("https://port.example:8443/v1") == "http://secure.proxy:3128"
    for host in (
        "inside.example", "gpu.corp.example", "10.0.0.7", "port.example", "localhost", "127.0.0.1", "[::1]",
    ):  # fmt: skip
        assert proxy_of(f"https://{host}/v1") == "", host
    monkeypatch.setenv("NO_PROXY", "*")
    assert proxy_of("https://model.example/v1") == ""
