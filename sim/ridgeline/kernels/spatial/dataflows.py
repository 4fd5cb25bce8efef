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
    whole
        Loops that have to be whole in an element or along an axis, as far as it has room.
    innermost
        Loops over tiles that go on while the stationary operand stays; empty: any order.
    """

    element: str
    rows: str
    columns: str
    whole_in_element: str = ""
    whole_along_rows: str = ""
    innermost: str = ""


DATAFLOWS = {
    # A row of the filter stays in an element, a row of the image slides through it: taps of a row
    # in the element, the filter's rows down the array, the output's rows across (Chen, Emer, Sze,
    # ISCA 2016, Section V). Free elements take other channels and filters.
    "row-stationary": Dataflow("ckns", "rckpn", "pkn", "s", "r", "q"),
    "weight-stationary": Dataflow("", "crs", "k", innermost="npq"),
    "output-stationary": Dataflow("", "pqn", "kpqn", innermost="crs"),
    "input-stationary": Dataflow("", "crs", "npq", innermost="k"),
    "any": Dataflow("nkcpqrs", "nkcpqrs", "nkcpqrs"),
}
