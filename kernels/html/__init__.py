"""HTML bytes to a flat tree of elements and blocks of text, in one pass.

From outside: `segment.segment`; the other modules are its parts.
"""
