"""A training run: settings, data feed, schedule, loop, guards, and metrics.

From outside: `loop.train` and `settings.Training`.
"""
