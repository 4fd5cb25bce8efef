"""Partition of a network into pipeline stages: the chain, the cuts, equal stages."""
