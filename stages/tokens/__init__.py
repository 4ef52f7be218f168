"""Tokens and token shards: the stages `tokenize` and `pack`.

From outside: the stages, by `gristmill.stages`.
"""
