"""Points that fill a box evenly: Latin hypercubes and Sobol sequences.

McKay, Beckman, Conover, "A Comparison of Three Methods for Selecting Values of Input Variables",
Technometrics 21(2), 1979; Sobol sequences by the direction numbers of Joe and Kuo, "Constructing
Sobol sequences with better two-dimensional projections", SIAM J. Sci. Comput. 30(5), 2008, with a
random digital shift.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.errors import ConfigError

Points = npt.NDArray[np.float64]
_BITS = 32
# Of dimension 2 and on: coefficients of the primitive polynomial, and the first direction numbers.
_JOE_KUO: tuple[tuple[int, tuple[int, ...]], ...] = (
    (0, (1,)), (1, (1, 3)), (1, (1, 3, 1)), (2, (1, 1, 1)), (1, (1, 1, 3, 3)),
    (4, (1, 3, 5, 13)), (2, (1, 1, 5, 5, 17)), (4, (1, 1, 5, 5, 5)), (7, (1, 1, 7, 11, 19)),
    (11, (1, 1, 5, 1, 1)), (13, (1, 1, 1, 3, 11)),
)  # fmt: skip
MAX_SOBOL = len(_JOE_KUO) + 1


def latin_hypercube(count: int, dimensions: int, seed: int) -> Points:
    """Return points in the unit box: in every dimension, one in each of `count` equal slices."""
    rng = np.random.default_rng(seed)
    slices = np.stack([rng.permutation(count) for _ in range(dimensions)], axis=1)
    return np.asarray((slices + rng.random((count, dimensions))) / count, dtype=np.float64)


def sobol(count: int, dimensions: int, seed: int) -> Points:
    """Return the first points of a shifted Sobol sequence in the unit box.

    Of the first 2**k points, one lies in each of 2**k equal slices, in every dimension.

    Raises
    ------
    ConfigError
        If there are more than `MAX_SOBOL` dimensions.
    """
    if dimensions > MAX_SOBOL:
        raise ConfigError(
            f"sobol samples at most {MAX_SOBOL} fields, found {dimensions}; use latin-hypercube"
        )
    directions = np.array([_directions(d) for d in range(dimensions)], dtype=np.uint64)
    index = np.arange(count, dtype=np.uint64)
    gray = index ^ (index >> np.uint64(1))
    points = np.zeros((count, dimensions), np.uint64)
    for bit in range(_BITS):
        has = (gray >> np.uint64(bit)) & np.uint64(1)
        points ^= has[:, None] * directions[None, :, bit]
    shift = np.random.default_rng(seed).integers(0, 2**_BITS, dimensions, dtype=np.uint64)
    return np.asarray((points ^ shift) / 2.0**_BITS, dtype=np.float64)


def _directions(dimension: int) -> list[int]:
    """Return the direction numbers of a dimension, the highest bit first."""
    if dimension == 0:
        return [1 << (_BITS - 1 - i) for i in range(_BITS)]
    coefficients, first = _JOE_KUO[dimension - 1]
    degree = len(first)
    v = [m << (_BITS - 1 - i) for i, m in enumerate(first)]
    for i in range(degree, _BITS):
        new = v[i - degree] ^ (v[i - degree] >> degree)
        for k in range(1, degree):
            if coefficients >> (degree - 1 - k) & 1:
                new ^= v[i - k]
        v.append(new)
    return v
