"""How many rows the experts of one rank work on: an even load, or one by a power law.

The power law is that of the tables of aiconfigurator (NVIDIA, Apache-2.0,
collector/helper.py, `power_law_logits_v3`): the load of every expert is drawn from a density
x^-alpha between 1 and 0.8 times the tokens (between 0.01 and 2 where there are fewer rows than
experts), scaled to the number of rows, and the rank with the most rows is the one that is measured.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError, nearest

_DRAWS = 15
_LEAST, _SHARE = 1.0, 0.8
_FEW = (0.01, 2.0)  # bounds of a load where there are fewer rows than experts
_POWER_LAW = "power_law_"


class ExpertLoad(NamedTuple):
    """Rows of the fullest rank, and how many of its experts have any.

    Attributes
    ----------
    counts
        Rows of each expert that has any.
    """

    rows: int
    active: int
    counts: tuple[int, ...]


def expected_experts(experts: int, top_k: int, tokens: int) -> float:
    """Return how many experts are expected to have a row of some tokens.

    Each token chooses `top_k` of them evenly at random: an expert is not among those of a token
    with the probability 1 - k / E, so that E (1 - (1 - k / E)^tokens) have one.
    """
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


@lru_cache(maxsize=65536)
def loaded_rank(
    tokens: int, experts: int, top_k: int, ranks: int, distribution: str = "balanced"
) -> ExpertLoad:
    """Return the load of the fullest of some ranks that share the experts.

    Parameters
    ----------
    tokens
        Of all ranks together, each with `top_k` rows.
    distribution
        balanced, or power_law_ALPHA: the draw whose fullest rank is the median of 15.

    Raises
    ------
    RidgelineError
        If the ranks do not divide the experts, or there is no such distribution.
    """
    if min(tokens, experts, top_k, ranks) < 1 or experts % ranks:
        raise RidgelineError(
            f"{ranks} ranks cannot share {experts} experts of {tokens} tokens with {top_k} each"
        )
    rows, own = tokens * top_k, experts // ranks
    if distribution == "balanced":
        mine = max(1, round(rows / ranks))
        active = min(own, mine)
        each, more = divmod(mine, active)
        return ExpertLoad(mine, active, (each + 1,) * more + (each,) * (active - more))
    draws = [_drawn(rows, tokens, experts, own, _exponent(distribution), s) for s in range(_DRAWS)]
    return sorted(draws)[_DRAWS // 2]


def _exponent(distribution: str) -> float:
    try:
        if distribution.startswith(_POWER_LAW):
            return float(distribution.removeprefix(_POWER_LAW))
    except ValueError:
        pass
    known = ("balanced", f"{_POWER_LAW}1.2")
    raise RidgelineError(
        f"there is no distribution of tokens {distribution!r}{nearest(distribution, known)} "
        f"(allowed: balanced, {_POWER_LAW}ALPHA)"
    )


def _drawn(rows: int, tokens: int, experts: int, own: int, alpha: float, seed: int) -> ExpertLoad:
    uniform = np.random.default_rng(seed).random(experts)
    low, high = (_LEAST, _SHARE * tokens) if rows > experts else _FEW
    if alpha == 1.0:
        load = low * (high / low) ** uniform
    else:
        power = 1.0 - alpha
        load = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    counts = np.round(load / load.sum() * rows)
    each = counts.reshape(-1, own)
    fullest = each[each.sum(axis=1).argmax()]
    found = tuple(int(count) for count in fullest if count > 0) or (1,)
    return ExpertLoad(sum(found), len(found), found)
