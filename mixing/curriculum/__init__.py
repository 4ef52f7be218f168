"""When each document is trained on: ranks from signals, pacing, and schedules.

From outside: `curriculum` and `ranks`.
"""
