"""The language's functions on values: promotion, operators, math, creation, shapes, ids.

They call the ops on tiles (`ops.tiles`).
"""
