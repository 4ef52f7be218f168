"""Documents into training rows of a fixed length: the packing plan, and copying tokens by it.

From outside: `pack` and `lay_rows`.
"""
