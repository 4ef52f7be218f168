"""Licenses in the words that people write, and files of sites in forms that the first tests had not."""

from __future__ import annotations

import pytest

from gristmill.stages.rights.licenses import license_granted
from gristmill.stages.rights.policies import ROBOTS, TDM_FILE, TRUST_TXT, Reserved, Robots, read_policy
from gristmill.stages.rights.site_table import addressed, host_of

NAMED = {
    "Creative Commons Attribution-Share Alike 3.0 Unported": "CC-BY-SA-3.0",
    "Creative Commons Attribution-No Derivative Works 3.0 United States": "CC-BY-ND-3.0",
    "Creative Commons Attribution-Noncommercial-No Derivative Works 3.0": "CC-BY-NC-ND-3.0",
    "Creative Commons Attribution-Noncommercial-Share Alike 3.0": "CC-BY-NC-SA-3.0",
    "Creative Commons Attribution-Non Commercial 4.0": "CC-BY-NC-4.0",
    "Creative Commons Attribution, Non-Commercial 4.0": "CC-BY-NC-4.0",
    "Creative Commons Attribution—NonCommercial 4.0": "CC-BY-NC-4.0",
    "Creative Commons Attribution + Noncommercial 4.0": "CC-BY-NC-4.0",
    "Creative Commons Attribution and NonCommercial 4.0": "CC-BY-NC-4.0",
    "Creative Commons BY-NC-ND 4.0": "CC-BY-NC-ND-4.0",
    "CC BY NC ND 4.0": "CC-BY-NC-ND-4.0",
    "CC BY, NC 4.0": "CC-BY-NC-4.0",
    "Creative Commons Attribution 4.0 International": "CC-BY-4.0",
    "CC BY 4.0 and other terms": "CC-BY-4.0",
}


@pytest.mark.parametrize("name", NAMED)
def test_every_part_of_a_name_counts(name: str) -> None:
    assert license_granted("this work is licensed under a ", name + " License.") == NAMED[name]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("This text is not licensed under ", "."),
        ("Our articles are no longer available under a ", " license."),
        ("It isn't published under ", "."),
        ("Older pages: the ", " licence does not apply."),
    ],
)
def test_a_license_that_is_denied_is_none(before: str, after: str) -> None:
    assert license_granted(before, f"Creative Commons Attribution 4.0{after}") is None
    assert license_granted("It is not new and is licensed under ", "CC BY 4.0.") == "CC-BY-4.0"


def robots(body: str, *agents: str) -> Robots:
    found = read_policy(ROBOTS, body.encode(), agents or ("CCBot", "GPTBot"), True)
    assert isinstance(found, Robots)
    return found


def test_lines_of_all_ends_and_agents_with_versions_are_read() -> None:
    lines = ["User-agent: *", "Allow: /", "", "User-agent: CCBot/2.0", "Disallow: /", ""]
    for end in ("\n", "\r\n", "\r"):
        assert robots(end.join(lines)).forbids("https://a.example/x") == "CCBot"
    assert read_policy(TRUST_TXT, b"member=a\rdatatrainingallowed=no\r", (), True) is True


def test_the_longest_path_and_an_agents_own_group_say_whether_training_is_refused() -> None:
    paths = robots("User-agent: *\nContent-Usage: train-ai=n\nContent-Usage: /open/ train-ai=y\n")
    assert not paths.refuses_training("https://a.example/open/a") and paths.refuses_training("https://a.example/b")
    groups = "User-agent: *\nContent-Signal: ai-train=no\n\nUser-agent: GPTBot\nContent-Signal: ai-train=yes\n"
    assert not robots(groups, "GPTBot").refuses_training("https://a.example/b")
    assert robots(groups, "GPTBot", "CCBot").refuses_training("https://a.example/b")
    silent = "User-agent: *\nContent-Signal: ai-train=no\n\nUser-agent: GPTBot\nDisallow: /private/\n"
    assert robots(silent, "GPTBot").refuses_training("https://a.example/b")


@pytest.mark.parametrize(
    ("location", "path"),
    [("/caf%C3%A9/", "/caf%c3%a9/x"), ("/caf%C3%A9/", "/café/x"), ("/café/", "/caf%C3%A9/x"), ("/%7Ejoe/", "/~joe/x")],
)
def test_percent_encoding_is_compared_in_tdmrep(location: str, path: str) -> None:
    body = f'[{{"location": "{location}", "tdm-reservation": 1}}]'
    found = read_policy(TDM_FILE, body.encode(), (), True)
    assert isinstance(found, Reserved) and found.value(f"https://a.example{path}") is True
    assert found.value("https://a.example/other") is None


def test_hosts_are_one_in_all_their_forms() -> None:
    assert host_of("https://bücher.example/a") == host_of("https://xn--bcher-kva.example") == "xn--bcher-kva.example"
    assert host_of("http://[2001:db8:0:0::1]/") == host_of("http://[2001:DB8::1]:80/x") != ""
    assert host_of("h.example/a?u=http://x.org/") == "h.example" and addressed("h.example/a") == "//h.example/a"
    assert addressed("https://h.example/a") == "https://h.example/a" and addressed("//h.example") == "//h.example"
    assert robots("User-agent: *\nDisallow: /private/\n").forbids(addressed("h.example/private/x")) is not None
