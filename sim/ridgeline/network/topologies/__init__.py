"""Fabrics and inline topologies: one file each, registered by name."""
