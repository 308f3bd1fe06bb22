"""Matrix products on Hopper and Blackwell: `matmul`, its kernels, and the choice among them."""
