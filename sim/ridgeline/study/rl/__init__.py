"""Reinforcement learning: generation, scoring and training as phases on one cluster."""
