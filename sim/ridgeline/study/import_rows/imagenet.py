"""Whole runs on ImageNet: time to train, images a second, or scaling efficiency.

The time of a run is its epochs, which are data, times the steps of an epoch and the step time, and
after every epoch the forward pass over the 50,000 images of the validation set, a third of a
training step for as many images. Gradients are reduced during the backward pass; formats are those
of the row. Several devices are in nodes as ``names.yaml`` has them; what a row says of the network
between nodes replaces the bandwidth of theirs (the cable's, or that of a whole node where it is an
Ethernet).

What a source says of its program and a table does not is in ``imagenet_told.yaml``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ridgeline.config import parse_yaml
from ridgeline.errors import RidgelineError
from ridgeline.hardware.load import load_cluster
from ridgeline.software.load import load_software
from ridgeline.study.import_rows.names import device_in, find_name
from ridgeline.study.import_rows.rules import rule, section
from ridgeline.study.import_rows.runs import CatalogueStep, grown, machine_for, rounds
from ridgeline.study.relative import EFFICIENCY
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.study.written_fields import plan_text, written
from ridgeline.workload.files import load_network

READS = (
    "model", "accelerator", "n_accel", "nodes", "interconnect", "batch", "epochs", "precision",
    "time_s", "images_per_s", "source",
)  # fmt: skip
_TRAINING, _VALIDATION = 1_281_167, 50_000  # images (Russakovsky et al., IJCV 2015)
_SMALLEST = 96  # pixels of a side; networks for CIFAR have 32
_FORWARD = 1 / 3  # of a training step: one of three passes over the same products
_NOT_READ = ("DERIVED", "RECALL")  # how a table's images a second came about
_RESIZING = "progressive resizing"  # possible: with fewer epochs than usual, it was made use of
_ALL_EPOCHS = 60
_MOST_EPOCHS = 150
_BATCH = 64  # of a device, where a row gives none: large enough to fill it
_OTHER_OPTIMIZER = "k-fac"
_SENT_IN_FP16 = re.compile(r"fp16[^,;()]*comm")
_FRAMEWORK = re.compile(r"\bframework ([^;]+)")
_GBIT_S = 0.125e9  # bytes
_CABLES_GBIT_S = {"edr": 100, "fdr": 54.5, "omni-path": 100, "qdr": 32}


@dataclass(frozen=True)
class SourceFacts:
    """What the source of a run says of it and its row does not.

    Attributes
    ----------
    framework
        Whose programs ran, as tables call it; "": the row may name it in its note.
    overlap, updates, workspace, zero_stage
        Whether gradients are reduced during the backward pass, and as ``overlap.gradients``,
        ``optimizer.impl``, ``kernels.conv_workspace`` and ``zero_stage`` of stacks and plans.
    grouped
        Layers that groups of devices hold together, "" for none.
    formats
        What the number formats were, as a table would say it.
    samples
        Of a step over all devices where the row gives none; 0: it is not known.
    all_reduce
        The algorithm that sums gradients (`Fabric.all_reduce`); "": the fastest.
    validates
        Whether its time counts the validation after each epoch.
    source
        Where that is said.
    """

    framework: str = ""
    overlap: bool = True
    updates: str = "foreach"
    workspace: str = ""
    zero_stage: int = 0
    grouped: str = ""
    formats: str = ""
    samples: int = 0
    all_reduce: str = ""
    validates: bool = True
    source: str = ""


def told(reference: str) -> SourceFacts:
    """Return what is known of a run by the reference that tables give."""
    for row in _document():
        if reference.lower().startswith(tuple(row["ref"])):
            return SourceFacts(**{name: value for name, value in row.items() if name != "ref"})
    return SourceFacts()


@cache
def _document() -> Any:
    text = resources.files(__package__).joinpath("imagenet_told.yaml").read_text("utf-8")
    return parse_yaml(text, "imagenet_told.yaml").data


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return the step of a run, and how often it is done."""
    model, device, known = _network(row), _device(machine_words(row)), told(row.text("ref"))
    if _OTHER_OPTIMIZER in row.text("ref").lower():
        raise RidgelineError("no description of the optimizer K-FAC")
    devices, batch, epochs = row.whole("n_accel"), _batch(row), row.number("epochs")
    if not devices:
        raise RidgelineError("the number of devices is not given")
    if _RESIZING in row.values.get("images_per_s_basis", "") and (epochs or 0) < _ALL_EPOCHS:
        raise RidgelineError("in part of its epochs images were smaller")
    if (epochs or 0) > _MOST_EPOCHS:
        raise RidgelineError("more epochs than passes over the images: they count something else")
    batch = batch or known.samples or _BATCH * devices
    time_s = row.number("time_s")
    share = row.number("scaling_efficiency_pct") if "scaling_efficiency_pct" in row.values else None
    rate = row.number("images_per_s") if _is_read(row, share) else None
    if not (time_s and epochs) and not rate and not share:
        raise RidgelineError("neither images a second, time and epochs, nor efficiency are given")
    if batch % devices:
        raise RidgelineError(f"a batch of {batch} cannot be divided between {devices} devices")
    nodes = row.whole("nodes")
    step = _step(row, known, model, device, devices, batch, nodes)
    made = {"one": "", "validation": "", "every": "", "forward": ""}
    if time_s and epochs:
        images = epochs * (_TRAINING + known.validates * _FORWARD * _VALIDATION)
        quantity, measured = f"step_time_s*{images / batch!r}", time_s
        if known.validates:
            made |= {"validation": str(_VALIDATION), "every": str(_TRAINING), "forward": "1/3"}
    elif rate:
        quantity, measured = "samples_per_s", rate
    else:
        assert share is not None
        quantity, measured = EFFICIENCY, share / 100
        few = _step(row, known, model, device, *_base(row, devices, nodes, batch))
        made["one"] = _relative(few)
    kind = {EFFICIENCY: "scaling efficiency", "samples_per_s": "images/s"}.get(quantity, "time_s")
    unit = {EFFICIENCY: "1", "samples_per_s": "images/s"}.get(quantity, "s")
    return {
        **step.columns(),
        **made,
        "quantity": quantity,
        "measured": repr(measured),
        "unit": unit,
        "inferred": known.source,
        "group": f"{model} {device} {row.values.get('ref') or row.text('source')}",
        "sweep": f"{device} {kind}",
    }


