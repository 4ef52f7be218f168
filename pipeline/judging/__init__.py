"""The work behind `gristmill judge`: tables of texts, training, scoring, and what is printed.

From outside: all modules, by `cli.judge_*`; `judge_plan`, `train`, `show` by `door.judges`.
"""
