"""Ring collectives that really move data: NumPy arrays sent from rank to rank, one round a time.

Knows the channels' rank orders, routes and shares, and nothing of schedules.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.network.rings import Channels

Ints = npt.NDArray[np.int64]


class RingData:
    """Buffers of all ranks on the channels of one group.

    Parameters
    ----------
    channels
        Of the group.
    buffers
        Rank -> array; all of the same length. They are changed in place.
    """

    def __init__(self, channels: Channels, buffers: dict[int, Ints]) -> None:
        self.buffers = buffers
        self.bytes_on_link: dict[int, float] = {}
        length = len(next(iter(buffers.values())))
        cuts = np.cumsum([0.0] + [channel.share for channel in channels.channels])
        edges = np.rint(cuts * length).astype(int)
        self.parts = [
            (channel, np.array_split(np.arange(first, last), len(channel.ranks)))
            for channel, first, last in zip(channels.channels, edges[:-1], edges[1:], strict=True)
        ]

    def reduce_scatter(self) -> None:
        """Leave on the rank at position i the sum of chunk i + 1, on every channel."""
        self._rounds(first_chunk=0, add=True)

    def all_gather(self) -> None:
        """Pass on chunk i + 1 of the rank at position i to all others, on every channel."""
        self._rounds(first_chunk=1, add=False)

    def _rounds(self, first_chunk: int, *, add: bool) -> None:
        for channel, chunks in self.parts:
            n = len(channel.ranks)
            for turn in range(n - 1):
                messages = []
                for position, rank in enumerate(channel.ranks):
                    where = chunks[(position + first_chunk - turn) % n]
                    messages.append((where, self.buffers[rank][where].copy()))
                    for link in channel.routes[position]:
                        sent = messages[-1][1].nbytes
                        self.bytes_on_link[link] = self.bytes_on_link.get(link, 0.0) + sent
                for position, (where, message) in enumerate(messages):
                    target = self.buffers[channel.ranks[(position + 1) % n]]
                    target[where] = target[where] + message if add else message
