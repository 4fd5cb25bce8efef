"""Kernel tables of a user's own GPU: their rows as calls that a device can be priced for.

Columns are those of tables of measured calls (`study.validate.measured`), of DeepBench, or of
aiconfigurator's collectors; files are CSV, gzipped CSV or Parquet. Columns beyond those of the
shape, ``format`` and ``time_us`` may be missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.kernels.kernel_price import COLD
from ridgeline.study.calibrate import kernel_shares
from ridgeline.study.import_rows import kernels as deepbench
from ridgeline.study.import_rows.names import find_name
from ridgeline.study.import_rows.nccl_tests import is_log, read_nccl_tests
from ridgeline.study.parquet_file import read_parquet
from ridgeline.study.validate import (
    attention,
    cast,
    conv,
    elementwise,
    gemm,
    linear_attention,
    measured,
    moe,
    norm,
    softmax,
)
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.rows import MeasuredRow, read_rows

PARQUET = ".parquet"
_HELD_OUT_EVERY = 3
_MS_TO_US = 1e3
_OTHER = "no kernel that is calibrated"
_TIME = ("format", "time_us")
_FORMATS = {
    "bfloat16": "bf16", "float16": "fp16", "fp8_static": "fp8", "fp8_block": "fp8-block",
    "int8_wo": "int8-wo", "int4_wo": "int4-wo", "sq": "int8-sq",
    "w4a16_mxfp4": "w4a16-mxfp4", "w4a8_mxfp4_mxfp8": "w4a8-mxfp4-mxfp8", "w4afp8": "w4a8-fp8",
}  # fmt: skip
"""Number formats of aiconfigurator by our names; others are called the same."""


@dataclass(frozen=True, slots=True)
class TableCall:
    """One measured call of a table.

    Attributes
    ----------
    suite
        The suite of `validate` that has such rows.
    measured_s, power_w
        What was measured; power is None where it was not, or where the table suspects it.
    is_held_out
        Whether it is of the third that no fit sees. It depends on the shape alone, so that equal
        calls of several programs are on one side.
    """

    row: MeasuredRow
    suite: str
    call: MeasuredCall
    measured_s: float
    power_w: float | None
    is_held_out: bool

    @property
    def group(self) -> tuple[str, str, str]:
        """Suite, format and kind: groups weigh the same in every mean."""
        return self.suite, self.call.format, self.call.kind


@dataclass(frozen=True)
class KernelTable:
    """The rows of one file that are of the device, and why others are left out.

    Attributes
    ----------
    key
        What the table calls the device; "" where it has no such column.
    skipped
        Rows that cannot be priced, by reason.
    """

    file: str
    kind: str
    key: str
    calls: tuple[TableCall, ...]
    skipped: Mapping[str, int]
    kernels: tuple[MeasuredRow, ...] = ()


@dataclass(frozen=True)
class TableKind:
    """Columns of one kind of table, and who reads its rows.

    Attributes
    ----------
    sizes
        Columns that have a whole number of at least 1 in every row.
    columns
        Others that must be there.
    translated
        Writes a row in the columns of measured calls.
    kernel
        Writes a row in the columns of DeepBench's tables, for shares by class of filter.
    """

    name: str
    sizes: tuple[str, ...]
    columns: tuple[str, ...]
    call: Callable[[MeasuredRow], tuple[str, MeasuredCall] | None]
    translated: Callable[[MeasuredRow], MeasuredRow] = lambda row: row
    kernel: Callable[[MeasuredRow, MeasuredCall], MeasuredRow] | None = None


def _by(
    suite: str, call: Callable[[MeasuredRow], MeasuredCall | None]
) -> Callable[[MeasuredRow], tuple[str, MeasuredCall] | None]:
    def read(row: MeasuredRow) -> tuple[str, MeasuredCall] | None:
        made = call(row)
        return None if made is None else (suite, made)

    return read


def _elementwise(row: MeasuredRow) -> tuple[str, MeasuredCall] | None:
    for suite, module in (("norm", norm), ("softmax", softmax), ("elementwise", elementwise)):
        made = module.call(row)
        if made is not None:
            return suite, made
    return None


def _deepbench(row: MeasuredRow) -> tuple[str, MeasuredCall] | None:
    """Read a product or convolution of DeepBench; recurrences and collectives are of others."""
    if not kernel_shares.is_kernel(row.values):
        return None
    op, graph = kernel_shares.op_of(row.values)
    kind = f"{row.text('kind')} {op.pass_.value}"
    format_ = kernel_shares.format_of(row.values)
    return row.text("kind"), MeasuredCall(graph, kind, format_, f"{kind} {op.loops}", repeated=COLD)


def _of_deepbench(row: MeasuredRow) -> MeasuredRow:
    time_ms = row.number("time_ms")
    time_us = "" if time_ms is None else repr(time_ms * _MS_TO_US)
    made = {**deepbench.words_of(row), "format": row.text("precision"), "time_us": time_us}
    return MeasuredRow(row.file, row.line, {**row.values, **made})


def _aiconfigurator(**renamed: str) -> Callable[[MeasuredRow], MeasuredRow]:
    """Return what writes a row of aiconfigurator's in our columns: ours by theirs."""

    def translated(row: MeasuredRow) -> MeasuredRow:
        values = {ours: row.text(theirs) for ours, theirs in renamed.items()}
        latency = row.number("latency")
        values["time_us"] = "" if latency is None else repr(latency * _MS_TO_US)
        values["format"] = _FORMATS.get(values["format"], values["format"])
        values["framework"] = row.text("framework").lower().replace("tensorrt-llm", "trtllm")
        values |= {"kernel": row.text("kernel_source"), "version": row.text("version")}
        values |= {"device": row.text("device"), "power_w": row.text("power")}
        return MeasuredRow(row.file, row.line, values)

    return translated


