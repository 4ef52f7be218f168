"""What pages state of their use is found where they state it, and nowhere else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.html.terms import LICENSE, RESERVE, SAID, TAIL, term_places, term_places_plain
from gristmill.stages import KeepLicenses, PageTerms
from gristmill.stages.rights.licenses import license_in_words, license_of_address

REST = "<p>The mill stands by the river, and its wheel turns all day long.</p></body></html>"
PIECES = [
    *(word.decode() for word in (*RESERVE, *LICENSE, *SAID)), "<meta ", "<a href=", "<area ", "<link ", "<!--", "-->", "--!>", "<!-->",
    "<script type=application/ld+json>", "</script>", "<style>", "</style>", ">", "<", "/", " ", "\n", "x" * 40, "<b>", "é",
]  # fmt: skip


def terms(
    *pages: str | bytes | None, charset: str | None = None, meta: str | None = None
) -> list[dict[str, str | None]]:
    data = [page.encode() if isinstance(page, str) else page for page in pages]
    table = pa.table(
        {
            "html": pa.array(data, pa.binary()),
            "charset": pa.array([charset] * len(data), pa.string()),
            "meta": pa.array([meta] * len(data), pa.string()),
        }
    )
    return PageTerms()(table).select(["reservations", "license_stated", "license_stated_in"]).to_pylist()


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), st.integers(1, 3))
def test_places_are_those_of_the_plain_search(page: str, wanted: int) -> None:
    data = page.encode() + b"\n" * TAIL
    assert [tuple(row) for row in term_places(np.frombuffer(data, np.uint8), wanted).tolist()] == term_places_plain(
        data, wanted
    )


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_nothing_is_missed_at_the_end_of_a_page(page: str) -> None:
    data = page.encode()
    found = {tuple(row)[:2] for row in term_places(np.frombuffer(data, np.uint8), 3).tolist()}
    wanted = {row[:2] for row in term_places_plain(data, 3) if row[0] != 3}
    assert wanted <= found


BY_SA = "https://creativecommons.org/licenses/by-sa/4.0/"
STATED = [
    (f'<a rel="license" href="{BY_SA}">x</a>', "CC-BY-SA-4.0", "rel"),
    (f'<link rel="license" href="{BY_SA}">', "CC-BY-SA-4.0", "rel"),
    ("<A HREF='http://creativecommons.org/licenses/by/3.0/us/' REL='License nofollow'>x</A>", "CC-BY-3.0", "rel"),
    ("<a rel=license href=//creativecommons.org/licenses/by-nc-nd/2.5/deed.de>x</a>", "CC-BY-NC-ND-2.5", "rel"),
    ('<a itemprop="license" href="https://creativecommons.org/publicdomain/zero/1.0/">x</a>', "CC0-1.0", "rel"),
    ('<a property="dct:license" href="https://creativecommons.org/publicdomain/mark/1.0/">x</a>', "CC-PDM-1.0", "rel"),
    ('<a rel="license" href="https://www.gnu.org/licenses/fdl-1.3.html">x</a>', "GFDL-1.3", "rel"),
    ('<a rel="license" href="https://www.nationalarchives.gov.uk/doc/open-government-licence/version/3/">x</a>', "OGL-UK-3", "rel"),
    ('<a rel="license" href="https://opendatacommons.org/licenses/odbl/1-0/">x</a>', "ODbL-1.0", "rel"),
    ('<a rel="license" href="/terms">x</a>', "other", "rel"),
    ('<script type="application/ld+json">{"@type": "Article", "license": "' + BY_SA + '"}</script>', "CC-BY-SA-4.0", "json_ld"),
    ('<script type="application/ld+json">{"@graph": [{"@type": "WebPage", "license": {"@id": "' + BY_SA + '"}}]}</script>', "CC-BY-SA-4.0", "json_ld"),
    ("<script type='application/ld+json'>{\"@type\": \"Dataset\", \"license\": \"CC BY 4.0\"}</script>", "CC-BY-4.0", "json_ld"),
    ('<script type="application/ld+json">{"@type": "Article", "license": "https://a.example/terms"}</script>', "other", "json_ld"),
    (f'<meta name="dcterms.license" content="{BY_SA}">', "CC-BY-SA-4.0", "meta"),
    ('<meta name="DC.rights" content="Creative Commons Attribution-NonCommercial 4.0">', "CC-BY-NC-4.0", "meta"),
    ('<meta property="license" content="CC0">', "CC0-1.0", "meta"),
    ("<p>This work is licensed under a Creative Commons Attribution-ShareAlike 4.0 International License.</p>", "CC-BY-SA-4.0", "text"),
    (f'<p>Licensed under a <a href="{BY_SA}">Creative Commons Attribution-ShareAlike</a> licence</p>', "CC-BY-SA-4.0", "text"),
    ("<p>Text is available under the Creative Commons Attribution-ShareAlike License</p>", "CC-BY-SA", "text"),
    ("<p>Content on this site is released under CC BY-NC 3.0 unless noted.</p>", "CC-BY-NC-3.0", "text"),
    ("<p>All posts are shared under CC-BY 4.0.</p>", "CC-BY-4.0", "text"),
    ("<footer>License: CC0 1.0</footer>", "CC0-1.0", "text"),
    ("<p>published under <b>Creative Commons</b> Attribution-NonCommercial-NoDerivs 3.0</p>", "CC-BY-NC-ND-3.0", "text"),
    ("<p>Except where otherwise noted, this wiki is available under&nbsp;<i>CC BY-SA 4.0</i></p>", "CC-BY-SA-4.0", "text"),
    (f'<footer><a href="{BY_SA}"><img src="by-sa.png"></a></footer>', "CC-BY-SA-4.0", "link"),
    ("<area href='http://creativecommons.org/licenses/publicdomain/'>", "CC-PDM-1.0", "link"),
    (f'<a href="{BY_SA}">x</a> <a href="https://creativecommons.org/licenses/by/2.0/">y</a>', "several", "link"),
]  # fmt: skip
UNSTATED = [
    "<p>What is Creative Commons Attribution? An essay on who may copy what.</p>",
    '<a href="https://creativecommons.org/">Creative Commons</a>',
    '<a href="https://creativecommons.org/licenses/">all licences</a>',
    f'<!-- <a rel="license" href="{BY_SA}">x</a> -->',
    f"<script>var a = '<a rel=\"license\" href=\"{BY_SA}\">x</a>';</script>",
    '<style>.cc-by { color: red } /* licensed under CC BY 4.0 */</style>',
    '<script type="application/ld+json">{"@type": "ImageObject", "license": "' + BY_SA + '"}</script>',
    '<script type="application/ld+json">{"@type": "Article", "license": ""}</script>',
    '<script type="application/ld+json">{"@type": "Article", "license": </script>',
    '<a rel="nofollow" href="/licence-plates">Licence plates of Bavaria</a>',
    '<meta name="description" content="How to get a fishing license">',
    "<p>A licensed plumber came by at noon and left under the rain.</p>",
    '<a rel="license" href="">x</a>',
    "<p>creative communities of the valley, licensed under state law</p>",
    "<p>The cc-by-side comparison of engines</p>",
]  # fmt: skip


@pytest.mark.parametrize(("mark", "license", "source"), STATED)
def test_a_license_is_found_where_a_page_states_it(mark: str, license: str, source: str) -> None:
    assert len(STATED) == 28
    page = f"<html><body>{mark}{REST}"
    (found,) = terms(page)
    assert (found["license_stated"], found["license_stated_in"]) == (license, source)
    assert terms(page.encode("utf-16"))[0]["license_stated"] == license


@pytest.mark.parametrize("mark", UNSTATED)
def test_a_license_that_a_page_only_speaks_of_is_none(mark: str) -> None:
    assert len(UNSTATED) == 15
    assert terms(f"<html><body>{mark}{REST}")[0]["license_stated"] is None


def test_a_license_of_the_page_goes_before_one_that_it_links_to() -> None:
    by = "https://creativecommons.org/licenses/by/2.0/"
    page = f'<a href="{by}">picture</a><a rel="license" href="{BY_SA}">text</a>{REST}'
    assert terms(page)[0] == {"reservations": None, "license_stated": "CC-BY-SA-4.0", "license_stated_in": "rel"}


@pytest.mark.parametrize(
    ("mark", "reservations"),
    [
        ('<meta name="robots" content="noai, noimageai">', "meta=noai meta=noimageai"),
        ('<META CONTENT="index, NOAI" NAME="ROBOTS">', "meta=noai"),
        ('<meta name="GPTBot" content="noindex">', "meta=gptbot:noindex"),
        ('<meta name="CCBot, GPTBot" content="noindex">', "meta=ccbot:noindex meta=gptbot:noindex"),
        ('<meta name="tdm-reservation" content="1">', "tdm_meta=1"),
        ('<meta name="tdm-reservation" content="0">', "tdm_meta=0"),
        ('<meta name="robots" content="max-snippet:-1, noai">', "meta=noai"),
        ('<meta name="robots" content="index, follow">', None),
        ('<!-- <meta name="robots" content="noai"> -->', None),
        ('<meta name="description" content="noai is a word; so is noindex">', None),
    ],
)
def test_reservations_of_tags(mark: str, reservations: str | None) -> None:
    assert terms(f"<html><head>{mark}</head>{REST}")[0]["reservations"] == reservations


@pytest.mark.parametrize(
    ("meta", "reservations"),
    [
        ('{"x_robots_tag": "noai"}', "header=noai"),
        ('{"x_robots_tag": "googlebot: noindex, noai; otherbot: noarchive; nosnippet"}',
         "header=googlebot:noindex header=googlebot:noai header=otherbot:noarchive header=nosnippet"),
        ('{"tdm_reservation": "1", "tdm_policy": "https://a.example/p"}', "tdm_header=1"),
        ('{"content_usage": "train-ai=n, search=y"}', "usage_header=1"),
        ('{"content_usage": "train-ai=y"}', "usage_header=0"),
        ('{"title": "x_robots_tag"}', None),
        ("{", None),
    ],
)  # fmt: skip
def test_reservations_of_headers_need_no_page(meta: str, reservations: str | None) -> None:
    assert terms(None, meta=meta)[0]["reservations"] == reservations


@given(st.text(max_size=300), st.binary(max_size=300))
def test_anything_at_all_is_read(text: str, data: bytes) -> None:
    license_of_address(text), license_in_words(text)
    page = b"<meta name=robots content='noai'><a rel=license href='" + data + b"'>" + text.encode("utf-8", "replace")
    assert len(terms(page, data)) == 2


def test_licenses_are_kept_by_pattern_and_by_where_they_stand() -> None:
    table = pa.table(
        {
            "license_stated": ["CC-BY-4.0", "CC-BY-NC-4.0", "CC-BY", "CC-BY-SA-3.0", "other", "several", None],
            "license_stated_in": ["rel", "rel", "text", "link", "rel", "link", None],
        }
    )
    assert KeepLicenses()(table)["license_stated"].to_pylist() == ["CC-BY-4.0", "CC-BY"]
    every = KeepLicenses(licenses=("CC-*",), unstated=True)(table)["license_stated"].to_pylist()
    assert every == ["CC-BY-4.0", "CC-BY-NC-4.0", "CC-BY", "CC-BY-SA-3.0", "several", None]  # a link states none
