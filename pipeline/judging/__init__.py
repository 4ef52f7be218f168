"""The work behind `train-judge`, `judge` and `medu`: tables of texts, training, scoring, and what is printed.

From outside: all modules, by `cli.judging`; `judge_plan`, `train`, `show_judge` by `door.judges`.
"""
