"""Vectors that stand for texts: sums of rows of a table, numbers of eight bits, nearest centres and near pairs.

Other rooms call `pooling` (texts to vectors), `corpus` (a table fitted to texts) and `int8` (comparing vectors).
"""
