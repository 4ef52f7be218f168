"""A small crawl with a known truth, and the check that a run on it told the truth.

From outside: `crawl`, `check`, `check_shards`.
"""
