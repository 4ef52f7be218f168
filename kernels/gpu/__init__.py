"""Twins of kernels for the GPU, in Triton, held to plain references.

MinHash has the bits of its reference; the decoder's kernels have theirs in `gristmill.kernels.gpu.plain`, which needs
torch alone, and are held against it in float64. Only what runs on a GPU imports the rest: every module needs torch and
triton (the extra `gpu`). With TRITON_INTERPRET=1 set before the import, all of it runs on the CPU, slowly, which is how
it is tested where there is no GPU.
"""
