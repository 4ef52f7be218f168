"""One update of a model: gradients, optimizers, precision, recomputation, and checkpoints of their state.

From outside: `stepper.Stepper`, `optim`, `checkpoint`. It knows one process (`world`).
"""
