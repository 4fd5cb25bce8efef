"""Adapters of low rank beside products whose weights are not trained (LoRA).

E. Hu et al., LoRA: Low-rank adaptation of large language models, 2021, arXiv:2106.09685: a product
of weights [features, k] that stay as they are gets another beside it, through `rank` features. Only
its weights are trained; all others of the network are frozen: kept in the format that they are
computed with, without gradients, updates and optimizer state.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field, model_validator

from ridgeline.config import Strict


class Adapters(Strict):
    """Which products have one, and how narrow it is; a number alone is the rank."""

    rank: Annotated[int, Field(ge=1, le=2**16)]
    """Features between its two products."""
    layers: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = (
        "*.attention.query*",
        "*.attention.value",
    )
    """Patterns of the names of linear layers that have one; by default those of queries and values,
    as in the paper (Section 4.2), or the product that forms them together with keys."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of what it reads."""

    @model_validator(mode="before")
    @classmethod
    def _from_rank(cls, value: object) -> object:
        return {"rank": value} if isinstance(value, int) else value

    def at(self, layer: str) -> bool:
        """Tell whether a linear layer has one."""
        return any(fnmatchcase(layer, pattern) for pattern in self.layers)
