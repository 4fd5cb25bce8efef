"""Emission of one training step as tasks: micro-batches, gradient sums, updates."""
