"""The Triton backend: kernels for CUDA devices."""
