"""Features of the blocks of a page, and the forests that tell main text from the rest by them.

From outside: `features`, `context` and `decision_trees`.
"""
