"""Passes that write out matrix products, pin their accumulators, and wait for them."""
