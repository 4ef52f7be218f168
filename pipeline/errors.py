"""Errors that are meant for the person at the keyboard, and the exit code that goes with each."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Of = ParamSpec("Of")
Made = TypeVar("Made")


# Whatever the code of a stage may raise: libraries made of scripts call sys.exit. Ctrl-C is no fault of a stage.
STAGE_ERRORS = (Exception, SystemExit)


class GristmillError(Exception):
    """A run that failed; the message says which stage, file and record."""

    exit_code = 1


class RecipeError(GristmillError):
    """A wrong recipe or argument."""

    exit_code = 2


class Mistakes:
    """What is wrong with a recipe, gathered check by check and said at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def noted(self, check: Callable[Of, Made], *of: Of.args, **more: Of.kwargs) -> list[Made]:
        """What a check answers, alone in a list; an empty one where it complains, which is kept until `say_all`."""
        try:
            return [check(*of, **more)]
        except RecipeError as error:
            self.found.append(str(error))
            return []

    def say_all(self) -> None:
        if self.found:
            raise RecipeError("\n".join(self.found))


class RunFailed(GristmillError):
    """Work that could not be done; what is finished stays finished."""


class DamagedFile(RunFailed):
    """A file of the run whose content is not what was written; whoever made it can make it again."""

    def __init__(self, path: str, message: str | None = None) -> None:
        super().__init__(
            message
            or f"{path}: its content is not what was written; run the same command again, which makes this file anew"
        )
        self.path = path


class RetiredFiles(GristmillError):
    """Files that the run removed itself (`keep` in the recipe), and that a task needs after all."""

    def __init__(self, paths: set[str]) -> None:
        super().__init__(f"{len(paths):,} files that were not kept are needed, such as {min(paths)}")
        self.paths = paths


class NotJson(RunFailed, ValueError):
    """A file of a run that should hold JSON and does not."""

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(f"{path}: not JSON ({error}); was it cut off, or written by another program?")


class OtherShape(RunFailed, ValueError):
    """A JSON file of a run that holds something else than the file of its name."""

    def __init__(self, path: str, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"
        super().__init__(f"{path}: not as Gristmill writes it ({what}); was it written by another program?")


class Alarmed(GristmillError):
    """Done, but with alarms, under --strict."""

    exit_code = 3


class OverBudget(RunFailed):
    """`--budget` is spent; finished work is kept."""

    exit_code = 4


class NotConserved(GristmillError):
    """Counts that do not add up: a fault of the mill or of a stage, never to be passed over."""


STORAGE = {
    "botocore", "aiobotocore", "google", "gcsfs", "azure", "adlfs", "aiohttp", "huggingface_hub", "requests", "httpx",
    "httpx2",
}  # fmt: skip


def of_storage(error: BaseException) -> bool:
    """Is it an error of a library behind s3://, gs:// or hf://, such as no credentials or no way there?"""
    return type(error).__module__.partition(".")[0] in STORAGE


EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "403"}
NONE_FOUND = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "RefreshError"}


def code_of(error: BaseException | None) -> str:
    """What an S3 store said, such as SlowDown; fsspec's own error has it beneath."""
    while error is not None:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict):
            return str(answer.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


def refusal(error: BaseException) -> str:
    """Where an object store does not take the credentials: what to do about it. Nothing otherwise."""
    code, kind = code_of(error), type(error).__name__
    on_head = code == "400" and getattr(error.__cause__, "operation_name", "").startswith("Head")
    if code in EXPIRED:
        return f"the credentials have expired ({code}); renew them and run the same command again: what is finished is kept"
    if code in REFUSED or on_head:  # the answer to a HEAD has no words
        return f"the store refuses the credentials ({code}: {error}); have they expired, or may they not do this?"
    if kind in NONE_FOUND:
        return f"no credentials that can be used ({error}); set them as the store's own tools expect"
    return ""


def in_words(error: OSError, where: str | None = None) -> str:
    """What the system said, with what to do about it; `where` serves if the error names no file."""
    bare = (
        isinstance(error, FileNotFoundError) and error.errno is None
    )  # as pyarrow and fsspec raise it: with the path alone
    named = (str(error) if bare else error.filename) or where
    at = f"{named}: " if named else ""
    if refused := refusal(error):
        return f"{at}{refused}"
    if error.errno == errno.ENOSPC:
        return f"{at}the disk is full; make room and run the same command again: what is finished is kept"
    if error.errno == errno.EDQUOT:
        return f"{at}the disk quota is used up; make room and run the same command again"
    if (bare or error.errno == errno.ENOENT) and "/partitions/" in at:
        return (
            f"{at}this file of the run is gone, as `gristmill maintain clean --partitions` or `keep` in the recipe removes"
            " them; the recipe with `keep: all` makes them again"
        )
    return f"{at}{'No such file or directory' if bare else error.strerror or error}"
