"""Ragged batches: unequal work of micro-batches whose sentences differ in length."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ridgeline.workload.files import load_network

_NODES, _TAIL = 4001, 8.0  # of the integrals over a normal distribution, in standard deviations


@lru_cache(maxsize=256)
def longest(sentences: int, deviation: float) -> float:
    """Return the deviation of the longest sentence of a batch, to which all are padded.

    Of lengths whose logarithms are normally distributed.

    Parameters
    ----------
    deviation
        Standard deviation of the logarithm of a sentence's length.
    """
    from statistics import NormalDist

    z = np.linspace(-_TAIL, _TAIL, _NODES)
    below = np.array([NormalDist().cdf(at) for at in z])
    weight = np.diff(below**sentences)  # chance that the longest lies between two nodes
    length = np.exp(deviation * (z[1:] + z[:-1]) / 2)
    mean = float(weight @ length)
    return float(np.sqrt(weight @ (length - mean) ** 2)) / mean


@lru_cache(maxsize=64)
def of_two_languages(network: str, deviation: float) -> float:
    """Return the deviation of the work of batches that the longer language fills with tokens.

    Sentences are sorted, so that those of a batch have the same two lengths, the longer of which,
    times their number, is what a batch may hold. The work on the other language varies.

    Parameters
    ----------
    network
        With the fields `source` and `target`.
    deviation
        Standard deviation of the logarithm of a sentence's length over its translation's.
    """
    z = np.linspace(-_TAIL, _TAIL, _NODES)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    source = _share_of_source(network)
    missing = 1.0 - np.exp(-deviation * np.abs(z))
    work = 1.0 - np.where(z < 0, source, 1.0 - source) * missing
    mean = float(weight @ work)
    return float(np.sqrt(weight @ (work - mean) ** 2)) / mean


def _share_of_source(network: str) -> float:
    """Return the share of the work that is in proportion to the source's length."""
    whole, least = (
        load_network(network, fields).training(1, "fp32").flops() for fields in ({}, {"source": 1})
    )
    return 1.0 - float(least) / float(whole)
