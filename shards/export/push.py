"""A folder to a data set on a Hugging Face hub: what the hub has already is not sent again, and all of it is looked at
afterwards.

Files are compared by size and hash (SHA-256 of large files, git's own of small ones), as the hub lists them. They go in
several commits, the card last, so that a push that is cut short goes on where it stopped, and a viewer never opens half
a data set under a new card.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.shards.export.rows import ExportError

CARD = "README.md"
FILES_A_COMMIT = 100
BYTES_A_COMMIT = 10 << 30
BLOCK = 1 << 20

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Pushed:
    """What a push did."""

    url: str
    files: int
    bytes: int
    sent: int  # files that the hub did not have
    commits: int


class Hashes(NamedTuple):
    size: int
    sha256: str
    git: str


def push(
    files: Mapping[str, Path | bytes],
    repo: str,
    revision: str | None = None,
    private: bool = True,
    message: str = "Data made with Gristmill",
    progress: Progress = lambda done, size: None,
) -> Pushed:
    """Files by their path in the data set. The hub is the one that HF_ENDPOINT names, the token that of HF_TOKEN or of
    `hf auth login`."""
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise ExportError("push needs huggingface_hub: pip install huggingface_hub") from error
    if not files:
        raise ExportError("there is no file to push")
    disable_progress_bars()
    api = HfApi(library_name="gristmill")
    where: dict[str, Any] = {"repo_id": repo, "repo_type": "dataset", "revision": revision}
    try:
        url = str(api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True))
        if revision is not None:
            api.create_branch(repo, branch=revision, repo_type="dataset", exist_ok=True)
        ours = {path: hashes_of(content) for path, content in files.items()}
        size, done, commits = sum(one.size for one in ours.values()), 0, 0
        missing = [path for path in ours if not is_there(ours[path], listed(api, where).get(path))]
        done = size - sum(ours[path].size for path in missing)
        progress(done, size)
        for group in groups(missing, ours):
            additions = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=source(files[path])) for path in group]
            api.create_commit(operations=additions, commit_message=message, **where)
            commits += 1
            done += sum(ours[path].size for path in group)
            progress(done, size)
        there = listed(api, where)
    except HFValidationError as error:
        raise ExportError(f"{repo}: {first_line(error)}") from error
    except HfHubHTTPError as error:
        raise ExportError(f"{repo}: the hub refuses it: {first_line(error)}") from error
    except (OSError, ValueError) as error:
        raise ExportError(f"{repo}: it could not be pushed: {first_line(error)}; the same command goes on") from error
    wrong = [path for path, one in ours.items() if not is_there(one, there.get(path))]
    if wrong:
        raise ExportError(f"{repo}: {len(wrong):,} files are not on the hub as they were sent, such as {min(wrong)}")
    return Pushed(url, len(ours), size, len(missing), commits)


def listed(api: Any, where: Mapping[str, Any]) -> dict[str, Any]:
    """What the hub has, by path."""
    return {entry.path: entry for entry in api.list_repo_tree(recursive=True, **where) if hasattr(entry, "blob_id")}


def is_there(ours: Hashes, entry: Any) -> bool:
    if entry is None or entry.size != ours.size:
        return False
    return bool(entry.lfs.sha256 == ours.sha256 if entry.lfs is not None else entry.blob_id == ours.git)


def groups(paths: Iterable[str], ours: Mapping[str, Hashes]) -> Iterator[list[str]]:
    """For one commit each, in order of path; the card is in the last."""
    group: list[str] = []
    size = 0
    for path in sorted(paths, key=lambda path: (path == CARD, path)):
        if group and (len(group) == FILES_A_COMMIT or size + ours[path].size > BYTES_A_COMMIT):
            yield group
            group, size = [], 0
        group.append(path)
        size += ours[path].size
    if group:
        yield group


def hashes_of(content: Path | bytes) -> Hashes:
    size = content.stat().st_size if isinstance(content, Path) else len(content)
    sha256, git = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    for block in blocks(content):
        sha256.update(block)
        git.update(block)
    return Hashes(size, sha256.hexdigest(), git.hexdigest())


def blocks(content: Path | bytes) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def source(content: Path | bytes) -> str | bytes:
    return content if isinstance(content, bytes) else str(content)


def files_below(folder: Path) -> dict[str, Path]:
    """All files of a folder by their path in it, but for hidden ones."""
    below = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {path.as_posix(): file for path, file in below.items() if not any(s.startswith(".") for s in path.parts)}


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
