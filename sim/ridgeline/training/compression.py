"""Gradient compression: bytes that are sent, what a collective makes of them, and what it costs.

A method says how many bytes stand for a gradient of n numbers, and how many operations it takes to
find them. Sparse gradients fill in on their way through an all-reduce: where each of k workers
sends a share d of the numbers, chosen independently, the sum has a share of 1 - (1 - d)^k of them;
in the worst case, of k d. Warm-up steps send more, so the gain of a run is the harmonic mean
1 / (w + (1 - w) / g).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ridgeline.errors import RidgelineError
from ridgeline.registry import Registry

_FP32_BYTES = 4.0
FillIn = Literal["independent", "worst"]


@dataclass(frozen=True)
class GradientCompression:
    """A way to send gradients in fewer bytes.

    Attributes
    ----------
    density
        Share of the numbers that is sent.
    bits_per_number, index_bits
        Of each number that is sent: its value, and what says where it stands.
    rank
        Of low-rank methods: rank of the factors that stand for a matrix; 0: not of that kind.
    passes
        How often as much memory as the gradient takes is read or written to compress and unpack it:
        counted from the steps of the published algorithm, a kernel each.
    warm_up_share
        Share of the steps that is sent in full, where it is known.
    source
        Where the method was published.
    """

    name: str
    density: float
    bits_per_number: float
    index_bits: float = 0.0
    rank: int = 0
    passes: float = 0.0
    warm_up_share: float = 0.0
    source: str = ""

    def ratio(self) -> float:
        """Return how many times fewer bytes than fp32 a worker sends.

        Raises
        ------
        RidgelineError
            Of low-rank methods, whose ratio depends on the shapes (`low_rank_bytes`).
        """
        if self.rank:
            raise RidgelineError(f"what {self.name} sends depends on the shapes of the weights")
        return 8 * _FP32_BYTES / (self.density * (self.bits_per_number + self.index_bits))

    def low_rank_bytes(self, shapes: tuple[tuple[int, ...], ...]) -> float:
        """Return the bytes of the factors of weights of these shapes; vectors are sent whole."""
        total = 0.0
        for shape in shapes:
            rows, rest = shape[0], math.prod(shape[1:])
            small = min(self.rank * (rows + rest), rows * rest) if len(shape) > 1 else rows
            total += small * _FP32_BYTES
        return total

    def filled(self, workers: int, fill_in: FillIn = "independent") -> float:
        """Return the density of the sum of so many workers' gradients."""
        if fill_in == "worst":
            return min(1.0, workers * self.density)
        return -math.expm1(workers * math.log1p(-self.density)) if self.density < 1 else 1.0

    def all_reduce_bytes(
        self, numbers: int, workers: int, fill_in: FillIn = "independent"
    ) -> float:
        """Return what each worker sends in an all-reduce by recursive doubling, in bytes.

        In each of its log2(N) rounds two partners exchange the sums that they have, which fill in
        from round to round; no sum takes more than the dense one.

        Raises
        ------
        RidgelineError
            If the number of workers is no power of two.
        """
        rounds = workers.bit_length() - 1
        if workers < 1 or 1 << rounds != workers:
            raise RidgelineError(f"recursive doubling needs a power of two; found {workers}")
        whole = numbers * _FP32_BYTES
        per_number = (self.bits_per_number + self.index_bits) / 8
        return math.fsum(
            min(whole, numbers * self.filled(1 << k, fill_in) * per_number) for k in range(rounds)
        )


def warm_up_gain(share: float, gain: float) -> float:
    """Return the gain of a run of which a share of the steps has none.

    Raises
    ------
    RidgelineError
        If the share is not one, or the gain not positive.
    """
    if not 0 <= share <= 1 or gain <= 0:
        raise RidgelineError(f"found a share of {share:g} and a gain of {gain:g}")
    return 1.0 / (share + (1.0 - share) / gain)


COMPRESSIONS: Registry[str, GradientCompression] = Registry(
    "gradient compression", __name__, GradientCompression
)
"""All methods by name."""

for _method in (
    GradientCompression("none", 1.0, 32.0, source="fp32 gradients as they are"),
    GradientCompression(
        "deep-gradient-compression", 0.001, 32.0, index_bits=16.0, passes=11.0,
        source="Y. Lin et al., 'Deep gradient compression', ICLR 2018, arXiv:1712.01887: "
        "99.9 % are left out, 32-bit values with 16-bit run lengths; momentum "
        "u = m u + g (3 passes), velocity v += u (3), selection (1), masks of both (4); the few "
        "epochs of warm-up are left out",
    ),
    GradientCompression(
        "1-bit-adam", 1.0, 1.0, passes=4.0, warm_up_share=0.15,
        source="H. Tang et al., '1-bit Adam', ICML 2021, arXiv:2102.02888: signs of the "
        "momentum with error feedback (momentum and error read, error and sum written) after a "
        "warm-up of 15 to 25 % of the steps (DeepSpeed)",
    ),
    GradientCompression(
        "fp16", 1.0, 16.0, passes=3.0,
        source="gradients rounded to 16 bits and back, as Horovod's Compression.fp16",
    ),
    GradientCompression(
        "powersgd-rank-2", 1.0, 32.0, rank=2, passes=8.0,
        source="T. Vogels et al., 'PowerSGD', NeurIPS 2019, arXiv:1905.13727: error feedback "
        "(3 passes), two products of the matrix with factors of rank 2 (2), the product of the "
        "factors and the new error (3)",
    ),
):  # fmt: skip
    COMPRESSIONS.register(_method.name)(_method)
