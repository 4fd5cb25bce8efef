"""Designs of Timeloop, AccelForge and ZigZag: files of theirs become a device, layers and mappings.

What of a file cannot be said here, is said in another way, or had to be assumed, is a remark with
file, line and reason. ``docs/from-timeloop.md`` says what becomes of what.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.hardware import Device, load_device
from ridgeline.kernels.mapping.mapping_file import MappingFile, load_mapping
from ridgeline.report.files import make_folder, write_text
from ridgeline.study.import_design import accelforge, timeloop, zigzag
from ridgeline.study.import_design.architecture import Architecture, target_of
from ridgeline.study.import_design.documents import DesignDocument, Remark, read_sources
from ridgeline.study.import_design.loops import ImportedLayer, NotALayerError, Operand, layer_of
from ridgeline.study.import_design.machine import TABLE, Maker
from ridgeline.study.import_design.mappings import (
    NotAMappingError,
    ToolMapping,
    dataflows,
    element_words,
    level_safe,
    mapping_document,
    oriented,
)
from ridgeline.workload.graph import Conv, Gemm

MOST_FILES = 64
_KEYS = {
    "mapper": "Timeloop's search", "mapspace": "Timeloop's search",
    "mapspace_constraints": "constraints of Timeloop's search",
    "compound_components": "Accelergy's components", "sparse_optimizations": "Sparseloop's formats",
    "ERT": "Accelergy's energies", "ART": "Accelergy's areas", "renames": "names of AccelForge",
    "components": "Accelergy's components", "classes": "Accelergy's components",
}  # fmt: skip
_USED = frozenset({
    "architecture", "architecture_constraints", "problem", "mapping", "arch", "workload",
    "variables", "globals", "version", "memories", "operational_array", "multiplier_array",
    "dataflows", "name",
})  # fmt: skip


@dataclass(frozen=True)
class Design:
    """What files of a design become.

    Attributes
    ----------
    device
        The hardware; None if no file describes any.
    layers
        Operations: loops (`Gemm` or `Conv`), and the loop of every dimension of their file.
    mappings
        Mapping files by the name of their layer.
    remarks
        What was assumed, changed and left out.
    files
        Every file of ridgeline's own that the design becomes: its name, and its fields or text.
    """

    device: Device | None
    layers: tuple[ImportedLayer, ...]
    mappings: dict[str, MappingFile]
    remarks: tuple[Remark, ...]
    files: dict[str, dict[str, Any] | str]

    def write(self, folder: str | Path) -> list[str]:
        """Write the files into a folder and return their paths."""
        make_folder(folder)
        written = []
        for name, fields in self.files.items():
            path = Path(folder) / name
            write_text(path, fields if isinstance(fields, str) else _yaml(fields))
            written.append(str(path))
        return written

    def commands(self, folder: str | Path) -> list[str]:
        """Return the commands that price the layers, once the files are in a folder."""
        found = []
        for layer in self.layers:
            words = ["ridgeline", *layer.arguments()]
            if self.device is not None:
                words += ["--device", str(Path(folder) / f"{self.device.name}.yaml")]
                engine = next(iter(self.device.engines.values()))
                words += ["--format", next(iter(engine.rates))]
                if layer.name in self.mappings:
                    file = f"{level_safe(layer.name)}.mapping.yaml"
                    words += ["--mapping", str(Path(folder) / file)]
            found.append(shlex.join(words))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "device": None if self.device is None else self.device.name,
            "engine": None if self.device is None
            else next(iter(self.device.engines.values())).kind,
            "layers": [
                {
                    "name": layer.name,
                    "op": "gemm" if isinstance(layer.loops, Gemm) else "conv",
                    **asdict(layer.loops), "loops": dict(layer.letters),
                    "operands": dict(layer.operands), "mapping": layer.name in self.mappings,
                }
                for layer in self.layers
            ],
            "files": list(self.files),
            "remarks": [asdict(remark) for remark in self.remarks],
        }  # fmt: skip


def import_design(paths: str | Path | Iterable[str | Path], *, energy_table: str = TABLE) -> Design:
    """Read files of Timeloop, AccelForge or ZigZag: hardware, workload, mapping, in any order.

    Parameters
    ----------
    paths
        Files of one design. What each holds is told by its fields.
    energy_table
        Where the joules come from that the files do not state.

    Returns
    -------
    Design
        Device, layers, mappings and remarks.

    Raises
    ------
    ConfigError
        If a file cannot be read, is none of these, or nothing can be made of it.
    """
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not 1 <= len(listed) <= MOST_FILES:
        raise ConfigError(f"give 1 to {MOST_FILES} files, found {len(listed)}")
    sources = [source for path in listed for source in read_sources(path)]
    try:
        return _design(sources, energy_table)
    except RecursionError as error:
        raise ConfigError("nested too deep", file=str(listed[0])) from error


def _design(sources: Sequence[DesignDocument], energy_table: str) -> Design:
    for source in sources:
        _check(source)
    layers = _layers(sources)
    architecture = _architecture(sources, layers)
    if architecture is None:
        if any(_has_mapping(source) for source in sources):
            source = next(source for source in sources if _has_mapping(source))
            raise source.error("a mapping is read together with its hardware and its workload")
        return _finished(None, layers, {}, {}, sources)
    target = target_of(architecture)
    pairs = _pairs(sources, architecture, layers)
    target = oriented(target, pairs)
    flows = dataflows(target, pairs) if target.kind == "systolic" else []
    documents: dict[str, dict[str, Any]] = {}
    needs: dict[Operand, int] = {}
    for mapping, layer in pairs:
        try:
            document, inside = mapping_document(mapping, layer, target)
        except NotAMappingError as error:
            mapping.source.remark("left out", f"the mapping of {layer.name!r}: {error}", error.at)
            continue
        line, _ = mapping.source.document.where(mapping.at)
        document["description"] = f"read from {mapping.source.file}, line {line}"
        documents[layer.name] = document
        if target.kind == "spatial":
            for operand, words in element_words(layer, inside).items():
                needs[operand] = max(needs.get(operand, 1), words)
    maker = Maker(architecture, target, layers, needs, flows, energy_table)
    energy_file = f"{maker.name}-energy.yaml"
    device, energy = maker.documents(energy_file)
    files: dict[str, dict[str, Any] | str] = {f"{maker.name}.yaml": device, energy_file: energy}
    for name, document in documents.items():
        files[f"{level_safe(name)}.mapping.yaml"] = document
    return _finished(architecture, layers, files, documents, sources)


def _finished(
    architecture: Architecture | None, layers: Sequence[ImportedLayer],
    files: dict[str, dict[str, Any] | str], documents: dict[str, dict[str, Any]],
    sources: Sequence[DesignDocument],
) -> Design:  # fmt: skip
    """Load what was made, which checks it, and add the table of layers."""
    table = _table(layers, sources)
    device: Device | None = None
    mappings: dict[str, MappingFile] = {}
    if architecture is not None:
        with TemporaryDirectory() as folder:
            for name, fields in files.items():
                assert isinstance(fields, dict)
                (Path(folder) / name).write_text(_yaml(fields), encoding="utf-8")
            try:
                device = load_device(str(Path(folder) / next(iter(files))))
                for name in documents:
                    file = f"{level_safe(name)}.mapping.yaml"
                    mappings[name] = load_mapping(Path(folder) / file)
            except ConfigError as error:
                raise architecture.source.error(
                    f"no device can be made of it: {error.field or ''} {error.message}".strip()
                ) from error
    if table:
        files["layers.csv"] = table
    remarks = tuple(remark for source in sources for remark in source.remarks)
    return Design(device, tuple(layers), mappings, remarks, files)


def _check(source: DesignDocument) -> None:
    """Refuse a document that is none of the tools' files, and name what of it is not read."""
    data = source.document.data
    if zigzag.is_workload(data) or zigzag.is_mapping(data):
        return
    if not isinstance(data, dict):
        raise source.error(
            "is neither hardware, workload nor mapping of Timeloop, AccelForge or ZigZag"
        )
    if "cores" in data:
        raise source.error(
            "Stream's hardware of several cores on a network is no device; give one core's file",
            ("cores",),
        )
    if not {
        "architecture",
        "architecture_constraints",
        "problem",
        "mapping",
        "arch",
        "workload",
        "memories",
    } & set(data):
        raise source.error(
            "is neither hardware, workload nor mapping of Timeloop, AccelForge or ZigZag (fields: "
            f"{', '.join(list(data)[:8])})"
        )
    for key in data:
        if key not in _USED:
            what = _KEYS.get(key, "nothing that is read")
            source.remark("left out", f"{key}: {what}", (key,))
    for key in ("variables", "globals"):
        raw = data.get(key)
        for name, value in raw.items() if isinstance(raw, dict) else ():
            try:
                source.variables[name] = source.number(value, (key, name))
            except ConfigError:
                continue  # a word, such as the technology


