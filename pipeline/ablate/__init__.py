"""`gristmill ablate`: does this data make a better model? Arms against a control, each trained with several seeds, and
a verdict (docs/ablations.md).

From outside: `plan`, `run`, `show`, `estimate`, `workers`, by `cli.ablate` and `door.ablations`.
"""