def _network(row: MeasuredRow) -> str:
    model = find_name("models", row.text("model"))
    if model is None:
        raise RidgelineError(f"no description of the network {row.text('model')}")
    image = load_network(model).description.get("image")
    if not image or min(image["height"], image["width"]) < _SMALLEST:
        raise RidgelineError(f"{row.text('model')} is known as {model}, no network for photographs")
    return model


def _relative(few: CatalogueStep) -> str:
    """Write the step that an efficiency is relative to, as ``--relative-to-one`` has it."""
    fields = {f"cluster.{path}": value for path, value in few.machine_fields.items()}
    return ";".join(filter(None, [plan_text(few.plan), f"machine={few.machine}", written(fields)]))


def _step(
    row: MeasuredRow,
    known: SourceFacts,
    model: str,
    device: str,
    devices: int,
    batch: int,
    nodes: int | None = None,
) -> CatalogueStep:
    """Return the step of so many devices of a row."""
    formats = row.text("precision") or known.formats
    plan: dict[str, Any] = {
        "data": devices,
        "global_batch": batch,
        "precision": _precision(formats, device),
    }
    framework, note = known.framework, _FRAMEWORK.search(row.values.get("note", ""))
    if not framework and note and not device.startswith("tpu"):  # whose ops are compiled
        framework = note[1]
    software = rule("software", {"framework": framework})["software"]
    stack = load_software(software)
    settings = {
        "host.launch_time": stack.host.launch_time,
        "host.async_launch": stack.host.async_launch,
        "kernels.conv_library": stack.kernels.conv_library,
        "kernels.conv_workspace": known.workspace or None,
        "overlap.gradients": known.overlap and stack.overlap.gradients,
        "overlap.contention": True,
        "optimizer.impl": known.updates,
    }
    if devices > 1:
        if _SENT_IN_FP16.search(formats):
            settings["gradients.reduce_dtype"] = "fp16"
        layers = _grouped(known.grouped, model, devices, batch)
        plan |= {"zero_stage": known.zero_stage} if known.zero_stage else {}
        plan |= {"layers": layers} if layers else {}
    machine, fields = _machine(row, known, device, devices, nodes)
    return CatalogueStep(model, machine, plan, software, {}, fields, settings)


def _precision(formats: str, device: str) -> str:
    """Return the precision of a run; what libraries convert stands in the device's file."""
    if rounds(device):
        return "bf16-mixed"
    return "fp16-mixed" if "mixed" in formats else "fp32"


