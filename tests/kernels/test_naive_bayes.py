"""The kernel says what the model's own arrays say by a plain reading: any bytes, texts of any length, any automaton."""

from __future__ import annotations

import io
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.naive_bayes.model import NAMED, arrays_of, automaton, load, package_file
from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.language.naive_bayes import FAR, LANES, NOTHING, WINDOW, exponential, predict


def strings_of(arrays: dict, data: bytes) -> list[int]:
    """The number of the string that each byte ends, by the stored automaton."""
    state, before, found = 0, NOTHING, []
    for byte in data:
        entry = int(arrays["steps"][state + byte])
        if entry & 511 != 256 + byte:
            entry = int(arrays["pairs"][256 * before + byte])
        state, before = (entry & 0xFFFFFFFF) >> 9, byte
        found.append(entry >> 32)
    return found


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_automaton_is_kept_step_by_step(data):
    rows = data.draw(st.integers(1, 6))
    following = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=256 * rows, max_size=256 * rows)))
    string = np.array(data.draw(st.lists(st.integers(0, 3), min_size=256 * rows, max_size=256 * rows)))
    following, string = following.reshape(rows, 256), string.reshape(rows, 256)
    arrays = automaton(following, string, Path("model"))
    text = data.draw(st.binary(max_size=60))
    expected, row = [], 0
    for byte in text:
        expected.append(int(string[row, byte]))
        row = following[row, byte]
    assert strings_of(arrays, text) == expected


@pytest.fixture(scope="module")
def original() -> dict:
    with np.load(io.BytesIO(lzma.decompress(package_file().read_bytes())), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def plain(original: dict, data: bytes) -> dict[str, float]:
    """Probabilities by label, from the package's arrays in double precision."""
    state, times = 0, Counter()
    for byte in data:
        state = int(original["nextmove"][int(original["nextmove_row"][state]) * 256 + byte])
        if original["out_feat"][state] >= 0:
            times[int(original["out_feat"][state])] += 1
    sums = original["pc"].astype(float)
    for string, often in times.items():
        sums += np.log1p(often) * original["ptc"][string].astype(float)
    chances = np.exp((sums - sums.max()) / np.sqrt(max(len(data), 1)))
    labels: Counter = Counter()
    for name, chance in zip(original["classes"].tolist(), chances / chances.sum(), strict=True):
        labels[NAMED.get(name, name)] += chance
    return labels if times else {}


TEXTS = (
    b"Guten Morgen, wie geht es Ihnen?", b"\xff\xfe\x00\x80 nonsense \xf0\x9f", "今天天气很好".encode(), b"a", b"",
    b"the same again " * 30, b"Een korte zin. Une phrase courte. Una frase breve." * 3, bytes(range(256)),
)  # fmt: skip


def test_probabilities_are_those_of_the_package(original):
    model = load(package_file())
    ends = np.cumsum([0, *map(len, TEXTS)])
    labels, scores = predict(
        model.model, np.frombuffer(b"".join(TEXTS), np.uint8), ends, np.ones(len(TEXTS), np.bool_), 3
    )
    for text, row, chances in zip(TEXTS, labels, scores, strict=True):
        expected = plain(original, text)
        if not expected:
            assert (row == -1).all()
            continue
        for label, chance in zip(row, chances, strict=True):
            assert abs(expected[model.labels[label]] - chance) < 0.02, (text, model.labels[label])


def test_of_a_long_text_windows_are_enough_only_where_they_are_certain():
    model = load(package_file())
    german = "Der alte Mann ging langsam durch den Garten, und die Kinder sahen ihm schweigend nach. "
    other = "Старый человек медленно шёл по саду, и дети молча смотрели ему вслед, пока он не скрылся. "
    size = 2 * LANES * WINDOW
    mixed = (german * 40)[:size] + other * 60
    texts = [german * 200, mixed, german * 3]
    data = "".join(texts).encode()
    ends = np.cumsum([0, *(len(text.encode()) for text in texts)])
    labels, scores = predict(model.model, np.frombuffer(data, np.uint8), ends, np.ones(3, np.bool_), 1)
    assert [model.labels[label] for label in labels[:, 0]] == ["de", "ru", "de"]
    assert scores[0, 0] >= 0.99


def test_the_archive_is_read_into_the_arrays_of_the_layout():
    arrays = arrays_of(package_file().read_bytes(), package_file())
    assert arrays["weights"].shape[1] >= len(arrays["priors"]) and not arrays["weights"][0].any()
    assert len(arrays["pairs"]) == 257 * 256 and arrays["steps"].nbytes < 8 << 20
    assert (arrays["label"][: arrays["labels"].size] == np.arange(arrays["labels"].size)).all()


def test_powers_of_e_are_right_to_single_precision():
    values = np.linspace(-20, 0, 100_001, dtype=np.float32)
    found = powers(values)
    known = values > -FAR
    assert not found[~known].any() and found[-1] == 1
    assert np.abs(found[known] / np.exp(values[known].astype(float)) - 1).max() < 3e-7


@kernel
def fill_powers(values, out):
    for k in range(len(values)):
        out[k] = exponential(values[k])


def powers(values: np.ndarray) -> np.ndarray:
    out = np.empty_like(values)
    fill_powers(values, out)
    return out