def _layers(sources: Sequence[DesignDocument]) -> list[ImportedLayer]:
    layers: list[ImportedLayer] = []
    for source in sources:
        data = source.document.data
        if zigzag.is_workload(data):
            found = zigzag.einsums(source)
        elif isinstance(data, dict) and "problem" in data:
            found = timeloop.einsums(source)
        elif isinstance(data, dict) and "workload" in data:
            found = accelforge.einsums(source)
        else:
            continue
        for einsum in found:
            try:
                layer = layer_of(einsum)
            except NotALayerError as error:
                source.remark(
                    "left out",
                    f"{einsum.name!r} is neither a matrix product nor a convolution: {error}",
                    einsum.at,
                )
                continue
            if any(level_safe(layer.name) == level_safe(other.name) for other in layers):
                raise source.error(f"two layers are called {layer.name!r}", einsum.at)
            layers.append(layer)
        if not layers and len(sources) == 1:
            first = source.remarks[0].message if source.remarks else "it has no layers"
            raise source.error(f"nothing can be made of it: {first}")
    return layers


def _architecture(
    sources: Sequence[DesignDocument], layers: Sequence[ImportedLayer]
) -> Architecture | None:
    found: list[Architecture] = []
    roles = {name: operand for layer in layers for name, operand in layer.operands.items()}
    bits: dict[Operand, int] = {}
    for layer in layers:
        for operand, wide in layer.bits.items():
            bits[operand] = max(bits.get(operand, 1), wide)
    links: dict[str, Operand] = {}
    for source in sources:
        if zigzag.is_mapping(source.document.data):
            links = zigzag.roles(source) | links
    kept: dict[str, frozenset[Operand]] = {}
    for source in sources:
        if isinstance(source.document.data, dict):
            kept |= timeloop.kept(source, roles)
    for source in sources:
        data = source.document.data
        if zigzag.is_hardware(data):
            found.append(zigzag.architecture(source, links))
        elif isinstance(data, dict) and "architecture" in data:
            found.append(timeloop.architecture(source, roles, kept))
        elif isinstance(data, dict) and "arch" in data:
            found.append(accelforge.architecture(source, bits))
        if len(found) > 1:
            raise source.error("is the second hardware; a design has one")
    return found[0] if found else None


