"""Random nests and mappings of them."""

from __future__ import annotations

from hypothesis import strategies as st

from ridgeline.kernels.mapping.mapping import OPERANDS, LevelLoops, Mapping, TileLoop
from ridgeline.kernels.mapping.nest import ContractionNest, nest_of
from ridgeline.workload.graph import Conv, Gemm, Pass

PASSES = [Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT]


def gemms(largest: int = 7) -> st.SearchStrategy[Gemm]:
    size = st.integers(1, largest)
    return st.builds(Gemm, m=size, n=size, k=size, batch=st.integers(1, 3))


@st.composite
def convs(draw: st.DrawFn, largest: int = 6) -> Conv:
    groups = draw(st.integers(1, 2))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    r, s = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(st.tuples(st.integers(0, r), st.integers(0, s)))
    dilation = draw(pair)
    reach = [d * (x - 1) + 1 for d, x in zip(dilation, (r, s), strict=True)]
    h, w = (
        draw(st.integers(max(1, reach[i] - 2 * padding[i]), largest + reach[i])) for i in range(2)
    )
    return Conv(
        batch=draw(st.integers(1, 2)), c_in=groups * draw(st.integers(1, 2)), h_in=h, w_in=w,
        c_out=groups * draw(st.integers(1, 2)), r=r, s=s, stride=draw(pair), padding=padding,
        dilation=dilation, groups=groups,
    )  # fmt: skip


nests: st.SearchStrategy[ContractionNest] = st.one_of(
    st.builds(nest_of, gemms()), st.builds(nest_of, convs(), st.sampled_from(PASSES))
)


@st.composite
def mappings(draw: st.DrawFn, nest: ContractionNest, bypass: bool = True) -> Mapping:
    """Any loops, in any order, with any factors that cover the nest."""
    count = draw(st.integers(2, 4))
    kept = [OPERANDS] + [
        tuple(x for x in OPERANDS if not bypass or draw(st.integers(0, 3)))
        for _ in range(count - 1)
    ]
    split: list[list[TileLoop]] = [[] for _ in range(count)]
    spatial: list[list[TileLoop]] = [[], []]
    for dim, size in nest.size.items():
        left = size
        for where in range(count - 1, 0, -1):
            factor = draw(st.integers(1, left))
            split[where].append(TileLoop(dim, factor))
            left = -(-left // factor)
        if left > 1 and draw(st.booleans()):
            factor = draw(st.integers(2, left))
            spatial[draw(st.integers(0, 1))].append(TileLoop(dim, factor))
            left = -(-left // factor)
        split[0].append(TileLoop(dim, left))
    levels = tuple(
        LevelLoops(f"level{i}", tuple(draw(st.permutations(split[i]))), kept[i])
        for i in range(count)
    )
    return Mapping(levels, tuple(spatial[0]), tuple(spatial[1]))
