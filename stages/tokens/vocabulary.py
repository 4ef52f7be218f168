"""Which tokenizer: its `tokenizer.json`, what is known of it, and the ways to come by one (a file, a folder, the
Hugging Face hub).

A tokenizer travels as the text of its `tokenizer.json` and nothing else, so that every worker encodes with the same
one, whatever lies on its disk, and shards carry it along. Nothing is unpickled and no code of a tokenizer's author is
run.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.stages.stage import CannotRun

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
SAYS_SPECIALS = ("tokenizer_config.json", "special_tokens_map.json")  # of two that speak, the first counts
NEEDS_TRANSFORMERS = ("tokenizer.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "vocab.txt")
# All that may count of what lies in a tokenizer's folder; weights beside them do not.
FILES = (FILE, *SAYS_SPECIALS, *NEEDS_TRANSFORMERS, "added_tokens.json", "config.json", "merges.txt")
ROLES = ("bos", "eos", "pad")

SCHEMA = pa.schema(
    [("all", pa.uint64()), ("name", pa.string()), ("tokenizer_text", pa.large_string()), ("specials", pa.string())],
)


class TokenizerVocabulary(NamedTuple):
    """A tokenizer and its tokens for the beginning and the end of a text and for padding, as it writes them (None: it
    has none)."""

    name: str
    tokenizer_text: str
    specials: dict[str, str | None]

    def table(self) -> pa.Table:
        return pa.table(
            [[0], [self.name], [self.tokenizer_text], [json.dumps(self.specials, sort_keys=True)]], schema=SCHEMA
        )

    @classmethod
    def of(cls, table: pa.Table) -> TokenizerVocabulary:
        row = table.select(["name", "tokenizer_text", "specials"]).to_pylist()[0]
        return cls(row["name"], row["tokenizer_text"], json.loads(row["specials"]))

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.tokenizer_text.encode()).hexdigest()


class Ids(NamedTuple):
    """The numbers that go with a vocabulary. Padding is the end of a text where there is no token of its own for it:
    shards store lengths."""

    size: int
    bos: int | None
    eos: int | None
    pad: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return dtype_of(self.size)


def dtype_of(vocab_size: int) -> np.dtype[Any]:
    """Of stored ids, as shards have it; written again here, for a change in the layout of shards must not tokenize the
    corpus anew."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def tokenizer_from(text: str, name: str) -> Tokenizer:
    """The tokenizer as it encodes here: nothing is cut off or padded, and a special token that stands in a text is
    text."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing more precise
        raise CannotRun(f"{name}: no tokenizer that the package `tokenizers` can read ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def size_of(tokenizer: Tokenizer) -> int:
    """One more than the largest id: ids may have holes, and the package counts entries."""
    return (
        max([*tokenizer.get_vocab(with_added_tokens=True).values(), *tokenizer.get_added_tokens_decoder()], default=0)
        + 1
    )


def ids_of(vocabulary: TokenizerVocabulary, tokenizer: Tokenizer, size: int) -> Ids:
    special_ids = {role: _id_of(tokenizer, role, vocabulary) for role in ROLES}
    pad = next(
        (token for token in (special_ids["pad"], special_ids["eos"], special_ids["bos"]) if token is not None), 0
    )
    return Ids(size, special_ids["bos"], special_ids["eos"], pad)


def _id_of(tokenizer: Tokenizer, role: str, vocabulary: TokenizerVocabulary) -> int | None:
    token = vocabulary.specials[role]
    if token is None:
        return None
    token_id: int | None = tokenizer.token_to_id(token)
    if token_id is None:
        raise CannotRun(f"{role}_token: {vocabulary.name} has no token {token!r}; {_its_specials(tokenizer)}")
    return token_id


def demanded(vocabulary: TokenizerVocabulary, tokenizer: Tokenizer, roles: tuple[str, ...]) -> Ids:
    """The ids, where those that a recipe asks for must be there."""
    ids = ids_of(vocabulary, tokenizer, size_of(tokenizer))
    for role in roles:
        if vocabulary.specials[role] is None:
            where = {"bos": "begins", "eos": "ends"}[role]
            raise CannotRun(
                (
                    f"{role}: {vocabulary.name} does not say which token {where} a text; name it as "
                    f"`{role}_token`, or set `{role}: false`; "
                )
                + _its_specials(tokenizer)
            )
    return ids


def _its_specials(tokenizer: Tokenizer) -> str:
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"its special tokens are {', '.join(names[:20])}{more}" if names else "it has no special tokens"


def seems_a_path(name: str) -> bool:
    """A hub id is `name` or `owner/name`."""
    return (
        name.startswith((".", "/", "~"))
        or name.endswith((".json", "/", ".model"))
        or name.count("/") > 1
        or "\\" in name
    )


def given(name: str, revision: str | None, wanted: dict[str, str | None]) -> TokenizerVocabulary:
    """The tokenizer of a file, a folder or a hub id. `wanted` names tokens that the recipe sets itself."""
    path = _place(name)
    if path.is_file():
        text, folder, called = _read(path), path.parent, path.parent.resolve().name if path.name == FILE else path.stem
    elif path.is_dir():
        text, folder, called = _of_folder(path), path, path.resolve().name
    elif seems_a_path(name):
        raise CannotRun(f"tokenizer: there is no file or folder {name}")
    else:
        text, folder, called = *_of_hub(name, revision), name
    stated = _said_in(folder)
    return TokenizerVocabulary(called, text, {role: wanted.get(role) or stated.get(role) for role in ROLES})


def check(name: str, revision: str | None, wanted: dict[str, str | None], roles: tuple[str, ...]) -> None:
    """What can be known of a tokenizer before any work, with nothing fetched or converted: CannotRun where it will not
    do."""
    path = _place(name)
    if (
        path.is_dir()
        and not (path / FILE).is_file()
        and _is_older_format(path)
        and find_spec("transformers") is not None
    ):
        return
    if path.exists() or seems_a_path(name):
        vocabulary = given(name, revision, wanted)
        demanded(vocabulary, tokenizer_from(vocabulary.tokenizer_text, vocabulary.name), roles)
    elif not _is_cached(name, revision):
        refusal = _refusal_of_hub(name, revision)
        if refusal is not None:
            raise _not_there(name, refusal)


def may_be_converted(name: str) -> bool:
    """Is a tokenizer of an older format, or on the hub, where it may be?"""
    place = _place(name)
    return not (place.is_file() or (place / FILE).is_file())


def _place(name: str) -> Path:
    """A file of an older format stands for its folder, where what goes with it lies."""
    path = Path(name).expanduser()
    return path.parent if path.name in NEEDS_TRANSFORMERS and path.is_file() else path


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise CannotRun(f"tokenizer: {path} is no {FILE} (it is not text)") from None


def _of_folder(folder: Path) -> str:
    if (folder / FILE).is_file():
        return _read(folder / FILE)
    if _is_older_format(folder):
        return _converted(str(folder), None)
    raise CannotRun(f"tokenizer: {folder} holds no {FILE}, nor one of {', '.join(NEEDS_TRANSFORMERS)}")


def _is_older_format(folder: Path) -> bool:
    return any((folder / name).is_file() for name in NEEDS_TRANSFORMERS)


def _of_hub(name: str, revision: str | None) -> tuple[str, Path]:
    """The text of a tokenizer on the hub, and the folder in which what goes with it lies now. What was fetched before
    serves where the hub refuses."""
    from huggingface_hub import hf_hub_download  # comes with tokenizers
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    refusal = _refusal_of_hub(name, revision)

    def fetched(file: str) -> Path | None:
        try:
            return Path(hf_hub_download(name, file, revision=revision, local_files_only=refusal is not None))
        except LocalEntryNotFoundError as error:
            if file != FILE:
                return None
            raise _not_there(name, refusal or _unreachable(name, error)) from error
        except EntryNotFoundError:
            return None
        except (HfHubHTTPError, HFValidationError) as error:
            raise _not_there(name, f"the hub says: {_first_line(error)}") from error

    with _hub_kept_quiet():
        tokenizer_file = fetched(FILE)
        beside = [path for path in map(fetched, SAYS_SPECIALS) if path is not None]
    folder = (tokenizer_file or beside[0]).parent if tokenizer_file or beside else Path(FILE)
    return (_read(tokenizer_file) if tokenizer_file is not None else _converted(name, revision)), folder


def _refusal_of_hub(name: str, revision: str | None) -> str | None:
    """Why a tokenizer cannot be had from the hub; None if it can. One question without a second try: a download by the
    package goes on trying for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        with _hub_kept_quiet():
            get_hf_file_metadata(hf_hub_url(name, FILE, revision=revision))
    except EntryNotFoundError:
        return None  # an older format, perhaps
    except GatedRepoError:
        return "on the Hugging Face hub it is gated: accept its terms there, and log in with `hf auth login`"
    except RepositoryNotFoundError:
        return "the Hugging Face hub has none of this name, or a private one (`hf auth login`)"
    except RevisionNotFoundError:
        return f"the Hugging Face hub has no revision {revision} of it"
    except (HfHubHTTPError, HFValidationError) as error:
        return f"the hub says: {_first_line(error)}"
    except Exception as error:  # of the package that sends its requests, which is another with each of its versions
        return _unreachable(name, error)
    return None


