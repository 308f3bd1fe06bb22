"""Several matrix products in one launch on Hopper: `grouped_matmul` and its kernel."""
