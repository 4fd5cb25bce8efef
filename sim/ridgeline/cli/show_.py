"""``ridgeline show``: one model, machine, component or energy table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline import catalog
from ridgeline.cli.field_rows import field_rows
from ridgeline.cli.names import AnyName, AnyNameIfAny
from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json
from ridgeline.config import read_yaml
from ridgeline.errors import ConfigError
from ridgeline.hardware.scalesim import SUFFIX as SCALESIM_SUFFIX
from ridgeline.input_files import INPUT_KINDS, kind_of_document, named
from ridgeline.workload.files import is_trace

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

_VERBS = {"study": "sweep", "jobs": "jobs", "rl-run": "rl", "run": "train"}
"""The verb that takes a file of a kind of which none ships."""


def show_(
    name: AnyName,
    other: AnyNameIfAny = None,
    *,
    batch: Whole = 1,
    capacity: str | None = None,
    width: str | None = None,
    ports: str | None = None,
    node: str | None = None,
    variant: str | None = None,
    cell: str | None = None,
    banks: Whole | None = None,
    voltage: str | None = None,
    temperature: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Show one model, machine, component, software stack or energy table, or what tells two apart.

    Parameters
    ----------
    name
        A name from ``ridgeline list``, or a YAML file; or KIND-schema for all fields of a kind of
        file (model, device, node, cluster, software, component, energy-table, dataset, study, jobs,
        rl-run or run).
    other
        Another of the same kind: only the differences are shown. After model-schema, a family of
        networks: its fields are shown.
    batch
        Samples for the layer table of a model.
    capacity
        Capacity of a component: 1MiB. With it or an option below, the component's energy, area and
        leakage are shown.
    width
        Bits of one access of a component: 256bit.
    ports
        Ports of a component: 1RW, 2RW, 1R1W, 4R2W.
    node
        Process node of a component: 22nm.
    variant
        Number format of a MAC, or type of a memory or a link.
    cell
        Transistors of a RAM: itrs-hp, itrs-lop, itrs-lstp.
    banks
        Banks of a RAM.
    voltage
        Supply voltage of a component: 0.8V.
    temperature
        Temperature of a RAM: 350K.
    json
        Print it as JSON; for a schema, the JSON Schema by which editors check YAML files.
    """
    if name.endswith("-schema"):
        _show_schema(name, other, json)
        return
    kind, name = kind_of(name)
    parameters: dict[str, object] = {
        "capacity": capacity, "width": width, "ports": ports, "node": node, "variant": variant,
        "cell": cell, "banks": banks, "voltage": voltage, "temperature": temperature,
    }  # fmt: skip
    given = {key: value for key, value in parameters.items() if value is not None}
    if given and (kind != "components" or other is not None):
        raise ConfigError(f"--{next(iter(given))} is of one component; {name} is one of the {kind}")
    if other is not None:
        from ridgeline.cli.differences import show_differences

        other_kind, other = kind_of(other)
        if other_kind != kind:
            raise ConfigError(
                f"{name} is one of the {kind}, {other} one of the {other_kind}: only things of one"
                " kind are compared"
            )
        show_differences(kind, name, other, json=json)
    elif kind == "components":
        from ridgeline.cli.show_component import show_component

        show_component(name, given, json=json)
    elif kind == "models":
        _show_model(name, batch, json)
    elif kind == "software":
        _show_software(name, json)
    else:
        _show_machine(kind, name, json)


def kind_of(name: str) -> tuple[str, str]:
    """Find out what kind of thing a name or a file is, and its name in the catalogue if it has one.

    Raises
    ------
    ConfigError
        If nothing is called so, or a file does not say what it describes.
    """
    if all(name not in catalog.names(kind) for kind in catalog.FOLDERS):
        if is_trace(name):
            return "models", name
        if catalog.is_path(name):
            if Path(name).suffix == SCALESIM_SUFFIX:
                return "devices", name
            kind = kind_of_document(read_yaml(name))
            if not INPUT_KINDS[kind].folder:
                raise ConfigError(
                    f"a file of kind {kind} has nothing to show; `ridgeline {_VERBS[kind]}` takes"
                    f" it, and `ridgeline show {kind}-schema` lists its fields", file=name,
                )  # fmt: skip
            return INPUT_KINDS[kind].folder, name
        name = catalog.resolve(name)
    return next(kind for kind in catalog.FOLDERS if name in catalog.names(kind)), name


def _show_model(name: str, batch: int, json: bool) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show
    from ridgeline.workload.files import load_network
    from ridgeline.workload.summary import layer_table

    model = load_network(name)
    graph = model.forward(batch, "fp32")
    layers = layer_table(graph)
    if json:
        import dataclasses

        print_json(
            {
                "name": model.name,
                "title": model.title,
                "citation": model.citation,
                "batch": batch,
                "parameters": graph.parameters,
                "forward_flops": graph.flops(),
                "layers": [dataclasses.asdict(layer) for layer in layers],
            }
        )
        return
    table = plain_table({"layer": "left", "kind": "left", "output": "left", "parameters": "right",
         "FLOP": "right", "activation": "right"},
    )  # fmt: skip
    for layer in layers:
        table.add_row(
            layer.name,
            layer.kind,
            "x".join(str(n) for n in layer.output_shape),
            f"{layer.parameters:,}" if layer.parameters else "",
            show(float(layer.forward_flops), "FLOP", 4) if layer.forward_flops else "",
            show(float(layer.activation_bytes), "B", 4) if layer.activation_bytes else "",
        )
    screen = console()
    screen.print(f"{model.title}: forward pass, batch {batch}, fp32")
    screen.print(table)
    activations = sum(layer.activation_bytes for layer in layers)
    screen.print(
        f"{graph.parameters:,} parameters, {show(float(graph.flops()), 'FLOP', 4)}, "
        f"{show(float(activations), 'B', 4)} of activations"
    )
    screen.print(model.citation or "cites no source", soft_wrap=True)


