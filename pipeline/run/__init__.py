"""A run from recipe to report: driving the engine, records, alarms, samples, and the dry run of `gristmill plan`.

From outside: `launch` (a run as it is asked for), `forecast` (of the whole input), `dry_run`.
"""
