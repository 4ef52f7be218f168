"""Documents into training rows of a fixed length: which go where, and copying them there.

From outside: `pack` and `lay_rows`.
"""
