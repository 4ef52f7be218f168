"""One update: optimisers, precision, recomputation, ranks, sharding, and checkpoints of their state.

From outside: `stepper.Stepper`, `parallel`, `checkpoint`.
"""
