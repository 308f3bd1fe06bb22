"""Attention: `attention`, its kernels, and the choice among them."""
