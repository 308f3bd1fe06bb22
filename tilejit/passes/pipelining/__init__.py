"""Passes that write out pipelined loops: loads ahead, rings of slots, roles of warps, waits and fences."""
