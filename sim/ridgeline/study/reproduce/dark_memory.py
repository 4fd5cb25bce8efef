"""Dark memory: what an access costs beside an addition, and what a blocked product moves."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from ridgeline.hardware import load_energy_table
from ridgeline.kernels.single_op import gemm
from ridgeline.study.reproduce.table import (
    ReproducedFigure,
    Reproduction,
    printed,
    published_rows,
)

_TABLE = "dark-memory-45nm"
_DEVICE, _ELEMENT_BYTES, _BLOCK = "tpu-v2", 2, 256
_SIDES = (1024, 2048, 4096)
_PRINTED = 0.06  # of one digit: 0.084 is printed as 0.08


def reproduce() -> Reproduction:
    """Compute the ratios of Table I, and the words of blocked products."""
    return Reproduction(
        name="dark-memory",
        title="What an access costs beside an addition, and what a blocked product moves",
        source=(
            "A. Pedram, S. Richardson, S. Galal, S. Kvatinsky, M. Horowitz, Dark Memory and "
            "Accelerator-Rich System Optimization in the Dark Silicon Era, IEEE Design and Test "
            "2017, arXiv:1602.04183, Table I; ratios as on the slide 'Memory access is > 500 x "
            "arithmetic energy' (Pedram, Lynch and Lauterbach, 2018)"
        ),
        rows=(*_ratios(), *_blocks()),
        fits=(),
        notes=(
            "Joules of Table I are what the energy table dark-memory-45nm holds; its ratios are "
            "computed.",
            f"A fetch of 64 bits from 4 K words costs {_wide_over_narrow():.2f} times one of 16: "
            "an access is not priced by its bytes alone.",
            "The text counts three fetches from registers as 36 pJ beside an addition of 18 pJ; "
            "Table I has 0.36 and 0.18 pJ.",
            "The formula reads C as well as writing it. A product that is not added to C reads "
            "none: 2 n^3 / b + n^2, which is what is counted here to the word.",
        ),
    )


def _ratios() -> Iterator[ReproducedFigure]:
    table = load_energy_table(_TABLE)
    for format_, title in (("int16", "16-bit integers"), ("fp64", "64-bit floating point")):
        for row in published_rows("dark_memory"):
            yield printed(
                f"Table I over an addition, {title}",
                row["operation"],
                float(row[format_]),
                table.ratio(f"{row['operation']}.{format_}", f"add.{format_}"),
                _PRINTED,
            )


def _wide_over_narrow() -> float:
    table = load_energy_table(_TABLE)
    return table.access("sram.4kword.fp64")[0] / table.access("sram.4kword.int16")[0]


def _blocks() -> Iterator[ReproducedFigure]:
    mapping = resources.files(__package__).joinpath("dark_memory_blocks.yaml")
    for side in _SIDES:
        moved = gemm(side, side, side, _DEVICE, format="bf16", mapping=str(mapping))
        words = moved.traffic_bytes["hbm"] / _ELEMENT_BYTES
        panels = 2.0 * side**3 / _BLOCK
        group = f"blocked product, words from DRAM, n = {side}, blocks of {_BLOCK}"
        yield printed(
            group, "2 n^3 / b + 2 n^2", panels + 2.0 * side**2, words, note="C is not read here"
        )
        yield printed(group, "2 n^3 / b + n^2", panels + side**2, words, 0.0)
