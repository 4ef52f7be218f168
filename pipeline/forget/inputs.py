"""Search the inputs of a finished run for documents in which `personal_data` has masked what a takedown names: they
cannot be found in what the run stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.forget.ledger import reads_inputs
from gristmill.pipeline.inputs.files import (
    REMEMBERED,
    Folders,
    NoOriginal,
    Remembered,
    addresses_of,
    open_input,
    reader_of,
    remembered_in,
    sources_of,
    with_contents,
)
from gristmill.pipeline.store.forgotten import FORGOTTEN, Forgotten
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store
from gristmill.stages.documents import Origin
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.cc import Cc
from gristmill.stages.text.personal_data import PersonalData

UNREADABLE = (NoOriginal, RunFailed, OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError)


def is_masked(record: RunRecord, wanted: Forgotten) -> bool:
    """May a stage have masked what a list asks for?"""
    for entry in record["stages"]:
        settings = entry["settings"]
        if entry["stage"] == PersonalData.recipe_name():
            texts = any(len(wanted.keys[kind]) for kind in ("sha256", "xxh3"))
            emails = len(wanted.keys["email"]) and "email" in cast(list[str], settings["kinds"])
            urls = settings.get("url") and any(len(wanted.keys[kind]) for kind in ("url", "host"))
            if texts or emails or urls:
                return True
    return False


class InputSearch:
    """`uids` of the documents in the inputs that a list means; `unread` names the files not searched, and why."""

    def __init__(self, store: Store, record: RunRecord, wanted: Forgotten) -> None:
        self.store, self.record, self.wanted = store, record, wanted
        self.uids: list[Array] = []
        self.unread: list[str] = []
        try:
            self._remembered: dict[str, Remembered] = remembered_in(store.read(REMEMBERED))
        except FileNotFoundError:
            self._remembered = {}
        self._unchanged: dict[str, bool] = {}  # by address

    def run(self, journal: Journal, note: Callable[[str], None]) -> None:
        stretches: dict[tuple[Any, ...], None] = {}
        for result in journal.done.values():
            if reads_inputs(result):
                spans = [span for span in result["part"]["inputs"] if "path" in span]
                stretches |= dict.fromkeys((s["source"], s["path"], s["start"], s["end"]) for s in spans)
        here = [stretch for stretch in stretches if stretch[0] in sources_of(self.record)]
        note(f"reading the inputs again, for what is masked in the run: {len(here):,} stretches of files")
        for source, path, start, end in here:
            try:
                self._read(source, path, start, end)
            except UNREADABLE as error:
                why = str(error) if isinstance(error, NoOriginal | RunFailed) else f"{type(error).__name__}: {error}"
                self.unread.append(f"{source}: {path}: {why}")
        self.unread = sorted(set(self.unread))

    def _read(self, source: str, path: str, start: int, end: int | None) -> None:
        reader = reader_of(self.record, source)
        if isinstance(reader, Cc) and "://" in reader.root:
            raise NoOriginal(f"is not on this machine ({reader.root})")
        addresses = list(addresses_of(self._remembered, path, reader))
        if len(addresses) != 1:
            raise NoOriginal("the journal does not say where it is" if not addresses else "several files may be it")
        [(address, size)] = addresses
        if "://" in address:
            raise NoOriginal(f"is not on this machine ({address})")
        if address not in self._unchanged:
            facts = Folders().info(address)
            file = InputFile(address, path, int(str(facts["size"])), str(facts["stamp"]))
            [file] = with_contents([file], self.store, source, remember=False)
            self._unchanged[address] = file.content == self._remembered[address][2]
        if not self._unchanged[address]:
            raise NoOriginal(f"{address} is not as it was when the run read it")
        with open_input(address) as stream:
            for reading in reader.read(stream, Origin(source, path, size, start, end)):
                goes = self.wanted.reasons(reading.documents) == FORGOTTEN
                if goes.any():
                    self.uids.append(reading.documents.column("uid").to_numpy(zero_copy_only=False)[goes])

    @property
    def found(self) -> Array:
        return np.unique(np.concatenate([*self.uids, np.zeros(0, np.uint64)]))
