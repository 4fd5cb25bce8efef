"""Rewrites of a training graph before it is divided: what frameworks and devices do otherwise."""
