"""Passes that place allocations in shared and tensor memory."""
