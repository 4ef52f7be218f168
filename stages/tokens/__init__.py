"""Tokens and token shards: the stages `tokenize` and `pack`."""
