"""Passes that refuse a graph or warn of it."""
