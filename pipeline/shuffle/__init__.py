"""The shuffle of a global stage: rounds of flat tasks over partitions, with their rows on disk in between.

From outside: `shuffle`, `saved_index`, `spill`.
"""
