"""Answers of language models that a run's stages keep for other runs: which of them are about forgotten documents.

An answer is kept under a hash of its prompt and model. Of an endpoint both are known from the recipe alone, so the hash
can be made again; a model in this process would have to be loaded, and the pictures of pages that `ocr` asked about are
gone. There only answers that quote a document are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TypeGuard

from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store
from gristmill.stages.edits.editor import Editor
from gristmill.stages.edits.refine import Refine
from gristmill.stages.edits.rephrase import Rephrase
from gristmill.stages.judge.llm_label import LlmLabel
from gristmill.stages.judge.llm_score import AsksModel, LlmScore
from gristmill.stages.judge.ocr import Ocr

KEY = re.compile(rb'"key":\s?"([0-9a-f]{64})"')
FILES = "answers-*.jsonl"
Asker = AsksModel | Ocr | Editor
KINDS: tuple[type[Asker], ...] = (LlmScore, LlmLabel, Ocr, Refine, Rephrase)


def askers_of(record: RunRecord) -> list[Asker]:
    """Stages that keep answers, as run.json has them; one that can no longer be built (its description is gone) is left
    out."""
    kinds = {kind.recipe_name(): kind for kind in KINDS}
    askers: list[Asker] = []
    for entry in record["stages"]:
        if entry["stage"] in kinds and entry["settings"].get("cache_path"):
            try:
                askers.append(kinds[entry["stage"]].model_validate(entry["settings"]))
            except ValueError:
                continue
    return askers


def caches_elsewhere(store: Store, askers: Iterable[Asker]) -> list[str]:
    """Files of answers that do not lie in the run's folder, by their whole paths."""
    folders = {Path(asker.cache_path).resolve() for asker in askers if Path(asker.cache_path).is_absolute()}
    root = Path(store.root).resolve()
    return sorted(str(path) for f in folders if not f.is_relative_to(root) for path in f.glob(FILES))


def can_be_known(asker: Asker) -> TypeGuard[AsksModel | Editor]:
    """Can the keys of its answers be made again? Not those of pictures, which are gone."""
    return not isinstance(asker, Ocr) and bool(asker.endpoint) and asker.form != "tokens"


def keys_of(askers: Iterable[Asker], texts: list[str]) -> set[bytes]:
    """The keys of all that was asked about these texts."""
    from gristmill.classifiers.llm.model import request_key
    from gristmill.classifiers.rating.sample import cut_texts
    from gristmill.stages.judge.back_end import BackEnd

    keys = set()
    for asker in askers:
        if can_be_known(asker):
            identity = BackEnd(**{name: getattr(asker, name) for name in BackEnd.model_fields}).opened().identity
            if isinstance(asker, Editor):
                requests = [request for text in texts for request in asker.requests_for(text)]
            else:
                asking = asker.asking()
                requests = [asking.request(text) for text in cut_texts(texts, asker.cut)]
            keys |= {request_key(request, identity).encode() for request in requests}
    return keys


def are_answers_to(lines: list[bytes], keys: set[bytes]) -> list[bool]:
    return [bool(keys) and (match := KEY.search(line)) is not None and match[1] in keys for line in lines]
