"""What a list asks for is told by its form, and matched in whatever spelling a document has it; nothing else is."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gristmill.pipeline.errors import DamagedFile, RecipeError, RunFailed
from gristmill.pipeline.forget.request import entry_of, kind_of, read_request
from gristmill.pipeline.store.forgotten import LIST, Forgotten, emails_in, read_list
from gristmill.pipeline.store.storage import Store


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0123456789abcdef", "uid"),
        ("https://example.org/a?b=1", "url"),
        ("example.org/a/b", "url"),
        ("12345678901234567890", "uid"),
        ("0xee28e33740184174", "uid"),
        ("example.org", "host"),
        ("Sub.Example.co.uk", "host"),
        ("someone+x@example.org", "email"),
        ("a" * 32, "xxh3"),
        ("A" * 64, "sha256"),
    ],
)
def test_the_form_tells_the_kind(line: str, kind: str) -> None:
    assert kind_of(line) == kind
    assert entry_of(line) == entry_of(f"{kind}: {line}")


@pytest.mark.parametrize(
    "line", ["some words", "0123", "@example.org", "host:", "uid:xyz", "host:a/b", "email:a b@c.de"]
)
def test_a_line_of_no_kind_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "l").write_text(f"# a remark\n\n{line}\nexample.org\n")
    with pytest.raises(RecipeError, match="line 3: not a uid"):
        read_request(tmp_path / "l")


def test_a_list_that_asks_for_nothing_or_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("# nothing\n\n")
    with pytest.raises(RecipeError, match="no line asks for anything"):
        read_request(tmp_path / "l")
    with pytest.raises(RecipeError, match="No such file"):
        read_request(tmp_path / "other")
    (tmp_path / "l").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="not UTF-8"):
        read_request(tmp_path / "l")


def meant(lines: list[str], documents: list[dict[str, object]]) -> list[str]:
    keys: dict[str, set[int]] = {}
    for line in lines:
        kind, of_line = entry_of(line)
        keys.setdefault(kind, set()).update(of_line)
    table = pa.table(
        {
            "uid": pa.array([document.get("uid", 1) for document in documents], pa.uint64()),
            "url": pa.array([document.get("url") for document in documents], pa.string()),
            "text": pa.array([document.get("text") for document in documents], pa.string()),
        }
    )
    return ["forgotten" if goes else "" for goes in Forgotten.of(keys).matches(table)]


def test_urls_and_hosts_in_any_spelling() -> None:
    urls = [
        "http://www.example.org/a/?x=1&b=2",
        "https://example.org/a?b=2&x=1#part",
        "https://example.org/a?b=3",
        None,
    ]
    documents: list[dict[str, object]] = [{"url": url} for url in urls]
    assert meant(["https://example.org/a?b=2&x=1"], documents) == ["forgotten", "forgotten", "", ""]
    hosts = [
        "http://example.org/",
        "https://WWW.Example.org:8080/x",
        "https://sub.example.org/",
        "https://myexample.org/",
        "",
    ]
    documents = [{"url": url} for url in hosts]
    assert meant(["example.org"], documents) == ["forgotten", "forgotten", "forgotten", "", ""]
    assert meant(["sub.example.org"], documents) == ["", "", "forgotten", "", ""]


def test_texts_by_hash_and_address() -> None:
    texts = ["Write to Some.One@Mail.example, now", "some.one@mail.example.org", "a text", "a text ", None]
    documents: list[dict[str, object]] = [{"text": text} for text in texts]
    assert meant(["some.one@mail.example"], documents) == ["forgotten", "", "", "", ""]
    sha = hashlib.sha256(b"a text").hexdigest()
    assert meant([sha], documents) == ["", "", "forgotten", "", ""]
    assert meant([f"{7:016x}"], [{"uid": 7}, {"uid": 8}]) == ["forgotten", ""]


def test_a_hostile_text_takes_no_longer_than_another() -> None:
    hostile = b"a" * 2_000_000 + b"@" * 2_000_000 + b"b." * 1_000_000
    begin = time.monotonic()
    assert list(emails_in(hostile))[:1] != [b""]
    assert time.monotonic() - begin < 20


def test_a_list_is_read_as_it_was_written_and_a_damaged_one_stops_the_run(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert read_list(store) is None
    with pytest.raises(DamagedFile):
        read_list(store, "0" * 32)
    forgotten = Forgotten.of({"uid": [3, 1, 3], "host": [9]}).merged(Forgotten.of({"uid": [2]}))
    store.write(LIST, forgotten.plain())
    there = read_list(store)
    assert there is not None and there.keys["uid"].tolist() == [1, 2, 3] and there.keys["host"].tolist() == [9]
    assert there.checksum == forgotten.checksum
    assert there.has("uid", np.array([0, 2, 4], np.uint64)).tolist() == [False, True, False]
    with pytest.raises(DamagedFile):
        read_list(store, "0" * 32)
    store.write(LIST, b'{"version": 1}')
    with pytest.raises(RunFailed, match="not a list of forgotten documents"):
        read_list(store)
