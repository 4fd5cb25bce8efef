"""What `gemm --array` prints."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ridgeline.cli.output import console, print_json
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.kernels.systolic.gemm import SystolicGemm


def print_array(
    size: tuple[int, int, int],
    array: str,
    batch: int,
    schedule: tuple[str, str, str],
    sparsity: str | None,
    compat: str | None,
    json: bool,
) -> None:
    """Count one product on one array; `schedule` is (dataflow, fold, edge)."""
    from ridgeline.kernels.systolic import scalesim_gemm
    from ridgeline.kernels.systolic.gemm import gemm_cycles, systolic_gemm

    match = re.fullmatch(r"(\d+)[xX](\d+)", array)
    if match is None:
        raise ConfigError(
            f"expected rows x columns such as 128x128, found {array!r}", field="--array"
        )
    cells = (int(match[1]), int(match[2]))
    dataflow, fold, edge = schedule
    gemm_cycles(
        *size, *cells, dataflow, fold, edge, compat=compat, batch=batch, sparsity=sparsity
    )  # checks
    if compat is not None:
        if batch != 1:
            raise ConfigError("SCALE-Sim knows no batch", field="--batch")
        report = asdict(scalesim_gemm(*size, *cells, dataflow, sparsity=sparsity))  # type: ignore[arg-type]
        _print("as SCALE-Sim 3.0.0 reports it", report, json)
        return
    counted = systolic_gemm(*size, *cells, dataflow, fold, edge, batch=batch, sparsity=sparsity)  # type: ignore[arg-type]
    _print(f"{array} cells, {dataflow}, folds {fold}, edges {edge}", _fields(counted), json)


def _fields(counted: SystolicGemm) -> dict[str, Any]:
    """Return the counts as plain values, nested tuples flattened to ``spans.fill`` and so on."""
    flat: dict[str, Any] = {}
    for name, value in asdict(counted).items():
        parts = value._asdict() if hasattr(value, "_asdict") else value
        if isinstance(parts, dict):
            flat |= {f"{name}.{part}": number for part, number in parts.items()}
        else:
            flat[name] = value
    return flat


def _print(title: str, fields: dict[str, Any], json: bool) -> None:
    if json:
        print_json(fields)
        return
    from ridgeline.report.tables import plain_table

    rows = plain_table({title: "left", "": "right"})
    for name, value in fields.items():
        if value is not None:
            rows.add_row(name.replace("_", " "), _text(value))
    console().print(rows)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
