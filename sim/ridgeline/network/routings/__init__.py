"""Routings: one file each, registered by name."""
