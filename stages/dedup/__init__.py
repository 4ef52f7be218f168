"""Deduplication and decontamination: one stage a file, on the dataflow of `stages.flow`.

`near`, `policy` and `survivors` are what several of them share.
"""
