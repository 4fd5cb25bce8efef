"""Sharding of a training graph over devices, by the axes of each op's computation."""
