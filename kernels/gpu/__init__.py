"""Kernels for GPUs, in Triton, tested against plain references.

MinHash equals its reference bit for bit. The decoder's kernels are tested in float64 against
`gristmill.kernels.gpu.plain`, which needs torch alone. Every other module needs torch and triton (the extra `gpu`), so
only code that runs on a GPU imports it. With TRITON_INTERPRET=1 set before the import, all of it runs slowly on the
CPU; tests do that where there is no GPU.
"""
