"""A run from recipe to report: driving the engine, records, alarms, samples, and the dry run of `gristmill plan`.

From outside: `run.run`, `dry_run`.
"""
