"""Scores and labels of judges as stages (`judge`, `llm_score`, `label`, `llm_label`), and what decides by them
(`threshold`, `quantile_buckets`, `keep_where`, `keep_labels`).

From outside: the stages, by `gristmill.stages`.
"""
