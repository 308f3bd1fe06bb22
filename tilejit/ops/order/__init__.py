"""Order of register tiles: sort, argsort, topk and histogram."""
