"""What every training run here is made of: optimiser, schedule, precision, ranks, checkpoints, attention over packed
rows."""
