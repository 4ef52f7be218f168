"""A judge's folder: `judge.json`, which lists every other file with its SHA-256 and seals itself, and the files. No
pickle, no paths.

A folder may come from anywhere. Names are plain, files are regular ones that lie in the folder itself, nothing unlisted
is ever opened, and `judge.json` must be byte for byte what this module would write for its content.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from gristmill.classifiers.card import Json, JudgeError
from gristmill.kernels.common.files import whole_folder

FORMAT, VERSION = "gristmill-judge", 1
DESCRIPTION = "judge.json"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
# Files that may lie beside the listed ones: what hubs and people put there.
NEVER_READ = re.compile(r"\..*|README(\.md)?|LICEN[SC]E(\.txt|\.md)?")
LARGEST_DESCRIPTION = 8 << 20  # bytes
MOST_FILES = 200


def write_folder(folder: Path, facts: Json, write: Callable[[Path], None]) -> None:
    """The folder appears whole or not at all. `write` puts the weights into the folder it is given."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise JudgeError(f"{folder}: there is something here already; a judge is saved into a new or an empty folder")
    with whole_folder(folder) as unfinished:
        write(unfinished)
        _give_usual_modes(unfinished)
        files = {path.name: sha256_of(path) for path in sorted(unfinished.iterdir())}
        for name in files:
            _check_name(folder, name)
        sealed = {"format": FORMAT, "version": VERSION, **facts, "files": files}
        sealed["seal"] = _seal(sealed)
        (unfinished / DESCRIPTION).write_bytes(_written(sealed))


def _give_usual_modes(folder: Path) -> None:
    """The mode of a new file for all: safetensors makes files that nobody else may read."""
    new = folder / DESCRIPTION
    new.touch()
    mode = stat.S_IMODE(new.stat().st_mode)
    new.unlink()
    for path in folder.iterdir():
        path.chmod(mode)


def read_folder(folder: Path) -> Json:
    """What `judge.json` says, when it is whole and every file that it lists is there, unchanged."""
    if not folder.is_dir():
        raise JudgeError(f"{folder}: there is no such folder")
    facts = _description(folder)
    listed = facts.get("files")
    if not isinstance(listed, dict) or not 0 < len(listed) <= MOST_FILES:
        _fail(folder, f"`files` in {DESCRIPTION} lists 1 to {MOST_FILES} files with their SHA-256")
    for name, digest in listed.items():
        _check_name(folder, name)
        if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
            _fail(folder, f"the SHA-256 of {name} is 64 hexadecimal digits")
    for present in sorted(path.name for path in folder.iterdir()):
        if present not in listed and present != DESCRIPTION and not NEVER_READ.fullmatch(present):
            _fail(
                folder,
                f"it holds {present!r}, which {DESCRIPTION} does not list; take it out, or fetch the judge again",
            )
    for name, digest in listed.items():
        _regular_file(folder, name)
        if (actual := sha256_of(folder / name)) != digest:
            _fail(
                folder,
                f"{name} is not the file that was saved: its SHA-256 is {actual[:16]}..., and {digest[:16]}... was "
                "expected",
            )
    return facts


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, largest: int = LARGEST_DESCRIPTION) -> Any:
    """Any JSON file of a folder, within limits: no NaN or infinity, no key twice, no depth or size that would hurt."""
    size = path.stat().st_size
    if size > largest:
        raise JudgeError(f"{path}: {size:,} bytes, and {largest:,} are the most that are read")
    try:
        return json.loads(
            path.read_bytes().decode(),
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_no_key_twice,
        )
    except RecursionError as error:
        raise JudgeError(f"{path}: nested too deeply") from error
    except ValueError as error:  # also what is not UTF-8, and whole numbers of thousands of digits
        raise JudgeError(f"{path}: not JSON as it is written here ({error})") from error


def _description(folder: Path) -> Json:
    _regular_file(folder, DESCRIPTION)
    facts = read_json(folder / DESCRIPTION)
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        _fail(folder, f"{DESCRIPTION} is not one of a judge (its `format` is not {FORMAT!r})")
    version = facts.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        _fail(folder, f"{DESCRIPTION} has no version that is a whole number")
    if version > VERSION:
        _fail(
            folder,
            f"it was made by a newer Gristmill (format {version}; this one reads up to {VERSION}); install a newer one",
        )
    seal = facts.get("seal")
    if seal != _seal(facts) or (folder / DESCRIPTION).read_bytes() != _written(facts):
        _fail(folder, f"{DESCRIPTION} was changed after it was saved (its seal does not fit its content)")
    return facts


def _seal(facts: Json) -> str:
    return hashlib.sha256(_written({key: value for key, value in facts.items() if key != "seal"})).hexdigest()


def _written(facts: Json) -> bytes:
    try:
        return (json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise JudgeError(f"the judge's card is not plain JSON: {error}") from error


def _check_name(folder: Path, name: str) -> None:
    if not PLAIN_NAME.fullmatch(name) or name == DESCRIPTION:
        _fail(
            folder,
            f"{name[:60]!r} is no name for a file of a judge: letters, digits, `.`, `_` and `-`, without any folder",
        )


def _regular_file(folder: Path, name: str) -> None:
    try:
        facts = (folder / name).lstat()
    except FileNotFoundError:
        _fail(folder, f"{name} is missing")
    if not stat.S_ISREG(facts.st_mode):
        _fail(folder, f"{name} is not a regular file (links are not followed)")


def _fail(folder: Path, why: str) -> NoReturn:
    raise JudgeError(f"{folder}: {why}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:40]} is too large")
    return number


def _no_key_twice(pairs: list[tuple[str, Any]]) -> Json:
    facts = dict(pairs)
    if len(facts) != len(pairs):
        raise ValueError("a key stands twice in an object")
    return facts
