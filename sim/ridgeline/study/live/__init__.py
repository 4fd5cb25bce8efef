"""Predict training steps on the machine that this runs on, then measure them.

The machine is calibrated, or a calibration is read; every step is simulated on it; only then the
same steps are run. Networks are PyTorch's where it is installed, traced by ridgeline's own tracer,
else plain NumPy's. Then two processes train together and exchange their gradients.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_cluster, load_device
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.study.calibrate import Options, calibrate, document, machine
from ridgeline.study.calibrate.backend import Backend, check_backend, open_backend
from ridgeline.study.calibrate.clock import measure
from ridgeline.study.calibrate.fit import fit
from ridgeline.study.reproduce.programs import program
from ridgeline.study.validate import Validation
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.predicted_interval import stated_step
from ridgeline.workload.model import Model

__all__ = ["Check", "live"]

SUITE = "live"
_SOURCE = "measured on this machine, just after it was predicted"
_ROUNDS = 3
_STEP_S = 0.15  # of measuring one network at one batch, in each round
_EXCHANGED = (2**12, 2**18, 2**20, 2**22)  # bytes of gradients
_EXCHANGES = 15
_PAIR_CASES = {"mlp": (32, 128), "cnn": (8,), "lstm": (8,), "transformer": (4,)}
_PAIR_SAMPLES = (5, 30)
_PAIR_S = 0.5
_PAIR_LINES = 100  # rows of two processes are counted from here


@dataclass(frozen=True)
class Check:
    """What is checked.

    Attributes
    ----------
    backend
        None: PyTorch if it is installed, else NumPy.
    calibration
        A device file of this machine; None: it is calibrated now.
    seconds
        Of the calibration.
    threads
        None: half of the cores, so that two processes fit beside each other, or those of the file.
    """

    backend: str | None = None
    calibration: str | None = None
    device: str = "cpu"
    seconds: float = 30.0
    threads: int | None = None
    quick: bool = False


class _Step(NamedTuple):
    """A training step: what is predicted, and how to run it."""

    name: str
    batch: int
    model: Model
    begin: Callable[[], Callable[[], object]]


def live(check: Check, said: Callable[[str], None]) -> Validation:
    """Predict, measure, and compare.

    Parameters
    ----------
    said
        Is told what goes on, and every prediction before anything is measured.

    Raises
    ------
    RidgelineError
        If there is no such backend or file, or nothing can be measured with it.
    """
    name = check.backend or ("torch" if find_spec("torch") is not None else "numpy")
    check_backend(name, check.device)
    machine.keep_freed_memory()
    if (busy := machine.disturbance()) is not None:
        said(busy)
    with tempfile.TemporaryDirectory() as folder:
        path = check.calibration or _calibrated(check, name, Path(folder), said)
        device = load_device(path)
        threads = _threads_of(device, check, path)
        if name == "numpy":
            machine.set_blas_threads(threads)
        using = open_backend(name, check.device, threads, 0)
        if using.versions not in " ".join(device.sources.values()):
            said(f"warning: {path} was not calibrated with {using.versions}")
        steps = _torch_steps(check) if name == "torch" else _numpy_steps(check)
        cluster = load_cluster(path)
        predicted = [_predict(step, cluster) for step in steps]
        for step, result in zip(steps, predicted, strict=True):
            said(_foretold(step, result))
        said("measuring")
        measured = _measured(steps, using)
        outcomes = [
            _outcome(i, step, result, took, device, using)
            for i, (step, result, took) in enumerate(
                zip(steps, predicted, measured, strict=True), start=1
            )
        ]
        made, skipped = _pairs(check, name, path, device, Path(folder), said)
    return Validation(SUITE, tuple(outcomes + made), tuple(skipped))


def _calibrated(check: Check, name: str, folder: Path, said: Callable[[str], None]) -> str:
    threads = check.threads or max(1, machine.usable_cores() // 2)
    options = Options(
        backend=name,
        device=check.device,
        seconds=check.seconds,
        threads=threads,
        quick=check.quick,
    )
    said(f"calibrating with {name} for about {check.seconds:g} s")
    path = folder / "this-machine.yaml"
    calibrate(options, said).write(path)
    return str(path)


def _threads_of(device: Device, check: Check, path: str) -> int:
    """Return the cores of a calibration: its processors, of which each has a set of registers."""
    threads = device.memory[next(iter(device.memory))].instances.value
    if check.device == "cpu" and threads > machine.usable_cores():
        raise RidgelineError(
            f"{path} describes {threads} cores, and this machine has {machine.usable_cores()}: it"
            " is no calibration of this machine"
        )
    return threads


def _torch_steps(check: Check) -> list[_Step]:
    from ridgeline.study.live.torch_networks import CASES, step_of
    from ridgeline.workload.trace.torch_entry import trace

    steps: list[_Step] = []
    for case in CASES:
        network = case.build().to(check.device)
        model = trace(
            case.build(), case.inputs(4), loss="cross-entropy", optimizer=case.optimizer,
            name=case.name,
        )  # fmt: skip
        steps += [
            _Step(case.name, batch, model, partial(step_of, case, batch, network, check.device))
            for batch in (case.batches[:1] if check.quick else case.batches)
        ]
    return steps


def _numpy_steps(check: Check) -> list[_Step]:
    from ridgeline.study.live.numpy_networks import CASES, model_of, step_of

    return [
        _Step(case.name, batch, model_of(case), partial(step_of, case, batch))
        for case in CASES
        for batch in (case.batches[:1] if check.quick else case.batches)
    ]


def _foretold(step: _Step, result: Result) -> str:
    return f"{step.name}, batch {step.batch}: {result.step_time_s * 1e3:.3f} ms predicted"


def _predict(
    step: _Step, cluster: Cluster, plan: Plan | None = None, *, overlap: bool = True
) -> Result:
    """Simulate a step, of which the host is no part: it is the device that was calibrated."""
    plan = plan or Plan(global_batch=step.batch, precision="fp32")
    stack = program(None).with_settings({"overlap.gradients": overlap})
    return simulate(step.model, cluster, plan, software=stack)


class _Took(NamedTuple):
    """A measured step: its time, and a remark for the reader."""

    seconds: float
    remark: str


def _measured(steps: Sequence[_Step], using: Backend) -> list[_Took]:
    """Measure every step in several rounds, of which the shortest counts."""
    best: dict[int, _Took] = {}
    for _ in range(_ROUNDS):
        for i, step in enumerate(steps):
            run = step.begin()
            sample, pages = measure(run, using.watch, _STEP_S), _fresh_pages(run)
            if i not in best or sample.seconds < best[i].seconds:
                remark = ", fresh pages unknown" if pages is None else ""
                remark = f", {pages} fresh pages a step" if pages else remark
                best[i] = _Took(sample.seconds, remark)
    return [best[i] for i in range(len(steps))]


def _fresh_pages(run: Callable[[], object]) -> int | None:
    """Return how many pages a step takes anew from the operating system, which is not modelled.

    None where the system does not say it (Windows).
    """
    if sys.platform == "win32":
        return None
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _outcome(
    line: int, step: _Step, result: Result, took: _Took, device: Device, using: Backend
) -> Outcome:
    format_ = using.formats[0]
    rate = max(e.rates[format_].value for e in device.engines.values() if format_ in e.rates)
    flops = step.model.training(step.batch, "fp32").flops()
    load = machine.load_average()
    return Outcome(
        file=SUITE,
        line=line,
        id=f"{step.name}-{step.batch}",
        group=step.name,
        sweep=step.name,
        configuration=f"{step.name}, batch {step.batch}, {using.threads} thread(s)"
        + ("" if load is None else f", load average {load:.1f}")
        + took.remark,
        quantity="step_s",
        predicted=result.step_time_s,
        measured=took.seconds,
        source=f"{_SOURCE}: {using.versions}",
        trivial={"peak rate": flops / rate, "a third of the peak": 3 * flops / rate},
        **stated_step(result),
    )


def _pairs(
    check: Check,
    name: str,
    path: str,
    device: Device,
    folder: Path,
    said: Callable[[str], None],
) -> tuple[list[Outcome], list[Skipped]]:
    """Let two processes train, where they have cores to themselves."""
    cores, threads = machine.usable_cores(), _threads_of(device, check, path)
    reason = (
        "two processes: they need PyTorch with gloo (pip install 'ridgeline[trace]')"
        if name != "torch"
        else "two processes: only on processors"
        if check.device != "cpu"
        else f"two processes of {threads} thread(s): this machine has {cores} core(s)"
        if 2 * threads > cores
        else "two processes: left out of a quick check"
        if check.quick
        else None
    )
    if reason is not None:
        return [], [Skipped(SUITE, 0, "two-processes", reason)]
    from ridgeline.study.live import pair

    said("exchanging gradients between two processes")
    pair_file = folder / "two-processes.yaml"
    times = pair.exchange_s(_EXCHANGED, threads, _EXCHANGES)
    seconds = [t.counting_s(threads) for t in times]
    document.write(pair_file, node_of(path, device, _EXCHANGED, seconds), "Two processes")
    return _train_pairs(pair_file, device, threads, said), []


def node_of(
    path: str, device: Device, sizes_bytes: Sequence[int], times_s: Sequence[float]
) -> dict[str, Any]:
    """Describe two processes as a node: the fixed time and the rate of exchanging gradients.

    An all-reduce of two ranks sends and receives every byte once.
    """
    terms = np.array([[float(size), 1.0] for size in sizes_bytes])
    byte_s, begin_s = fit(terms, np.array(times_s)).seconds
    if byte_s <= 0:
        raise RidgelineError("exchanges of gradients do not take longer for more bytes: try again")
    source = {"source": "exchange", "basis": "measured"}
    far = device.memory[device.far_memory]
    return {
        "kind": "node",
        "name": "two-processes",
        "description": f"Two processes on {device.name}",
        "device": str(Path(path).resolve()),
        "count": 2,
        "energy_table": device.energy_table,
        "sources": {"exchange": "measured by ridgeline validate --live: gloo over the loopback"},
        "collective_latency": {"value": f"{begin_s:.6g} s", **source},
        "link_types": {
            "loopback": {
                "bandwidth": {"value": f"{1 / byte_s:.6g} B/s", **source},
                "latency": {"value": "0 s", **source, "note": "In the collective's latency"},
                "energy": far.energy,
            }
        },
        "links": [{"between": ["device0", "device1"], "type": "loopback"}],
    }


def _train_pairs(
    pair_file: Path, device: Device, threads: int, said: Callable[[str], None]
) -> list[Outcome]:
    from ridgeline.study.live import pair
    from ridgeline.study.live.torch_networks import CASES
    from ridgeline.workload.trace.torch_entry import trace

    cluster = load_cluster(str(pair_file))
    spare = machine.usable_cores() > pair.RANKS * threads  # for the threads that exchange
    rows, cases = [], []
    for case in CASES:
        model = trace(case.build(), case.inputs(4), loss="cross-entropy",
                      optimizer=case.optimizer, name=case.name)  # fmt: skip
        for batch in _PAIR_CASES.get(case.name, ()):
            plan = Plan(global_batch=pair.RANKS * batch, data=pair.RANKS, precision="fp32")
            step = _Step(f"{case.name}, two processes", plan.global_batch, model, _never)
            result = _predict(step, cluster, plan, overlap=spare)
            said(_foretold(step, result))
            fewest, most = _PAIR_SAMPLES
            samples = int(min(max(_PAIR_S / result.step_time_s, fewest), most))
            cases.append((case.name, batch, samples))
            rows.append((step, result))
    said("measuring")
    times = pair.train_s(cases, threads)
    using = open_backend("torch", "cpu", threads, 0)
    made = []
    for i, ((step, result), took) in enumerate(zip(rows, times, strict=True), start=1):
        wall = f", {took.wall_s * 1e3:.1f} ms of the wall"
        counted = _Took(took.counting_s(threads), wall)
        outcome = _outcome(_PAIR_LINES + i, step, result, counted, device, using)
        trivial = {key: value / pair.RANKS for key, value in outcome.trivial.items()}
        made.append(replace(outcome, trivial=trivial))
    return made


def _never() -> Callable[[], object]:
    raise RidgelineError("two processes run in processes of their own")
