"""When each document is seen: ranks from signals, pacing, and schedules.

From outside: `curriculum` and `ranks`.
"""
