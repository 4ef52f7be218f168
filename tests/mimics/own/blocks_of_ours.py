"""Blocks as a user writes them: classes that extend DataTrove's and NeMo Curator's."""

import random
from pathlib import Path
from typing import ClassVar

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.extractors.base import BaseExtractor
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.formatters.base import BaseFormatter
from nemo_curator.stages.text.filters.doc_filter import DocumentFilter


class Listed(BaseFilter):
    """Keeps documents with a word of a file, and says how many it has."""

    def __init__(self, words_file: str, note: str = "words"):
        super().__init__()
        self.words = set(Path(words_file).read_text().split())
        self.note = note

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        words = self.words & set(doc.text.split())
        doc.metadata[self.note] = np.float32(len(words))
        return (True, "") if words else (False, f"only {len(doc.text.split())} words, none listed")


class Broken(BaseFilter):
    """Raises on some documents, drops others."""

    def filter(self, doc: Document) -> tuple[bool, str]:
        if "bomb" in doc.text:
            raise RuntimeError("it went off")
        return "bad" not in doc.text, f"bad_{len(doc.text)}"


class InBatches(BaseFilter):
    def __init__(self, batch_size: int = 3):
        super().__init__(batch_size=batch_size)

    def filter(self, doc: Document) -> bool:
        raise AssertionError("asked one by one")

    def filter_batch(self, batch: list[Document]) -> list[bool]:
        assert 1 <= len(batch) <= 3
        return ["bad" not in doc.text for doc in batch]


class Dice(BaseFilter):
    """Draws from every generator that a block may hold."""

    def __init__(self, seed: int | None = None):
        super().__init__()
        self.uniform = np.random.default_rng(seed).uniform
        self.state = np.random.RandomState(seed)
        self.plain = random.Random(seed)

    def filter(self, doc: Document) -> bool:
        draws = [self.uniform(), self.state.uniform(), self.plain.random(), random.random(), np.random.uniform()]
        doc.metadata["draws"] = draws
        return sum(draws) > 2.5


class Told(BaseFilter):
    def filter(self, doc: Document) -> bool:
        doc.metadata["told"] = [doc.id, dict(sorted(doc.metadata.items()))]
        return True


class NoText(BaseFormatter):
    def format(self, text: str) -> str:
        return None  # type: ignore[return-value]


class FirstParagraph(BaseExtractor):
    def __init__(self, timeout: float = 1):
        super().__init__(timeout)

    def extract(self, text: str) -> str:
        return text.partition("<p>")[2].partition("</p>")[0]


class Stream(BaseFilter):
    def filter(self, doc: Document) -> bool:
        return True

    def run(self, data, rank=0, world_size=1):  # type: ignore[no-untyped-def]
        yield from data


class Unfinished(BaseFilter):
    pass


class Fussy(BaseFilter):
    def __init__(self, share: float = 0.5):
        super().__init__()
        if share > 1:
            raise ValueError("a share is at most 1")

    def filter(self, doc: Document) -> bool:
        return True


class Marked(DocumentFilter):
    """Keeps texts with a word of a file, loaded when it is told to."""

    def __init__(self, words_file: str):
        super().__init__()
        self.file = Path(words_file)

    def load_model(self) -> None:
        self.words = set(self.file.read_text().split())

    def score_document(self, text: str) -> float:
        return len(self.words & set(text.split())) / len(text.split())

    def keep_document(self, scores: float) -> bool:
        return scores > 0


class FirstOfDomain(BaseFilter):
    """Keeps so many documents of a domain: its answers follow from the documents before."""

    def __init__(self, most: int = 2):
        super().__init__()
        self.most = most
        self.seen: dict[str, int] = {}

    def filter(self, doc: Document) -> bool:
        domain = doc.text.split()[0]
        self.seen[domain] = self.seen.get(domain, 0) + 1
        if "bomb" in doc.text:
            raise RuntimeError("it went off")
        return self.seen[domain] <= self.most


class FirstOfClass(BaseFilter):
    """The same with what all blocks of the class share."""

    seen: ClassVar[set[str]] = set()

    def filter(self, doc: Document) -> bool:
        new = doc.text not in self.seen
        self.seen.add(doc.text)
        return new


class Helper:
    def __init__(self) -> None:
        self.random = random.Random(1)


class DiceOfAHelper(BaseFilter):
    """Draws from a generator that nobody seeds for it."""

    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def filter(self, doc: Document) -> bool:
        return self.helper.random.random() < 0.5


class DiceInBatches(BaseFilter):
    """Draws once for a batch, and keeps its longest texts."""

    def __init__(self, batch_size: int = 8):
        super().__init__(batch_size=batch_size)
        self.uniform = np.random.default_rng(1).uniform

    def filter(self, doc: Document) -> bool:
        raise AssertionError("asked one by one")

    def filter_batch(self, batch: list[Document]) -> list[bool]:
        lucky = self.uniform() < 0.5
        return [lucky and len(doc.text) == max(len(each.text) for each in batch) for doc in batch]


class Remembering(BaseFilter):
    """Changes with each document and answers the same: a cache, a count, a model that the first document loads."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: dict[str, int] = {}
        self.count = np.zeros(2)
        self.last: str | None = None
        self.model: Helper | None = None

    def filter(self, doc: Document) -> bool:
        self.model = self.model or Helper()
        self.count += 1
        self.last = doc.text
        self.stat_update("looked")
        return self.lengths.setdefault(doc.text, len(doc.text)) > 0 and "text 0" not in doc.text


class Rising(DocumentFilter):
    """Keeps what is longer than all before."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0

    def score_document(self, text: str) -> int:
        longer = len(text) > self.longest
        self.longest = max(self.longest, len(text))
        return int(longer)

    def keep_document(self, scores: int) -> bool:
        return scores > 0
