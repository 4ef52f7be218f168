"""Reads the model of the package py3langid as arrays that all processes of a machine share.

The package (BSD-3) carries its model as an archive of arrays: an automaton over bytes, and a matrix of strings by
classes. It takes 0.7 s to unpack, so that is done once for a version of it, into the user's cache, and mapped from
there. Everything that a kernel uses as a place is checked when it is unpacked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import lzma
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.kernels.base.code_cache import cache_folder
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.language.characters import COMPOSABLE, SHOUTED
from gristmill.kernels.language.naive_bayes import (
    KNOWN,
    MOST_STATES,
    NOTHING,
    STATE,
    STRING,
    Bayes,
    place_states,
    predict,
)
from gristmill.kernels.repair.normal_form import in_normal_form

if TYPE_CHECKING:
    import py3langid as py3langid  # the model is its file: a fingerprint must see its version

NOISE = "noise"
# Labels that are called otherwise here: no language, and kinds of one that is written alike.
NAMED = {"zxx": NOISE, "uzs": "uz", "arz": "ar", "ary": "ar", "wuu": "zh"}
LAYOUT = 6  # of the unpacked arrays; another one is another folder
WIDTH = 16  # a row of weights is a multiple of it, so that no class is added by itself
LARGEST = 256 << 20  # bytes of the archive, unpacked
ARRAYS = ("steps", "pairs", "weights", "unit", "lowest", "priors", "label", "longest", "labels")


class ModelError(ValueError):
    """The model is absent, damaged, or of a layout that is not known."""


@dataclass(frozen=True)
class NaiveBayes:
    """A classifier: its labels, and what it says of a column of texts."""

    labels: tuple[str, ...]
    model: Bayes

    def predict(
        self, data: Bytes, offsets: Offsets, wanted: Array, changes: Array, top: int = 1
    ) -> tuple[Array, Array]:
        """Numbers of labels (-1 is none) and probabilities, best first, of the texts that are `wanted`. A text in
        capitals is read in lower case, and characters are read composed, as the model was trained; `changes` say of
        which texts that may be so (`kernels.language.characters`)."""
        labels, scores = predict(self.model, data, offsets, wanted & (changes == 0), top)
        places = np.flatnonzero(wanted & (changes != 0))
        if len(places):
            texts = [
                as_trained(bytes(data[offsets[place] : offsets[place + 1]]), int(changes[place])) for place in places
            ]
            ends = np.cumsum([0, *map(len, texts)])
            labels[places], scores[places] = predict(
                self.model, np.frombuffer(b"".join(texts), np.uint8), ends, np.ones(len(texts), np.bool_), top
            )
        return labels, scores


def as_trained(data: bytes, changes: int) -> bytes:
    text = data.decode("utf-8", "replace")
    if changes & SHOUTED and text.isupper():
        text = text.lower()
    return in_normal_form(text, "NFC").encode() if changes & COMPOSABLE else text.encode()


def package_file() -> Path:
    """The model's file; the package is found, not imported."""
    package = importlib.util.find_spec("py3langid")
    if package is None or package.origin is None:
        raise ModelError("no language model: `pip install py3langid` (it carries the model), or name a model_file")
    path = Path(package.origin).parent / "data" / "model.npz.xz"
    if not path.is_file():
        raise ModelError(f"this version of py3langid has no {path}; name a model_file")
    return path


@lru_cache(maxsize=2)
def load(path: Path) -> NaiveBayes:
    content = path.read_bytes()
    name = f"langid-{LAYOUT}-{hashlib.sha256(content).hexdigest()[:16]}"
    folder = cache_folder() / name
    if not folder.is_dir():
        unpack(content, path, folder)
    arrays = {each: np.asarray(np.load(folder / f"{each}.npy", mmap_mode="r", allow_pickle=False)) for each in ARRAYS}
    labels = tuple(arrays.pop("labels").tolist())
    return NaiveBayes(labels, Bayes(longest=int(arrays.pop("longest")), labels=len(labels), **arrays))


def unpack(content: bytes, path: Path, folder: Path) -> None:
    """Writes the arrays of an archive to a folder that is whole or not there."""
    arrays = arrays_of(content, path)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as draft:
        made = Path(draft) / "made"
        made.mkdir()
        for name, array in arrays.items():
            np.save(made / f"{name}.npy", array, allow_pickle=False)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise


