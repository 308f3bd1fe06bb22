"""Access to memory by threads: regions, windows, allocations, partitions and vectors, ordered access, atomics."""
