"""Room of the cache of keys and values: what a device has left, and what a sequence takes of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ridgeline.workload.generation_step import CachedLayer

Lengths = NDArray[np.int64]
Sizes = NDArray[np.float64]


PAGE_TOKENS = 16
"""Positions of a page where nothing else is asked (assumed: the middle one of the sizes 8, 16 and
32 that vLLM's `--block-size` takes, engine arguments of version 0.5.3)."""


@dataclass(frozen=True)
class KvLayout:
    """What sequences take of a device.

    Attributes
    ----------
    layers
        What each layer keeps.
    tensor
        Devices that share the heads of keys.
    pipeline
        Stages that share the layers: the fullest stage counts.
    page_tokens
        Positions of a page: a sequence has whole pages (Kwon et al., Efficient memory management
        for large language model serving with PagedAttention, SOSP 2023, arXiv:2309.06180, Section
        4.1); 1: exactly what it needs.
    """

    layers: tuple[CachedLayer, ...]
    tensor: int = 1
    pipeline: int = 1
    page_tokens: int = PAGE_TOKENS

    @cached_property
    def _kinds(self) -> tuple[tuple[int, float], ...]:
        """Windows, and the bytes of a position in all layers that have it."""
        found: dict[int, float] = {}
        for layer in self.layers:
            if layer.elements:
                found[layer.window] = found.get(layer.window, 0.0) + layer.token_bytes(self.tensor)
        return tuple((window, size * self._share) for window, size in found.items())

    @cached_property
    def _share(self) -> float:
        """Share of the layers of the fullest stage."""
        count = len(self.layers) or 1
        return min(count, -(-count // self.pipeline)) / count

    @cached_property
    def state_bytes(self) -> float:
        """Bytes of a sequence that do not grow with it."""
        each = (layer.state_bytes * layer.share(self.tensor) for layer in self.layers)
        return self._share * sum(each)

    @property
    def token_bytes(self) -> float:
        """Bytes of one more position of a long sequence: of the layers without a window."""
        return sum(size for window, size in self._kinds if not window)

    def bytes_of(self, lengths: Lengths) -> Sizes:
        """Bytes of sequences of some lengths on the fullest device.

        A window of a paged cache takes a page more than it fills: it slides over their ends.
        """
        page = self.page_tokens
        pages = -(-np.asarray(lengths, np.int64) // page)
        total: Sizes = np.full(pages.shape, self.state_bytes)
        for window, size in self._kinds:
            kept = np.minimum(pages, -(-window // page) + (page > 1)) if window else pages
            total = total + kept * (page * size)
        return total

    def sequence_bytes(self, length: int) -> float:
        """Bytes of one sequence, as `bytes_of`."""
        return float(self.bytes_of(np.array(length)))

    def longest(self, room_bytes: float, limit: int = 2**24) -> int:
        """Return the length of the longest sequence that alone fits into so many bytes."""
        if self.sequence_bytes(1) > room_bytes:
            return 0
        low, high = 1, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if self.sequence_bytes(middle) <= room_bytes else (low, middle - 1)
            )
        return low