def arrays_of(content: bytes, path: Path) -> dict[str, Any]:
    try:
        archive = lzma.LZMADecompressor()
        unpacked = archive.decompress(content, max_length=LARGEST)
        if not archive.eof:
            raise ValueError("it ends early, or is too large")
        with np.load(io.BytesIO(unpacked), allow_pickle=False) as file:
            given = {name: file[name] for name in file.files}
        weights, priors = given["ptc"].astype(np.float32), given["pc"].astype(np.float32)
        following, row, string = given["nextmove"], given["nextmove_row"].astype(np.int64), given["out_feat"]
        names = [NAMED.get(name, name) for name in given["classes"].tolist()]
    except (lzma.LZMAError, KeyError, ValueError, OSError, EOFError) as error:
        raise ModelError(f"{path}: the model of py3langid cannot be read ({error})") from error
    rows = len(following) // 256
    if (
        weights.ndim != 2 or weights.shape[1] != len(priors) != 0 or len(names) != len(priors)
        or len(following) % 256 or len(row) != len(string) or not len(row)
        or not np.isfinite(weights).all() or not np.isfinite(priors).all()
        or row.min() < 0 or row.max() >= rows
        or following.min() < 0 or following.max() >= len(row)
        or string.min() < -1 or string.max() >= len(weights)
    ):  # fmt: skip
        raise ModelError(f"{path}: the model of py3langid is damaged, or of a layout that is not known")
    following = following.reshape(rows, 256)
    labels = list(dict.fromkeys(names))
    firsts = [names.index(label) for label in labels]
    order = firsts + sorted({*range(len(names))} - {*firsts})  # those that share the label of another are the last
    weights, priors, names = weights[:, order], priors[order], [names[place] for place in order]
    lowest = weights.min(axis=0)
    unit = np.maximum((weights - lowest).max() / 255, np.float32(1e-9))
    wide = np.zeros((len(weights) + 1, -(-len(priors) // WIDTH) * WIDTH), np.uint8)
    wide[1:, : len(priors)] = np.rint((weights - lowest) / unit)
    common = np.argsort(-np.count_nonzero(wide[1:], axis=1), kind="stable")  # strings of many languages first: near to
    wide[1:] = wide[1:][common]  # one another in memory
    number = np.zeros(len(wide), np.int64)
    number[common + 1] = np.arange(1, len(wide))
    place = np.arange(rows)
    place[[0, row[0]]] = row[0], 0  # a walk begins in the first row
    return automaton(place[row[following]][place], number[string[following] + 1][place], path) | {
        "weights": wide,
        "unit": np.array([unit], np.float32),
        "lowest": lowest,
        "priors": priors,
        "label": np.array([labels.index(name) for name in names], np.int32),
        "longest": np.int64(depths(following, row).max()),
        "labels": np.array(labels),
    }


def automaton(following: Array, string: Array, path: Path) -> dict[str, Any]:
    """The arrays of `Bayes` that a walk needs, from rows of 256 steps: where each leads, and which string it ends."""
    rows = len(following)
    by_byte = following[0]
    own, entered = np.zeros((rows, 256), np.bool_), np.zeros((256, rows), np.bool_)
    entered[np.arange(256), following] = True
    for byte in range(256):  # what the last byte alone leads to need not be stored
        those = np.flatnonzero(entered[byte])
        own[those] |= following[those] != following[by_byte[byte]]
        own[those] |= string[those] != string[by_byte[byte]]
    places, bytes_of = np.nonzero(own)
    counts = own.sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(counts)])
    order = np.argsort(-counts, kind="stable")
    state = np.zeros(rows, np.int64)
    used = np.zeros(256 * rows + 512, np.bool_)
    order = np.concatenate([[0], order[order != 0]])
    place_states(order, starts, bytes_of, used, state)  # type: ignore[no-untyped-call]
    if state.max() + 256 >= MOST_STATES or string.max() >= 1 << 32:
        raise ModelError(f"{path}: the model of py3langid is larger than any that is known")
    steps, pairs = np.zeros(state.max() + 256, np.uint64), np.zeros((NOTHING + 1, 256), np.uint64)
    entries = string.astype(np.uint64) << STRING | state[following].astype(np.uint64) << STATE
    steps[state[places] + bytes_of] = bytes_of.astype(np.uint64) | KNOWN | entries[places, bytes_of]
    pairs[:NOTHING], pairs[NOTHING] = entries[by_byte], entries[0]
    return {"steps": steps, "pairs": pairs.reshape(-1)}


def depths(following: Array, row: Array) -> Array:
    """How many bytes it takes to each state from the first. A state stands for the longest end of what was read that
    begins a string, so it depends on no more."""
    depth = np.full(len(row), -1)
    reached, steps = np.zeros(1, np.int64), 0
    while len(reached):
        depth[reached] = steps
        reached = np.unique(following[np.unique(row[reached])])
        reached, steps = reached[depth[reached] < 0], steps + 1
    return np.where(depth < 0, steps - 1, depth)  # states that nothing reaches are no deeper
