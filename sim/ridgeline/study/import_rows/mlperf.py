"""Whole runs of MLPerf Training: the time from the first training data to the target.

What a run trains is data: the epochs, samples or tokens that a table gives until the target is
reached; where it gives none, what reference runs needed at such batches (`convergence`). Its time
is that of the steps that this takes at the row's batch, and of the forward passes over validation
samples in between, a share of a training step for as many samples, unless some nodes do nothing
else. Initialisation is outside the clock by the rules (MLPerf training policies). Networks,
evaluations and formats are those of ``runs.yaml``; benchmarks that it does not have, whose networks
are not described, are skipped with that reason.
"""

from __future__ import annotations

import re

from ridgeline.errors import RidgelineError
from ridgeline.study.import_rows.names import device_in
from ridgeline.study.import_rows.runs import (
    SUBMISSION,
    MlperfRun,
    Workload,
    WorkloadRun,
    renamed,
    run_of,
    step_of,
    usual_precision,
)
from ridgeline.study.validate.convergence import is_another_unit, reference_amount
from ridgeline.study.validate.rows import MeasuredRow

READS = (
    "round", "benchmark", "system", "accelerator", "n_accel", "global_batch_size",
    "time_to_train_s_olympic", "epochs_last_median", "samples_last_median", "source",
)  # fmt: skip
_MOST_EPOCHS = 20_000  # a larger number counts samples
_MOST_SENTENCES = 100  # of a device: larger numbers count tokens
_LAST_EPOCH = 2  # counted from 1, of runs that pass their data once
_REFERENCES_SINCE = "v0.7"  # targets were others before
_CORES = re.compile(r"tpuv[23]-(\d+)")  # two cores a chip (Google Cloud TPU documentation)
_UNCLEAR = "batch may be per"
_NONE = ("N/A", "NA")  # accelerators
_COUNTED_NODE = re.compile(r"(?:(\d+)\s*x\s*)?[a-z]+\d+", re.IGNORECASE)  # "2xC4140", "DSS8440"


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return the step of a run, and how often it is done."""
    round_ = row.text("round")
    benchmark = renamed(row.text("benchmark"), round_)
    run = run_of(benchmark)
    if row.values.get("division", "closed") != "closed":
        raise RidgelineError("a run of the open division may train another network")
    if _UNCLEAR in row.values.get("note", ""):
        raise RidgelineError("whether the batch is that of one device or of all is not given")
    device = _device(row)
    if device is None:
        raise RidgelineError(f"no description of the device {row.text('accelerator')}")
    run = run.on(device)
    devices, batch = _chips(row), row.whole("global_batch_size")
    measured = row.number("time_to_train_s_olympic")
    if not devices or not batch or not measured:
        raise RidgelineError("the number of devices, the batch or the time is not given")
    if run.batch_tokens and batch > devices * _MOST_SENTENCES:
        batch = batch // run.batch_tokens // devices * devices
    work = run.work_of(round_)
    precision = usual_precision(device, mixed=True, formats=work.formats)
    accumulated = row.whole("grad_accum") if "grad_accum" in row.values else None
    trained = devices if "tensor" in work.plan else _training(work, devices, batch)
    job = WorkloadRun(
        device, trained, batch, precision, _nodes(row) if trained == devices else None,
        accumulated or 1, bool(accumulated), row.text("system"),
    )  # fmt: skip
    step = step_of(work, job, SUBMISSION, {})
    samples = passed = _samples(row, run, batch)
    made = {"samples": repr(samples)}
    if run.every and trained == devices:
        passed *= 1 + run.forward * run.validation / run.every
        made |= {
            "validation": str(run.validation),
            "every": str(run.every),
            "forward": repr(run.forward),
        }
    return {
        **step.columns(),
        **made,
        "quantity": f"step_time_s*{passed / batch!r}",
        "measured": repr(measured),
        "group": f"{benchmark} {device} {round_}",
        "sweep": f"{benchmark} {device}",
    }


def _device(row: MeasuredRow) -> str | None:
    """Return what trained: the processors, where a row says that there was nothing else."""
    if row.text("accelerator") in _NONE and "host_cpu" in row.values:
        return device_in(row.text("host_cpu"))
    return device_in(row.text("accelerator")) or device_in(row.text("system"))


def _chips(row: MeasuredRow) -> int | None:
    """Return how many devices took part: names of slices of TPU v2 and v3 count cores."""
    devices, cores = row.whole("n_accel"), _CORES.fullmatch(row.text("accelerator"))
    in_node = row.whole("accel_per_node") if "accel_per_node" in row.values else None
    if not devices and in_node and (nodes := _nodes(row)):
        return in_node * nodes
    return devices // 2 if devices and cores and devices == int(cores[1]) else devices


def _nodes(row: MeasuredRow) -> int | None:
    """Return how many nodes took part: what the row says, else what the system's name counts."""
    nodes = row.whole("n_nodes") if "n_nodes" in row.values else None
    if not nodes and not row.whole("n_accel"):
        counted = _COUNTED_NODE.fullmatch(row.text("system"))
        return int(counted[1] or 1) if counted else None
    return nodes


def _training(work: Workload, devices: int, batch: int) -> int:
    """Return how many devices train, where others validate what they have reached meanwhile.

    Each sample is shared by the same number of devices, a power of two; nodes for which none is
    left validate.
    """
    if batch >= devices or not devices % batch:
        return devices
    sharing = 1 << (devices // batch).bit_length() - 1
    return batch * (sharing if work.shared else 1)


def _samples(row: MeasuredRow, run: MlperfRun, batch: int) -> float:
    """Return how many samples were trained with: what the row says, else what references needed.

    Raises
    ------
    RidgelineError
        If neither is known.
    """
    counted, epochs = row.number("samples_last_median"), row.number("epochs_last_median")
    usual = _usual_samples(row, run, batch)
    if counted:
        samples = counted / run.tokens if run.tokens else counted
        if usual is None or not is_another_unit(samples, usual):
            return samples
    elif epochs and run.once and epochs > _LAST_EPOCH:
        return epochs * run.every
    elif epochs and run.samples:
        return epochs if epochs > _MOST_EPOCHS else (epochs - run.first_epoch) * run.samples
    if usual is None:
        raise RidgelineError("how much was trained until the target was reached is not given")
    return usual


def _usual_samples(row: MeasuredRow, run: MlperfRun, batch: int) -> float | None:
    """Return what reference runs needed; None if there are none, or their target was another."""
    if row.text("round") < _REFERENCES_SINCE:
        return None
    if not run.samples:
        return reference_amount(run.name, batch, "samples")
    epochs = reference_amount(run.name, batch, "epochs")
    return None if epochs is None else epochs * run.samples
