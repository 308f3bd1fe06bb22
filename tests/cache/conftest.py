"""The bench, for every test of the cache."""

from cache_bench import bench  # noqa: F401
