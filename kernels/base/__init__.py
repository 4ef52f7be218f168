"""What all kernels share: how they are compiled, Arrow columns as buffers, Unicode tables, hashing and shuffling of
integers.

The lowest room: it imports no other. From outside, `compiled.kernel`, `columns` and `splitmix` are called.
"""
