"""Tiles through double buffers: when each is loaded, computed and stored.

The recurrence that is in `ridgeline.kernels.mapping.pipeline`, tile by tile, for any buffers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ridgeline._jit import kernel
from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.footprint import Floats


class Stalls(NamedTuple):
    """Where the time of a sequence of tiles goes; the parts sum up to the total.

    Attributes
    ----------
    compute_s
        Of all tiles.
    first_load_s, last_store_s
        Before the first tile and after the last one.
    steady_s
        Everything else: the engine waits for a load or a store.
    """

    compute_s: float
    first_load_s: float
    steady_s: float
    last_store_s: float

    @property
    def total_s(self) -> float:
        """From the begin of the first load to the end of the last store."""
        return self.compute_s + self.first_load_s + self.steady_s + self.last_store_s


def tile_stalls(
    load_s: ArrayLike,
    compute_s: ArrayLike,
    store_s: ArrayLike,
    *,
    input_buffers: int = 2,
    output_buffers: int = 2,
    shared_port: bool = True,
) -> Stalls:
    """Play tiles through the buffers of one level.

    Parameters
    ----------
    load_s, compute_s, store_s
        Durations of each tile, [tiles]; they broadcast.
    input_buffers, output_buffers
        1 or 2.
    shared_port
        Whether loads and stores take turns.

    Raises
    ------
    RidgelineError
        If there are no tiles, a duration is negative or not finite, or a count is not 1 or 2.
    """
    arrays = [np.asarray(x, float) for x in (load_s, compute_s, store_s)]
    if any(not np.isfinite(x).all() or (x < 0).any() for x in arrays):
        raise RidgelineError("durations must be finite and at least 0")
    load, compute, store = (np.ascontiguousarray(x) for x in np.broadcast_arrays(*arrays))
    if load.ndim != 1 or not len(load):
        raise RidgelineError(f"expected durations of at least one tile, found {load.shape}")
    if {input_buffers, output_buffers} - {1, 2}:
        raise RidgelineError("a level has 1 or 2 buffers for its inputs and for its outputs")
    total = play(load, compute, store, input_buffers, output_buffers, shared_port)
    busy = float(compute.sum())
    steady = total - busy - float(load[0]) - float(store[-1])
    return Stalls(busy, float(load[0]), max(0.0, steady), float(store[-1]))


@kernel
def play(
    load: Floats, compute: Floats, store: Floats, inputs: int, outputs: int, shared: bool
) -> float:
    """Return when the last store has ended; see the module's text for the recurrence."""
    n = len(load)
    loaded, done, stored = np.zeros(n), np.zeros(n), np.zeros(n)
    into = out = 0.0  # when the port, or each of both, becomes free
    loads = stores = 0  # transfers so far
    for i in range(n + outputs):  # the last turns are for the last stores
        while loads <= min(i, n - 1) or stores <= i - outputs:
            if loads < min(n, stores + inputs + 1):  # load j + inputs goes before store j
                asked = done[loads - inputs] if loads >= inputs else 0.0
                into = loaded[loads] = max(into, asked) + load[loads]
                loads += 1
                continue
            free = into if shared else out
            out = stored[stores] = max(free, done[stores]) + store[stores]
            into = out if shared else into
            stores += 1
        if i < n:
            begin = max(loaded[i], done[i - 1] if i else 0.0)
            begin = max(begin, stored[i - outputs] if i >= outputs else 0.0)
            done[i] = begin + compute[i]
    return float(stored[n - 1])
