"""Scores of judges as stages (`judge`, `llm_score`), and what decides by scores (`threshold`, `quantile_buckets`).

From outside: the stages, by `gristmill.stages`.
"""
