"""Activations that are computed again, or wait in the host's memory, rather than stay."""
