"""Checkpoint interval: how much work to do between two saves, in closed form.

Frequent saves cost time, rare ones lose work at every failure. With exponential failures of mean
M apart, a save that stops training for d, and work of t between saves, small losses take
d/t + (t/2 + R)/M of the time, R being detection and restart. Young's interval is the minimum of
that, Daly's corrects it where d is no longer small beside M.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
1974; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22(3), 2006, equations 13, 20 and 37.
"""

from __future__ import annotations

import math

from ridgeline.errors import RidgelineError


def young_interval_s(save_s: float, between_failures_s: float) -> float:
    """Return the work between saves that Young's first-order model finds best, in seconds.

    Raises
    ------
    RidgelineError
        If a time is not positive.
    """
    _check(save_s, between_failures_s)
    return math.sqrt(2 * save_s * between_failures_s)


def daly_interval_s(save_s: float, between_failures_s: float) -> float:
    """Return the work between saves that Daly's higher-order model finds best, in seconds.

    A save that takes twice the mean time between failures or longer leaves no better interval than
    that mean itself.

    Raises
    ------
    RidgelineError
        If a time is not positive.
    """
    _check(save_s, between_failures_s)
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = save_s / (2 * between_failures_s)
    root = math.sqrt(2 * save_s * between_failures_s)
    return root * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def expected_wall_time_s(
    work_s: float, interval_s: float, save_s: float, restart_s: float, between_failures_s: float
) -> float:
    """Return the expected time of a run with exponential failures (Daly, equation 13), in seconds.

    Parameters
    ----------
    work_s
        What the run takes without saves and failures.
    interval_s, save_s
        Work between saves, and how long each stops the training.
    restart_s
        From a failure to the next step: detection, restart, reading the checkpoint; it may fail.
    between_failures_s
        Mean of the job.

    Raises
    ------
    RidgelineError
        If a time is not positive; restarts may take none.
    """
    _check(work_s, interval_s, save_s, between_failures_s)
    if restart_s < 0:
        raise RidgelineError(f"a restart of {restart_s:g} s: must be at least 0")
    mean = between_failures_s
    try:
        tries = math.exp(restart_s / mean) * math.expm1((interval_s + save_s) / mean)
    except OverflowError:
        return math.inf
    return mean * tries * work_s / interval_s


def _check(*times_s: float) -> None:
    for time_s in times_s:
        if not 0 < time_s < math.inf:
            raise RidgelineError(f"found {time_s:g} s; must be more than 0 and finite")
