"""URLs: one form for all spellings, keys of pages that are the same, and lists of hosts and words.

From outside: all three modules.
"""
