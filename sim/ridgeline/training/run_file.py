"""Run files: a whole training run, as a mapping of fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ridgeline import units
from ridgeline.config import (
    Document,
    FieldError,
    Strict,
    check_kind,
    overridden,
    read_yaml,
    validate,
)
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.sourced import Count, Positive
from ridgeline.study.point import Point, check_path
from ridgeline.training.failures import DAY_S, FailureCause
from ridgeline.training.storage import CheckpointPolicy
from ridgeline.training.stragglers import Stragglers

Scalar = str | int | float | bool


class MeasuredAmount(Strict):
    """An amount of training that reached a target at one batch."""

    batch: Count
    amount: Positive


class Quality(Strict):
    """A quality that training is to reach, in a table of measured amounts of training."""

    benchmark: str
    """Task of the table, such as resnet or bert."""
    target: str = "MLPerf quality target"
    """Which quality of that task."""
    points: list[MeasuredAmount] = Field(default_factory=list)
    """Instead of the table: what you measured."""
    unit: Literal["epochs", "samples", "tokens", "steps"] | None = None
    """What the amounts count; of the table, the one that most rows count."""


class AccuracyTarget(Strict):
    """An accuracy that a network of the table of final accuracies is to reach."""

    network: str
    """Of the table, such as alexnet-bn."""
    recipe: str
    """How it is trained, such as lars."""
    top1: float = Field(gt=0, le=100)
    """Accuracy in per cent."""


class LossTarget(Strict):
    """A loss that a language model is to reach, by a published scaling law."""

    law: str = "chinchilla"
    """Name of the law (`training.scaling_law`)."""
    loss: float = Field(gt=0, le=100)
    """Cross-entropy in nats a token."""


class RunPhase(Strict):
    """A part of a run with a batch, a resolution or a plan of its own."""

    steps: Count | None = None
    """Weight updates."""
    samples: Annotated[float, Field(ge=1)] | Count | None = None
    """Samples, all steps together."""
    epochs: Positive | None = None
    """Passes over the data set."""
    plan: dict[str, Scalar] = Field(default_factory=dict)
    """Fields of the plan that differ from the run's."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted path -> value, besides the run's: ``model.image: 128``."""

    @model_validator(mode="after")
    def _one(self) -> RunPhase:
        if (self.steps, self.samples, self.epochs).count(None) != 2:
            raise ValueError("a phase has one of steps, samples, epochs")
        return self


class RunTarget(Strict):
    """When a run ends: after an amount of training, or at a quality that stands for one."""

    steps: Count | None = None
    """Weight updates."""
    samples: Annotated[float, Field(ge=1)] | Count | None = None
    """Samples, all steps together."""
    tokens: Annotated[float, Field(ge=1)] | Count | None = None
    """Tokens, all steps together."""
    epochs: Positive | None = None
    """Passes over the data set."""
    quality: Quality | None = None
    """A measured quality."""
    accuracy: AccuracyTarget | None = None
    """A measured final accuracy: the fewest measured epochs that reach it at the batch."""
    loss: LossTarget | None = None
    """A loss by a scaling law."""
    phases: list[RunPhase] | None = Field(default=None, min_length=1)
    """Parts of the run, one after the other."""

    @model_validator(mode="after")
    def _one(self) -> RunTarget:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"give one of {known}; found {', '.join(given) or 'none'}")
        return self


class SentGradients(Strict):
    """How gradients are sent between nodes."""

    compression: str
    """Name of a method (`training.compression`)."""
    fill_in: Literal["independent", "worst"] = "independent"
    """How sparse gradients of several nodes fill in."""


class LocalSteps(Strict):
    """Replicas that exchange weights once in many steps."""

    every: Count
    """Steps of each replica between two exchanges."""
    bandwidth: units.BytesPerSecond | None = None
    """Between replicas in different places, one direction of one replica; by default the
    exchange costs what synchronous training adds to a step on the machine's own links."""
    latency: units.Seconds = 0.0
    """Between such places, of one message."""


class StatedStep(Strict):
    """Figures of a step that are known, in the place of simulated ones."""

    time: units.Seconds | None = None
    """Of one step."""
    one_device: Positive | None = None
    """Samples a second of one device by itself, of data-parallel plans: its share of the batch at
    this rate stands for the simulated step of one device, what more devices add is simulated."""
    node_power: units.SomeWatts | None = None
    """Mean power of a node from the wall while it trains."""
    source: str = ""
    """Where they were read."""

    @model_validator(mode="after")
    def _one(self) -> StatedStep:
        if self.time is not None and self.one_device is not None:
            raise FieldError("give time or one_device, not both", "one_device")
        return self


