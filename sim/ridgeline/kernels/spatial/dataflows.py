"""The named dataflows: which loops may run in an element, along rows, and along columns.

V. Sze, Y.-H. Chen, T.-J. Yang, J. Emer, "Efficient Processing of Deep Neural Networks: A Tutorial
and Survey", Proceedings of the IEEE 105(12), 2017, Section V.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dataflow:
    """What a dataflow leaves to choose.

    Attributes
    ----------
    element, rows, columns
        Loops that may have a factor there.
    halved_in_element
        Loops that are whole in an element or, for elements with fewer registers, halved some times.
    innermost
        Loops over tiles that go on while the stationary operand stays; empty: any order.
    along_axis
        Loops that share an axis of the array, at most.
    coarse
        Whether an element's tiles are powers of two and three times these, or whole, alone.
    """

    element: str
    rows: str
    columns: str
    halved_in_element: str = ""
    innermost: str = ""
    along_axis: int = 8
    coarse: bool = False


NAMED = {
    # A row of the filter stays in an element, a row of the image slides through it: taps of a row
    # in the element, the filter's rows down the array, the output's rows across (Chen, Emer, Sze,
    # ISCA 2016, Section V). Free elements take other channels and filters.
    "row-stationary": Dataflow("ckn", "rckpn", "pkn", "s", "q"),
    "weight-stationary": Dataflow("", "crs", "k", innermost="npq"),
    "output-stationary": Dataflow("", "pqn", "kpqn", innermost="crs", along_axis=3),
    "input-stationary": Dataflow("", "crs", "npq", innermost="k"),
}
ANY = Dataflow("nkcpqrs", "nkcpqrs", "nkcpqrs", along_axis=2, coarse=True)

DATAFLOWS: dict[str, tuple[Dataflow, ...]] = {
    **{name: (flow,) for name, flow in NAMED.items()},
    "any": (*NAMED.values(), ANY),
}
"""By name; `any` is all the others and one without a stationary operand."""
