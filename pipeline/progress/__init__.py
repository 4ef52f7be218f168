"""Progress: what a run shows while it works, and what its folder tells before it has ended.

From outside: `progress`, `terminal`, `prometheus`.
"""
