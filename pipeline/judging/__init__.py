"""The work behind `gristmill judge`: tables of texts, training, scoring, and what is printed.

From outside: all modules, by `door.judges`, `cli.judge_train` and `cli.maintain_schema`.
"""
