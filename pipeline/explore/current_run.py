"""The run's folder as it is now: opened again once what was seen of it is no longer fresh and something in it has
changed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from gristmill.pipeline.look.run_folder import RunFile, RunFolder
from gristmill.pipeline.progress.progress import PATH as PROGRESS

FRESH = 2.0  # seconds for which what was found in the folder is taken as it was
FRESH_REMOTE = 10.0


@dataclass
class CurrentRun:
    """Requests come in threads: each gets a folder whose lists are read already."""

    out: str
    lengths: dict[str, int] = field(default_factory=dict)  # of files, which never change, in rows
    _folder: RunFolder | None = None
    _seen: float = 0.0
    _stamp: object = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> RunFolder:
        with self._lock:
            local = self._folder is None or self._folder.store.local
            if self._folder is None or time.monotonic() - self._seen > (FRESH if local else FRESH_REMOTE):
                folder = RunFolder(self.out, lenient=True)
                if not folder.store.local:
                    folder.fs.invalidate_cache()
                stamp = stamp_of(folder)
                if self._folder is None or stamp != self._stamp or self._folder.under_way:
                    _ = folder.record, folder.segments, folder.rules_by_name, folder.rejects()
                    self._folder, self._stamp = folder, stamp
                self._seen = time.monotonic()
            return self._folder

    def length(self, folder: RunFolder, file: RunFile) -> int:
        if file.path not in self.lengths:
            self.lengths[file.path] = folder.length(file.path)
        return self.lengths[file.path]


def stamp_of(folder: RunFolder) -> object:
    """What changes when a run's manifests do."""
    manifests = (f"partitions/{name}/manifest.json" for name in folder.names("partitions"))
    return [facts_of(folder, path) for path in ("run.json", PROGRESS, *manifests)]


def facts_of(folder: RunFolder, path: str) -> dict[str, object] | None:
    try:
        info = folder.fs.info(folder.full(path))
    except OSError:
        return None
    return {name: info.get(name) for name in ("size", "mtime", "ino", "ETag", "LastModified")}
