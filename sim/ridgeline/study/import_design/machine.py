"""A hardware file as a device and an energy table in ridgeline's own format, as plain values.

What the file states has the file as its source. What it does not state and a device needs is taken
from a shipped energy table, or chosen so that it does nothing (no idle power, no launch latency, a
bandwidth that never bounds): its basis is "assumed", and every one is remarked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.hardware import load_energy_table
from ridgeline.hardware.energy import EnergyTable
from ridgeline.study.import_design.architecture import (
    OPERANDS,
    Architecture,
    Axis,
    ImportedStorage,
    Target,
)
from ridgeline.study.import_design.loops import ImportedLayer, Operand
from ridgeline.study.import_design.mappings import level_safe
from ridgeline.yaml_nodes import Location

TABLE = "horowitz-45nm"
"""Where joules come from that a file does not state."""
INT16_TABLE = "dark-memory-45nm"
CLOCK_HZ = 1e9
FAR_BYTES = 2**34
FAR_BYTES_S = 1e15
YEAR = 2024
_WIDEST = 2**30
_OPERAND_BLOCKS: dict[Operand, str] = {"a": "images", "b": "filters", "c": "sums"}
_FORMATS = {
    False: {8: "int8", 16: "int16"},
    True: {8: "fp8-e4m3", 16: "fp16", 32: "fp32", 64: "fp64"},
}
_SUMS = {False: {8: "int8", 16: "int16", 32: "int32"}, True: {16: "fp16", 32: "fp32", 64: "fp64"}}
_DEFAULT_BITS = 16


class Maker:
    """Makes the documents of one architecture."""

    def __init__(
        self, architecture: Architecture, target: Target, layers: Sequence[ImportedLayer],
        needs: Mapping[Operand, int], flows: Sequence[str], table: str = TABLE,
    ) -> None:  # fmt: skip
        self.architecture, self.target, self.layers = architecture, target, layers
        self.needs, self.flows = needs, flows
        self.source = architecture.source
        self.table: EnergyTable = load_energy_table(table)
        self.entries: dict[str, Any] = {}
        self.name = level_safe(architecture.name).lower()
        self.clock_hz = architecture.clock_hz or CLOCK_HZ

    def documents(self, energy_file: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the device, which names `energy_file` as its table, and the table."""
        architecture, compute = self.architecture, self.architecture.compute
        clock = self._clock()
        format_, bits = self._format()
        sums = self._sums(bits)
        peak = 2.0 * compute.instances * self.clock_hz
        engine: dict[str, Any] = {
            "kind": self.target.kind,
            "runs": ["matrix"],
            "rates": {format_: self._value(
                _written(peak, "FLOP/s"), compute.at, "derived",
                f"{compute.instances} multiply-accumulates a cycle",
            )},
            "accumulate": sums,
            "energy": {format_: self._mac_entry(format_)},
        }  # fmt: skip
        if self.target.kind == "systolic":
            engine["array"] = self._array(clock)
        else:
            engine["spatial"] = self._spatial(clock, bits)
        device: dict[str, Any] = {
            "kind": "device",
            "name": self.name,
            "description": f"{architecture.name}, read from a file of {architecture.tool}",
            "year": YEAR,
            "sources": {
                "file": f"{architecture.tool}: {self.source.file}",
                "import": "not in the file; put there when it was read",
            },
            **self._chip(),
            "energy_table": energy_file,
            "engines": {level_safe(compute.name): engine},
            "memory": self._memory(),
            "launch_latency": self._assumed(
                "0 s", "the file has no such time, and its tool counts none", compute.at,
                "launch latency",
            ),
        }  # fmt: skip
        self.source.remark("assumed", f"the year of the device, {YEAR}: the file states none", ())
        energy = {
            "kind": "energy-table",
            "name": f"{self.name}-energy",
            "description": f"What {architecture.name} states; {self.table.name} for the rest",
            "sources": device["sources"] | {
                name: f"energy table {name} of ridgeline" for name in (self.table.name, INT16_TABLE)
            },
            "entries": self.entries,
        }  # fmt: skip
        return device, energy

    def _value(self, value: Any, at: Location, basis: str = "data-sheet", note: str = "") -> Any:
        line, _ = self.source.document.where(at)
        place = f"line {line}" + (f", {note}" if note else "")
        return {"value": value, "source": "file", "basis": basis, "note": place}

    def _assumed(self, value: Any, why: str, at: Location, what: str) -> Any:
        self.source.remark("assumed", f"{what} of {value}: {why}", at)
        return {"value": value, "source": "import", "basis": "assumed", "note": why}

    def _clock(self) -> Any:
        hertz = self.architecture.clock_hz
        if hertz is None:
            return self._assumed(
                "1 GHz", "the file counts in cycles; a cycle is a nanosecond here",
                self.architecture.compute.at, "clock",
            )  # fmt: skip
        return self._value(_written(hertz, "Hz"), self.architecture.compute.at, "derived")

    def _chip(self) -> dict[str, Any]:
        """Process node, area and idle power."""
        compute = self.architecture.compute
        parts: list[ImportedStorage | Any] = [*self.architecture.storages, compute]
        leaks = [part.leak_w for part in parts]
        areas = [part.area_m2 for part in parts]
        found: dict[str, Any] = {}
        if self.architecture.node_m:
            found["process_node"] = self._value(_written(self.architecture.node_m, "m"), ())
        if None not in areas and sum(area or 0.0 for area in areas) > 0:
            area = sum((part.area_m2 or 0.0) * part.instances for part in parts)
            found["area"] = self._value(_written(area, "m2"), (), "derived", "of all its parts")
        if None not in leaks:
            watts = sum((part.leak_w or 0.0) * part.instances for part in parts)
            found["idle_power"] = self._value(
                _written(watts, "W"), (), "derived", "leakage of all parts"
            )
        else:
            found["idle_power"] = self._assumed(
                "0 W", "the file states no leakage of all its parts", compute.at, "idle power"
            )
        return found

    def _format(self) -> tuple[str, int]:
        """Name the number format of the multipliers, and the bits of an operand."""
        compute = self.architecture.compute
        layers = [layer.bits.get(operand) for layer in self.layers for operand in ("a", "b")]
        stated = [found for found in layers if found]
        bits = max(stated) if stated else compute.bits
        known = _FORMATS[compute.floating]
        if bits is None:
            self.source.remark(
                "assumed", f"operands of {_DEFAULT_BITS} bits: no file states their width",
                compute.at,
            )  # fmt: skip
            bits = _DEFAULT_BITS
        if bits not in known:
            wider = min((b for b in known if b >= bits), default=max(known))
            self.source.remark(
                "changed", f"operands of {bits} bits are {known[wider]}, the nearest wider format",
                compute.at,
            )  # fmt: skip
            bits = wider
        return known[bits], bits

    def _sums(self, bits: int) -> str:
        compute = self.architecture.compute
        stated = [layer.bits.get("c") for layer in self.layers]
        wanted = max((found for found in stated if found), default=compute.sum_bits)
        known = _SUMS[compute.floating]
        if wanted is None:
            self.source.remark(
                "assumed", f"sums of {bits} bits, as wide as operands: no file states their width",
                compute.at,
            )  # fmt: skip
            wanted = bits
        fits = min((b for b in known if b >= wanted), default=max(known))
        if fits != wanted:
            self.source.remark(
                "changed", f"sums of {wanted} bits are {known[fits]}, the nearest wider format",
                compute.at,
            )  # fmt: skip
        return known[fits]

    def _mac_entry(self, format_: str) -> str:
        compute = self.architecture.compute
        if compute.mac_j is not None:
            self.entries["mac"] = {
                "value": f"{compute.mac_j / 2 * 1e12!r} pJ/FLOP", "scope": "arithmetic",
                "source": "file", "basis": "derived", "note": "half a multiply-accumulate",
            }  # fmt: skip
            return "mac"
        table, entry = self.table, f"flop.{'fp8.tensor' if format_ == 'fp8-e4m3' else format_}"
        if entry not in table.entries:
            table, entry = load_energy_table(INT16_TABLE), "flop.int16"
        return self._shipped("mac", table, entry, f"joules of a multiply-accumulate in {format_}",
                             compute.at)  # fmt: skip

    def _shipped(self, name: str, table: EnergyTable, entry: str, what: str, at: Location) -> str:
        """Take an entry of a shipped table, as an assumption."""
        found = table.entries[entry]
        self.entries[name] = {
            "value": found.value, "scope": found.scope, "source": table.name, "basis": "assumed",
            "note": f"entry {entry}: the file states no energy",
        }  # fmt: skip
        self.source.remark(
            "assumed",
            f"{what}: {found.value}, entry {entry} of the energy table {table.name}: the file "
            "states none",
            at,
        )
        return name

    def _level_entry(self, name: str, storage: ImportedStorage) -> str:
        reads = [j for j in (storage.read_j, storage.write_j) if j is not None]
        if reads:
            joules, at = sum(reads) / len(reads), storage.at
            note = "of a read and of a write" if len(reads) == 2 else "of the only action"
            if len(set(reads)) == 2:
                note = f"mean of a read, {reads[0] * 1e12:.6g}, and a write, {reads[1] * 1e12:.6g}"
                self.source.remark(
                    "changed",
                    f"a bit of {storage.name!r} takes {reads[0] * 1e12:.6g} pJ to read and "
                    f"{reads[1] * 1e12:.6g} to write; a memory level has one energy, their mean",
                    at,
                )
            self.entries[name] = {
                "value": f"{joules * 1e12!r} pJ/bit", "scope": "device", "source": "file",
                "basis": "derived", "note": note,
            }  # fmt: skip
            return name
        if storage.kind == "registers":
            entry = "registers"
        elif storage.kind == "dram":
            entry = "dram.hbm2" if "hbm" in storage.name.lower() else "dram.ddr3"
        else:
            size = storage.bits / 8
            entry = "sram.8kib" if size <= 2**14 else "sram.l1" if size <= 2**18 else "sram.l2"
        if entry not in self.table.entries:
            able = [known for known in self.table.entries if known.startswith(entry[:4])]
            if not able:
                raise self.source.error(
                    f"the energy table {self.table.name} has no entry for {storage.name!r}",
                    storage.at,
                )
            entry = able[0]
        return self._shipped(name, self.table, entry, f"joules of a bit of {storage.name!r}",
                             storage.at)  # fmt: skip

    def _memory(self) -> dict[str, Any]:
        target, found = self.target, {}
        groups: dict[str, list[ImportedStorage]] = {}
        for storage in reversed((target.far, *target.shared, *target.element)):
            groups.setdefault(target.names[storage.name], []).append(storage)
        for level, storages in groups.items():
            found[level] = self._level(level, storages)
        return found

    def _level(self, level: str, storages: list[ImportedStorage]) -> dict[str, Any]:
        far = storages[0] is self.target.far
        element = storages[0] in self.target.element
        largest = max(storages, key=lambda storage: storage.bits * storage.instances)
        made: dict[str, Any] = {"kind": "dram" if far else "registers" if element else "sram"}
        size = sum(storage.bits * storage.instances for storage in storages) / 8
        if math.isinf(size):
            made["capacity"] = self._assumed(
                _written(FAR_BYTES if far else 2**40, "B"),
                "the file states no size, or an endless one",
                largest.at, f"capacity of {level!r}",
            )  # fmt: skip
        else:
            made["capacity"] = self._value(_written(size, "B"), largest.at, "derived")
        if largest.instances > 1:
            made["instances"] = self._value(largest.instances, largest.at, "derived")
        if not element:
            made |= self._bandwidth(level, largest, far)
        if largest.latency_cycles and not element:
            made["latency"] = self._value(
                _written(largest.latency_cycles / self.clock_hz, "s"), largest.at, "derived"
            )
        if len(storages) > 1 and any(s.read_j != largest.read_j for s in storages):
            self.source.remark(
                "changed", f"{level!r} has the energy of {largest.name!r}, its largest part",
                largest.at,
            )  # fmt: skip
        made["energy"] = self._level_entry(level, largest)
        own = [s for s in storages if len(s.holds) == 1 and len(storages) > 1]
        if self.target.kind == "systolic" and own:
            made["partitions"] = {
                next(iter(s.holds)): self._value(_written(s.bits * s.instances / 8, "B"), s.at)
                for s in own
            }
        return made

    def _bandwidth(self, level: str, storage: ImportedStorage, far: bool) -> dict[str, Any]:
        rates = [r for r in (storage.read_bits, storage.write_bits) if r and math.isfinite(r)]
        if not rates:
            if not far:
                return {}
            return {"bandwidth": self._assumed(
                _written(FAR_BYTES_S, "B/s"),
                "the file states none, so that its tool never waits for it",
                storage.at, f"bandwidth of {level!r}",
            )}  # fmt: skip
        if len(set(rates)) == 2:
            self.source.remark(
                "changed",
                f"{storage.name!r} reads {rates[0]:g} and writes {rates[1]:g} bits a cycle; the "
                "ports of a level are equal, as the slower one",
                storage.at,
            )
        total = min(rates) * storage.instances / 8 * self.clock_hz
        return {
            "bandwidth": self._value(_written(total, "B/s"), storage.at, "derived", "bits a cycle"),
            "ports": "shared" if storage.shared else "separate",
        }

    def _side(self, axes: tuple[Axis, ...]) -> Any:
        size = math.prod(size for _, size in axes)
        return self._value(size, self.architecture.compute.at, "derived",
                           " x ".join(name for name, _ in axes) or "no fan-out")  # fmt: skip

    def _array(self, clock: Any) -> dict[str, Any]:
        self.source.remark(
            "changed",
            "cells hand operands on, a cycle each: the tools count no cycles for filling and "
            "emptying the array",
            self.architecture.compute.at,
        )
        made = {
            "rows": self._side(self.target.rows), "columns": self._side(self.target.columns),
            "clock": clock, "dataflows": list(self.flows), "edge": "exact",
        }  # fmt: skip
        if self.target.extra:
            made["count"] = self._side(self.target.extra)
        for storage in self.target.element:
            words = storage.bits / storage.word_bits
            if words > 2:
                self.source.remark(
                    "left out",
                    f"{storage.name!r} holds {words:g} words in every cell; a cell of a systolic "
                    "array holds the one that it works with and the next",
                    storage.at,
                )
        return made

    def _spatial(self, clock: Any, bits: int) -> dict[str, Any]:
        target = self.target
        made: dict[str, Any] = {
            "rows": self._side(target.rows), "columns": self._side(target.columns),
            "clock": clock, "dataflows": ["any"], "adds_along": ["rows", "columns"],
            "buffer": target.names[target.shared[0].name],
        }  # fmt: skip
        shares = self._shares()
        elements = self.architecture.compute.instances
        for operand, block in _OPERAND_BLOCKS.items():
            words = shares[operand]
            holder = next((s for s in target.element if operand in s.holds), None)
            feeds = next((s for s in target.shared if operand in s.holds), target.far)
            at = holder.at if holder else self.architecture.compute.at
            held = self._value(words, at, "derived", "words" if holder else "none stated")
            if holder is None:
                self.source.remark(
                    "changed",
                    f"elements have no storage of {block}: they hold the word that they work with",
                    at,
                )
            all_words = min(words * elements, _WIDEST)
            incoming, outgoing = (
                self._width(rate, feeds, bits, all_words)
                for rate in (feeds.read_bits, feeds.write_bits)
            )
            if operand == "c":
                made[block] = {
                    "words": held,
                    "buffers": 2,
                    "width_in": incoming,
                    "width_out": outgoing,
                }
            else:
                made[block] = {
                    "words": held, "buffers": 2, "width": incoming,
                    "multicast": operand in target.multicast,
                }  # fmt: skip
        held_there = {operand for storage in target.shared for operand in storage.holds}
        if passing := [
            _OPERAND_BLOCKS[operand] for operand in OPERANDS if operand not in held_there
        ]:
            made["bypass"] = passing
        return made

    def _width(self, rate: float | None, feeds: ImportedStorage, bits: int, most: int) -> Any:
        """Words a cycle of a network: what the buffer's port does, or a whole tile."""
        if rate is None or not math.isfinite(rate):
            return self._assumed(
                most, "the file states no bandwidth, so that a tile comes in a cycle", feeds.at,
                f"words a cycle of {feeds.name!r}",
            )  # fmt: skip
        words = max(1, min(int(rate * feeds.instances / bits), _WIDEST))
        self.source.remark(
            "changed",
            f"the port of {feeds.name!r}, {words} words a cycle, is the network of every operand "
            "that it holds; each has its own here",
            feeds.at,
        )
        return self._value(words, feeds.at, "derived", "bits a cycle over those of a word")

    def _shares(self) -> dict[Operand, int]:
        """Words of an element for each operand: of a storage of several, what mappings need."""
        found: dict[Operand, int] = dict.fromkeys(OPERANDS, 1)
        for storage in self.target.element:
            words = min(int(storage.bits // storage.word_bits), _WIDEST) if math.isfinite(
                storage.bits
            ) else _WIDEST  # fmt: skip
            holds = [operand for operand in OPERANDS if operand in storage.holds]
            if len(holds) == 1:
                found[holds[0]] = max(1, words)
                continue
            needed = {operand: self.needs.get(operand, 1) for operand in holds}
            free = words - sum(needed.values())
            if free < 0:
                self.source.remark(
                    "left out",
                    f"{storage.name!r} holds {words} words, and a mapping needs "
                    f"{sum(needed.values())}: it does not fit",
                    storage.at,
                )
                needed, free = dict.fromkeys(holds, 1), max(0, words - len(holds))
            for operand in holds:
                found[operand] = needed[operand] + free // len(holds)
            self.source.remark(
                "changed",
                f"the {words} words of {storage.name!r} are "
                + ", ".join(f"{found[o]} of {_OPERAND_BLOCKS[o]}" for o in holds)
                + ": an element has room of its own for each operand",
                storage.at,
            )
        return found


def _written(value: float, unit: str) -> str:
    """Write a quantity, a whole one without a point."""
    return f"{int(value) if value == int(value) and value < 2**53 else value!r} {unit}"
