"""Stages of a pipeline: a network as a chain, where it is cut, and which parts are alike."""
