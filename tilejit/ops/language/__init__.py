"""The language's functions on values: promotion, operators, math, creation, shapes, ids; below them,
the ops on tiles."""
