"""Words and tokens of a text, by UAX 29, by white space, as DataTrove cuts them, and as deduplication hashes them.

From outside: `words`, `repetition`, `english`, `tokens`.
"""
