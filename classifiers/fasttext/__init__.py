"""fastText: its model files, its preprocessing, a judge trained with it, and which words decide.

From outside: `model` and `judge`.
"""
