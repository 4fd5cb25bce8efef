"""The layers of a topology on the array of a configuration, and SCALE-Sim's report of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.array import Edge, Fold
from ridgeline.kernels.systolic.gemm import systolic_gemm
from ridgeline.kernels.systolic.scalesim import scalesim_gemm, scalesim_product
from ridgeline.kernels.systolic.scalesim_files import ScaleSimConfig, TopologyLayer
from ridgeline.kernels.traffic import as_gemm
from ridgeline.workload.graph import Conv, Pass

_HEADER = (
    "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles, Overall Util %,"
    " Mapping Efficiency %, Compute Util %,"
)


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One line of a report.

    Attributes
    ----------
    stall_cycles
        Of the memory: none in CALC mode, not known (None) in USER mode.
    sram_ifmap_reads, sram_filter_reads, sram_ofmap_writes
        Words. In ridgeline's own counting, reads of partial sums are not among them.
    """

    layer: str
    total_cycles: int
    stall_cycles: int | None
    overall_util_pct: float
    mapping_eff_pct: float
    compute_util_pct: float
    sram_ifmap_reads: int | float
    sram_filter_reads: int
    sram_ofmap_writes: int


def layer_reports(
    config: ScaleSimConfig,
    layers: Iterable[TopologyLayer],
    compat: str | None = None,
    fold: Fold = "overlapped",
    edge: Edge = "exact",
) -> tuple[LayerReport, ...]:
    """Count the cycles of every layer.

    Parameters
    ----------
    compat
        ``"scalesim"``: SCALE-Sim's figures; a depthwise layer is then one line for each channel.
        None: ridgeline's, with `fold` and `edge`.

    Raises
    ------
    ConfigError
        If a layer cannot be run with this configuration.
    """
    if compat not in {None, "scalesim"}:
        raise ConfigError(
            f"compat must be 'scalesim' or None; found {compat!r}"
            f"{nearest(str(compat), ['scalesim'])}"
        )
    stall = 0 if config.bandwidth_mode == "CALC" else None
    if compat == "scalesim":
        return tuple(report for layer in layers for report in _as_scalesim(config, layer, stall))
    return tuple(_as_ridgeline(config, layer, stall, fold, edge) for layer in layers)


def compute_report(reports: Iterable[LayerReport]) -> str:
    """Write ``COMPUTE_REPORT.csv`` as SCALE-Sim 3.0.0 does.

    The second column, with the time in which the first operands come from memory, and stalls that
    are not known are left empty.
    """
    lines = [_HEADER]
    for number, report in enumerate(reports):
        stall = "" if report.stall_cycles is None else report.stall_cycles
        lines.append(
            f"{number}, , {report.total_cycles}, {stall}, {report.overall_util_pct},"
            f" {report.mapping_eff_pct}, {report.compute_util_pct},"
        )
    return "\n".join(lines) + "\n"


def _as_scalesim(
    config: ScaleSimConfig, layer: TopologyLayer, stall: int | None
) -> Iterator[LayerReport]:
    copies = layer.loops.groups if isinstance(layer.loops, Conv) else 1
    counted = scalesim_gemm(
        *scalesim_product(layer.loops),
        config.rows,
        config.columns,
        config.dataflow,
        sparsity=(layer.sparsity or (1, 1)) if config.sparsity else None,
        row_wise_block=config.row_wise_block,
        seed=config.seed,
    )
    for copy in range(copies):
        yield LayerReport(
            layer=layer.name if copies == 1 else f"{layer.name}Channel_{copy}",
            total_cycles=counted.total_cycles,
            stall_cycles=stall,
            overall_util_pct=counted.overall_util_pct,
            mapping_eff_pct=counted.mapping_eff_pct,
            compute_util_pct=counted.compute_util_pct,
            sram_ifmap_reads=counted.sram_ifmap_reads,
            sram_filter_reads=counted.sram_filter_reads,
            sram_ofmap_writes=counted.sram_ofmap_writes,
        )


def _as_ridgeline(
    config: ScaleSimConfig, layer: TopologyLayer, stall: int | None, fold: Fold, edge: Edge
) -> LayerReport:
    if config.row_wise_block is not None:
        raise ConfigError(
            "row-wise sparsity is counted in SCALE-Sim's way only; use compat='scalesim'"
        )
    gemm = as_gemm(layer.loops, Pass.FORWARD)
    counted = systolic_gemm(
        gemm.m,
        gemm.n,
        gemm.k,
        config.rows,
        config.columns,
        config.dataflow,
        fold,
        edge,
        batch=gemm.batch,
        sparsity=layer.sparsity if config.sparsity else None,
    )
    return LayerReport(
        layer=layer.name,
        total_cycles=counted.cycles,
        stall_cycles=stall,
        overall_util_pct=100 * counted.utilisation,
        mapping_eff_pct=100 * counted.mapping_efficiency,
        compute_util_pct=100 * counted.utilisation,
        sram_ifmap_reads=counted.a_reads,
        sram_filter_reads=counted.b_reads,
        sram_ofmap_writes=counted.c_writes,
    )
