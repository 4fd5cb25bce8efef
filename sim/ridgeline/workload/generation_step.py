"""A step of generation: how many tokens are new, how many a cache holds, and in which format.

Positions that were computed before are not computed again: attention reads their keys and values
from a cache, layers with states read their states (Pope et al., Efficiently scaling transformer
inference, MLSys 2023, arXiv:2211.05102, Section 2). Prefill computes all positions of a prompt, or
a part of them; decode computes one position of every sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.workload.formats import number_bytes


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """What one step computes of every sequence of its batch.

    Attributes
    ----------
    tokens
        New positions.
    context
        Positions before them, which are in the cache.
    kv_format
        Number format of cached keys and values.
    library
        Framework whose kernels attention, experts and states are (`kernels.library`); "": what is
        known of all of them.
    expert_ranks
        Ranks that share the experts of mixtures, each with a batch of its own.
    """

    tokens: int
    context: int
    kv_format: str = "bf16"
    library: str = ""
    expert_ranks: int = 1

    @property
    def decodes(self) -> bool:
        """Whether one token of every sequence follows those in the cache."""
        return self.tokens == 1 and self.context > 0


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """What one layer keeps of every sequence.

    Attributes
    ----------
    heads
        Heads of keys that devices share; 0: all devices have the same (latent vectors).
    elements
        Numbers of one position: of all heads together.
    window
        Positions that are kept at most; 0: all.
    state_bytes
        Of a state, which does not grow with the sequence.
    """

    layer: str
    heads: int
    elements: int
    format: str
    window: int = 0
    state_bytes: float = 0.0

    def token_bytes(self, tensor: int = 1) -> float:
        """Bytes of one position on one of `tensor` devices."""
        return self.elements * number_bytes(self.format) * self.share(tensor)

    def share(self, tensor: int) -> float:
        """Share of the layer's cache that one of `tensor` devices has: a head at least."""
        if not self.heads:
            return 1.0
        return max(1, -(-self.heads // tensor)) / self.heads

    def positions(self, length: int) -> int:
        """Positions that are kept of a sequence of a length."""
        return min(length, self.window) if self.window else length

    def bytes_of(self, length: int, tensor: int = 1) -> float:
        """Bytes of a sequence of a length on one of `tensor` devices."""
        return self.positions(length) * self.token_bytes(tensor) + self.state_bytes * self.share(
            tensor
        )
