"""Three filters with the names, arguments and verdicts of NeMo Curator's."""

import re

from nemo_curator.stages.text.filters.doc_filter import DocumentFilter


class WordCountFilter(DocumentFilter):
    def __init__(self, min_words: int = 50, max_words: int = 100000, lang: str = "en"):
        super().__init__()
        self._min_words, self._max_words = min_words, max_words

    def score_document(self, text: str) -> int:
        return len(text.split())

    def keep_document(self, score: int) -> bool:
        return self._min_words <= score <= self._max_words


class MeanWordLengthFilter(DocumentFilter):
    def __init__(self, min_mean_word_length: int = 3, max_mean_word_length: int = 10, lang: str = "en"):
        super().__init__()
        self._min, self._max = min_mean_word_length, max_mean_word_length

    def score_document(self, text: str) -> float:
        lengths = [len(word) for word in text.split()]
        return sum(lengths) / len(lengths)  # ZeroDivisionError on an empty text, as theirs

    def keep_document(self, score: float) -> bool:
        return self._min <= score <= self._max


class NonAlphaNumericFilter(DocumentFilter):
    def __init__(self, max_non_alpha_numeric_to_text_ratio: float = 0.25):
        super().__init__()
        self._cutoff = max_non_alpha_numeric_to_text_ratio

    def score_document(self, text: str) -> float:
        return len(re.findall(r"[^a-zA-Z0-9\n?!,.]", text)) / len(text) if text else 1.0

    def keep_document(self, score: float) -> bool:
        return score <= self._cutoff
