"""User collectives: a verified algorithm from a file, as messages by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.message_schedule import MessageSchedule, make_script, make_step
from ridgeline.network.routed import phases_of
from ridgeline.network.schedule import CollectiveSchedule, check_size
from ridgeline.network.topology import Topology


class Message(NamedTuple):
    """One message: its round, its ends, and how many chunks it carries."""

    round: int
    source: int
    target: int
    chunks: int


@dataclass(frozen=True)
class UserCollective:
    """A verified collective of so many ranks.

    Attributes
    ----------
    chunk_share
        Bytes on the wire of one chunk, over the size of the collective.
    messages
        In any order.
    """

    name: str
    op: str
    n_ranks: int
    chunk_share: float
    messages: tuple[Message, ...]

    def schedule(
        self, topology: Topology, ranks: Sequence[int], size_bytes: float
    ) -> CollectiveSchedule:
        """Return what it sends over the links of a topology.

        Raises
        ------
        RidgelineError
            If the group has another size.
        """
        script = self.script(ranks, size_bytes)
        phases = phases_of(script, topology, topology.devices[list(ranks)].astype(np.int64))
        return CollectiveSchedule(self.op, self.name, self.n_ranks, float(size_bytes), phases)

    def script(self, ranks: Sequence[int], size_bytes: float) -> MessageSchedule:
        """Return what it sends from rank to rank.

        Raises
        ------
        RidgelineError
            If the group has another size.
        """
        check_size(size_bytes)
        if len(ranks) != self.n_ranks:
            raise RidgelineError(
                f"{self.name} is a collective of {self.n_ranks} ranks; the group has {len(ranks)}"
            )
        columns = np.array(self.messages, np.int64).reshape(-1, 4)
        most = int(columns[:, 3].max(initial=1))
        steps = [
            make_step(own[:, 1], own[:, 2], 0, own[:, 3], span=most)
            for number in range(int(columns[:, 0].max(initial=-1)) + 1)
            if len(own := columns[columns[:, 0] == number])
        ]
        return make_script(np.full(most, size_bytes * self.chunk_share), steps)
