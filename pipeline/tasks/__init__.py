"""Segment tasks, as workers run them: read a part, run its map stages, apply rules, write what is left and what is
rejected.

From outside: `segment.grind`, `rules.run_decide`.
"""
