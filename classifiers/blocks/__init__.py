"""The model that tells the main text of a page from the rest, and its training.

From outside: `model`; the shipped model is in `models/`.
"""
