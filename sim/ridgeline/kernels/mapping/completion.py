"""Completion of a partial mapping file: settled factors, and choices for the rest.

What the settled factors of a dimension leave uncovered goes to the places that are free for it:
those where it stands with ``*``, else the levels that the file does not name. Between the two
nearest of them all splits are listed whose nearer tiles differ in number; the order of the loops of
a level that is not named is one of all orders of the three kinds of dimensions of a product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ridgeline.kernels.mapping.mapping import LevelLoops, Mapping, TileLoop
from ridgeline.kernels.mapping.mapping_file import Factor, MappingFile
from ridgeline.kernels.mapping.nest import ContractionNest

_MOST = 2000  # splits; of more, only those into powers of two are listed


def kind_of(nest: ContractionNest, dim: str) -> str:
    """Tell along which axis of a matrix product a dimension counts: b, m, n or k."""
    a, b, c = (dim in operand.dims for operand in nest.operands)
    return "b" if a and b and c else "m" if a and c else "n" if b and c else "k"


def mappings(given: MappingFile, nest: ContractionNest, levels: list[str]) -> Iterator[Mapping]:
    """List the mappings of a nest onto memory levels, from far to near, that a file allows.

    Raises
    ------
    ConfigError
        If its factors do not cover a dimension.
    """
    settled = {level: given.levels.get(level) for level in levels}
    splits = [_splits(given, nest, levels, dim) for dim in nest.dims]
    if math.prod(map(len, splits)) > _MOST:
        splits = [_thinned(options) for options in splits]
    free = [level for level in levels if settled[level] is None]
    kinds = {dim: kind_of(nest, dim) for dim in nest.dims}
    for chosen in itertools.product(*splits):
        factors = dict(zip(nest.dims, chosen, strict=True))
        for order in itertools.permutations("mnk") if free else ("mnk",):
            ranked = sorted(nest.dims, key=lambda dim: ("b", *order).index(kinds[dim]))
            yield Mapping(
                levels=tuple(
                    LevelLoops(level, _loops(settled[level], factors, level, ranked))
                    for level in levels
                ),
                rows=_spatial(given.rows),
                columns=_spatial(given.columns),
            )


def _spatial(axis: tuple[Factor, ...] | None) -> tuple[TileLoop, ...]:
    return tuple(TileLoop(dim, factor) for dim, factor in axis or () if factor is not None)


def _loops(
    settled: tuple[Factor, ...] | None, factors: dict[str, dict[str, int]], level: str,
    ranked: list[str],
) -> tuple[TileLoop, ...]:  # fmt: skip
    """Loops of one level: as the file orders them, else by the rank of their dimensions."""
    if settled is not None:
        return tuple(
            TileLoop(dim, factors[dim].get(level, 1) if factor is None else factor)
            for dim, factor in settled
        )
    return tuple(
        TileLoop(dim, factors[dim][level]) for dim in ranked if factors[dim].get(level, 1) > 1
    )


def _splits(
    given: MappingFile, nest: ContractionNest, levels: list[str], dim: str
) -> list[dict[str, int]]:
    """Factors of a dimension for the levels that are free for it."""
    covered, starred, free = 1, [], []
    for axis in (given.rows, given.columns):
        covered *= math.prod(n for name, n in axis or () if name == dim and n is not None)
    for level in levels:
        factors = given.levels.get(level)
        if factors is None:
            free.append(level)
            continue
        for name, factor in factors:
            if name == dim and factor is None:
                starred.append(level)
            elif name == dim and factor is not None:
                covered *= factor
    rest = -(-nest.size[dim] // covered)
    places = starred or free
    if not places:
        if rest > 1:
            raise given.document.error(
                f"the factors of {dim} cover {covered} of {nest.size[dim]} points"
            )
        return [{}]
    *_, far, near = [places[0], *places]
    if far == near:
        return [{near: rest}]
    inner = sorted({-(-rest // tiles) for tiles in range(1, rest + 1)}, reverse=True)
    return [{near: factor, far: -(-rest // factor)} for factor in inner]


def _thinned(options: list[dict[str, int]]) -> list[dict[str, int]]:
    """Keep the largest nearer factor, and those that are powers of two."""
    return [
        option
        for i, option in enumerate(options)
        if i == 0 or (factor := next(iter(option.values()), 1)) & (factor - 1) == 0
    ]
