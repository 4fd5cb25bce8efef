"""EfficientDet: a single-shot detector whose pyramid is read in both directions, several times.

Tan, Pang and Le, EfficientDet, CVPR 2020, arXiv:1911.09070, Section 3, Figure 3: an EfficientNet,
cells of a pyramid (BiFPN) that add levels up with trained weights, and two towers of separable
convolutions that all levels share but for their norms. The focal loss counts as binary cross
entropy over all anchors; matching them to the ground truth is left out, as is stochastic depth.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.efficientnet import Scaled

_Depth = Annotated[int, Field(ge=1, le=100)]
_READ = (3, 5, 7)  # stages of an eighth, a sixteenth and a thirty-second of the image
_LEVELS = 5


@family("efficientdet", network_kind="cnn")
class EfficientDet(Network):
    """An EfficientNet, a pyramid of five levels, and a tower for classes and one for boxes."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    """Classes of a box."""
    backbone: Scaled
    pyramid: Channels
    """Channels of the pyramid and of the towers."""
    cells: _Depth
    """Cells of the pyramid."""
    depth: _Depth
    """Convolutions of a tower before its predictions."""
    weighted: bool = True
    """Whether sums of levels have trained weights."""
    anchors: Channels = 9
    """Anchors of a pixel."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        stages = self.backbone.features(b, self.image.images(b), prefix="backbone.")
        levels = [stages[i - 1] for i in _READ]
        coarse = self._fitted(b, "pyramid.p6", levels[-1])
        for i in range(len(levels), _LEVELS):
            coarse = ops.max_pool(b, f"pyramid.pool{i + 3}", coarse, 3, stride=2, padding=1)
            levels.append(coarse)
        for i in range(self.cells):
            levels = self._cell(b, f"cell{i}", levels)
        classes = self._tower(b, "classes", levels, self.classes)
        boxes = self._tower(b, "boxes", levels, 4)
        loss = ops.binary_cross_entropy(
            b, "classes-loss", classes, b.input("labels", b.shape(classes))
        )
        targets = b.input("targets", b.shape(boxes))
        return ops.add(b, "loss", loss, ops.smooth_l1(b, "boxes-loss", boxes, targets))

    def _cell(self, b: GraphBuilder, name: str, levels: list[str]) -> list[str]:
        """Pass what coarse levels know to finer ones, and back."""
        down = [*levels]
        for i in range(_LEVELS - 2, -1, -1):
            mine = self._fitted(b, f"{name}.down{i}", levels[i])
            size = b.shape(mine)[2:]
            above = ops.upsample(
                b, f"{name}.down{i}.enlarge", down[i + 1], (size[0], size[1]), "nearest"
            )
            down[i] = self._node(b, f"{name}.down{i}", [mine, above])
        up = [*down]
        for i in range(1, _LEVELS):
            met = [self._fitted(b, f"{name}.up{i}", levels[i])]
            if i < _LEVELS - 1:
                met.append(down[i])
            below = ops.max_pool(b, f"{name}.up{i}.pool", up[i - 1], 3, stride=2, padding=1)
            up[i] = self._node(b, f"{name}.up{i}", [*met, below])
        return up

    def _fitted(self, b: GraphBuilder, name: str, x: str) -> str:
        """Bring a level of the backbone to the pyramid's channels."""
        if b.shape(x)[1] == self.pyramid:
            return x
        x = ops.conv2d(b, f"{name}.fit", x, self.pyramid, 1)
        return ops.batch_norm(b, f"{name}.fit-norm", x)

    def _node(self, b: GraphBuilder, name: str, xs: list[str]) -> str:
        """Add levels up, and write a separable convolution of their sum."""
        if self.weighted:
            weights = [b.weight(f"{name}.weight{i}", (1, 1, 1, 1)) for i in range(len(xs))]
            xs = [self._times(b, f"{name}.times{i}", x, weights[i]) for i, x in enumerate(xs)]
        y = xs[0]
        for i, x in enumerate(xs[1:]):
            y = ops.add(b, f"{name}.add{i}", y, x)
        y = ops.activation(b, f"{name}.silu", y, "silu")
        return ops.batch_norm(b, f"{name}.norm", _separable(b, name, y, self.pyramid))

    @staticmethod
    def _times(b: GraphBuilder, layer: str, x: str, weight: str) -> str:
        inputs = (x, b.cast(weight, b.format(x), layer))
        return ops.function(b, layer, "broadcast-multiply", inputs, b.shape(x))[0]

    def _tower(self, b: GraphBuilder, name: str, levels: list[str], features: int) -> str:
        """Write one tower on every level, and put what it makes of their anchors together."""
        made = []
        for i, level in enumerate(levels):
            x = level
            for j in range(self.depth):
                x = _separable(b, f"{name}.conv{j}", x, self.pyramid, i)
                x = ops.batch_norm(b, f"{name}.norm{j}-{i}", x)
                x = ops.activation(b, f"{name}.silu{j}-{i}", x, "silu")
            made.append(_separable(b, f"{name}.out", x, self.anchors * features, i))
        return ops.concat(b, name, made, features=features)


def _separable(b: GraphBuilder, name: str, x: str, filters: int, level: int | None = None) -> str:
    """Write a depthwise 3x3 and a 1x1 convolution; levels after the first take its weights."""
    suffix = "" if level is None else f"-{level}"
    first = (f"{name}.depthwise-0", f"{name}.pointwise-0") if level else (None, None)
    channels = b.shape(x)[1]
    x = ops.conv2d(
        b, f"{name}.depthwise{suffix}", x, channels, 3, padding=1, groups=channels, bias=False,
        weights_of=first[0],
    )  # fmt: skip
    return ops.conv2d(b, f"{name}.pointwise{suffix}", x, filters, 1, weights_of=first[1])
