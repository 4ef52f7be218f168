"""Rounds of a global stage, as workers run them: map, exchange, join, merge, and verdicts beside documents.

From outside: `rounds`, `verdicts`, `rows`.
"""
