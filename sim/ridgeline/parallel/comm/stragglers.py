"""Stragglers: a step waits for the slowest of many devices, chips and samples differ.

P. Sinha et al., "Not All GPUs Are Created Equal: Characterizing Variability in Large-Scale,
Accelerator-Rich Systems", SC22, arXiv:2208.11035, find that the speed of equal devices varies by
8 % on average over five clusters, from one end of a box plot's whiskers to the other. Samples of
unequal length, such as sentences, give replicas unequal work in every step.
"""

from __future__ import annotations

import math

from ridgeline.parallel.plan.resolved import ResolvedPlan


def slowest(devices: int, deviation: float) -> float:
    """Return the expected time of the slowest of many devices over that of a typical one.

    The expected largest of n draws from a normal distribution lies at its quantile of
    (n - 3/8) / (n + 1/4) (G. Blom, "Statistical Estimates and Transformed Beta-Variables", 1958).

    Parameters
    ----------
    deviation
        Standard deviation of the time of one, over its mean.
    """
    if devices == 1 or not deviation:
        return 1.0
    from statistics import NormalDist  # an import that others do without

    return 1.0 + deviation * NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


def waited(plan: ResolvedPlan) -> float:
    """Return the time of a device's work that a step waits for, over that of a typical device.

    Chips differ for good, replicas' samples anew in each micro-batch; what a replica has too much
    in one it may have too little in the next. Both are independent, so that variances add up.
    """
    chips = slowest(plan.devices, plan.device_speed_std)
    samples = slowest(plan.data, plan.sequence_length_std / math.sqrt(plan.micro_batches))
    return 1.0 + math.hypot(chips - 1.0, samples - 1.0)