def _is_cached(name: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, FILE, revision=revision), str)
    except HFValidationError:
        return False


def _unreachable(name: str, error: Exception) -> str:
    return (
        f"the Hugging Face hub cannot be reached ({_first_line(error)}); fetch it where there is a network "
        f"(`hf download {name}`) and give its folder, or bring that cache here (HF_HOME)"
    )


def _not_there(name: str, why: str) -> CannotRun:
    return CannotRun(f"tokenizer: {name} is neither a file nor a folder here, and {why}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _hub_kept_quiet() -> Iterator[None]:
    """What it would log of each try is said once, by us."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _converted(name: str, revision: str | None) -> str:
    """A tokenizer in another format (SentencePiece, tiktoken, vocab.json and merges.txt), as transformers lays it out
    anew."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise CannotRun(
            f"tokenizer: {name} has no {FILE}, only an older format that transformers converts: pip install "
            "transformers sentencepiece protobuf"
        ) from None
    try:
        loaded = AutoTokenizer.from_pretrained(name, revision=revision, use_fast=True, trust_remote_code=False)
        text: str = loaded.backend_tokenizer.to_str()
    except (ImportError, OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CannotRun(
            f"tokenizer: {name} has no {FILE}, and transformers cannot make one of what it has: {reason[0]}"
        ) from error
    return text


def _said_in(folder: Path) -> dict[str, str]:
    """Which tokens begin, end and pad a text, as the files beside a tokenizer say."""
    stated: dict[str, str] = {}
    for name in SAYS_SPECIALS:
        if (folder / name).is_file():
            try:
                facts = json.loads(_read(folder / name))
            except json.JSONDecodeError as error:
                raise CannotRun(f"tokenizer: {folder / name} is not JSON ({error})") from None
            for role in ROLES:
                token = facts.get(f"{role}_token") if isinstance(facts, dict) else None
                token = token.get("content") if isinstance(token, dict) else token
                if isinstance(token, str) and token:
                    stated.setdefault(role, token)
    return stated