def _show_machine(kind: str, name: str, json: bool) -> None:
    from ridgeline.hardware import load_cluster, load_energy_table
    from ridgeline.hardware.load import description
    from ridgeline.report.tables import plain_table
    from ridgeline.workload.dataset import load_dataset

    of_data = kind == "datasets"
    document = read_yaml(catalog.find(kind, name)) if of_data else description(kind, name)
    checks: dict[str, Callable[[str], object]] = {
        "energy": load_energy_table,
        "datasets": load_dataset,
    }
    checks.get(kind, load_cluster)(name)  # complains if it is wrong
    if json:
        print_json(document.data)
        return
    table = plain_table(
        {"field": "left", "value": "left", "basis": "left", "source": "left"},
    )
    for path, value, basis, source in field_rows(document.data, ""):
        table.add_row(path, value, basis, source)
    screen = console()
    screen.print(
        str(document.data.get("description") or document.data.get("title") or name), markup=False
    )
    screen.print(table)
    if kind == "devices":
        _print_peaks(name, screen)
    for short, citation in document.data.get("sources", {}).items():
        screen.print(f"[{short}] {citation}", soft_wrap=True, markup=False)


def _show_software(name: str, json: bool) -> None:
    from ridgeline.report.html.software import supports_text
    from ridgeline.report.tables import plain_table
    from ridgeline.software.described import setting_rows
    from ridgeline.software.load import load_software

    stack = load_software(name)
    rows = list(setting_rows(stack))
    if json:
        known = stack.model_dump(
            mode="json",
            include={"name", "description", "family", "year", "base", "bound", "supports"},
        )
        keys = ("value", "stack", "source", "basis", "note")
        settings = {row.path: {key: getattr(row, key) for key in keys} for row in rows}
        print_json({**known, "settings": settings, "sources": dict(stack.sources)})
        return
    screen = console()
    base = f", starts from {stack.base}" if stack.base else ""
    since = f" of {stack.year}" if stack.year else ""
    screen.print(f"{stack.name}: {stack.description}", soft_wrap=True, markup=False)
    screen.print(f"family {stack.family}{since}{base}; {supports_text(stack)}", soft_wrap=True)
    table = plain_table(
        {"setting": "left", "value": "left", "said by": "left", "basis": "left", "source": "left"}
    )
    for row in rows:
        table.add_row(row.path, row.text, row.stack, row.basis, row.source)
    screen.print(table, markup=False)
    for row in rows:
        if row.note:
            screen.print(f"{row.path}: {row.note}", soft_wrap=True, markup=False)
    used = {row.source for row in rows}
    for short, citation in stack.sources.items():
        if short in used:
            screen.print(f"[{short}] {citation}", soft_wrap=True, markup=False)


def _show_schema(name: str, family: str | None, json: bool) -> None:
    from ridgeline.report.json_schemas import family_of, schema_of_family, schema_of_kind

    kind = name.removesuffix("-schema")
    if family is not None and kind != "model":
        raise ConfigError(f"{name} has no families, as model-schema has; found {family!r}")
    if json:
        print_json(schema_of_kind(kind) if family is None else schema_of_family(family))
        return
    if family is not None:
        _print_fields(family_of(family))
        return
    schema_of_kind(kind)  # complains if there is none
    _print_fields(named(INPUT_KINDS[kind].schema))
    if kind == "model":
        _print_families()


def _print_families() -> None:
    """List what `family:` of a model may say."""
    from ridgeline.report.tables import plain_table
    from ridgeline.workload.families import FAMILIES

    screen = console()
    screen.print("Each family has fields of its own: ridgeline show model-schema FAMILY")
    table = plain_table({"family": "left", "what it is": "left"})
    for name in sorted(FAMILIES):
        text = (FAMILIES[name].__doc__ or "").strip().splitlines()
        table.add_row(name, text[0] if text else "")
    screen.print(table, markup=False)


def _print_fields(root: type[BaseModel]) -> None:
    """Print the fields of a description, and of all that stand in it."""
    from ridgeline.hardware.schema import reachable_models, schema_fields
    from ridgeline.report.tables import plain_table

    screen = console()
    for model in reachable_models(root):
        table = plain_table(
            {"field": "left", "value": "left", "unit": "left", "default": "left", "meaning": "left"}
        )
        for field in schema_fields(model):
            cells = (field.type, field.unit, field.default, " ".join(field.text.split()))
            table.add_row(field.name, *(cell.replace("`", "") for cell in cells))
        screen.print(f"{model.__name__}: {(model.__doc__ or '').strip().splitlines()[0]}")
        screen.print(table, markup=False)


def _print_peaks(name: str, screen: Console) -> None:
    """Say what follows from the file: peaks per power and area, power density, what is missing."""
    from ridgeline.cli.roofline_ import peak_table
    from ridgeline.hardware import load_device
    from ridgeline.kernels.roofline import peaks, power_density_w_mm2

    device = load_device(name)
    screen.print(peak_table(peaks(device)))
    density = power_density_w_mm2(device)
    if density is not None:
        screen.print(f"power density at design power: {density:.3g} W/mm2")
    if device.parts:
        from ridgeline.cli.show_component import print_parts

        print_parts(device, screen)
    for remark in device.unpriced:
        screen.print(f"not modelled: {remark}", soft_wrap=True)
