"""A layer of a decoder whose layers are not all alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.blocks import Attention, FeedForward, LatentAttention
from ridgeline.workload.families.linear_attention import LinearAttention, SelectiveScan, ShortFilter
from ridgeline.workload.families.mixture import Mixture
from ridgeline.workload.families.state_space import StateSpace

Attend = Callable[[GraphBuilder, str, Attention | LatentAttention, str], str]


class LayerVariant(Strict):
    """What one letter of a pattern stands for: mixers of positions, and what follows them.

    Several mixers, or a feed-forward network beside a mixture, read the same norm, and what they
    make is added (Falcon-H1, 2025, arXiv:2507.22448).
    """

    letter: Annotated[str, Field(pattern=r"^[A-Za-z*-]$")]
    """That stands for it."""
    attention: Attention | None = None
    latent_attention: LatentAttention | None = None
    linear_attention: LinearAttention | None = None
    state_space: StateSpace | None = None
    selective_scan: SelectiveScan | None = None
    short_filter: ShortFilter | None = None
    cross_attention: Attention | None = None
    """To what a tower makes; a branch of its own."""
    feed_forward: FeedForward | None = None
    mixture: Mixture | None = None
    branch_norms: bool = False
    """Whether a feed-forward network and a mixture beside each other have norms of their own,
    before and after them, besides those of the layer (Gemma 4)."""
    branch_gates: bool = False
    """Whether every branch is scaled by the tanh of a trained number."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.mixes or self.follows or self.cross_attention):
            raise ValueError("a layer without any part")
        return self

    @property
    def mixes(self) -> bool:
        """Whether a branch mixes positions."""
        return any(
            (
                self.attention,
                self.latent_attention,
                self.linear_attention,
                self.state_space,
                self.selective_scan,
                self.short_filter,
            )
        )

    @property
    def follows(self) -> bool:
        """Whether a branch of single positions follows."""
        return self.feed_forward is not None or self.mixture is not None

    def mix(self, b: GraphBuilder, name: str, x: str, attend: Attend) -> str:
        """Write the mixers of positions, and the sum of what they make."""
        parts = [
            attend(b, f"{name}.attention", attention, x)
            for attention in (self.attention, self.latent_attention)
            if attention is not None
        ]
        for part, mixer in (
            ("linear-attention", self.linear_attention),
            ("state-space", self.state_space),
            ("selective-scan", self.selective_scan),
            ("short-filter", self.short_filter),
        ):
            if mixer is not None:
                parts.append(mixer.build(b, f"{name}.{part}", x))
        return _sum(b, f"{name}.add-mixers", parts)

    def follow(self, b: GraphBuilder, name: str, x: str, stream: str) -> str:
        """Write the feed-forward network or mixture, or both and their sum."""
        if self.mixture is None:
            assert self.feed_forward is not None
            return self.feed_forward.build(b, f"{name}.feed-forward", x)
        if self.feed_forward is None:
            return self.mixture.build(b, f"{name}.experts", x)
        y = self.feed_forward.build(b, f"{name}.feed-forward", x)
        read = x
        if self.branch_norms:
            y = ops.rms_norm(b, f"{name}.feed-forward.norm", y)
            read = ops.rms_norm(b, f"{name}.experts.norm", stream)
        z = self.mixture.build(b, f"{name}.experts", read)
        if self.branch_norms:
            z = ops.rms_norm(b, f"{name}.experts.norm-after", z)
        return _sum(b, f"{name}.add-branches", [y, z])


def _sum(b: GraphBuilder, layer: str, parts: list[str]) -> str:
    y = parts[0]
    for i, other in enumerate(parts[1:]):
        y = ops.add(b, f"{layer}{i or ''}", y, other)
    return y
