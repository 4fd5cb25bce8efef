"""Activation checkpointing: recomputation and offload of activations."""
