"""Tables of measured kernels: one call of a framework a row, on a device by its own name.

Their columns are those of the collection that ships in part (``data/measured``): ``device_key``,
``framework``, ``version``, ``format``, the shape, ``time_us``, and ``power_w`` with
``board_limit_w`` where power was measured. A suite says of each row what is called
(`MeasuredCall`); the call is priced as any other work on that device, many rows at a time.

What a clock contains besides the kernels is up to how they were timed. Serving frameworks' kernels
(aiconfigurator) repeat in CUDA graphs: nothing, since the launch latency of a device is that of
queued kernels. PyTorch's (NeuSight) stand between two events, so that what the host takes to launch
a kernel is in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.kernel_price import (
    COLD,
    REPEATED,
    KernelPrice,
    Repetition,
    matrix_rate,
    price_kernels,
)
from ridgeline.kernels.library.kernel_model import LibraryCall
from ridgeline.study.csv_file import read_csv
from ridgeline.study.validate.call_starts import NO_START, CallStart, call_start
from ridgeline.study.validate.outcome import Outcome, Skipped, skip_for
from ridgeline.study.validate.power_meter import PowerMeter
from ridgeline.study.validate.predicted_interval import PredictedInterval, stated
from ridgeline.study.validate.rows import MAX_BYTES, SHIPPED, MeasuredRow
from ridgeline.workload.graph import Graph

COLUMNS = ("device_key", "framework", "format", "time_us", "source")
"""Of every table of measured kernels; the shape's come to them."""
POWER = ("power_w", "board_limit_w")
EAGER_LAUNCH_S = 23e-6
HOST_LAUNCHES = "host_launches.csv"
"""What the host takes to launch one kernel of PyTorch, by framework and the board that the host is
of: it is the machine that was measured, not its device. The last line that fits counts."""
_REPEATED = {"sglang", "trtllm", "vllm"}
"""Frameworks whose calls were measured one over and over, with hot caches (aiconfigurator)."""
SCALED_S = 5e-6
"""Added to the scaled roofline, as for other kernels."""
FRAMEWORK_CALLS = {"gemm": "framework-gemm", "conv": "framework-conv"}
"""Kinds of prediction by which ranges are stated, where a suite has other rows, too."""
_TRAINED = {"p4", "p100-pcie", "v100-pcie-32gb", "t4", "a100-pcie-40gb"}
"""Boards whose training sets NeuSight was trained with."""


@dataclass(frozen=True, slots=True)
class KernelTimeBounds:
    """What the kernels of a product take at least.

    Attributes
    ----------
    rows, row_s
        Rows of the activations, and the time of one on one processor in the kernel that quantises
        them; 0: it is bound by its bytes alone.
    number_s
        Time of the numbers of a row in one block of threads of that kernel, a block a processor.
    sum_s
        The least time of a sum over k in one block of threads.
    blocks
        Outputs that blocks of threads add up, each over all of k, as many at a time as there are
        processors.
    block_flops, share
        FLOPs of a block, and the share of a processor's peak that it reaches; 0: `sum_s` alone.
    """

    rows: int = 0
    row_s: float = 0.0
    number_s: float = 0.0
    sum_s: float = 0.0
    blocks: int = 1
    block_flops: float = 0.0
    share: float = 0.0

    def more_of_rows_s(self, graph: Graph, device: Device) -> float:
        """Time of the rows beyond that of their bytes."""
        if not self.row_s and not self.number_s:
            return 0.0
        first, far = graph.ops[0], device.memory[device.far_memory].bandwidth
        assert far is not None
        bytes_s = sum(graph.tensors[name].bytes for name in (*first.inputs, *first.outputs))
        each = self.rows / _processors(device)
        rows_s = each * self.row_s + math.ceil(each) * self.number_s
        return max(0.0, rows_s - bytes_s / far.value)

    def sums_s(self, graph: Graph, device: Device) -> float:
        """Time of all sums, round by round of blocks."""
        block_s = self.sum_s
        if self.share:
            rate = matrix_rate(graph.ops[-1], graph, device) / _processors(device)
            block_s = max(block_s, self.block_flops / (self.share * rate))
        return math.ceil(self.blocks / _processors(device)) * block_s


def _processors(device: Device) -> int:
    return next(iter(device.memory.values())).instances.value


NO_LEAST = KernelTimeBounds()


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """What one row measured.

    Attributes
    ----------
    graph
        The ops that run one after the other.
    kind
        Of work: rows of one kind, format and device weigh as much as those of another.
    format
        As the table calls it.
    words
        What is called, for people.
    command
        The line of a shell that prices it by itself, where there is one beside `validate`.
    published
        Errors that others state of their own predictions of this row, or of rows like it.
    start
        What it takes besides the ops of the graph.
    repeated
        How serving frameworks' benchmark repeats it: what it finds on chip again.
    library
        The kernel of a library that is called, where its constants are known: its time is then that
        of the call, `start` included.
    least
        Of its kernels.
    """

    graph: Graph
    kind: str
    format: str
    words: str
    command: str = ""
    published: Mapping[str, float] = field(default_factory=dict)
    start: CallStart = NO_START
    repeated: Repetition = REPEATED
    library: LibraryCall | None = None

    least: KernelTimeBounds = NO_LEAST


