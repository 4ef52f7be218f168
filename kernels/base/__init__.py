"""What all kernels share: compilation, array types, Arrow columns as buffers, Unicode tables, integer hashing and
shuffling.

It imports `common` alone. From outside, `compiled.kernel`, `columns`, `types` and `splitmix` are used.
"""
