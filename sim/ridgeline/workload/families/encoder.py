"""One tower with a head: classes of images, or tokens that are filled in."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, family
from ridgeline.workload.families.blocks import Norm, norm
from ridgeline.workload.families.tower import EncoderTower


@family("encoder", network_kind="transformer")
class Encoder(Network):
    """A tower whose rows a head reads.

    DINOv2 (Oquab et al., 2023, arXiv:2304.07193), SigLIP's encoder alone, ModernBERT (Warner et
    al., 2024, arXiv:2412.13663), DistilBERT (Sanh et al., 2019, arXiv:1910.01108).
    """

    sample: ClassVar[str] = "samples"

    tower: EncoderTower
    classes: Channels | None = None
    """Classes that a linear layer tells apart, of one row."""
    masked: Channels | None = None
    """Tokens to fill in; its head has a linear layer, gelu and a norm before the embedding."""
    transform_bias: bool = True
    """Whether that linear layer adds a bias."""
    transform_norm: Norm = "layer-norm"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.classes and self.masked:
            raise ValueError("give classes or masked; neither: the rows are compared with others")
        if self.masked and not self.tower.vocabulary:
            raise ValueError("masked: a tower that fills in tokens needs a vocabulary")
        return self

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence, of a tower that reads such."""
        return self.tower.rows if self.tower.vocabulary else 0

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        made = self.tower.build(b)
        x = made.rows
        if self.masked:
            return self._filled_in(b, x)
        if self.classes:
            labels = b.input("labels", (b.batch,), "int64")
            logits = ops.linear(b, "head", x, self.classes, flatten=True)
            return ops.cross_entropy(b, "loss", logits, labels)
        return ops.mean_squared_error(b, "loss", x, b.input("targets", b.shape(x)))

    def _filled_in(self, b: GraphBuilder, x: str) -> str:
        assert self.masked is not None
        where = b.input("masked-positions", (b.batch, self.masked), "int64")
        labels = b.input("masked-labels", (b.batch, self.masked), "int64")
        x = ops.gather(b, "masked.gather", x, where)
        x = ops.linear(b, "masked.transform", x, self.tower.hidden, bias=self.transform_bias)
        x = ops.activation(b, "masked.gelu", x, "gelu")
        x = norm(b, "masked.norm", x, self.transform_norm)
        x = ops.product(b, "masked", x, f"{self.tower.name}.embedding.weight")
        x = ops.add_bias(b, "masked", x, axis=-1)
        return ops.cross_entropy(b, "masked-loss", x, labels)