Caller = Callable[[MeasuredRow], MeasuredCall | None]
"""Reads a row; None: it belongs to another suite."""


@dataclass(frozen=True, slots=True)
class PricedRow:
    """A row with its call, and what this costs on the row's device.

    Attributes
    ----------
    machine
        The described device that it was priced on.
    host_s
        What the row's clock contains of the host.
    library_s
        Time of the library's kernel on the device, where it is known.
    """

    row: MeasuredRow
    call: MeasuredCall
    device: str
    machine: Device
    price: KernelPrice
    host_s: float
    library_s: float | None = None

    @property
    def time_s(self) -> float:
        """What the row's clock is predicted to show."""
        return self.device_s + self.host_s

    @property
    def device_s(self) -> float:
        """Time on the device: of the framework's kernels, and what the call takes besides."""
        if self.library_s is not None:
            return self.library_s
        return self.call.start.call_s(self.kernels_s, self.device)

    @property
    def kernels_s(self) -> float:
        """Time of the ops of the call."""
        least = self.call.least
        more_s = least.more_of_rows_s(self.call.graph, self.machine)
        sums_s = least.sums_s(self.call.graph, self.machine)
        return max(self.price.time_s, sums_s) + more_s

    @property
    def events_j(self) -> float:
        """Energy of the events of the call, at full voltage."""
        idle_j = self.machine.idle_power.value * self.price.time_s
        return self.price.energy_j + self.price.saved_j - idle_j

    def power_w(self, meter: PowerMeter) -> float:
        """Return what a benchmark reads while the call repeats, at most the board's limit."""
        limit = self.machine.board_limit
        return meter.read_w(
            self.events_j,
            self.device_s,
            self.machine.idle_power.value,
            None if limit is None else limit.value,
        )


@cache
def device_named(key: str) -> Device:
    """Load the device of a row.

    Raises
    ------
    RidgelineError
        If no device file has this name.
    """
    if key not in catalog.names("devices") and not catalog.is_path(key):
        raise RidgelineError(f"no device file is called {key!r}")
    return load_device(key)


def start_of(row: MeasuredRow, suite: str, variant: str) -> CallStart:
    """Return what the call of a row takes besides its ops."""
    library = library_named(row.text("device_key"))
    called = (row.text("framework"), row.text("kernel"))
    return call_start(suite, variant, *called, library, row.text("version"))


def library_named(key: str) -> str:
    """Name the library of products of a row's device; none where a table names no known device."""
    return library_of(device_named(key)) if key in catalog.names("devices") else ""


def library_of(device: Device) -> str:
    """Name the library of matrix products of a device's fastest engine that states one."""
    stated = [engine for engine in device.engines.values() if engine.library is not None]
    fastest = max(
        stated, key=lambda engine: max(r.value for r in engine.rates.values()), default=None
    )
    return "" if fastest is None or fastest.library is None else fastest.library


def host_launch_s(row: MeasuredRow) -> float:
    """Return what the clock of a row contains of the host, by the machine that it was measured on.

    By the beginning of framework and version: kernels of other frameworks stand in graphs.
    """
    program = f"{row.text('framework')} {row.text('version')}"
    asked = (row.text("device_key"), row.text("op"))
    found = 0.0
    for framework, board, op, launch_s in _host_launches():  # the most special ones last
        if program.startswith(framework) and board in ("", asked[0]) and op in ("", asked[1]):
            found = launch_s
    return found


@cache
def _host_launches() -> list[tuple[str, str, str, float]]:
    return [
        (row["framework"], row["device_key"], row["op"], float(row["launch_us"]) * 1e-6)
        for _, row in read_csv(SHIPPED / HOST_LAUNCHES, MAX_BYTES)
    ]


def priced(rows: Iterable[MeasuredRow], caller: Caller) -> Iterator[PricedRow | Skipped]:
    """Price the calls of rows, those of one device together; not in the order of the rows."""
    calls: dict[tuple[str, Repetition], list[tuple[MeasuredRow, MeasuredCall]]] = {}
    for row in rows:
        try:
            row.check()
            call = caller(row)
            if call is None:
                continue
            key = row.text("device_key")
            device_named(key)
            calls.setdefault((key, _repetition(row, call)), []).append((row, call))
        except RidgelineError as error:
            yield skip_for(row, error)
    for (key, repetition), ours in calls.items():
        yield from _priced(ours, device_named(key), key, repetition)


def priced_on(
    device: Device, calls: Sequence[tuple[MeasuredRow, MeasuredCall]]
) -> Iterator[PricedRow | Skipped]:
    """Price calls on one device, whatever their rows say; not in the order of the calls.

    By what the device's file says of its ops, which is what is calibrated: kernels of libraries
    have constants of their own.
    """
    plain = [(row, replace(call, library=None)) for row, call in calls]
    for repetition in dict.fromkeys(_repetition(row, call) for row, call in plain):
        ours = [(row, call) for row, call in plain if _repetition(row, call) == repetition]
        yield from _priced(ours, device, device.name, repetition)


