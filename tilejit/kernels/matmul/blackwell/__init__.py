"""The kernels of `matmul` on Blackwell, and their configurations."""
