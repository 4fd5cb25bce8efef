"""Forward passes, and forward and backward passes, of whole transformers in PyTorch.

What is timed is a forward pass (inference on whole sequences, without dropout), or a step without
its update, on one device or on four of a machine. A pipeline has one micro-batch, the whole batch:
its files are called ``pp4_1``, and on four H100s it takes as long as one does for the same batch
(637.5 and 638.8 ms for 4 sequences of GPT-2 large). ``published`` are the errors that NeuSight
states of the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.study.validate import measured
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each
from ridgeline.study.validate.predicted_interval import stated
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model

COLUMNS = (
    "device_key", "gpus", "framework", "format", "model", "layers", "hidden", "heads", "vocab",
    "mode", "seq", "batch", "parallelism", "time_us", "source",
)  # fmt: skip
SHIPPED = "measured/model_latency.csv.gz"
MODELS = {"gpt2_large": "gpt2-large", "gpt3_27": "gpt3-2.7b", "opt_13": "opt-1.3b"}
"""Networks of the catalogue whose family and shape a table's are; sizes are the row's."""
_SOFTWARE = {"tensor": "megatron-lm-2021", "pipeline": "megatron-lm-2021"}
"""Stack by what is split: PyTorch itself splits neither layers nor the products inside them."""
_PLAIN = "pytorch"
_SETTINGS = {"host.launch_time": measured.EAGER_LAUNCH_S, "kernels.fusion": "tanh-gelu"}
"""NeuSight runs Hugging Face's networks: GPT-2 writes gelu op by op, OPT applies relu."""
_SCALE, _DEGREES = 1.68, {"data": "DP", "tensor": "TP", "pipeline": "PP"}
_FUSED = "fused elementwise functions (fused=1): no stack of the catalogue describes them"


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every pass."""
    return predict_each(rows, _one)


def _one(row: MeasuredRow) -> Outcome:
    row.check()
    name, mode, key = row.text("model"), row.text("mode"), row.text("device_key")
    measured.device_named(key)
    if name not in MODELS:
        raise RidgelineError(f"no network like {name!r} is described{nearest(name, MODELS)}")
    if mode not in ("inference", "training"):
        raise RidgelineError(f"mode must be inference or training, found {mode!r}")
    if row.text("fused") == "1":
        raise RidgelineError(_FUSED)
    layers, hidden, heads, vocabulary, seq, batch, devices = measured.sizes(
        row, "layers", "hidden", "heads", "vocab", "seq", "batch", "gpus"
    )
    width = row.whole("ffn") or 4 * hidden
    fields: dict[str, Any] = {
        "layers": layers, "hidden": hidden, "attention.heads": heads, "vocabulary": vocabulary,
        "sequence": seq, "feed_forward.width": width,
    }  # fmt: skip
    degree = _degree(row.text("parallelism"), devices)
    plan: dict[str, Any] = {"global_batch": batch, "precision": row.text("format"), **degree}
    if "pipeline" in degree:
        plan |= {"micro_batch": batch, "schedule": "gpipe"}
    if mode == "inference":
        plan["forward_only"] = True
        fields |= {"dropout": 0.0, "attention.dropout": 0.0}
    result = _simulated(MODELS[name], tuple(fields.items()), key, devices, tuple(plan.items()))
    predicted = result.step_time_s - result.time_s["optimizer"]
    roofline_s = _roofline_s(result, devices)
    how = row.text("parallelism") if devices > 1 else "one device"
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{key} {name} {mode} {devices}",
        sweep=f"{key} {mode}",
        configuration=f"{name}, {mode}, {batch} x {seq}, {how}, {key}",
        quantity="time_s",
        predicted=predicted,
        measured=measured.positive(row, "time_us") * 1e-6,
        source=row.text("source"),
        trivial={
            "roofline": roofline_s,
            "scaled roofline": _SCALE * roofline_s + measured.SCALED_S,
        },
        command=row.command("model-latency"),
        device=key,
        format=row.text("format"),
        kind=f"{mode}{'' if devices == 1 else f', {how}'}",
        published=_published(row, degree),
        **stated("model-latency", predicted, device=result.details.cluster.device),
    )


def _degree(parallelism: str, devices: int) -> dict[str, int]:
    """Return the field of a plan that several devices stand for: "data 4", "tensor 4"."""
    if devices == 1:
        return {}
    field, _, count = parallelism.partition(" ")
    if field not in _DEGREES or count != str(devices):
        raise RidgelineError(f"parallelism must be data, tensor or pipeline and {devices}")
    return {field: devices}


@lru_cache(maxsize=256)
def _simulated(
    model: str,
    fields: tuple[tuple[str, Any], ...],
    device: str,
    devices: int,
    plan: tuple[tuple[str, Any], ...],
) -> Result:
    from ridgeline.software.load import load_software
    from ridgeline.study.import_rows.machines import machine_of

    name, overrides = machine_of(device, devices, 1)
    cluster = load_cluster(name, dict(overrides))
    how = dict(plan)
    program = next((_SOFTWARE[field] for field in how if field in _SOFTWARE), _PLAIN)
    stack = load_software(program).with_settings(_SETTINGS)
    network = load_model(model, dict(fields))
    assert isinstance(network, Model)
    return simulate(network, cluster, Plan(**how), software=stack)


def _roofline_s(result: Result, devices: int) -> float:
    """Time of the products at the peak of their format, on all devices."""
    device = result.details.cluster.device
    precision = result.details.plan.precision or "fp32"
    rates = [
        engine.rates[precision].value
        for engine in device.engines.values()
        if "matrix" in engine.runs and precision in engine.rates
    ]
    if not rates:
        raise RidgelineError(f"{device.name} does no matrix work in {precision}")
    return result.flops_per_step / (max(rates) * devices)


def _published(row: MeasuredRow, degree: Mapping[str, int]) -> dict[str, float]:
    """Return what NeuSight states of this row: of Switch transformers not, in two lengths."""
    mode = " ".join([row.text("mode"), *(_DEGREES[field] for field in degree)])
    key = (*(row.text(name) for name in ("device_key", "model", "batch")), mode)
    error = measured.stated_by_neusight().get(key)
    return {} if error is None else {f"NeuSight, {row.text('mode')}": error}
