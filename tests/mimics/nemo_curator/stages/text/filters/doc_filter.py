"""What NeMo Curator's filters extend, for tests where it is not installed: names and behaviour of its 1.4.0."""

from abc import ABC, abstractmethod
from typing import Any


class DocumentFilter(ABC):
    def __init__(self) -> None:
        super().__init__()
        self._name = self.__class__.__name__

    @abstractmethod
    def score_document(self, text: str) -> Any: ...

    @abstractmethod
    def keep_document(self, scores: Any) -> bool: ...
