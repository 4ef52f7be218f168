"""The files of a model's folder: weights by name, mapped rather than read; written whole or not at all; fetched from
the Hugging Face hub.

Weights are safetensors in one file, or in several that an index lists. Nothing is unpickled, no code is run, and no
path leads out of the folder.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from gristmill.kernels.common.files import whole_folder
from gristmill.trainer.model.llama_config import LlamaError

CONFIG, ONE_FILE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
)
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
HUB_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
PICKLED = (
    "weights that are pickled (*.bin, *.pt) are never read, for they can run any code: convert them to safetensors"
)


def model_folder(source: str | Path) -> Path:
    """The folder itself, or where the hub's `owner/name` or `owner/name@revision` was fetched to: configuration,
    safetensors and tokenizer only."""
    if Path(source).is_dir():
        return Path(source)
    hub = HUB_ID.fullmatch(source) if isinstance(source, str) else None
    if hub is None:
        raise LlamaError(
            f"{source}: there is no such folder, nor is it the name of a model on the Hugging Face hub (owner/name)"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise LlamaError(
            f"{source}: there is no such folder; to fetch it from the Hugging Face hub: pip install huggingface_hub"
        ) from error
    wanted = [CONFIG, "generation_config.json", "model*.safetensors", INDEX, *TOKENIZER_FILES]
    try:
        return Path(snapshot_download(hub["id"], revision=hub["revision"], allow_patterns=wanted))
    except (OSError, ValueError) as error:
        raise LlamaError(f"{source}: no folder here, and the Hugging Face hub did not give it: {error}") from error


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LlamaError(
            f"{path.parent}: no {path.name}; a model is a folder with {CONFIG} and {ONE_FILE} or {INDEX}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise LlamaError(f"{path}: cannot be read as JSON ({error})") from error


class Stored:
    """One tensor of a file; its bytes are read when `tensor` is called."""

    def __init__(self, name: str, path: Path, file: Any) -> None:
        self.name, self.path, self._file = name, path, file
        header = file.get_slice(name)
        self.shape, self.dtype = tuple(header.get_shape()), str(header.get_dtype())

    def tensor(self) -> Tensor:
        """A view of the mapped file."""
        tensor: Tensor = self._file.get_tensor(self.name)
        return tensor


@contextlib.contextmanager
def open_tensors(folder: Path) -> Iterator[dict[str, Stored]]:
    """All tensors of a folder by their names, while it is open."""
    from safetensors import SafetensorError, safe_open

    with contextlib.ExitStack() as files:

        def names_of(path: Path) -> tuple[Any, set[str]]:
            try:
                file = files.enter_context(safe_open(path, framework="pt", device="cpu"))
                return file, set(file.keys())
            except FileNotFoundError as error:
                raise LlamaError(f"{path}: missing; {INDEX} lists it") from error
            except (SafetensorError, OSError) as error:
                raise LlamaError(f"{path}: damaged or cut off ({error})") from error

        tensors: dict[str, Stored] = {}
        for path, wanted in _list_files(folder).items():
            file, names = names_of(path)
            if absent := sorted((wanted or set()) - names):
                raise LlamaError(f"{path}: has no {absent[0]}, which {INDEX} says it has")
            tensors |= {name: Stored(name, path, file) for name in sorted(names if wanted is None else wanted)}
        yield tensors


def _list_files(folder: Path) -> dict[Path, set[str] | None]:
    """The files with the names of the tensors to read from each; None: all of them."""
    if (folder / ONE_FILE).is_file():
        return {folder / ONE_FILE: None}
    if not (folder / INDEX).is_file():
        others = sorted(
            path.name
            for path in folder.iterdir()
            if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".safetensors")
        )
        has = f"; it has {', '.join(others[:5])}" if others else ""
        raise LlamaError(f"{folder}: no {ONE_FILE} and no {INDEX}{has}; {PICKLED}")
    index = read_json(folder / INDEX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        raise LlamaError(f"{folder / INDEX}: weight_map does not say which file has which tensor")
    files: dict[Path, set[str]] = {}
    for name, file in places.items():
        if not isinstance(file, str) or not re.fullmatch(r"[\w-][\w.-]*\.safetensors", file):
            raise LlamaError(
                f"{folder / INDEX}: {name} is said to be in {file!r}; files are *.safetensors of the same folder. "
                f"{PICKLED}"
            )
        files.setdefault(folder / file, set()).add(name)
    return {**files}


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """`write` fills a draft that takes the folder's place when all of it is on the disk. Only a folder like those
    written here is replaced."""
    check_place(folder)
    with whole_folder(folder, replace=True) as draft:
        write(draft)


def check_place(folder: Path) -> None:
    """Whether a model may be written there."""
    if folder.exists() and (not folder.is_dir() or not all(_ours(path.name) for path in folder.iterdir())):
        raise LlamaError(
            f"{folder}: there is something else here already; a model is written into a new folder or over another "
            "model"
        )


def _ours(name: str) -> bool:
    return name in (CONFIG, ONE_FILE, INDEX, *TOKENIZER_FILES) or SHARD.fullmatch(name) is not None
