"""Twins of kernels for the GPU, in Triton, held equal bit for bit to the plain references beside the CPU's.

Only what runs on a GPU imports from here: every module needs torch and triton (the extra `gpu`). With TRITON_INTERPRET=1 set before the import,
all of it runs on the CPU, slowly, which is how it is tested where there is no GPU.
"""