class InputSource(Strict):
    """Where the samples of a data set are read from, how they are prepared, and what is kept."""

    place: Literal["local", "parallel-file-system", "object-store"] | None = None
    """"local": disks of the nodes; the other two are shared, and read over the nodes' network
    adapters. By default shared if `storage` or the cluster's is stated, else local."""
    storage: units.BytesPerSecond | None = None
    """Rate for the whole job; by default that of the cluster's storage or the nodes' disks."""
    latency: units.Seconds = 0.0
    """Of one request, until its first byte."""
    stream: units.BytesPerSecond | None = None
    """Rate of one request; without it, as fast as the node reads."""
    connections: Count | None = None
    """Requests of a node that are under way at a time; by default one for each worker."""
    format: str = ""
    """Of the data set; by default its first."""
    request: units.Bytes | None = None
    """Of one request where many samples stand in one file; single files are read whole."""
    shuffle: int = Field(default=0, ge=0, le=10**9)
    """Samples that a node reads before its first mini-batch, to draw from them at random."""
    workers: Count | None = None
    """Processes of a node that decode; by default as the program has them, or one a core."""
    prefetch: Count | None = None
    """Decoded mini-batches that a node keeps ready; by default two for each worker, as PyTorch."""
    spread: float = Field(default=0.0, ge=0, le=10)
    """Standard deviation of the times of reading and decoding a mini-batch over their mean."""
    staging: units.BytesPerSecond | None = None
    """Rate of copies to each device; by default that of its link to the host."""
    cache: units.MaybeBytes = 0.0
    """Memory or disks of the job's nodes that keep what was read."""
    cached: units.BytesPerSecond | None = None
    """Rate of reading from them, for the whole job; without it, they never limit a step."""
    eviction: Literal["pinned", "least-recently-used"] = "pinned"
    """What a cache keeps of a data set that does not fit: the same samples, or the latest."""

    @model_validator(mode="after")
    def _of_a_place(self) -> InputSource:
        if self.place == "object-store" and (not self.latency or self.stream is None):
            missing = "latency" if not self.latency else "stream"
            raise FieldError(
                "an object store is read by requests: give their latency and stream", missing
            )
        if self.cached is not None and not self.cache:
            raise FieldError("nothing is kept: give cache, too", "cached")
        return self


class BatchRamp(Strict):
    """A smaller batch at the beginning, which grows evenly with the samples."""

    start: Count
    """Batch of the first step."""
    samples: Count
    """Samples until the full batch is reached."""


class Evaluation(Strict):
    """What stops the training from time to time."""

    every: Count
    """Steps between two evaluations."""
    time: units.Seconds
    """Of one."""


class Maintenance(Strict):
    """Planned stops."""

    every: units.SomeSeconds
    """From the end of one to the beginning of the next."""
    time: units.Seconds
    """How long the job stands still."""


class Elastic(Strict):
    """A job that goes on with fewer replicas while nodes are missing."""

    least: Count
    """Replicas that it needs at least; with fewer it waits for nodes."""


class Preemption(Strict):
    """Stops by jobs that come first."""

    every: units.SomeSeconds
    """Mean time between two; they come at random."""
    time: units.Seconds
    """How long the job has no nodes."""
    notice: units.Seconds = 0.0
    """Warning beforehand: if a save fits in, no work is lost."""


class Recovery(Strict):
    """From a failure to the next step."""

    detection: units.Seconds = 0.0
    """Until a failure is noticed."""
    restart: units.Seconds = 0.0
    """Until processes run again, before they read the checkpoint."""
    spares: int = Field(default=0, ge=0)
    """Nodes that stand by."""
    repair: units.Seconds = DAY_S
    """Until a failed node is a spare again."""
    requeue: units.Seconds = 0.0
    """Wait in the cluster's queue after a failure, without nodes."""
    elastic: Elastic | None = None
    """Go on with fewer nodes if there is no spare; by default the job waits for one."""