def _attention_of_aiconfigurator(row: MeasuredRow) -> MeasuredRow:
    made = _aiconfigurator(
        batch="batch_size", heads="num_heads", kv_heads="num_key_value_heads",
        head_dim="head_dim", format="attn_dtype", window="window_size",
    )(row)  # fmt: skip
    cache = _FORMATS.get(row.text("kv_cache_dtype"), row.text("kv_cache_dtype"))
    new, step = row.whole("isl") or 0, row.whole("step") or 0
    is_context = "generation" not in row.text("op_name")
    values = {
        **made.values,
        "format": f"{made.text('format') or 'bf16'}/kv-{cache}",
        "kv_heads": made.text("kv_heads" if row.whole("num_key_value_heads") else "heads"),
        "seq_q": str(new if is_context else 1),
        "seq_kv": str(new + step),
        "causal": "False" if row.text("op_name").startswith("encoder") else "True",
    }  # fmt: skip
    return MeasuredRow(row.file, row.line, values)


def _kernel_of_convolution(row: MeasuredRow, call: MeasuredCall) -> MeasuredRow:
    """Write a forward pass of square images; its time without what the host takes."""
    host_s = call.start.launches * measured.host_launch_s(row)
    time_us, pad = row.number("time_us") or 0.0, row.text("padding") or "0"
    side, taps, stride = (row.text(name) for name in ("input_size", "kernel_size", "stride"))
    values = {
        "kind": "conv", "asked": row.text("format"), "pass": "forward",
        "batch": row.text("batch"), "C": row.text("c_in"), "Kout": row.text("c_out"),
        "H": side, "W": side, "R": taps, "S": taps, "stride_h": stride, "stride_w": stride,
        "pad_h": pad, "pad_w": pad, "time_ms": repr(max(time_us * 1e-3 - host_s * 1e3, 1e-6)),
    }  # fmt: skip
    return MeasuredRow(row.file, row.line, values)


_ATTENTION = attention.SHAPE[:6]
KINDS = (
    TableKind("attention", _ATTENTION, (*_TIME, "causal"), _by("attention", attention.call)),
    TableKind("experts", moe.SHAPE, _TIME, _by("moe", moe.call)),
    TableKind(
        "linear attention", ("batch", "seq"), (*_TIME, "op_name", "phase", "kernel"),
        _by("linear-attention", linear_attention.call),
    ),
    TableKind(
        "convolutions", conv.SHAPE, _TIME, _by("conv", conv.call), kernel=_kernel_of_convolution
    ),
    TableKind("elementwise functions", ("rows", "cols"), (*_TIME, "op"), _elementwise),
    TableKind("products", ("m", "n", "k"), _TIME, _by("gemm", gemm.call)),
    TableKind("casts", ("m", "k"), _TIME, _by("cast", cast.call)),
    TableKind(
        "DeepBench's kernels", (), ("kind", "precision", "pass_", "time_ms", "M", "N", "K"),
        _deepbench, _of_deepbench, lambda row, _: row,
    ),
    TableKind(
        "aiconfigurator's products", ("m", "n", "k"), ("gemm_dtype", "latency"),
        _by("gemm", gemm.call), _aiconfigurator(m="m", n="n", k="k", format="gemm_dtype"),
    ),
    TableKind(
        "aiconfigurator's attention", (),
        ("batch_size", "isl", "num_heads", "head_dim", "kv_cache_dtype", "latency"),
        _by("attention", attention.call), _attention_of_aiconfigurator,
    ),
    TableKind(
        "aiconfigurator's experts", (),
        ("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
         "moe_tp_size", "moe_ep_size", "latency"),
        _by("moe", moe.call),
        _aiconfigurator(
            tokens="num_tokens", experts="num_experts", topk="topk", hidden="hidden_size",
            inter="inter_size", tp="moe_tp_size", ep="moe_ep_size", format="moe_dtype",
            distribution="distribution",
        ),
    ),
)  # fmt: skip
"""Kinds of tables: the first whose columns are all there counts."""


def read_table(path: str | Path) -> list[MeasuredRow]:
    """Read the rows of a CSV, gzipped CSV or Parquet file, or a log of nccl-tests.

    Raises
    ------
    ConfigError
        If it cannot be read, or has no rows.
    """
    file = Path(path)
    if is_log(file):
        rows = [MeasuredRow(str(file), line, values) for line, values in read_nccl_tests(file)]
    else:
        rows = _parquet_rows(file) if file.suffix == PARQUET else read_rows(file)
    if not rows:
        raise ConfigError("there are no rows", file=str(path))
    return rows


