"""Reads SCALE-Sim's configurations (``.cfg``), versions 1 to 3, and makes devices of them.

Every section and key that SCALE-Sim's versions have is known here; `KEYS` says what becomes of each
one. An unknown one is an error with file, line and the nearest valid name. One that is known but
not modelled, where it is set to anything that has an effect, is a note.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ridgeline.bounded_files import read_text
from ridgeline.config import Document
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.array import Dataflow

DEFAULT_SEED = 40
"""Of SCALE-Sim's random numbers of non-zero weights per row-wise block."""
SUFFIX = ".cfg"
_DEFAULT_PORT = 10
"""Words a cycle of SCALE-Sim 3.0.0's ports where there is no section ``[layout]``."""
_DRAM_CAPACITY = "1 TiB"
_CLOCK = "1 GHz"
_TABLE = "not-stated"

Effect = Literal["used", "addresses", "ramulator", "layout", "none", "energy"]
KEYS: dict[str, dict[str, Effect]] = {
    "general": {"run_name": "used"},
    "architecture_presets": {
        "ArrayHeight": "used",
        "ArrayWidth": "used",
        "IfmapSramSzkB": "used",
        "FilterSramSzkB": "used",
        "OfmapSramSzkB": "used",
        "IfmapSramSz": "used",  # version 1 leaves out the kB
        "FilterSramSz": "used",
        "OfmapSramSz": "used",
        "Dataflow": "used",
        "Bandwidth": "used",
        "IfmapOffset": "addresses",
        "FilterOffset": "addresses",
        "OfmapOffset": "addresses",
        "MemoryBanks": "none",
        "OnChipMemoryBanks": "layout",  # versions before 3.0.0
        "OnChipMemoryBankPorts": "layout",
        "ReadRequestBuffer": "ramulator",
        "WriteRequestBuffer": "ramulator",
    },
    "layout": {
        "IfmapCustomLayout": "layout",
        "FilterCustomLayout": "layout",
        "IfmapSRAMBankBandwidth": "used",
        "IfmapSRAMBankNum": "used",
        "IfmapSRAMBankPort": "layout",
        "FilterSRAMBankBandwidth": "used",
        "FilterSRAMBankNum": "used",
        "FilterSRAMBankPort": "layout",
    },
    "sparsity": {
        "SparsitySupport": "used",
        "SparseRep": "used",
        "OptimizedMapping": "used",
        "BlockSize": "used",
        "RandomNumberGeneratorSeed": "used",
        "NonZeroElems": "none",
        "SparseAcc": "none",  # of the branch that brought sparsity
    },
    "run_presets": {
        "InterfaceBandwidth": "used",
        "UseRamulatorTrace": "ramulator",
        "SRAM_row_size": "energy",
        "SRAM_bank_size": "energy",
        "DRAM_row_size": "energy",
        "DRAM_bank_size": "energy",
        "TimeLinearModel": "none",  # versions after 3.0.0
    },
    "network_presets": {"TopologyCsvLoc": "none"},
    "gpu": {"TensorCores": "none"},  # versions after 3.0.0
}
"""What becomes of every key, by section. used: it decides figures here. addresses: where operands
lie, which no count depends on. ramulator, layout: of SCALE-Sim's models of DRAM latency and of SRAM
banks, which are not rebuilt; they are switched on by ``UseRamulatorTrace`` and ``...CustomLayout``.
energy: for Accelergy. none: SCALE-Sim 3.0.0 does not read it, or not here."""
_KNOWN = {key.lower(): (key, effect) for keys in KEYS.values() for key, effect in keys.items()}


