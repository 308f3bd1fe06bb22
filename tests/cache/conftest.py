"""The `bench` fixture for all cache tests."""

from cache_bench import bench  # noqa: F401
