"""Policy and value networks of board games.

Silver et al., Mastering the game of Go without human knowledge, Nature 550, 2017 (AlphaGo Zero), in
the form of the MLPerf training reference (MiniGo): a tower of residual blocks and two heads. The
label of the policy is the move that was played, not its search distribution.
"""

from __future__ import annotations

from typing import ClassVar

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Extent, Network, family
from ridgeline.workload.families.decoder import Layers


@family("policy-value")
class PolicyValue(Network):
    """A residual tower with a head for the next move and one for the winner."""

    sample: ClassVar[str] = "positions"

    board: Extent
    """Height and width of the board."""
    planes: Channels
    """Features of a point."""
    blocks: Layers
    """Residual blocks."""
    filters: Channels
    """Channels of the tower."""
    value_width: Channels
    """Features inside the value head."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x = b.input("positions", (b.batch, self.planes, self.board, self.board))
        x = self._conv(b, "stem", x, self.filters, 3)
        for i in range(self.blocks):
            y = self._conv(b, f"block{i}.1", x, self.filters, 3)
            y = self._conv(b, f"block{i}.2", y, self.filters, 3, relu=False)
            x = ops.relu(b, f"block{i}.relu", ops.add(b, f"block{i}.add", y, x))
        return ops.add(b, "loss", self._policy(b, x), self._value(b, x))

    def _policy(self, b: GraphBuilder, x: str) -> str:
        moves = b.input("moves", (b.batch,), "int64")
        x = self._conv(b, "policy", x, 2, 1)
        x = ops.linear(b, "policy.fc", x, self.board**2 + 1, flatten=True)  # or pass
        return ops.cross_entropy(b, "policy.loss", x, moves)

    def _value(self, b: GraphBuilder, x: str) -> str:
        winners = b.input("winners", (b.batch, 1))
        x = self._conv(b, "value", x, 1, 1)
        x = ops.linear(b, "value.fc1", x, self.value_width, flatten=True)
        x = ops.linear(b, "value.fc2", ops.relu(b, "value.relu1", x), 1)
        x = ops.activation(b, "value.tanh", x, "tanh")
        return ops.mean_squared_error(b, "value.loss", x, winners)

    @staticmethod
    def _conv(
        b: GraphBuilder, name: str, x: str, filters: int, kernel: int, *, relu: bool = True
    ) -> str:
        x = ops.conv2d(b, f"{name}.conv", x, filters, kernel, padding=kernel // 2)
        x = ops.batch_norm(b, f"{name}.bn", x)
        return ops.relu(b, f"{name}.relu", x) if relu else x
