"""What spreads a training run over several cards: ranks, sharded optimizers and weights, layers, rows, blocks and
experts over ranks, replicas between hosts, and the choice of a layout.

From outside: `ranks`, `planner`. Training on one GPU needs none of it.
"""
