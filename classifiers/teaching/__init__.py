"""Training sets for judges: seeds, passages, duplicates, distillation, and rounds of self-improvement.

From outside: `seeds`, `distil`, `iterate`, `agreement`.
"""