class Curtailment(Strict):
    """A part of each day in which the building may draw less."""

    start: units.Seconds
    """Time of day."""
    duration: units.SomeSeconds
    """How long, less than a day."""
    slower: float = Field(ge=1, le=100)
    """Time of a step over the usual one."""
    power: float = Field(gt=0, le=1)
    """Share of the usual power."""

    @model_validator(mode="after")
    def _of_a_day(self) -> Curtailment:
        for name in ("start", "duration"):
            if getattr(self, name) >= DAY_S:
                raise FieldError("must be less than a day", name)
        return self


class Facility(Strict):
    """What a run is charged: electricity, devices, and the carbon of the grid."""

    pue: Annotated[float, Field(ge=1, le=10)] | None = None
    """Power of the building over that of its nodes; by default that of the cluster."""
    electricity: units.DollarsPerJoule | None = None
    """Price, such as 0.08 USD/kWh."""
    device_hour: units.DollarsPerSecond | None = None
    """Rent of a device, such as 2.5 USD/h."""
    grid: str = ""
    """Country (three letters), US state or CAN province of the carbon table."""
    carbon: units.KilogramsPerJoule | None = None
    """Instead: intensity of the grid, such as 57 g/kWh."""
    hourly: tuple[Annotated[float, Field(ge=0, le=100)], ...] = Field(default=(), strict=False)
    """Intensity at each hour of the day over its mean, 24 numbers; by default it is even."""
    start_hour: float = Field(default=0.0, ge=0, lt=24)
    """Hour of day at which the run starts."""

    @model_validator(mode="after")
    def _consistent(self) -> Facility:
        if self.grid and self.carbon is not None:
            raise FieldError("give grid or carbon, not both", "carbon")
        if self.hourly and len(self.hourly) != 24:
            raise FieldError(f"24 numbers are needed; found {len(self.hourly)}", "hourly")
        if self.hourly and not self.grid and self.carbon is None:
            raise FieldError("hours weigh an intensity: give grid or carbon, too", "hourly")
        if self.hourly and not any(self.hourly):
            raise FieldError("one of the hours is more than 0", "hourly")
        return self


class RunFile(Strict):
    """A whole training run: what is trained, on what, until when, and what goes wrong."""

    kind: Literal["run"]
    name: str = Field(min_length=1)
    description: str = ""
    """One line for people."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Citations by short name."""
    model: str
    """Name or path."""
    cluster: str
    """Name or path of a cluster, or a network and its device."""
    plan: dict[str, Scalar]
    """Fields of the plan; ``batch`` is the samples of a step."""
    software: str = ""
    """Software stack, by name or path; without it, the usual one of the machine or the network."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted path -> value, as in a study: ``cluster.``, ``model.``, ``plan.``, ``software.``."""
    step: StatedStep = StatedStep()
    """Known figures of a step."""
    dataset: str = ""
    """Data set that feeds the steps, by name or path; without it, input never limits a step."""
    input: InputSource | None = None
    """Where the data set is read from; by default the storage of the cluster."""
    dataset_samples: Count | None = None
    """Samples of an epoch; by default those of the data set."""
    target: RunTarget
    """When the run ends."""
    ramp: BatchRamp | None = None
    """A batch that grows."""
    local_steps: LocalSteps | None = None
    """Local SGD or DiLoCo; by default replicas exchange gradients at every step."""
    gradients: SentGradients | None = None
    """How gradients are sent, of data-parallel plans; by default as they are."""
    start_up: units.Seconds = 0.0
    """From the start of the job to its first step."""
    checkpoint: CheckpointPolicy | None = None
    """Without it nothing is saved: a failure loses the whole run so far."""
    failures: dict[str, FailureCause] = Field(default_factory=dict)
    """By cause."""
    recovery: Recovery = Recovery()
    """What a failure sets off."""
    stragglers: Stragglers = Stragglers()
    """How workers differ."""
    evaluation: Evaluation | None = None
    """Stops for evaluation."""
    maintenance: Maintenance | None = None
    """Planned stops."""
    preemption: Preemption | None = None
    """Stops by jobs that come first."""
    curtailment: Curtailment | None = None
    """Less power for a part of each day."""
    facility: Facility = Facility()
    """Electricity, rent, carbon."""
    tuning_runs: int = Field(default=0, ge=0)
    """Runs of the same length that were needed to find the settings of this one."""
    seed: int = Field(default=0, ge=0)
    """Of all chance."""


