"""A training run: settings, data feed, schedule, loop, guards, metrics, and energy.

From outside: `loop.train` and `settings.Training`.
"""
