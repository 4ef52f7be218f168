"""How repeated text is found: MinHash, SimHash, Bloom filters, suffix arrays, n-grams of benchmarks, and clusters of
pairs.

From outside: each module serves one stage of `stages.dedup`.
"""