def _parquet_rows(path: Path) -> list[MeasuredRow]:
    table = read_parquet(path)
    return [
        MeasuredRow(str(path), line, {n: "" if v is None else str(v) for n, v in fields.items()})
        for line, fields in enumerate(table.iter_rows(named=True), start=1)
    ]


def kind_of(rows: Sequence[MeasuredRow], kinds: Iterable[TableKind] = KINDS) -> TableKind:
    """Return the kind of a table by its columns.

    Raises
    ------
    ConfigError
        If it is none: with the column that the nearest kind lacks.
    """
    columns = rows[0].values
    found = []
    for kind in kinds:
        needed = (*kind.sizes, *kind.columns)
        missing = [name for name in needed if name not in columns]
        if not missing:
            return kind
        found.append((len(missing) / len(needed), kind, missing))
    _, kind, missing = min(found, key=lambda one: one[0])
    needed = (*kind.sizes, *kind.columns)
    raise ConfigError(
        f"the column {missing[0]!r} is missing{nearest(missing[0], columns)} (nearest is a table "
        f"of {kind.name}, which needs: {', '.join(needed)})",
        file=rows[0].file,
        line=1,
    )


def read_kernels(path: str | Path, base: str, key: str | None = None) -> KernelTable:
    """Read the rows of a table that are of one device.

    Parameters
    ----------
    base
        The device that is calibrated, by its name in the catalogue or a path.
    key
        What the table calls the device: needed where it has several, and none is `base`.

    Raises
    ------
    ConfigError
        If the table is of no known kind, a cell is no number, or it is not known which rows are of
        the device.
    RidgelineError
        If none of the rows can be priced, for the reason of the first.
    """
    return kernel_table(read_table(path), base, key)


def kernel_table(table: Sequence[MeasuredRow], base: str, key: str | None = None) -> KernelTable:
    """As `read_kernels`, of rows that are read already."""
    kind = kind_of(table)
    key = _key(table, base, key)
    calls: list[TableCall] = []
    kernels: list[MeasuredRow] = []
    skipped: dict[str, int] = {}
    for row in table:
        if _device(row) != key:
            continue
        ours = kind.translated(row)
        measured_s = _positive(ours, row, "time_us") * 1e-6
        for name in kind.sizes:
            _check_size(row, name)
        try:
            made = kind.call(ours)
        except ConfigError:
            raise
        except RidgelineError as error:
            skipped[str(error)] = skipped.get(str(error), 0) + 1
            continue
        if made is None:
            skipped["no kernel that is calibrated"] = (
                skipped.get("no kernel that is calibrated", 0) + 1
            )
            continue
        suite, call = made
        power = ours.number("power_w") if ours.text("power_suspect") != "1" else None
        calls.append(TableCall(ours, suite, call, measured_s, power or None, is_held_out(call)))
        if kind.kernel is not None:
            kernels.append(kind.kernel(ours, call))
    if not calls:
        why = max(skipped, key=lambda reason: skipped[reason])
        raise ConfigError(f"no row can be priced: {why}", file=table[0].file)
    return KernelTable(table[0].file, kind.name, key, tuple(calls), skipped, tuple(kernels))


def is_held_out(call: MeasuredCall) -> bool:
    """Tell whether a call is of the third by which fits are judged: by its shape and format."""
    return zlib.crc32(f"{call.words} {call.format}".encode()) % _HELD_OUT_EVERY == 0


def _device(row: MeasuredRow) -> str:
    return row.text("device_key") or row.text("device")


def _key(rows: Sequence[MeasuredRow], base: str, key: str | None) -> str:
    """Return what a table calls the device."""
    names = list(dict.fromkeys(_device(row) for row in rows))
    if key is not None:
        if key not in names:
            raise ConfigError(
                f"no row is of the device {key!r}{nearest(key, names)} (there are: "
                f"{', '.join(filter(None, names)) or 'none stated'})",
                file=rows[0].file,
            )
        return key
    if len(names) == 1:
        return names[0]
    mine = [name for name in names if base in (name, find_name("devices", name))]
    if len(mine) != 1:
        raise ConfigError(
            f"rows are of {len(names)} devices; say which one by --rows-of (there are: "
            f"{', '.join(map(repr, names))})",
            file=rows[0].file,
        )
    return mine[0]


def _positive(ours: MeasuredRow, row: MeasuredRow, name: str) -> float:
    value = ours.number(name)
    if value is None or value <= 0:
        field = next(n for n in (name, "latency", "time_ms") if n in row.values)
        raise ConfigError(
            f"expected a time above 0, found {row.text(field)!r}",
            file=row.file,
            line=row.line,
            field=field,
        )
    return value


def _check_size(row: MeasuredRow, name: str) -> None:
    value = row.whole(name)
    if value is None or value < 1:
        raise ConfigError(
            f"expected a whole number of at least 1, found {row.text(name)!r}",
            file=row.file,
            line=row.line,
            field=name,
        )
