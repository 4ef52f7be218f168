"""Deduplication and decontamination: one stage a file, on the dataflow of `stages.flow`.

Shared by several: `policy` (which document of a cluster stays), `survivors` (groups to those that go), `near` (the
rounds of near duplicates), `dates`, `figures`, `sorted_rows`, `slices`.
"""
