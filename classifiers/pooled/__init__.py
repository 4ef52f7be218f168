"""The pooled judge: hashed embeddings, five poolings and a small perceptron; between fastText and an encoder.

From outside: `judge` (scores without torch) and `training`.
"""
