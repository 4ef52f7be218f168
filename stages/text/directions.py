"""Which signals of difficulty are high where a text is easy; of all others more is harder."""

from __future__ import annotations

EASY_WHEN_HIGH = ("flesch_reading_ease", "compression_ratio")
