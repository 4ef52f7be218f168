"""What all kernels share: compilation, array types, Arrow columns as buffers, Unicode tables, integer hashing and
shuffling.

The lowest room: it imports no other. From outside, `compiled.kernel`, `columns`, `types` and `splitmix` are used.
"""
