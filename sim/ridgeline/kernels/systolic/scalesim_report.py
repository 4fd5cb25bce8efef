"""The layers of a topology on the array of a configuration, and SCALE-Sim's reports of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ridgeline.config import Document
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.array import Edge, Fold
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import device_of
from ridgeline.hardware.scalesim import ScaleSimConfig, device_fields
from ridgeline.kernels.systolic.gemm import systolic_gemm
from ridgeline.kernels.systolic.scalesim import ScaleSimGemm, scalesim_gemm, scalesim_product
from ridgeline.kernels.systolic.scalesim_files import TopologyLayer
from ridgeline.kernels.systolic.scalesim_memory import (
    BufferSizes,
    MemoryReplay,
    OperandTraffic,
    PortWords,
    replay_memory,
)
from ridgeline.kernels.systolic.sparsity import StructuredSparsity
from ridgeline.kernels.traffic import as_gemm
from ridgeline.workload.graph import Conv, Gemm, Pass

_COMPUTE = (
    "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles, Overall Util %,"
    " Mapping Efficiency %, Compute Util %,"
)
_SRAM_BANDWIDTH = ("Avg IFMAP SRAM BW", "Avg FILTER SRAM BW", "Avg OFMAP SRAM BW")
_METADATA_BANDWIDTH = "Avg FILTER Metadata SRAM BW"
_DRAM_BANDWIDTH = "Avg IFMAP DRAM BW, Avg FILTER DRAM BW, Avg OFMAP DRAM BW,"
_SPARSE = (
    "LayerID, Sparsity Representation, Original Filter Storage, New Storage (Filter+Metadata),"
    " Filter Metadata Storage, Avg FILTER Metadata SRAM BW, "
)
_DETAILED = "LayerID, " + ", ".join(
    f"{memory} {operand} {what}"
    for memory in ("SRAM", "DRAM")
    for operand in ("IFMAP", "Filter", "OFMAP")
    for what in ("Start Cycle", "Stop Cycle", "Writes" if operand == "OFMAP" else "Reads")
) + ","  # fmt: skip


@dataclass(frozen=True, slots=True)
class FilterStorage:
    """Words of a sparse filter: dense, with its metadata, and of the metadata alone."""

    representation: str
    dense_words: int
    stored_words: float
    metadata_words: float


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One line of a report.

    Attributes
    ----------
    stall_cycles
        Of the memory: none of ridgeline's own in CALC mode; None where they are not known, which
        `notes` explains.
    sram_ifmap_reads, sram_filter_reads, sram_ofmap_writes
        Words. In ridgeline's own counting, reads of partial sums are not among them.
    memory
        SCALE-Sim's requests to SRAM and DRAM; None without ``compat="scalesim"``, or where they are
        not known.
    dram_words
        In and out, all operands; None where nothing counts them.
    filter_storage
        Of a configuration with sparsity, in SCALE-Sim's words.
    notes
        Where a figure is not what it seems to be.
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
    memory: MemoryReplay | None = None
    dram_words: int | None = None
    filter_storage: FilterStorage | None = None
    notes: tuple[str, ...] = ()


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
        ``"scalesim"``: SCALE-Sim's figures, stalls and DRAM words among them; a depthwise layer is
        then one line for each channel. None: ridgeline's, with `fold` and `edge`; in USER mode each
        layer is priced on the device that the configuration describes, with its SRAMs and
        bandwidth.

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
    if compat == "scalesim":
        _check_banks(config)
        return tuple(report for layer in layers for report in _as_scalesim(config, layer))
    device = None
    if config.bandwidth_mode == "USER" and None not in _sizes(config):
        document = Document(config.run_name, device_fields(config, config.run_name), {})
        device = device_of(
            document, {"engines.mesh.array.fold": fold, "engines.mesh.array.edge": edge}
        )
    return tuple(_as_ridgeline(config, layer, device, fold, edge) for layer in layers)


def compute_report(reports: Iterable[LayerReport]) -> str:
    """Write ``COMPUTE_REPORT.csv`` as SCALE-Sim 3.0.0 does; what is not known is left empty."""
    lines = [_COMPUTE]
    for number, report in enumerate(reports):
        memory = report.memory
        lines.append(
            f"{number}, {'' if memory is None else memory.cycles_with_prefetch},"
            f" {report.total_cycles}, {_known(report.stall_cycles)}, {report.overall_util_pct},"
            f" {report.mapping_eff_pct}, {report.compute_util_pct},"
        )
    return "\n".join(lines) + "\n"


def bandwidth_report(reports: Iterable[LayerReport]) -> str:
    """Write ``BANDWIDTH_REPORT.csv``, words a cycle, as SCALE-Sim 3.0.0 does."""
    rows = list(reports)
    sparse = any(report.filter_storage is not None for report in rows)
    heads = list(_SRAM_BANDWIDTH)
    if sparse:
        heads.insert(2, _METADATA_BANDWIDTH)
    lines = [", ".join(["LayerID", *heads, _DRAM_BANDWIDTH])]
    for number, report in enumerate(rows):
        words: list[int | float] = [
            report.sram_ifmap_reads, report.sram_filter_reads, report.sram_ofmap_writes,
        ]  # fmt: skip
        if sparse:
            words.insert(2, report.filter_storage.metadata_words if report.filter_storage else 0)
        cells = [str(count / report.total_cycles) for count in words]
        cells += ["" if one is None else str(one.dram_words_per_cycle) for one in _operands(report)]
        lines.append(", ".join([str(number), *cells]) + ",")
    return "\n".join(lines) + "\n"


def detailed_access_report(reports: Iterable[LayerReport]) -> str:
    """Write ``DETAILED_ACCESS_REPORT.csv``: first and last cycle and words, as SCALE-Sim does."""
    lines = [_DETAILED]
    for number, report in enumerate(reports):
        cells = [str(number)]
        counts = (report.sram_ifmap_reads, report.sram_filter_reads, report.sram_ofmap_writes)
        for one, count in zip(_operands(report), counts, strict=True):
            cells += ["", ""] if one is None else _span(one.sram_start, one.sram_stop)
            cells.append(str(count))
        for one in _operands(report):
            cells += ["", "", ""] if one is None else _span(one.dram_start, one.dram_stop)
            cells += [] if one is None else [str(one.dram_words)]
        lines.append(", ".join(cells) + ",")
    return "\n".join(lines) + "\n"


def sparse_report(reports: Iterable[LayerReport]) -> str:
    """Write ``SPARSE_REPORT.csv``: words of the filters, as SCALE-Sim 3.0.0 does."""
    lines = [_SPARSE]
    for number, report in enumerate(reports):
        storage = report.filter_storage
        if storage is not None:
            lines.append(
                f"{number}, {storage.representation}, {storage.dense_words},"
                f" {storage.stored_words}, {storage.metadata_words},"
                f" {storage.metadata_words / report.total_cycles},"
            )
    return "\n".join(lines) + "\n"


def report_files(config: ScaleSimConfig, reports: Iterable[LayerReport]) -> dict[str, str]:
    """Return the text of every report that SCALE-Sim 3.0.0 writes, by the name of its file."""
    rows = tuple(reports)
    files = {
        "COMPUTE_REPORT.csv": compute_report(rows),
        "BANDWIDTH_REPORT.csv": bandwidth_report(rows),
        "DETAILED_ACCESS_REPORT.csv": detailed_access_report(rows),
    }
    if config.sparsity:
        files["SPARSE_REPORT.csv"] = sparse_report(rows)
    return files


def _known(value: float | None) -> str:
    return "" if value is None else str(value)


def _span(first: int, last: int) -> list[str]:
    return [str(float(first)), str(float(last))]


def _operands(report: LayerReport) -> tuple[OperandTraffic | None, ...]:
    memory = report.memory
    return (None,) * 3 if memory is None else (memory.ifmap, memory.filter, memory.ofmap)


def _sizes(config: ScaleSimConfig) -> tuple[int | None, ...]:
    return config.ifmap_kb, config.filter_kb, config.ofmap_kb


def _check_banks(config: ScaleSimConfig) -> None:
    if config.port_words is None:
        return
    for name, words, banks in zip(
        ("Ifmap", "Filter"), config.port_words, config.port_banks, strict=False
    ):
        if words % banks:
            raise ConfigError(
                f"SCALE-Sim itself stops: {name}SRAMBankBandwidth, {words}, must be a multiple of"
                f" {name}SRAMBankNum, {banks}"
            )


def _replayed(
    config: ScaleSimConfig, loops: Conv | Gemm, sparsity: StructuredSparsity | None
) -> tuple[MemoryReplay | None, tuple[str, ...]]:
    sizes = [size for size in _sizes(config) if size is not None]
    if len(sizes) < 3:
        return None, ("stalls and DRAM words are not known: the file states no sizes of all SRAMs",)
    if config.row_wise_block is not None:
        return None, ("stalls and DRAM words of row-wise sparsity are not rebuilt",)
    ports = None if config.port_words is None else PortWords(*config.port_words)
    replay = replay_memory(
        loops, config.rows, config.columns, config.dataflow, BufferSizes(*sizes), ports,
        sparsity=sparsity,
    )  # fmt: skip
    return replay, ()


def _as_scalesim(config: ScaleSimConfig, layer: TopologyLayer) -> Iterator[LayerReport]:
    copies = layer.loops.groups if isinstance(layer.loops, Conv) else 1
    ratio = (layer.sparsity or StructuredSparsity(1, 1)) if config.sparsity else None
    m, n, k = scalesim_product(layer.loops)
    replay, notes = _replayed(config, layer.loops, ratio)

    def count(stalls: int) -> ScaleSimGemm:
        return scalesim_gemm(
            m,
            n,
            k,
            config.rows,
            config.columns,
            config.dataflow,
            sparsity=ratio,
            row_wise_block=config.row_wise_block,
            seed=config.seed,
            stall_cycles=stalls,
        )

    counted = count(0)
    stall = None if config.bandwidth_mode == "USER" else 0
    if replay is not None:
        counted = count(replay.total_cycles - counted.compute_cycles)
        stall = replay.stall_cycles
        notes = _oddities(replay, counted, m * n, stall)
    reads = counted.sram_ifmap_reads
    if ratio is not None and config.row_wise_block is None and config.dataflow == "ws":
        reads = float(reads)  # SCALE-Sim multiplies by M/N
    for copy in range(copies):
        yield LayerReport(
            layer=layer.name if copies == 1 else f"{layer.name}Channel_{copy}",
            total_cycles=counted.total_cycles,
            stall_cycles=stall,
            overall_util_pct=counted.overall_util_pct,
            mapping_eff_pct=counted.mapping_eff_pct,
            compute_util_pct=counted.compute_util_pct,
            sram_ifmap_reads=reads,
            sram_filter_reads=counted.sram_filter_reads,
            sram_ofmap_writes=counted.sram_ofmap_writes,
            memory=replay,
            dram_words=(
                None
                if replay is None
                else sum(one.dram_words for one in (replay.ifmap, replay.filter, replay.ofmap))
            ),
            filter_storage=_storage(config, counted, n, k, ratio),
            notes=notes,
        )


def _storage(
    config: ScaleSimConfig, counted: ScaleSimGemm, n: int, k: int, ratio: StructuredSparsity | None
) -> FilterStorage | None:
    if not config.sparsity:
        return None
    kind = config.sparse_representation
    if kind == "ellpack_block" or config.row_wise_block is not None or ratio is None:
        return FilterStorage(
            kind, counted.filter_words, counted.stored_words, counted.metadata_words
        )
    kept = (k // ratio.block * ratio.kept + min(k % ratio.block, ratio.kept)) * n
    lists = (k if kind == "csr" else n) + 1
    return FilterStorage(kind, counted.filter_words, 2 * kept + lists, kept + lists)


def _oddities(
    replay: MemoryReplay, counted: ScaleSimGemm, results: int, stall: int
) -> tuple[str, ...]:
    """Say where SCALE-Sim's figures contradict themselves, or any machine."""
    found = []
    if stall and replay.total_cycles - counted.compute_cycles:
        found.append("SCALE-Sim adds twice the cycles in which an operand is missing")
    for name, one, asked in (
        ("ifmap", replay.ifmap, counted.sram_ifmap_reads),
        ("filter", replay.filter, counted.sram_filter_reads),
    ):
        if one.dram_words > asked:
            found.append(
                f"SCALE-Sim reads more words of {name} from DRAM than the array asks the SRAM for:"
                " it fetches whole halves of the buffer, also those that nothing wants"
            )
    if replay.ofmap.dram_words > 2 * results:
        found.append(
            "SCALE-Sim writes partial sums to DRAM once for every fold and never reads them back"
        )
    return tuple(found)


