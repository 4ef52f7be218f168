"""Blocks of other programs as stages: DataTrove's filters, formatters and extractors, NeMo Curator's document filters.

From outside: the stages, by `gristmill.stages`.
"""