def _base(row: MeasuredRow, devices: int, nodes: int | None, batch: int) -> tuple[int, int]:
    """Return the devices that a row's efficiency is relative to, and their batch.

    Raises
    ------
    RidgelineError
        If the row does not say what it is relative to.
    """
    text = row.values.get("efficiency_basis", "").lower()
    if found := re.search(r"(\d+)-gpu", text):
        few = int(found[1])
    elif "node" in text and nodes and devices % nodes == 0:
        few = devices // nodes
    elif "speedup" in text or "over 1 " in text:
        few = 1
    else:
        raise RidgelineError("what the efficiency is relative to is not given")
    return few, batch if "strong" in text else batch // devices * few


def _is_read(row: MeasuredRow, share: float | None) -> bool:
    """Tell whether images a second are the figure of a row that counts, of which there is one.

    Not those that were computed from the time, nor those from memory beside an efficiency.
    """
    basis = row.values.get("images_per_s_basis", "")
    return not basis.startswith(_NOT_READ[: 1 if share is None else 2])


def _batch(row: MeasuredRow) -> int | None:
    """Batch of a run, None if it is not given.

    Raises
    ------
    RidgelineError
        If it changes during the run (34K->68K): there is no single step.
    """
    text = row.text("batch")
    if text and not text.isdecimal():
        raise RidgelineError("the batch changes during the run")
    return row.whole("batch")


def machine_words(row: MeasuredRow) -> str:
    """Return the words for the machine, whole where a table cuts them off and its note does not."""
    cell, note = row.text("accelerator"), row.values.get("note", "")
    return note.split(";")[0] if cell and note.startswith(cell) else cell


def _device(text: str) -> str:
    """Find the device in words such as "P100 (Big Basin, NVLink)" or "8 K80 / 488 GB".

    Raises
    ------
    RidgelineError
        If no described device is named.
    """
    name = device_in(text)
    if name is None:
        raise RidgelineError(f"no description of the device {text}")
    return name


def _grouped(pattern: str, model: str, devices: int, batch: int) -> str:
    """Return the plan of fully connected layers that groups of devices hold, "" for none.

    The number of groups is the divisor nearest to sqrt(N MB / ofm) (Das et al., 2016,
    arXiv:1602.06709, Section 3.3), for the widest of the layers.
    """
    if not pattern:
        return ""
    widths = (layer.get("features") or 0 for layer in load_network(model).description["layers"])
    best = math.sqrt(devices * batch / max(widths))
    able = (n for n in range(1, devices + 1) if devices % n == 0)
    groups = min(able, key=lambda n: abs(math.log(n / best)))
    return f"{pattern}:data={groups}"


def _machine(
    row: MeasuredRow, known: SourceFacts, device: str, devices: int, nodes: int | None
) -> tuple[str, dict[str, Any]]:
    """Return a machine of such devices, and what to replace in it."""
    place = f"{machine_words(row)} {row.text('interconnect')}"
    try:
        name, fields = machine_for(device, devices, nodes, place)
    except RidgelineError:
        name, fields = "dgx1-v100-edr", _like(device)
        fields = grown(name, fields, devices)
    if known.all_reduce and devices > 1:
        fields["fabric.all_reduce"] = known.all_reduce
    cluster = load_cluster(name, fields)
    speed = _cable_gbit_s(place, len(cluster.nodes.nics)) if cluster.fabric else None
    if cluster.fabric and speed is not None:
        fields[f"link_types.{cluster.fabric.link}.bandwidth"] = f"{speed * _GBIT_S} B/s"
    return name, fields


def _like(device: str) -> dict[str, Any]:
    """Return what makes nodes of a device of those of DGX-1 on their fat tree.

    Raises
    ------
    RidgelineError
        If there is no node of the device.
    """
    for machine in section("machines"):
        if device in machine["devices"] and "cluster" not in machine:
            return {"node": machine["node"], "node.device": device}
    raise RidgelineError(f"no description of a machine with several of the device {device}")


def _cable_gbit_s(interconnect: str, adapters: int) -> float | None:
    """Read the bandwidth of one adapter, one direction; None where the text does not say it."""
    text = interconnect.lower()
    if found := re.search(r"([\d.]+)\s*gb(?:/s)?\s*(?:ethernet|e\b)", text):
        return float(found[1]) / max(adapters, 1)
    return next((speed for name, speed in _CABLES_GBIT_S.items() if name in text), None)
