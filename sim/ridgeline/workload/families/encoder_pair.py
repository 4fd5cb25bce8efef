"""Two towers whose rows are compared: CLIP and SigLIP."""

from __future__ import annotations

from typing import ClassVar, Literal

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Network, family
from ridgeline.workload.families.tower import EncoderTower


@family("encoder-pair", network_kind="transformer")
class EncoderPair(Network):
    """Towers of images and of text; every image is compared with every text of the batch.

    Radford et al., CLIP, ICML 2021, arXiv:2103.00020, Figure 3; Zhai et al., SigLIP, ICCV 2023,
    arXiv:2303.15343, Algorithm 1. Replicas compare their own samples: the exchange of rows between
    them is left out.
    """

    sample: ClassVar[str] = "image-text pairs"

    image: EncoderTower
    text: EncoderTower
    loss: Literal["softmax", "sigmoid"] = "softmax"
    """A softmax over all pairs in both directions, or a sigmoid of each pair, with a bias."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        rows = []
        for tower in (self.image, self.text):
            x = tower.build(b).rows
            n, _, features = b.shape(x)
            layer = f"{tower.name}.length"
            (length,) = ops.function(b, layer, "length", (x,), (n, 1, 1))
            (x,) = ops.function(b, f"{layer}.divide", "divide", (x, length), (n, 1, features))
            (x,) = ops.function(b, f"{layer}.row", "rearrange", (x,), (1, n, features))
            rows.append(x)
        logits = ops.attention_scores(b, "pairs", rows[0], rows[1], 1, 1)
        n = b.batch
        factor = b.cast(b.weight("scale.weight", (1,)), b.format(logits), "scale")
        shape = b.shape(logits)
        (logits,) = ops.function(b, "scale", "broadcast-multiply", (logits, factor), shape)
        if self.loss == "sigmoid":
            bias = b.cast(b.weight("bias.weight", (1,)), b.format(logits), "bias")
            (logits,) = ops.function(b, "bias", "broadcast-add", (logits, bias), shape)
            (flat,) = ops.function(b, "pairs.flat", "rearrange", (logits,), (n, n))
            return ops.binary_cross_entropy(b, "loss", flat, b.input("pairs-labels", (n, n)))
        losses = []
        for way in ("of-images", "of-texts"):
            (flat,) = ops.function(b, f"pairs.{way}", "rearrange", (logits,), (n, n))
            labels = b.input(f"labels-{way}", (n,), "int64")
            losses.append(ops.cross_entropy(b, f"loss.{way}", flat, labels))
        return ops.add(b, "loss", *losses)
