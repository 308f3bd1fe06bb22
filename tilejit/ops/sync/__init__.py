"""Barriers, named barriers, the markers of pipelined loops, and proxies."""
