"""Collective algorithms: one file each, registered by operation and name."""
