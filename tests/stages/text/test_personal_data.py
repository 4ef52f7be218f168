"""The stage masks and counts; texts without personal data are handed on as they are."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base import columns
from gristmill.kernels.common.settings import SettingsError
from gristmill.kernels.personal_data.spans import KINDS
from gristmill.stages import PersonalData
from gristmill.stages.stage import CannotRun
from tests.reference.spans_plain import spans_plain

TEXT = (
    "Ann <ann@a.org>, +49 30 1234567, ann@a.org, 93.184.216.34, 2600:1f18:1::1, 4111 1111 1111 1111, GB29 NWBK 6016 1331 9268 19, SSN 536-90-4399, AKIA"
    + "ABCD1234" * 2
)
MASKED = "Ann <<email>>, <phone>, <email>, <ip>, <ip>, <card>, <iban>, SSN <ssn>, <key>"
COUNTS = {"emails": 2, "ips": 2, "phones": 1, "cards": 1, "ibans": 1, "keys": 1, "ssns": 1}


def batch_of(texts, kind=None):
    return pa.record_batch({"text": pa.array(texts, kind or pa.string())})


def test_tags_and_counts():
    done = PersonalData().apply(batch_of([TEXT, None, "", "none here"]))
    assert done.batch["text"].to_pylist() == [MASKED, None, "", "none here"] and done.verdict.kept.all()
    assert {name.removeprefix("personal_"): done.batch[name].to_pylist() for name in PersonalData.adds} == {
        kind: [count, 0, 0, 0] for kind, count in COUNTS.items()
    }
    assert all(done.batch[name].null_count == 0 and done.batch[name].type == pa.int32() for name in PersonalData.adds)


def test_country_codes_are_those_in_use():
    numbers = ["+20 100 123 4567", "+211 912 345 678", "+423 234 56 78 9", "+692 234 567 890", "+998 90 123 45 67"]
    numbers += ["+800 1234 5678", "+49 30 1234567", "+7 495 123 45 67", "+1 212 555 0123"]
    others = ["+210 123 456 789", "+999 123 456 789", "+851 1234 5678", "+384 123 456 789", "+28 123 456 789"]
    others += ["+83 12 345 6789", "+888 123 456 789", "+259 123 456 789"]
    done = PersonalData()([{"text": text} for text in numbers + others])
    assert [row["personal_phones"] for row in done] == [1] * len(numbers) + [0] * len(others)


def test_only_what_is_asked_for():
    done = PersonalData(kinds=["ip", "key"]).apply(batch_of([TEXT])).batch
    assert (
        done["text"][0].as_py().count("<ip>") == 2
        and "ann@a.org" in done["text"][0].as_py()
        and done["personal_emails"][0].as_py() == 0
    )
    with pytest.raises(SettingsError):
        PersonalData(kinds=[])


def test_fakes_are_harmless_stable_and_depend_on_the_seed():
    def faked(text, **settings):
        return PersonalData(style="fake", **settings)(pa.table({"text": [text]}))["text"][0].as_py()

    text = faked(TEXT)
    assert text == faked(TEXT) != faked(TEXT, seed=1)
    first, second = [part.strip("<> ") for part in text.split(",")[0:3:2]]
    assert first.removeprefix("Ann <") == second and second.split("@")[1] in (
        "example.com",
        "example.net",
        "example.org",
    )
    assert "SSN 987-65-432" in text and faked("SSN 536-90-4399") == faked("SSN 536 90 4399")
    assert "2001:db8::" in text and "-555-01" in text and text.endswith("<key>")
    assert faked("+1 212 555 9999") == faked("+1-212-555-9999"), "spelling does not matter"
    assert "93.184" not in text and spans_plain(faked("93.184.216.34").encode()) == []


def test_without_any_span_the_same_buffers():
    batch = batch_of(["no data", "3.14 and 2024-01-02"])
    done = PersonalData().apply(batch).batch
    assert done["text"].buffers()[2].address == batch["text"].buffers()[2].address


texts = st.lists(st.one_of(st.none(), st.sampled_from(["", TEXT, "ann@a.org", "x", "é中 b@c.de"])), max_size=6)


@given(texts, st.integers(0, 3), st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
def test_any_layout_slice_and_batch_size(values, start, kind):
    table = pa.table({"text": pa.array(values, kind)})
    done = [PersonalData().apply(batch).batch for batch in table.to_batches()]  # pyarrow cannot filter views
    assert all(batch["text"].type == kind for batch in done)
    rows = [
        row
        for i in range(len(values))
        for row in PersonalData().apply(table.slice(i, 1).to_batches()[0]).batch.to_pylist()
    ]
    assert [row for batch in done for row in batch.to_pylist()] == rows
    sliced = (
        PersonalData().apply(table.slice(start).combine_chunks().to_batches()[0]).batch if len(values) > start else None
    )
    assert sliced is None or sliced.to_pylist() == rows[start:]
    for value, row in zip(values, rows, strict=True):
        found = spans_plain((value or "").encode())
        assert [row[name] for name in PersonalData.adds] == [sum(kind == k for *_, k in found) for kind in KINDS]


def test_text_too_large_for_short_offsets_becomes_large(monkeypatch):
    monkeypatch.setattr(columns, "LARGEST_STRING", 3)
    done = PersonalData()(pa.table({"text": ["ann@a.org", None]}))
    assert done["text"].type == pa.large_string() and done["text"].to_pylist() == ["<email>", None]


def test_masked_text_has_nothing_more_to_mask():
    once = PersonalData()(pa.table({"text": [TEXT]}))
    assert PersonalData()(once)["text"].to_pylist() == once["text"].to_pylist() == [MASKED]


def metas(*values, **settings):
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    table = pa.table({"text": ["no data"] * len(values), "meta": pa.array(texts, pa.string())})
    return PersonalData(**settings)(table)["meta"].to_pylist()


def test_every_string_of_meta_is_masked_names_of_fields_too():
    given = {
        "author": "ann@corp.com",
        "by": ['Bob "B" <bob@corp.com>', {"tel": "x\n+49 30 1234567", "ok": None}],
        "contacts": {"zoe@corp.com": 1, "amy@corp.com": 2},
        "number": 4111111111111111,
    }
    masked = {
        "author": "<email>",
        "by": ['Bob "B" <<email>>', {"tel": "x\n<phone>", "ok": None}],
        "contacts": {"<email>": 1, "<email> 2": 2},
        "number": 4111111111111111,
    }
    done = metas(given, None, "no JSON, ann@corp.com", {"title": "caf\u00e9"}, "")
    assert json.loads(done[0]) == masked and done[1:] == [
        None,
        "no JSON, <email>",
        json.dumps({"title": "caf\u00e9"}),
        "",
    ]
    assert "user" in metas({"a": "ann@corp.com"}, style="fake")[0] and metas({"a": "ann@corp.com"}, kinds=["ip"]) == [
        json.dumps({"a": "ann@corp.com"})
    ]
    with pytest.raises(CannotRun, match="masks JSON text"):
        PersonalData()([{"text": "a", "meta": {"author": "ann@corp.com"}}])


@given(
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.sampled_from(["ann@a.org", 'a "b" \\ c@d.eu'])),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
        max_leaves=8,
    )
)
def test_meta_is_masked_string_by_string(value):
    def plainly(inner):
        if isinstance(inner, dict):
            return {name: plainly(v) for name, v in inner.items()}
        if isinstance(inner, list):
            return [plainly(v) for v in inner]
        return PersonalData()([{"text": inner}])[0]["text"] if isinstance(inner, str) else inner

    assert json.loads(metas({"of": value}, "")[0]) == {"of": plainly(value)}


def test_urls_are_counted_and_masked_only_where_asked():
    urls = [
        "https://x.org/?to=jane%40corp.com&q=a%20b",
        "https://x.org/jane%2540corp%252Ecom",
        "https://bob:secret12@x.org/%E9",
        None,
        "https://x.org/a%20b",
    ]
    table = pa.table({"text": ["-"] * 5, "url": urls, "id": ["zoe@corp.com", *"abcd"]})
    batch = table.to_batches()[0]
    left, done = PersonalData().apply(batch), PersonalData(url=True).apply(batch)
    assert left.batch["url"].to_pylist() == urls and left.noted == done.noted
    assert done.noted == {"url_emails": 2, "url_keys": 1, "id_emails": 1}
    assert done.batch["url"].to_pylist() == [
        "https://x.org/?to=<email>&q=a%20b",
        "https://x.org/<email>",
        "https://<key>@x.org/%E9",
        None,
        "https://x.org/a%20b",
    ]
    assert [("`url`" in said, "(2)" in said) for said in PersonalData().alarms("a", 5, left.noted)] == [
        (False, False),
        (True, True),
    ]
    assert len(PersonalData(url=True).alarms("a", 5, left.noted)) == 1
