"""Reads SCALE-Sim's configurations (``.cfg``) and topologies (CSV), versions 1 to 3.

More is accepted than SCALE-Sim 3.0.0 itself can read of the files that it ships: no comma at the
end of a line, tabs instead of commas, comments, headings between layers, a batch size, missing
sections. What cannot be understood is an error with file, line and reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ridgeline.config import read_text
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.array import Dataflow
from ridgeline.kernels.systolic.scalesim import DEFAULT_SEED
from ridgeline.kernels.systolic.sparsity import Sparsity, parse_sparsity
from ridgeline.workload.graph import Conv, Gemm
from ridgeline.workload.trace.layers import read_layers


@dataclass(frozen=True, slots=True)
class ScaleSimConfig:
    """What a configuration says about the array.

    Attributes
    ----------
    bandwidth_mode
        ``"CALC"`` (memory never stalls) or ``"USER"``.
    bandwidths
        Words a cycle, of the interfaces in USER mode.
    ifmap_kb, filter_kb, ofmap_kb
        Buffers; None if not stated.
    row_wise_block
        Block size of row-wise sparsity (``OptimizedMapping``), else None.
    """

    run_name: str
    rows: int
    columns: int
    dataflow: Dataflow
    bandwidth_mode: str
    bandwidths: tuple[int, ...]
    ifmap_kb: int | None
    filter_kb: int | None
    ofmap_kb: int | None
    sparsity: bool
    row_wise_block: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class TopologyLayer:
    """A layer of a topology.

    Attributes
    ----------
    loops
        A convolution without padding, or a matrix product. A depthwise layer is a convolution in as
        many groups as it has channels.
    sparsity
        N:M of its weights; None if the file does not say.
    line
        In the file.
    """

    name: str
    loops: Conv | Gemm
    sparsity: Sparsity | None
    line: int


def read_topology(path: str | Path) -> tuple[TopologyLayer, ...]:
    """Read the layers of a topology CSV; its header says if they are convolutions or products.

    Raises
    ------
    ConfigError
        With file, line, column and reason.
    """
    layers = []
    for row in read_layers(path):
        try:
            sparsity = parse_sparsity(row.sparsity or None)
        except ConfigError as error:
            raise ConfigError(
                error.message, file=str(path), line=row.line, field=row.name
            ) from error
        layers.append(TopologyLayer(row.name, row.loops, sparsity, row.line))
    return tuple(layers)


def read_config(path: str | Path) -> ScaleSimConfig:
    """Read a configuration.

    Raises
    ------
    ConfigError
        With file, line and field.
    """
    fields = _Fields(read_text(path), str(path))
    mode = fields.choice("InterfaceBandwidth", ("CALC", "USER"), default="CALC")
    sparse = fields.flag("SparsitySupport")
    row_wise = sparse and fields.flag("OptimizedMapping")
    seed = fields.optional_number("RandomNumberGeneratorSeed", least=0)
    return ScaleSimConfig(
        run_name=fields.text("run_name", default=Path(path).stem).strip('"'),
        rows=fields.number("ArrayHeight"),
        columns=fields.number("ArrayWidth"),
        dataflow=fields.choice("Dataflow", get_args(Dataflow)),  # type: ignore[arg-type]
        bandwidth_mode=mode,
        bandwidths=fields.numbers("Bandwidth") if mode == "USER" else (),
        # Version 1 leaves out the kB.
        ifmap_kb=fields.optional_number("IfmapSramSzkB", "IfmapSramSz"),
        filter_kb=fields.optional_number("FilterSramSzkB", "FilterSramSz"),
        ofmap_kb=fields.optional_number("OfmapSramSzkB", "OfmapSramSz"),
        sparsity=sparse,
        row_wise_block=fields.number("BlockSize") if row_wise else None,
        seed=DEFAULT_SEED if seed is None else seed,
    )


_SECTION = re.compile(r"\[[^\]]*\]")
_FIELD = re.compile(r"([^=:]*[^=:\s])\s*[=:]\s*(.*)")


class _Fields:
    """Line and value of every field of a configuration; sections and case do not matter."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._found: dict[str, tuple[int, str]] = {}
        for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
            line = raw.strip()
            if not line or line[0] in "#;" or _SECTION.fullmatch(line):
                continue
            match = _FIELD.fullmatch(line)
            if match is None:
                raise ConfigError(
                    f"expected '[section]', 'name = value' or 'name: value', found {line!r}",
                    file=file,
                    line=number,
                )
            name = match[1].lower()
            if name in self._found:
                raise ConfigError(
                    f"stands twice, first in line {self._found[name][0]}",
                    file=file,
                    line=number,
                    field=match[1],
                )
            self._found[name] = (number, match[2])
        if not self._found:
            raise ConfigError("there is no field in the file", file=file)

    def has(self, name: str) -> bool:
        return name.lower() in self._found

    def text(self, name: str, default: str | None = None) -> str:
        if self.has(name):
            return self._found[name.lower()][1]
        if default is None:
            raise ConfigError(
                f"the field {name!r} is missing{nearest(name.lower(), self._found)}", file=self.file
            )
        return default

    def _fail(self, name: str, allowed: str) -> ConfigError:
        line, found = self._found[name.lower()]
        return ConfigError(
            f"must be {allowed}, found {found!r}", file=self.file, line=line, field=name
        )

    def number(self, name: str, least: int = 1) -> int:
        found = self.text(name)
        if not found.isdecimal() or int(found) < least:
            raise self._fail(name, f"a whole number of at least {least}")
        return int(found)

    def numbers(self, name: str) -> tuple[int, ...]:
        parts = [part.strip() for part in self.text(name).split(",")]
        if not all(part.isdecimal() and int(part) for part in parts):
            raise self._fail(name, "whole numbers of at least 1, with commas between them")
        return tuple(int(part) for part in parts)

    def optional_number(self, *names: str, least: int = 1) -> int | None:
        return next((self.number(name, least) for name in names if self.has(name)), None)

    def flag(self, name: str) -> bool:
        return self.choice(name, ("true", "false"), default="false", fold_case=True) == "true"

    def choice(
        self, name: str, allowed: tuple[str, ...], default: str | None = None,
        fold_case: bool = False,
    ) -> str:  # fmt: skip
        found = self.text(name, default)
        found = found.lower() if fold_case else found
        if found not in allowed:
            raise self._fail(name, " or ".join(allowed))
        return found
