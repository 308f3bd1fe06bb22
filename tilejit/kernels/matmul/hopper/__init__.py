"""The kernels of `matmul` on Hopper, and what they are made of."""