def _repetition(row: MeasuredRow, call: MeasuredCall) -> Repetition:
    """Return what a row's call finds of the calls before it."""
    return call.repeated if row.text("framework") in _REPEATED else COLD


def _priced(
    calls: Sequence[tuple[MeasuredRow, MeasuredCall]],
    device: Device,
    key: str,
    repetition: Repetition,
) -> Iterator[PricedRow | Skipped]:
    """Price calls together; where one cannot be priced, halves of them, until it is alone."""
    try:
        graphs = [call.graph for _, call in calls]
        prices = price_kernels(graphs, device, repetition)
    except RidgelineError as error:
        if len(calls) == 1:
            yield skip_for(calls[0][0], error)
            return
        half = len(calls) // 2
        yield from _priced(calls[:half], device, key, repetition)
        yield from _priced(calls[half:], device, key, repetition)
        return
    for (row, call), price in zip(calls, prices, strict=True):
        library = None if call.library is None else call.library.time_s(device)
        host_s = call.start.launches * host_launch_s(row)
        yield PricedRow(row, call, key, device, price, host_s, library)


def predict_calls(
    rows: Iterable[MeasuredRow], caller: Caller, suite: str, scale: float
) -> Iterator[Outcome | Skipped]:
    """Predict the time of every row of a suite.

    Parameters
    ----------
    scale
        Of the scaled roofline: the factor that is best on all rows of the collection.
    """
    for made in priced(rows, caller):
        if isinstance(made, Skipped):
            yield made
            continue
        row, roofline_s = made.row, made.price.roofline_s
        try:
            measured = positive(row, "time_us") * 1e-6
        except RidgelineError as error:
            yield skip_for(row, error)
            continue
        trivial = {"roofline": roofline_s, "scaled roofline": scale * roofline_s + SCALED_S}
        is_alone = not made.host_s and made.library_s is None and made.call.start == NO_START
        alone = made.call.command if is_alone else ""
        yield outcome_of(made, suite, "time_s", made.time_s, measured, trivial, alone)


def outcome_of(
    made: PricedRow,
    suite: str,
    quantity: str,
    predicted: float,
    measured: float,
    trivial: Mapping[str, float],
    command: str = "",
    limit: float | None = None,
) -> Outcome:
    """Return the outcome of a priced row."""
    row, call = made.row, made.call
    group = f"{made.device} {call.format} {call.kind}"
    kind: PredictedInterval = stated(
        FRAMEWORK_CALLS.get(suite, suite), predicted, device=made.machine
    )
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=group,
        sweep=group,
        configuration=f"{call.words} {call.format}, {made.device}, {row.text('framework')}",
        quantity=quantity,
        predicted=predicted,
        measured=measured,
        source=row.text("source"),
        trivial=trivial,
        command=command or row.command(suite),
        device=made.device,
        format=call.format,
        kind=call.kind,
        published=call.published,
        limit=limit,
        **kind,
    )


def positive(row: MeasuredRow, name: str) -> float:
    """Return a number above 0.

    Raises
    ------
    RidgelineError
        If it is not given, or no such number.
    """
    value = row.number(name)
    if value is None or value <= 0:
        raise RidgelineError(f"{name} is not given, or not above 0")
    return value


def sizes(row: MeasuredRow, *names: str) -> list[int]:
    """Return whole numbers of at least 1.

    Raises
    ------
    RidgelineError
        If one of them is not given, or no such number.
    """
    found = []
    for name in names:
        value = row.whole(name)
        if value is None or value < 1:
            raise RidgelineError(f"{name} is not given, or no whole number of at least 1")
        found.append(value)
    return found


def has(row: MeasuredRow, *names: str) -> bool:
    """Tell whether a table has some columns."""
    return all(name in row.values for name in names)


def from_neusight(row: MeasuredRow, operator: str) -> dict[str, float]:
    """Return the mean error that NeuSight states of rows like this one, by its own name of them.

    Its test sets on the boards that it was trained with are "in distribution"; NVIDIA boards that
    it was not trained with are "unseen".
    """
    device = row.text("device_key")
    if "NeuSight" not in row.text("source") or device.startswith("mi"):
        return {}
    if device not in _TRAINED:
        where = "unseen"
    elif row.text("set") == "test":
        where = "in distribution"
    else:
        return {}
    return {f"NeuSight, {operator}, {where}": stated_by_neusight()[operator, where]}


@lru_cache(maxsize=1)
def stated_by_neusight() -> dict[tuple[str, ...], float]:
    """Return errors that NeuSight states, as shares: of operators, and of models on a device.

    Keys are (operator, "in distribution" or "unseen"), or (device, model, batch, mode).
    """
    found: dict[tuple[str, ...], float] = {}
    for _, row in read_csv(SHIPPED / "measured" / "neusight_stated.csv", MAX_BYTES):
        error = float(row["error_percent"]) / 100
        if row["table"] == "per operator":
            where = "unseen" if row["mode"].startswith("out") else "in distribution"
            found[row["what"], where] = error
        else:
            found[row["device_key"], row["model"], row["batch"], row["mode"]] = error
    return found