def _as_ridgeline(
    config: ScaleSimConfig, layer: TopologyLayer, device: Device | None, fold: Fold, edge: Edge
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
    total, stall, words = counted.cycles, None if config.bandwidth_mode == "USER" else 0, None
    if device is not None:
        total, words = _on_device(layer.loops, device)
        total = max(total, counted.cycles)
        stall = total - counted.cycles
    return LayerReport(
        layer=layer.name,
        total_cycles=total,
        stall_cycles=stall,
        overall_util_pct=100 * counted.utilisation * counted.cycles / total,
        mapping_eff_pct=100 * counted.mapping_efficiency,
        compute_util_pct=100 * counted.utilisation,
        sram_ifmap_reads=counted.a_reads,
        sram_filter_reads=counted.b_reads,
        sram_ofmap_writes=counted.c_writes,
        dram_words=words,
        notes=(
            ("zeros are not used to shorten the traffic with DRAM",)
            if device is not None and config.sparsity
            else ()
        ),
    )


def _on_device(loops: Conv | Gemm, device: Device) -> tuple[int, int]:
    """Cycles of a layer with its memory, and words over the border of the DRAM."""
    from ridgeline.kernels import single_op

    if isinstance(loops, Gemm):
        result = single_op.gemm(loops.m, loops.n, loops.k, device, batch=loops.batch)
    else:
        result = single_op.conv(loops, device)
    array = device.engines["mesh"].array
    assert array is not None
    return (
        round(result.time_s * array.clock.value),
        round(result.traffic_bytes[device.far_memory]),
    )