def read_run(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunFile:
    """Read a run file.

    Parameters
    ----------
    overrides
        Dotted path -> value, in the place of the file's.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    return run_of(run_document(path, overrides))


def run_document(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Document:
    """Read a run file as data, with fields replaced, and the line of each.

    Raises
    ------
    ConfigError
        If it cannot be read, is of another kind, or a path leads nowhere.
    """
    document = read_yaml(path)
    check_kind(document, "run")
    return overridden(document, overrides or {})


@contextmanager
def located(document: Document | None, *place: str | int) -> Iterator[None]:
    """Let mistakes that are found later name file, line and field.

    Parameters
    ----------
    document
        None: of a run that was not read from a file.
    place
        Of a mistake that names no field.
    """
    try:
        yield
    except ConfigError as error:
        if document is None or error.file is not None:
            raise
        field = tuple(int(p) if p.isdecimal() else p for p in (error.field or "").split(".") if p)
        if not field or field[0] not in RunFile.model_fields:
            field = (*place, *field)
        raise document.error(error.message, field) from error
    except RidgelineError as error:
        raise (ConfigError(str(error)) if document is None
               else document.error(str(error), place)) from error  # fmt: skip


def run_of(document: Document) -> RunFile:
    """Check a run file's data.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    file = validate(document, RunFile)
    _check_paths(document, file.set, ())
    for i, phase in enumerate(file.target.phases or ()):
        _check_paths(document, phase.set, ("target", "phases", i))
    _check_steps(document, file)
    if file.input is not None and not file.dataset:
        raise document.error("input needs the dataset that is read", ("input",))
    _check_failures(document, file)
    _check_elastic(document, file)
    return file


def _check_paths(
    document: Document, replaced: dict[str, Any], place: tuple[str | int, ...]
) -> None:
    for name in replaced:
        try:
            check_path(name)
        except ConfigError as error:
            raise document.error(error.message, (*place, "set", name)) from error


def _check_steps(document: Document, file: RunFile) -> None:
    """Refuse ways to time a step that would leave another one aside."""
    stated = file.step.time is not None
    changed = [name for name in ("local_steps", "gradients") if getattr(file, name) is not None]
    known = ["step"] if stated or file.step.one_device is not None else []
    ramped = ["ramp"] if file.ramp is not None else []

    def refuse(message: str, field: str) -> None:
        raise document.error(message, (field,))

    if file.target.phases and (given := changed + known + ramped):
        refuse(f"phases are simulated, without {given[0]}", given[0])
    if stated and changed:
        refuse(f"the time of a step is stated, so {changed[0]} says nothing", changed[0])
    if file.dataset and file.input is None and (stated or changed):
        refuse(
            "steps that are stated, local or compressed know nothing of input: give input, too",
            "dataset",
        )
    if file.local_steps is not None:
        if given := changed[1:] + known + ramped:
            refuse(f"local steps are simulated, without {given[0]}", given[0])
        if file.stragglers != Stragglers():
            refuse("stragglers of replicas with local steps are not modelled", "stragglers")


def _check_elastic(document: Document, file: RunFile) -> None:
    """Refuse smaller jobs whose steps are not simulated."""
    if file.recovery.elastic is None:
        return
    for name in ("local_steps", "gradients", "ramp"):
        if getattr(file, name) is not None:
            raise document.error(
                f"steps of a smaller job are simulated, without {name}", ("recovery", "elastic")
            )
    if file.target.phases:
        raise document.error(
            "steps of a smaller job are simulated of one phase alone", ("recovery", "elastic")
        )


def _check_failures(document: Document, file: RunFile) -> None:
    for name, cause in file.failures.items():
        if cause.effect == "slow" and cause.factor == 1:
            raise document.error("a slow-down needs a factor above 1", ("failures", name, "factor"))
        if cause.effect == "stop" and cause.factor != 1:
            raise document.error(
                "factor is of a slow-down (effect: slow)", ("failures", name, "factor")
            )


def point_of(file: RunFile, phase: RunPhase | None = None) -> Point:
    """Return the step that a run, or one phase of it, repeats."""
    plan, replaced = file.plan, file.set
    if phase is not None:
        plan, replaced = {**plan, **phase.plan}, {**replaced, **phase.set}
    fields = {("global_batch" if k == "batch" else k): v for k, v in plan.items()}
    return Point(file.model, file.cluster, fields, replaced, file.software)
