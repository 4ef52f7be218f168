"""What a trained decoder is worth: bits per byte, multiple choice, and lm-evaluation-harness.

From outside: `evaluate`, `multiple_choice`, `harness`.
"""
