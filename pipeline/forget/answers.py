"""Answers of language models that a run's stages keep for other runs: which of them are about forgotten documents.

An answer is kept under a hash of its prompt and model. Of an endpoint both are known from the recipe alone, so the hash
can be made again; a model in this process would have to be loaded, and there only answers that quote a document are
found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.store import Store
from gristmill.stages.judge.llm_score import LlmScore

KEY = re.compile(rb'"key":\s?"([0-9a-f]{64})"')
FILES = "answers-*.jsonl"


def askers_of(record: RunRecord) -> list[LlmScore]:
    """Stages that keep answers, as run.json has them; one that can no longer be built (its description is gone) is left
    out."""
    askers = []
    for entry in record["stages"]:
        if entry["stage"] == LlmScore.recipe_name() and entry["settings"].get("cache_path"):
            try:
                askers.append(LlmScore.model_validate(entry["settings"]))
            except ValueError:
                continue
    return askers


def caches_elsewhere(store: Store, askers: Iterable[LlmScore]) -> list[str]:
    """Files of answers that do not lie in the run's folder, by their whole paths."""
    folders = {Path(asker.cache_path).resolve() for asker in askers if Path(asker.cache_path).is_absolute()}
    root = Path(store.root).resolve()
    return sorted(str(path) for f in folders if not f.is_relative_to(root) for path in f.glob(FILES))


def can_be_known(asker: LlmScore) -> bool:
    return bool(asker.endpoint) and asker.form != "tokens"


def keys_of(askers: Iterable[LlmScore], texts: list[str]) -> set[bytes]:
    """The keys of all that was asked about these texts."""
    from gristmill.classifiers.llm.model import request_key
    from gristmill.classifiers.rating.sample import cut_texts
    from gristmill.stages.judge.back_end import BackEnd

    keys = set()
    for asker in askers:
        if can_be_known(asker):
            identity = BackEnd(**{name: getattr(asker, name) for name in BackEnd.model_fields}).opened().identity
            asking = asker.asking()
            keys |= {request_key(asking.request(text), identity).encode() for text in cut_texts(texts, asker.cut)}
    return keys


def are_answers_to(lines: list[bytes], keys: set[bytes]) -> list[bool]:
    return [bool(keys) and (match := KEY.search(line)) is not None and match[1] in keys for line in lines]
