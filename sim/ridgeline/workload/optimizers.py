"""Optimizers: what an update computes and keeps for every weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ridgeline.errors import RidgelineError, nearest


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An update rule, applied to each weight separately.

    Attributes
    ----------
    states
        The fp32 tensors kept for every weight tensor, by name.
    flops_per_weight
        Arithmetic per weight in FLOP; division and square root count as one.
    rule
        What `flops_per_weight` counts (g gradient, w weight).
    source
        Where the rule is defined.
    """

    name: str
    states: tuple[str, ...]
    flops_per_weight: int
    rule: str
    source: str


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        optimizer.name: optimizer
        for optimizer in (
            Optimizer(
                "sgd",
                (),
                4,
                "g += decay w; w -= rate g",
                "Robbins and Monro, A stochastic approximation method, Ann. Math. Statist. 22,"
                " 1951; with weight decay",
            ),
            Optimizer(
                "sgd-momentum",
                ("momentum",),
                6,
                "g += decay w; m = mu m + g; w -= rate m",
                "Sutskever et al., On the importance of initialization and momentum in deep"
                " learning, ICML 2013; in the form of torch.optim.SGD, with weight decay",
            ),
            Optimizer(
                "adam",
                ("first-moment", "second-moment"),
                14,
                "m = b1 m + (1 - b1) g (3); v = b2 v + (1 - b2) g g (4); m / c1, v / c2 (2);"
                " w -= rate m / (sqrt(v) + eps) (5)",
                "Kingma and Ba, Adam, ICLR 2015, arXiv:1412.6980, Algorithm 1",
            ),
        )
    }
)


def find(name: str) -> Optimizer:
    """Return an optimizer by name.

    Raises
    ------
    RidgelineError
        If it is unknown.
    """
    if name not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise RidgelineError(
            f"unknown optimizer {name!r}{nearest(name, OPTIMIZERS)} (known: {known})"
        )
    return OPTIMIZERS[name]
