"""Byte-level BPE: pieces of text, merges, and a memory of pieces seen before.

From outside: `piece_memo`.
"""