def _has_mapping(source: DesignDocument) -> bool:
    data = source.document.data
    return zigzag.is_mapping(data) or (isinstance(data, dict) and "mapping" in data)


def _pairs(
    sources: Sequence[DesignDocument], architecture: Architecture, layers: Sequence[ImportedLayer]
) -> list[tuple[ToolMapping, ImportedLayer]]:
    """Find the mapping of every layer: that of its name, of its kind, or the default."""
    order = [storage.name for storage in architecture.storages]
    known: list[ToolMapping] = []
    for source in sources:
        if not _has_mapping(source):
            continue
        data = source.document.data
        if not layers:
            raise source.error("a mapping is read together with its hardware and its workload")
        if zigzag.is_mapping(data):
            known += zigzag.mappings(source)
        elif isinstance(data["mapping"], dict):
            known += accelforge.mapping(source, {layer.name: layer.sizes for layer in layers})
        else:
            known.append(timeloop.mapping(source, order, layers[0].sizes))
    pairs: list[tuple[ToolMapping, ImportedLayer]] = []
    for layer in layers:
        of_name = [mapping for mapping in known if layer.name in mapping.layers]
        of_kind = [mapping for mapping in known if layer.kind and layer.kind in mapping.layers]
        of_all = [mapping for mapping in known if not mapping.layers]
        pairs += [(mapping, layer) for mapping in (*of_name, *of_kind, *of_all)[:1]]
    for mapping in known:
        if not any(used is mapping for used, _ in pairs):
            who = ", ".join(mapping.layers) or "every layer"
            mapping.source.remark(
                "left out", f"the mapping of {who} is that of no layer", mapping.at
            )
    return pairs


def _table(layers: Sequence[ImportedLayer], sources: Sequence[DesignDocument]) -> str:
    """Write layers as a table of kernels that `ridgeline run` takes."""
    if not layers:
        return ""
    columns = ("id", "m", "n", "k", "w", "h", "c", "batch", "filters", "r", "s", "pad_h", "pad_w",
               "stride h", "stride w")  # fmt: skip
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    rows = 0
    for layer in layers:
        row = _row(layer.loops)
        if row is None:
            sources[0].remark(
                "left out",
                f"{layer.name!r} is not in layers.csv, which has no batches of products, groups "
                "and dilation; its command is printed",
            )
            continue
        writer.writerow({"id": layer.name, **row})
        rows += 1
    return stream.getvalue() if rows else ""


def _row(loops: Gemm | Conv) -> dict[str, int] | None:
    if isinstance(loops, Gemm):  # in such tables n is the batch of a layer and m its outputs
        return None if loops.batch > 1 else {"m": loops.n, "n": loops.m, "k": loops.k}
    if loops.groups > 1 or loops.dilation != (1, 1):
        return None
    return {
        "w": loops.w_in, "h": loops.h_in, "c": loops.c_in, "batch": loops.batch,
        "filters": loops.c_out, "r": loops.r, "s": loops.s, "pad_h": loops.padding[0],
        "pad_w": loops.padding[1], "stride h": loops.stride[0], "stride w": loops.stride[1],
    }  # fmt: skip


def _yaml(fields: dict[str, Any]) -> str:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    stream = io.StringIO()
    yaml.dump(fields, stream)
    return stream.getvalue()
