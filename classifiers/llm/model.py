"""What is asked of a large language model and what comes back, whoever runs it: vLLM, an endpoint over HTTP,
transformers.

A prompt has two parts: `shared`, the same for many requests and therefore first (an engine with a prefix cache works it
out once), and
`own`. All of both is plain text: a `<|im_end|>` in a document stays the ten characters that it is wherever a back end
  makes the
tokens itself (`tokens.py`). `opening` is what the answer begins with; chat endpoints cannot be told one, and are
asked without.

With `labels` one forward pass reads how likely each label is as the next words, and nothing is generated.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

ABSENT = -9999.0  # the log-probability of a label of which the engine says nothing; servers write minus infinity so
KEY_VERSION = 1
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SMALL_FILES = (".json", ".jinja", ".model", ".txt")
PEEK, END, LONGEST_HEADER = 1 << 16, 1 << 12, 1 << 27


class LanguageModelError(RuntimeError):
    """An error that no request can get past: a wrong key, an unknown model, an engine that lacks a feature."""


@dataclass(frozen=True)
class Request:
    own: str
    shared: str = ""
    opening: str = ""
    max_tokens: int = 1024
    temperature: float = 0.0
    labels: tuple[str, ...] = ()
    images: tuple[bytes, ...] = ()  # PNG files, which stand before the text; for chat alone

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels) or len(self.labels) == 1 or not all(self.labels):
            raise ValueError(f"labels {self.labels}: expected none, or two or more that differ")
        if self.max_tokens < 1 or not 0 <= self.temperature <= 10:
            raise ValueError(
                f"max_tokens {self.max_tokens}, temperature {self.temperature}: expected 1 or more, and 0 to 10"
            )

    def pictures(self) -> list[Any]:
        """Its images as models in this process take them."""
        try:
            from PIL import Image
        except ImportError as error:
            raise LanguageModelError("pillow is needed for pictures: pip install pillow") from error
        return [Image.open(io.BytesIO(image)).convert("RGB") for image in self.images]


@dataclass(frozen=True)
class Answer:
    """`failure` is empty, or the kind of what went wrong (`timeout`, `rate_limited`, `no_labels`...), and `detail` says
    it in words.

    `cached_tokens` are those of the prompt that a prefix cache spared, where the engine tells. `guessed`: tokens are an
    estimate, since a server gave no count, or one that cannot be. `model`: who answered, in a server's words.
    """

    text: str = ""
    logprobs: tuple[float, ...] | None = None  # natural logarithms, in the order of Request.labels
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    finish: str = ""  # stop, length
    guessed: bool = False
    model: str = ""
    failure: str = ""
    detail: str = ""


class LanguageModel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything of the model and its settings that can change an answer, as plain data: part of the key of a kept
        answer."""
        ...

    def answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        """Each request's place and answer, once, as they come. Whoever stops early leaves the rest unasked."""
        ...


def request_key(request: Request, identity: Mapping[str, Any]) -> str:
    """sha256 of all that decides an answer."""
    asked: list[Any] = [
        request.shared,
        request.own,
        request.opening,
        request.max_tokens,
        request.temperature,
        list(request.labels),
    ]
    if request.images:  # without any, a kept answer's key is what it was before there were images
        asked.append([hashlib.sha256(image).hexdigest() for image in request.images])
    text = json.dumps([KEY_VERSION, asked, identity], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def model_fingerprint(folder: Path) -> str:
    """Of a model's folder: small files whole; of weights, since 140 GB are not read to name a model, their size and
    both ends of every tensor, or 17 pieces where a file does not say where its tensors are."""
    digest = hashlib.sha256()
    for path in sorted(
        path for path in folder.iterdir() if path.suffix in SMALL_FILES + WEIGHT_SUFFIXES and path.is_file()
    ):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            if path.suffix in WEIGHT_SUFFIXES and size > 32 * PEEK:
                for start, count in _pieces(file, size, path.suffix == ".safetensors"):
                    file.seek(start)
                    digest.update(file.read(count))
            else:
                digest.update(file.read())
    return digest.hexdigest()


def _pieces(file: BinaryIO, size: int, safetensors: bool) -> Iterator[tuple[int, int]]:
    """Where to look, and how many bytes."""
    spans = _tensors(file, size) if safetensors else []
    if not spans:
        yield from (((size - PEEK) * i // 16, PEEK) for i in range(17))
        return
    yield 0, spans[0][0]  # names, types and shapes
    for start, end in spans:
        yield start, min(END, end - start)
        yield max(start, end - END), min(END, end - start)


def _tensors(file: BinaryIO, size: int) -> list[tuple[int, int]]:
    """Of a safetensors file, in their order; none where it is no such file."""
    begins = 8 + int.from_bytes(file.read(8), "little")
    if not 8 < begins <= min(size, LONGEST_HEADER):
        return []
    try:
        header = json.loads(file.read(begins - 8))
        offsets = [of["data_offsets"] for name, of in header.items() if name != "__metadata__"]
        spans = sorted((begins + start, begins + end) for start, end in offsets)
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return spans if spans and all(begins <= start <= end <= size for start, end in spans) else []


def model_identity(model: str, revision: str | None) -> dict[str, str]:
    """A folder is what its files are, wherever it lies; a name on a hub is its revision (give a commit: a branch may
    move)."""
    folder = Path(model)
    if folder.is_dir():
        return {"files": model_fingerprint(folder)}
    return {"model": model, "revision": revision or "main"}