@dataclass(frozen=True, slots=True)
class ScaleSimConfig:
    """What a configuration says about the array and its memory.

    Attributes
    ----------
    bandwidth_mode
        ``"CALC"`` (memory never stalls) or ``"USER"``.
    bandwidths
        Words a cycle, of the interfaces in USER mode.
    ifmap_kb, filter_kb, ofmap_kb
        Buffers in KiB; None if not stated.
    port_words
        Words a cycle with which SCALE-Sim 3.0.0 reads ifmap and filter and writes ofmap in USER
        mode; None in CALC mode.
    port_banks
        Banks of the first two; SCALE-Sim stops if they do not divide them.
    custom_layout
        Whether SCALE-Sim would model banks of its SRAMs, which is not done here.
    row_wise_block
        Block size of row-wise sparsity (``OptimizedMapping``), else None.
    notes
        What the file asks for and is not modelled, or is ignored as SCALE-Sim ignores it.
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
    port_words: tuple[int, int, int] | None = None
    port_banks: tuple[int, int] = (1, 1)
    custom_layout: bool = False
    sparse_representation: str = "ellpack_block"
    notes: tuple[str, ...] = ()


def read_config(path: str | Path) -> ScaleSimConfig:
    """Read a configuration.

    Raises
    ------
    ConfigError
        With file, line and field: an unknown section or key, a value that is not allowed, a key
        that is missing.
    """
    fields = _Fields(read_text(path), str(path))
    mode = fields.choice("InterfaceBandwidth", ("CALC", "USER"), default="CALC")
    sparse = fields.flag("SparsitySupport")
    row_wise = sparse and fields.flag("OptimizedMapping")
    seed = fields.optional_number("RandomNumberGeneratorSeed", least=0)
    bandwidths = fields.numbers("Bandwidth") if mode == "USER" else ()
    ports = None
    if mode == "USER":
        # SCALE-Sim 2 takes `Bandwidth` for all three; 3.0.0 for results alone.
        own = bandwidths[0] if not fields.has_section("layout") else _DEFAULT_PORT
        ports = (
            fields.optional_number("IfmapSRAMBankBandwidth") or own,
            fields.optional_number("FilterSRAMBankBandwidth") or own,
            bandwidths[0],
        )
    return ScaleSimConfig(
        run_name=fields.text("run_name", default=Path(path).stem).strip('"'),
        rows=fields.number("ArrayHeight"),
        columns=fields.number("ArrayWidth"),
        dataflow=fields.choice("Dataflow", get_args(Dataflow)),  # type: ignore[arg-type]
        bandwidth_mode=mode,
        bandwidths=bandwidths,
        # Version 1 leaves out the kB.
        ifmap_kb=fields.optional_number("IfmapSramSzkB", "IfmapSramSz"),
        filter_kb=fields.optional_number("FilterSramSzkB", "FilterSramSz"),
        ofmap_kb=fields.optional_number("OfmapSramSzkB", "OfmapSramSz"),
        sparsity=sparse,
        row_wise_block=fields.number("BlockSize") if row_wise else None,
        seed=DEFAULT_SEED if seed is None else seed,
        port_words=ports,
        port_banks=(
            fields.optional_number("IfmapSRAMBankNum") or 1,
            fields.optional_number("FilterSRAMBankNum") or 1,
        ),
        custom_layout=fields.flag("IfmapCustomLayout") or fields.flag("FilterCustomLayout"),
        sparse_representation=fields.choice(
            "SparseRep", ("ellpack_block", "csr", "csc"), default="ellpack_block"
        ),
        notes=_notes(fields, bandwidths, ports),
    )


def device_document(path: str | Path) -> Document:
    """Return the device of a configuration as the fields of a device's file.

    The array works as SCALE-Sim says: the one dataflow, folds that never overlap and take the whole
    array, words of one byte. The file states no clock, no energy and no size of the DRAM: these say
    so in their basis, and the energy is unknown, not zero (`Device.unpriced`).

    Raises
    ------
    ConfigError
        If the file cannot be understood, or does not state the sizes of the SRAMs.
    """
    return Document(str(path), device_fields(read_config(path), str(path)), {})


def device_fields(config: ScaleSimConfig, file: str) -> dict[str, Any]:
    """Return the fields of `device_document`, of a configuration that was read from `file`."""
    sizes = {"a": config.ifmap_kb, "b": config.filter_kb, "c": config.ofmap_kb}
    keys = ("IfmapSramSzkB", "FilterSramSzkB", "OfmapSramSzkB")
    missing = [key for key, size in zip(keys, sizes.values(), strict=True) if size is None]
    if missing:
        raise ConfigError(f"a device needs the fields {', '.join(missing)}", file=file)
    cells = config.rows * config.columns
    if config.bandwidths:
        words, basis = config.bandwidths[0], "derived"
        said = f"Bandwidth: {words} words a cycle, in and as many out"
    else:
        words, basis = config.rows + 2 * config.columns, "assumed"
        said = "CALC: memory never stalls. As many words a cycle as the edges of the array"

    def cited(value: Any, basis: str = "data-sheet", **more: str) -> dict[str, Any]:
        return {"value": value, "source": "cfg", "basis": basis, **more}

    fields = {
        "kind": "device",
        "name": re.sub(r"[^a-z0-9]+", "-", config.run_name.lower()).strip("-") or "scale-sim",
        "description": f"The array of SCALE-Sim's configuration {config.run_name}",
        "year": 2025,
        "sources": {"cfg": f"SCALE-Sim configuration {Path(file).name}"},
        "idle_power": cited("0 W", "not stated", note="Not in the configuration: unknown"),
        "energy_table": _TABLE,
        "engines": {
            "mesh": {
                "kind": "systolic",
                "runs": ["matrix"],
                "rates": {
                    "int8": cited(
                        f"{2 * cells} GFLOP/s", "derived",
                        note=f"{cells} multiply-accumulates a cycle; SCALE-Sim's words are a byte",
                    )
                },
                "accumulate": "int8",
                "instruction": {"m": 1, "n": 1, "k": 1, "source": "cfg"},
                "energy": {"int8": "flop.int8"},
                "array": {
                    "rows": cited(config.rows),
                    "columns": cited(config.columns),
                    "clock": cited(
                        _CLOCK, "assumed",
                        note="Not in the configuration; at 1 GHz a cycle is a nanosecond",
                    ),
                    "dataflows": [config.dataflow],
                    "fold": "serial",
                    "edge": "full",
                },
            }
        },
        "memory": {
            "sram": {
                "kind": "sram",
                "capacity": cited(
                    f"{sum(size or 0 for size in sizes.values())} KiB", "derived",
                    note="Of ifmap, filter and ofmap together",
                ),
                "partitions": {name: cited(f"{size} KiB") for name, size in sizes.items()},
                "buffers": "double",
                "energy": "sram.l1",
            },
            "dram": {
                "kind": "dram",
                "capacity": cited(
                    _DRAM_CAPACITY, "not stated",
                    note="Not in the configuration; so large that everything fits",
                ),
                "bandwidth": cited(f"{words} GB/s", basis, note=said),
                "ports": "separate",
                "energy": "dram.hbm2",
            },
        },
        "launch_latency": cited("0 s", "derived", note="SCALE-Sim counts none"),
    }  # fmt: skip
    return {**fields, "notes": list(config.notes)} if config.notes else fields


def _notes(
    fields: _Fields, bandwidths: tuple[int, ...], ports: tuple[int, int, int] | None
) -> tuple[str, ...]:
    """Say what is asked for and not modelled, and what has no effect."""
    first = bandwidths[0] if bandwidths else 0
    said = {
        "UseRamulatorTrace": "not modelled: DRAM answers after one cycle, request buffers have no"
        " effect",
        "IfmapCustomLayout": "not modelled: banks of the SRAM never conflict",
        "FilterCustomLayout": "not modelled: banks of the SRAM never conflict",
        "MemoryBanks": "no effect: SCALE-Sim 3.0.0 does not read it",
        "TimeLinearModel": "not modelled: cycles become seconds by the clock alone",
        "NonZeroElems": "no effect: N:M is a column of the topology in SCALE-Sim 3",
        "SparseAcc": "no effect: how zeros are stored is SparseRep",
        "TensorCores": "not modelled: the file's one array is; several are array.count of a device",
        "TopologyCsvLoc": "no effect: the topology is an argument here",
    }
    switches = ("UseRamulatorTrace", "IfmapCustomLayout", "FilterCustomLayout")
    silent = {key for key in switches if not fields.flag(key)}
    if (fields.optional_number("MemoryBanks") or 1) == 1:
        silent.add("MemoryBanks")
    for key, effect in _KNOWN.values():
        if effect == "energy":
            said[key] = "not modelled: it is for Accelergy; energy is the device's own table here"
    found = [
        fields.note(key, text)
        for key, text in said.items()
        if key not in silent and fields.has(key)
    ]
    if len(bandwidths) > 1:
        found.append(fields.note("Bandwidth", f"SCALE-Sim 3.0.0 uses the first alone, {first}"))
    if ports is not None and ports[:2] != (first, first):
        text = (
            "SCALE-Sim 3.0.0 uses it for results alone; it reads ifmap and filter with"
            f" IfmapSRAMBankBandwidth, {ports[0]}, and FilterSRAMBankBandwidth, {ports[1]} words a"
            " cycle"
        )
        found.append(fields.note("Bandwidth", text))
    return tuple(found)


_SECTION = re.compile(r"\[[^\]]*\]")
_FIELD = re.compile(r"([^=:]*[^=:\s])\s*[=:]\s*(.*)")


class _Fields:
    """Line and value of every field of a configuration.

    A key may stand in any section, as several shipped files have it; case does not matter.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._found: dict[str, tuple[int, str]] = {}
        self._sections: set[str] = set()
        for number, raw in enumerate(text.splitlines(), start=1):
            line = raw.strip()
            if not line or line[0] in "#;":
                continue
            if _SECTION.fullmatch(line):
                self._open(line[1:-1].strip(), number)
                continue
            match = _FIELD.fullmatch(line)
            if match is None:
                raise ConfigError(
                    f"expected '[section]', 'name = value' or 'name: value', found {line!r}",
                    file=file,
                    line=number,
                )
            self._add(match[1], match[2], number)
        if not self._found:
            raise ConfigError("there is no field in the file", file=file)

    def _open(self, section: str, number: int) -> None:
        if section not in KEYS:
            raise ConfigError(
                f"unknown section [{section}]{nearest(section, KEYS)} (known: {', '.join(KEYS)})",
                file=self.file,
                line=number,
            )
        self._sections.add(section)

    def _add(self, key: str, value: str, number: int) -> None:
        name = key.lower()
        if name not in _KNOWN:
            raise ConfigError(
                f"unknown key{nearest(key, [known for known, _ in _KNOWN.values()])}"
                " (docs/from-scalesim.md lists all)",
                file=self.file,
                line=number,
                field=key,
            )
        if name in self._found:
            raise ConfigError(
                f"stands twice, first in line {self._found[name][0]}",
                file=self.file,
                line=number,
                field=key,
            )
        self._found[name] = (number, value)

    def has_section(self, section: str) -> bool:
        return section in self._sections

    def note(self, name: str, text: str) -> str:
        line, found = self._found[name.lower()]
        return f"{self.file}:{line}: {_KNOWN[name.lower()][0]}: {found}: {text}"

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
