"""A judge comes back from its folder as it was, and a folder that is not what was saved is refused with the reason."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.artifact import DESCRIPTION, _seal, _written
from gristmill.classifiers.judge import GOLDEN_TEXTS, Head, Judge, JudgeCard, JudgeError, load_judge
from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
from gristmill.stages.judge.judge import Judge as JudgeStage
from gristmill.stages.stage import CannotRun
from tests.classifiers.labelled import QUALITY, two_kinds

WEIGHTS = "weights.safetensors"


@pytest.fixture(scope="module")
def judge() -> Judge:
    return train_linear(two_kinds(), QUALITY, LinearRecipe(bits=8))


@pytest.fixture(scope="module")
def saved(judge, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("judges") / "saved"
    judge.save(folder)
    return folder


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


def rewrite(folder: Path, **changes: object) -> None:
    """As somebody would who knows how a folder is sealed."""
    facts = json.loads((folder / DESCRIPTION).read_text()) | changes
    facts["seal"] = _seal(facts)
    (folder / DESCRIPTION).write_bytes(_written(facts))


def facts_of(folder: Path) -> dict:
    return json.loads((folder / DESCRIPTION).read_text())


def test_a_judge_comes_back_as_it_was(judge, saved, copy):
    texts = pa.array([*GOLDEN_TEXTS, "light bends because glass is slower", "buy cart login"])
    back = load_judge(copy)
    assert back.card == judge.card
    assert back.score(texts)["quality"].tolist() == judge.score(texts)["quality"].tolist()
    assert sorted(path.name for path in saved.iterdir()) == [DESCRIPTION, WEIGHTS]
    back.save(copy.parent / "again")
    assert [(copy.parent / "again" / name).read_bytes() for name in (DESCRIPTION, WEIGHTS)] == [
        (saved / name).read_bytes() for name in (DESCRIPTION, WEIGHTS)
    ]


def test_what_people_and_hubs_put_beside_it_does_not_matter(copy):
    (copy / "README.md").write_text("about")
    (copy / ".gitattributes").write_text("x")
    assert load_judge(copy).card.kind == "linear"


def test_every_changed_byte_of_the_description_is_noticed(copy):
    whole = (copy / DESCRIPTION).read_bytes()
    for place in range(0, len(whole), 97):
        changed = bytearray(whole)
        changed[place] ^= 1
        (copy / DESCRIPTION).write_bytes(changed)
        with pytest.raises(JudgeError):
            load_judge(copy)
    (copy / DESCRIPTION).write_bytes(whole)
    load_judge(copy)


def test_a_changed_byte_of_the_weights_is_noticed(copy):
    for place in (0, 9, -1):
        changed = bytearray((copy / WEIGHTS).read_bytes())
        changed[place] ^= 1
        (copy / WEIGHTS).write_bytes(changed)
        with pytest.raises(JudgeError, match=r"weights.safetensors is not the file that was saved: its SHA-256 is"):
            load_judge(copy)


def test_a_judge_that_cannot_be_loaded_stops_its_stage_and_no_document_is_blamed(copy):
    weights = copy / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    batch = pa.record_batch({"uid": pa.array([1], pa.uint64()), "text": pa.array(["a"])})
    with pytest.raises(CannotRun, match=r"the judge cannot be loaded: .*is not the file that was saved"):
        JudgeStage(judge_path=str(copy), device="cpu").annotate(batch)


@pytest.mark.parametrize("name", [DESCRIPTION, WEIGHTS])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(JudgeError, match=f"{name} is missing"):
        load_judge(copy)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(JudgeError, match="there is no such folder"):
        load_judge(tmp_path / "none")


@pytest.mark.parametrize("name", ["model.bin", "pytorch_model.bin", "tokenizer.json", "config.json"])
def test_a_file_that_is_not_listed_is_refused(copy, name):
    (copy / name).write_text("{}")
    with pytest.raises(JudgeError, match=f"holds '{name}', which judge.json does not list"):
        load_judge(copy)


def test_a_needed_file_that_is_not_listed(copy):
    (copy / WEIGHTS).rename(copy / "other")
    rewrite(copy, files={"other": facts_of(copy)["files"][WEIGHTS]})
    with pytest.raises(JudgeError, match=r"needs weights.safetensors, and judge.json does not list it"):
        load_judge(copy)


def test_a_link_is_not_followed(copy):
    (copy / WEIGHTS).rename(copy.parent / "elsewhere")
    (copy / WEIGHTS).symlink_to(copy.parent / "elsewhere")
    with pytest.raises(JudgeError, match=r"not a regular file \(links are not followed\)"):
        load_judge(copy)
    (copy / WEIGHTS).unlink()
    os.mkfifo(copy / WEIGHTS)
    with pytest.raises(JudgeError, match="not a regular file"):
        load_judge(copy)


@pytest.mark.parametrize(
    "name", ["../saved", "/etc/hostname", "a/b", "..", ".", "", "a\\b", "x\n", "é", "a" * 200, DESCRIPTION, ".hidden"]
)
def test_names_that_lead_elsewhere_are_refused(copy, name):
    rewrite(copy, files=facts_of(copy)["files"] | {name: "0" * 64})
    with pytest.raises(JudgeError, match="is no name for a file of a judge"):
        load_judge(copy)


@pytest.mark.parametrize("digest", [None, 5, "", "0" * 63, "Z" * 64, ["0" * 64]])
def test_hashes_that_are_none(copy, digest):
    rewrite(copy, files={WEIGHTS: digest})
    with pytest.raises(JudgeError, match="64 hexadecimal digits"):
        load_judge(copy)


@pytest.mark.parametrize("files", [None, [], {}, "x", {f"f{i}": "0" * 64 for i in range(1000)}])
def test_lists_of_files_that_are_none(copy, files):
    rewrite(copy, files=files)
    with pytest.raises(JudgeError, match=r"`files` in judge.json lists"):
        load_judge(copy)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, r"made by a newer Gristmill \(format 2; this one reads up to 1\)"),
        ({"version": 10**30}, "newer Gristmill"),
        ({"version": "1"}, "no version"),
        ({"version": True}, "no version"),
        ({"version": 0}, "no version"),
        ({"format": "other"}, "not one of a judge"),
        ({"kind": "pickle"}, "no kind of judge 'pickle'"),
        ({"kind": "os:system"}, "no kind of judge"),
        ({"kind": None}, "no kind of judge"),
        ({"heads": []}, "1 to 100 heads"),
        ({"heads": {}}, "lists"),
        ({"heads": [5]}, "a head is an object"),
        ({"preprocessing": []}, "not an object"),
        ({"training": 5}, "not an object"),
        ({"attribution": [5]}, "list of texts"),
        ({"golden": []}, "no golden scores"),
        ({"golden": None}, "no golden scores"),
        ({"golden": [{}]}, "a golden score is an object"),
        ({"golden": [{"text": "x" * 200_000}]}, "a golden score is an object"),
        ({"golden": [{"text": "x", "outputs": {}}]}, "has not 1 numbers for quality"),
        ({"golden": [{"text": "x", "outputs": {"quality": "high"}}]}, "has not 1 numbers"),
        ({"golden": [{"text": "x", "outputs": {"quality": 10**400}}]}, "has not 1 numbers"),
        ({"golden": [{"text": "x", "outputs": {"quality": [0.5, 0.5]}}]}, "has not 1 numbers"),
        ({"golden": [{"text": "\ud800", "outputs": {"quality": 0.5}}]}, "not Unicode"),
    ],
)
def test_a_description_that_says_what_cannot_be(copy, changes, reason):
    rewrite(copy, **changes)
    with pytest.raises(JudgeError, match=reason) as caught:
        load_judge(copy)
    assert str(copy) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "Bad Name"}, "a name is lower-case letters"),
        ({"name": "x\n"}, "a name is lower-case letters"),
        ({"name": 5}, "a name is lower-case letters"),
        ({"kind": "guess"}, "is none of probability, classes, labels, regression"),
        ({"kind": []}, "is none of"),
        ({"labels": ["a"]}, "two labels, bad and good; here are 1"),
        ({"labels": ["a", "a"]}, "two labels are the same"),
        ({"labels": "ab"}, "short texts"),
        ({"labels": [1, 2]}, "short texts"),
        ({"high": 1e300}, "no range"),
        ({"high": 10**400}, "no range"),
        ({"low": "0"}, "no range"),
        ({"low": True}, "no range"),
        ({"low": 1, "high": 0}, "no range"),
        ({"high": 2}, "between 0 and 1"),
        ({"kind": "classes", "high": 5}, "the expected one lies between 0 and 1"),
        ({"meaning": None}, "one sentence"),
    ],
)
def test_a_head_that_cannot_be(copy, change, reason):
    rewrite(copy, heads=[facts_of(copy)["heads"][0] | change])
    with pytest.raises(JudgeError, match=reason):
        load_judge(copy)


@pytest.mark.parametrize("field", ["name", "kind", "labels", "meaning", "low", "high"])
def test_a_head_without_a_field(copy, field):
    head = facts_of(copy)["heads"][0]
    del head[field]
    rewrite(copy, heads=[head])
    with pytest.raises(JudgeError, match=f"no field '{field}'"):
        load_judge(copy)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": Infinity}',
        b'{"a": 1, "a": 2}',
        b"1" * 10_000,
        b'"\x00"',
    ],
)
def test_a_description_that_is_no_json_of_ours(copy, content):
    (copy / DESCRIPTION).write_bytes(content)
    with pytest.raises(JudgeError, match=r"judge.json: (not JSON as it is written here|nested too deeply)"):
        load_judge(copy)


@pytest.mark.parametrize("content", [b"[]", b"5", b"null", b"{}"])
def test_json_that_is_no_description(copy, content):
    (copy / DESCRIPTION).write_bytes(content)
    with pytest.raises(JudgeError, match="not one of a judge"):
        load_judge(copy)


def test_a_description_beyond_all_sizes_is_not_read(copy):
    with (copy / DESCRIPTION).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(JudgeError, match="are the most that are read"):
        load_judge(copy)


def test_another_order_or_spacing_is_a_change(copy):
    (copy / DESCRIPTION).write_text(json.dumps(facts_of(copy)))
    with pytest.raises(JudgeError, match="was changed after it was saved"):
        load_judge(copy)


def test_scores_that_are_not_those_it_was_saved_with(copy):
    golden = facts_of(copy)["golden"]
    golden[1]["outputs"]["quality"] += 1e-3
    rewrite(copy, golden=golden)
    with pytest.raises(JudgeError, match=r"quality of the golden text 'A lens bends.* the weights, or the program"):
        load_judge(copy)


def test_other_weights_under_a_seal_that_fits_fail_at_the_golden_scores(judge, copy):
    changed = judge.weights.copy()
    changed *= 1.1
    (copy / WEIGHTS).unlink()
    type(judge)(judge.card, judge.idf, changed, judge.bias, judge.bits, judge.widest).write(copy)
    rewrite(copy, files={WEIGHTS: hashlib.sha256((copy / WEIGHTS).read_bytes()).hexdigest()})
    with pytest.raises(JudgeError, match="golden text"):
        load_judge(copy)


def test_saving_never_writes_over_anything(judge, copy):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    with pytest.raises(JudgeError, match="there is something here already"):
        judge.save(copy)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    (copy.parent / "empty").mkdir()
    judge.save(copy.parent / "empty")
    load_judge(copy.parent / "empty")


def test_a_save_that_fails_leaves_nothing(judge, tmp_path):
    class Broken(type(judge)):
        def write(self, folder):
            (folder / "half").write_text("x")
            raise OSError("disk full")

    broken = Broken(judge.card, judge.idf, judge.weights, judge.bias, judge.bits, judge.widest)
    with pytest.raises(OSError, match="disk full"):
        broken.save(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_card_that_is_no_json_is_not_saved(judge, tmp_path):
    card = JudgeCard("linear", (QUALITY,), judge.card.preprocessing, training={"rows": float("nan")})
    with pytest.raises(JudgeError, match="not plain JSON"):
        type(judge)(card, judge.idf, judge.weights, judge.bias, judge.bits, judge.widest).save(tmp_path / "new")


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    st.sampled_from(
        [
            "kind",
            "heads",
            "preprocessing",
            "training",
            "metrics",
            "versions",
            "attribution",
            "files",
            "golden",
            "version",
            "format",
        ]
    ),
)
def test_no_description_does_anything_but_load_or_be_refused(saved, tmp_path_factory, value, field):
    folder = tmp_path_factory.mktemp("odd") / "judge"
    shutil.copytree(saved, folder)
    rewrite(folder, **{field: value})
    try:
        load_judge(folder)
    except JudgeError as error:
        assert str(folder) in str(error)
    shutil.rmtree(folder)


def test_a_head_is_asked_for_by_its_name(judge):
    with pytest.raises(JudgeError, match="no head 'other'; it has quality"):
        judge.explain("text", "other")
    assert Head("x", "regression", (), "", 0, 5).width == 1
