"""A device: compute engines with a rate per number format, and memory levels from near to far."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from ridgeline import units, views
from ridgeline.config import FieldError, Strict
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.array import SystolicArray
from ridgeline.hardware.components.design import SUMMED, DesignPart, part_notes
from ridgeline.hardware.components.schema import ComponentUse
from ridgeline.hardware.dies import Dies
from ridgeline.hardware.energy import EnergyTable
from ridgeline.hardware.grid import BroadcastGrid
from ridgeline.hardware.host_processor import HOST, HOST_PLACES, HostProcessor
from ridgeline.hardware.kernel import MeasuredKernel, Repack
from ridgeline.hardware.sourced import DEFAULT, NOT_STATED, Described, Positive, Share, Sourced
from ridgeline.hardware.sparsity_support import Skip
from ridgeline.hardware.spatial import SpatialArray
from ridgeline.hardware.tiles import TileMachine
from ridgeline.open_names import OpenNames

Work = Literal["matrix", "vector"]
_Side = Annotated[int, Field(ge=1, le=4096)]
_Tile = Annotated[tuple[_Side, _Side], Field(strict=False)]
Tiles = Annotated[tuple[_Tile, ...], Field(strict=False, min_length=1, max_length=64)]
_LEVELS = {"registers": "registers", "sram": "on-chip memory", "dram": "off-chip memory"}
_BLOCKS = {
    "systolic": "array",
    "broadcast-grid": "grid",
    "spatial": "spatial",
    "bsp": "bsp",
}
"""What describes an engine of a kind; a systolic one may do without."""
_RATE_TOLERANCE = 0.01  # published peaks are rounded


class InstructionShape(Strict):
    """The matrix product D[m, n] = A[m, k] B[k, n] + C[m, n] that one instruction does."""

    m: int = Field(default=1, ge=1, le=4096)
    """Rows of A and D."""
    n: int = Field(default=1, ge=1, le=4096)
    """Columns of B and D."""
    k: int = Field(default=1, ge=1, le=4096)
    """Columns of A, rows of B."""
    source: str = ""
    """Where the shape is documented."""


class Winograd(Strict):
    """Kernels of Winograd's convolution; ``docs/spatial.md`` says what is counted."""

    outputs: tuple[Literal[2, 4], ...] = Field(strict=False, min_length=1)
    """m of F(m x m, 3 x 3); the fastest is taken, and the direct convolution where it is faster."""
    fused: bool
    """Whether transformed tiles stay in the processors, or pass the farthest memory."""
    formats: tuple[str, ...] = Field(strict=False, min_length=1)
    """Number formats that these kernels exist for."""
    source: str
    """Who says that the device's library has them."""


ENGINE_KINDS = OpenNames(
    "tensor-core", "vector", "cores", "systolic", "broadcast-grid", "spatial", "bsp"
)
"""Kinds of engines; a plug-in adds one with its model (`kernels.contraction_time`)."""


class Engine(Strict):
    """A compute engine: what work it does and how fast in each number format."""

    kind: Annotated[str, ENGINE_KINDS]
    """How time is counted: tensor-core and vector by tiles in waves over the processors; cores as
    general-purpose cores; systolic, spatial, broadcast-grid by exact cycles; bsp by supersteps;
    others by the model that a plug-in registers under that name."""
    parameters: dict[str, float | str] = Field(default_factory=dict)
    """Of an engine whose kind a plug-in registers: numbers and texts that its model reads."""
    runs: tuple[Work, ...] = Field(strict=False, min_length=1)
    """"matrix" for contractions, "vector" for everything else."""
    rates: dict[str, Sourced[units.FlopPerSecond]] = Field(min_length=1)
    """Dense peak rate of each number format."""
    vector_rates: dict[str, Sourced[units.FlopPerSecond]] = Field(default_factory=dict)
    """Rate of vector work by format, where it is not that of products: a lane that does a
    multiply-add does one multiplication or one addition in the same cycle."""
    ops: tuple[str, ...] = Field(default=(), strict=False)
    """Of a unit of fixed function: the kinds of vector work that it does, in the forward pass
    alone; by default all of it."""
    epilogue: tuple[str, ...] = Field(default=(), strict=False)
    """Of `ops`: those that the unit does on results of products on their way out of the
    accumulators, beside the products, so that what they read is never stored."""
    converted: dict[str, Sourced[str]] = Field(default_factory=dict)
    """Formats that libraries convert to another one before they multiply: in all kernels if the
    engine has no rate for the format, else in those without a row of it in `achievable`."""
    either_layout: dict[str, Sourced[bool]] = Field(default_factory=dict)
    """Formats in 8 bits and fewer whose operands the engine reads as they are or transposed; others
    are written in both orders where they are quantised, since narrow units take one alone."""
    accumulate: str = "fp32"
    """Number format of the accumulator."""
    instruction: InstructionShape = InstructionShape()
    """Operand reuse of one instruction; decides the register traffic. Of a systolic engine with an
    `array` that states none, the traffic follows from the array's dataflow."""
    energy: dict[str, str] = Field(default_factory=dict)
    """Entry of the energy table per number format; a format without one needs a `component`."""
    component: ComponentUse | None = None
    """What its multiply-accumulate units are: they give energies that are not stated, and area."""
    tiles: Sourced[Tiles] | None = None
    """Rows and columns of the output tiles that the machine's library of matrix products has
    kernels for; by default those of a present library (`kernels.wave_quantization.TILES`)."""
    least_sum: Sourced[PositiveInt] | None = None
    """Length of the parts that this library splits the sums of a product into, at least; by default
    that of a present library (`kernels.wave_quantization.LEAST_SUM`)."""
    library: str | None = None
    """Library of matrix products of the engine's generation, by its name in
    ``kernels/product_libraries.yaml``: what its kernels lose was fitted across devices. None:
    `tiles` and `least_sum` say all that there is to say."""
    winograd: Winograd | None = None
    """Kernels that do 3 x 3 convolutions with fewer multiplications; by default there are none.

    The shares that kernels of convolutions reach (`Device.achievable`) may hold their effect
    already: then this must stay away."""
    skips: tuple[Skip, ...] = Field(default=(), strict=False)
    """Zeros that the engine makes use of; others are computed like any number."""
    array: SystolicArray | None = None
    """Of a systolic engine: its arrays, from which its cycles are counted exactly."""
    grid: BroadcastGrid | None = None
    """Of a broadcast-grid engine: its cores, from which its cycles are counted."""

    spatial: SpatialArray | None = None
    """Of a spatial engine: its elements and networks, from which its cycles are counted."""
    bsp: TileMachine | None = None
    """Of a bulk-synchronous engine: its tiles, of which supersteps are counted."""

    @model_validator(mode="after")
    def _blocks_agree(self) -> Engine:
        for kind, field in _BLOCKS.items():
            is_there = getattr(self, field) is not None
            if is_there != (self.kind == kind) and (is_there or kind != "systolic"):
                raise FieldError(
                    f"{field!r} belongs to an engine of kind {kind}; this one is {self.kind}"
                    if is_there
                    else f"an engine of kind {kind} needs the field {field!r}",
                    field if is_there else "kind",
                )
        if self.parameters and self.kind in ENGINE_KINDS.shipped:
            raise FieldError(
                f"is of kinds that plug-ins register; this engine is {self.kind}", "parameters"
            )
        if self.vector_rates and not set(self.vector_rates) <= set(self.rates):
            other = min(set(self.vector_rates) - set(self.rates))
            raise FieldError(
                f"{other!r} has no rate{nearest(other, self.rates)} (there are: "
                f"{', '.join(self.rates)})",
                *("vector_rates", other),
            )
        for field in ("vector_rates", "ops"):
            if getattr(self, field) and "vector" not in self.runs:
                raise FieldError("is of engines that run vector work", field)
        if others := sorted(set(self.epilogue) - set(self.ops)):
            raise FieldError(
                f"{others[0]!r} is none of ops{nearest(others[0], self.ops)} "
                f"(they are: {', '.join(self.ops) or 'not stated'})",
                "epilogue",
            )
        return self

    def check_peak(self, dies: int, *path: str) -> None:
        """Check that the multiply-accumulate units make one of the rates.

        Parameters
        ----------
        dies
            That a spatial array stands on.
        path
            Of the engine in its device.

        Raises
        ------
        FieldError
            If no rate is what the units do.
        """
        for field, what in (("array", "arrays"), ("grid", "cores"), ("spatial", "elements")):
            block: SystolicArray | BroadcastGrid | SpatialArray | None = getattr(self, field)
            if block is None:
                continue
            peak = block.flops_per_cycle * block.clock.value * (dies if field == "spatial" else 1)
            rates = self.rates.values()
            if not any(abs(rate.value / peak - 1) <= _RATE_TOLERANCE for rate in rates):
                stated = ", ".join(
                    f"{name} {_exactly(rate.value)}" for name, rate in self.rates.items()
                )
                raise FieldError(
                    f"the {what} do {_exactly(peak)} at one multiply-accumulate each and cycle, but"
                    f" no rate of the engine is that (there are: {stated}): write"
                    f" {_exactly(peak)} for one of them, or change the clock or the sizes",
                    *(*path, field),
                )


def _exactly(flops_per_s: float) -> str:
    """Write a rate with all its digits, as a file may have it."""
    return f"{flops_per_s / 1e12:.10g} TFLOP/s"


class MemoryLevel(Strict):
    """A level of the memory hierarchy."""

    kind: Literal["registers", "sram", "dram"]
    """registers: beside the arithmetic; sram: on chip; dram: off chip. The energy of a kind that
    a device has no level of is named as not modelled."""
    capacity: Sourced[units.Bytes]
    """Of all instances together."""
    instances: Sourced[int] = Sourced[int](value=1, source=DEFAULT, basis="assumed")
    """How many equal parts it consists of (80 register files, one L2)."""
    bandwidth: Sourced[units.BytesPerSecond] | None = None
    """Peak of all instances together; without it the level never bounds the time."""
    achievable: Sourced[float] = Sourced[float](value=1.0, source=DEFAULT, basis="assumed")
    """Share of the peak bandwidth that kernels reach."""
    latency: Sourced[units.Seconds] | None = None
    """Of one access, which transfers that nothing hides wait for; by default that of the
    `component`; without either they do not."""
    energy: str = ""
    """Entry of the energy table, or joules per byte; by default those of the `component`."""
    component: ComponentUse | None = None
    """What each instance is built as: gives energy and latency that are not stated, and area and
    leakage."""
    buffers: Literal["single", "double"] = "double"
    """Whether a tile of a mapping can come in while the one before is computed."""
    ports: Literal["shared", "separate"] = "shared"
    """Whether what goes out takes turns with what comes in; the bandwidth is that of one port."""
    partitions: dict[Literal["a", "b", "c"], Sourced[units.Bytes]] = Field(default_factory=dict)
    """Room of single operands: a and b are multiplied, c is the result. The others share."""
    holds: tuple[Literal["a", "b", "c"], ...] = Field(
        default=("a", "b", "c"), strict=False, min_length=1
    )
    """Operands of a product that the level can hold: a buffer of inputs (a), a queue of weights
    (b), accumulators (c). Levels listed one after the other that hold different ones lie side by
    side."""
    keeps: bool | None = None
    """Whether what an op has touched is still there for the ops after it, until as much else has
    been touched as the level holds. The last level always keeps. None: a level that all processors
    share keeps on a device without measured shares of its peak (`Device.achievable`); where there
    are some, those hold what its caches did (`kernels.cache_residency`)."""
    kept_share: Sourced[Share] | None = None
    """Share of the capacity that tensors stay in between ops. None: all of a cache, and half of a
    buffer before arrays, whose tiles take the other half (`kernels.cache_residency`)."""


class OutputBlock(Strict):
    """Outputs of one image that a block of Winograd's kernels computes together."""

    rows: int = Field(ge=1)
    """Rows of outputs."""
    columns: int = Field(ge=1)
    """Columns of outputs."""
    source: str
    """Who says that the kernels compute such blocks."""


class Ramp(Strict):
    """What fused attention loses at both ends of every row of tiles, which nothing hides.

    Of `n` tiles of keys that a row of tiles meets, kernels reach ``fraction / (1 + tiles / n)`` of
    the peak, if nothing else holds them back.
    """

    fraction: Sourced[Share]
    """Share of the peak with endless rows."""
    tiles: Sourced[Positive]
    """Tiles of keys that the ends of a row take the time of."""


class Achievable(Strict):
    """The share of an engine's peak that kernels of one class reach, from microbenchmarks."""

    engine: str
    """Name of an engine of the device."""
    format: str
    """Number format of the operands."""
    stored: str | None = None
    """Format in memory of what these kernels convert to `format`; None: those that read `format`,
    which stand for kernels that convert and have no rows."""
    op: Literal["gemm", "conv2d", "recurrence", "attention", "attention-1", "state-space"]
    """attention: both products of scores in one kernel, and all five of its backward pass; -1: by
    the first version of such kernels. state-space: all kernels of a layer of Mamba-2."""
    pass_: Literal["forward", "input-gradient", "weight-gradient"] | None = Field(
        default=None, alias="pass"
    )
    """None: any pass."""
    filter: Literal["1x1", "3x3", "larger", "direct", "transformed"] | None = None
    """Class of a convolution: 3x3 that slide by 1, where Winograd's algorithm can be; larger ones,
    where Fourier's transform can be; direct: all others but 1x1; transformed: 3x3 as products of
    tiles that were transformed before (`kernels.conv_algorithms`); None: any."""
    block: OutputBlock | None = None
    """Of 3x3: that Winograd's kernels reach this share, where images fill such blocks; direct ones
    reach that of direct filters (`kernels.conv_algorithms`). None: one kind of kernels does all."""
    at_least: Sourced[units.Flop] | None = None
    """FLOPs from which on an op belongs to this row; None: any."""
    ramp: Ramp | None = None
    """Of fused attention: what short rows of keys lose; `fraction` is then what the limit of power
    leaves of long ones. None: all reach `fraction`."""
    step_latency: Sourced[units.Seconds] | None = None
    """Of a recurrence: what a step takes besides its product, for the kernels of the cell."""
    latency: Sourced[units.Seconds] | None = None
    """Fixed time of such an op, where it is not the device's launch latency."""
    each: Sourced[units.Seconds] | None = None
    """On cores: fixed time of every product of a batch after the first."""
    repack: Repack = Repack()
    """On cores: what operands and result take besides the arithmetic."""
    fraction: Sourced[float]
    """May exceed 1: Winograd does less arithmetic than the direct convolution is counted with."""

    @model_validator(mode="after")
    def _check(self) -> Achievable:
        if self.ramp is not None and not self.op.startswith("attention"):
            raise FieldError(f"is of attention, not of {self.op!r}", "ramp")
        return self


class AchievableFrom(Strict):
    """A device of the same generation or the nearest that was measured."""

    device: str
    """Name of that device, or a path."""
    formats: dict[str, str] = Field(default_factory=dict)
    """Number formats here, by the format there whose shares they take over too."""
    scale: Sourced[Positive] = Sourced[Positive](value=1.0, source=DEFAULT, basis="assumed")
    """How much of those shares kernels of this device reach."""


class Device(Described):
    """One accelerator."""

    kind: Literal["device"]
    """What the file describes: always ``device``."""
    vendor: str = ""
    """Who makes it; for people."""
    software: tuple[str, ...] = Field(default=(), strict=False)
    """Software stacks that it is usually run with: the first that can run a model counts."""
    year: int = Field(ge=1940, le=2100)
    """Of its first delivery; model programs that changed over time run as in that year."""
    process_node: Sourced[units.Metres] | None = None
    """Feature size of the silicon; decides how uncertain its energies are."""
    area: Sourced[units.SquareMetres] | None = None
    """Of the die; gives peaks per mm2 and the power density."""
    tdp: Sourced[units.SomeWatts] | None = None
    """Thermal design power; results say when a step would draw more, and the host's power is shared
    out by it."""
    power_limit: Sourced[units.SomeWatts] | None = None
    """What the board may draw: an op that would draw more lowers clock and voltage. None: the
    design power where `voltage_floor` is stated, and else nothing does."""
    voltage_floor: Sourced[Share] | None = None
    """Least voltage over that of full clock: under a power limit the voltage falls with the clock
    down to it. None: the voltage stays."""
    idle_power: Sourced[units.Watts]
    """Drawn whenever the device is on: the static part of the energy. It may be left out where
    components give their leakage, whose sum it then is."""
    thermal_limit: Sourced[units.WattsPerSquareMetre] | None = None
    """Power per area that cooling carries away; more is a warning on every result."""
    price: Sourced[units.Dollars] | None = None
    """Of one device; gives costs of machines."""
    energy_table: str = ""
    """Name of an energy table, or a path. It may be left out where every engine and level has a
    component, or states its energy as a quantity."""
    engines: dict[str, Engine]
    """By names of your own; an op runs on the fastest that does its kind of work and format."""
    memory: dict[str, MemoryLevel]
    """From the nearest to the farthest."""
    host: HostProcessor | None = None
    """The processor that does the vector work that no engine does; None: there is none."""
    dies: Dies | None = None
    """Equal dies that share all that stands here, with links between them; None: one die. A
    spatial array is that of each die."""
    launch_latency: Sourced[units.Seconds]
    """Fixed time of each op: launch, ramp up and drain."""
    achievable: tuple[Achievable, ...] = Field(default=(), strict=False)
    """First match counts; an op without a match is priced at the peak, and the result says so."""
    base: str | None = None
    """Name or path of the device whose description this one starts from: mappings are merged field
    by field, everything else is replaced, and ``null`` removes a field."""
    kernels: tuple[MeasuredKernel, ...] = Field(default=(), strict=False)
    """Of ops outside contractions; first match counts, others are priced by launch latency, vector
    rate and the bandwidth of memory."""
    achievable_from: AchievableFrom | None = None
    """The device whose shares of the peak this one takes over, behind its own."""

    notes: tuple[str, ...] = Field(default=(), strict=False)
    """What was asked for where the description comes from, and is not modelled."""

    prices: EnergyTable = Field(exclude=True)
    """The energy table itself; put here by the loader."""
    parts: tuple[DesignPart, ...] = Field(default=(), exclude=True)
    """What its components are evaluated to; put here by the loader."""

    @model_validator(mode="after")
    def _consistent(self) -> Device:
        if not self.engines:
            raise ValueError("a device needs at least one engine")
        if not self.memory:
            raise ValueError("a device needs at least one memory level")
        if self.board_limit is not None and self.board_limit.value <= self.idle_power.value:
            raise FieldError(
                f"must be more than the idle power, {units.show(self.idle_power.value, 'W')}",
                "tdp" if self.power_limit is None else "power_limit",
            )
        self._check_memory()
        self._check_engines()
        self._check_host()
        self._check_achievable()
        return self

    def _check_memory(self) -> None:
        if self.memory[self.far_memory].bandwidth is None:
            raise FieldError(
                f"memory level {self.far_memory!r}, the farthest, needs a bandwidth",
                "memory",
                self.far_memory,
            )
        for name, level in self.memory.items():
            if not level.energy:
                raise FieldError(
                    "states neither energy nor a component that gives it, for example "
                    "'energy: 1.5 pJ/bit' or 'component: sram'",
                    "memory",
                    name,
                )
            self._priced(level.energy, "J/B", "memory", name, "energy")
            if not 0 < level.achievable.value <= 1:
                raise FieldError(
                    "must be more than 0 and at most 1, a share of the peak bandwidth",
                    *("memory", name, "achievable"),
                )
            if level.instances.value < 1:
                raise FieldError("must be at least 1", "memory", name, "instances")

    def _check_dies(self) -> None:
        """Check that dies can be equal.

        Raises
        ------
        FieldError
            If something does not divide, or is no part of a die.
        """
        dies = self.dies
        if dies is None or dies.count.value == 1:
            return
        count = dies.count.value
        if self.host is not None:
            raise FieldError("a device of several dies has no host processor", "host")
        for name, engine in self.engines.items():
            for field, number in (
                ("array", engine.array and engine.array.count.value),
                ("grid", engine.grid and engine.grid.cores.value),
                ("bsp", engine.bsp and engine.bsp.tiles.value),
            ):
                if number and number % count:
                    what = {"array": "arrays", "grid": "cores", "bsp": "tiles"}[field]
                    raise FieldError(
                        f"{number} {what} cannot be shared out evenly over {count} dies",
                        *("engines", name, field),
                    )
        for name, level in self.memory.items():
            number = level.instances.value
            if number > 1 and number % count:
                raise FieldError(
                    f"{number} instances cannot be shared out evenly over {count} dies",
                    *("memory", name, "instances"),
                )

    def _check_engines(self) -> None:
        self._check_dies()
        for name, engine in self.engines.items():
            engine.check_peak(1 if self.dies is None else self.dies.count.value, "engines", name)
            unpriced = sorted(set(engine.rates) - set(engine.energy))
            if unpriced:
                raise FieldError(
                    f"engine {name!r} has no energy entry for {', '.join(unpriced)}, and no "
                    "component that gives it",
                    *("engines", name, "energy"),
                )
            for format_, other in engine.converted.items():
                able = [rate for rate in engine.rates if rate not in engine.converted]
                if other.value not in able:
                    near = f"{nearest(other.value, able)} (it does: {', '.join(able)})"
                    raise FieldError(
                        f"the engine {name!r} does not multiply {other.value!r}{near}",
                        *("engines", name, "converted", format_),
                    )
            array = engine.array
            buffers = [level for level in self.memory.values() if level.kind != "registers"]
            if array is not None and array.is_padded and len(buffers) < 2:
                raise FieldError(
                    "needs a buffer between the array and the farthest memory",
                    *("engines", name, "array", "padded_weights"),
                )
            if engine.spatial is not None and engine.spatial.buffer not in self.memory:
                buffer = engine.spatial.buffer
                raise FieldError(
                    f"there is no memory level {buffer!r}{nearest(buffer, self.memory)} "
                    f"(there are: {', '.join(self.memory)})",
                    *("engines", name, "spatial", "buffer"),
                )
            for format_, entry in engine.energy.items():
                self._priced(entry, "J/FLOP", "engines", name, "energy", format_)
            if engine.bsp is not None and engine.bsp.exchange_energy is not None:
                place = ("engines", name, "bsp", "exchange_energy")
                self._priced(engine.bsp.exchange_energy, "J/B", *place)
        if self.dies is not None:
            self._priced(self.dies.link.energy, "J/B", "dies", "link", "energy")

    def _check_host(self) -> None:
        host = self.host
        if host is None:
            return
        for name in HOST_PLACES:
            for field, names in (("engines", self.engines), ("memory", self.memory)):
                if name in names:
                    raise FieldError(f"{name!r} is a part of the device's host", field, name)
        unpriced = sorted(set(host.rates) - set(host.energy))
        if unpriced:
            raise FieldError(f"the host has no energy for {', '.join(unpriced)}", "host", "energy")
        for format_, entry in host.energy.items():
            self._priced(entry, "J/FLOP", "host", "energy", format_)
        self._priced(host.memory_energy, "J/B", "host", "memory_energy")
        self._priced(host.link.energy, "J/B", "host", "link", "energy")

    def _check_achievable(self) -> None:
        for position, row in enumerate(self.achievable):
            place = ("achievable", position)
            if row.engine not in self.engines:
                raise FieldError(
                    f"there is no engine {row.engine!r}{nearest(row.engine, self.engines)} "
                    f"(there are: {', '.join(self.engines)})",
                    *(*place, "engine"),
                )
            rates = self.engines[row.engine].rates
            if row.format not in rates:
                raise FieldError(
                    f"the engine {row.engine!r} has no rate for {row.format!r}"
                    f"{nearest(row.format, rates)} (it has: {', '.join(rates)})",
                    *(*place, "format"),
                )
            if row.op != "conv2d" and row.filter is not None:
                raise FieldError("only a convolution has a filter", *place, "filter")
            if row.filter != "3x3" and row.block is not None:
                raise FieldError("only filters of 3x3 are computed in blocks", *place, "block")
            if row.op != "recurrence" and row.step_latency is not None:
                raise FieldError("only a recurrence has steps", *place, "step_latency")
            if row.fraction.value <= 0:
                raise FieldError("must be more than 0", *place, "fraction")
            on_cores = row.each is not None or row.repack != Repack()
            if on_cores and self.engines[row.engine].kind != "cores":
                raise FieldError(
                    f"each and repack are of engines of kind cores; {row.engine!r} is "
                    f"{self.engines[row.engine].kind}",
                    *place,
                )

    def _priced(self, entry: str, unit: Literal["J/FLOP", "J/B"], *place: str) -> None:
        try:
            self.prices.price_j(entry, unit)
        except ConfigError as error:
            raise FieldError(str(error), *place) from error

    @property
    def far_memory(self) -> str:
        """Name of the farthest memory level, the one that tensors live in."""
        return next(reversed(self.memory))

    @property
    def converted(self) -> dict[str, str]:
        """Formats that kernels for products convert, and to which."""
        able = [engine.converted for engine in self.engines.values() if "matrix" in engine.runs]
        return {format_: to.value for converted in able for format_, to in converted.items()}

    @property
    def unpriced(self) -> tuple[str, ...]:
        """What the device's file leaves out, so that its energy is not 0 but unknown; its notes."""
        described = {level.kind for level in self.memory.values()}
        missing = [
            f"energy of {what}: {self.name} describes none"
            for kind, what in _LEVELS.items()
            if kind not in described
        ]
        if self.host is not None:
            missing.append(f"idle power of the {HOST} ({self.host.name})")
        tiles = (engine.bsp for engine in self.engines.values() if engine.bsp is not None)
        if any(machine.exchange_energy is None for machine in tiles):
            missing.append(f"energy of the exchange between tiles: {self.name} describes none")
        return (*missing, *self._not_stated, *self.notes)

    @property
    def _not_stated(self) -> tuple[str, ...]:
        """Energies and power that the file says are not stated; a 0 stands in their place."""
        used = {entry for engine in self.engines.values() for entry in engine.energy.values()}
        used |= {level.energy for level in self.memory.values()}
        entries = self.prices.entries
        found = [
            f"energy of {entry}"
            for entry in sorted(used)
            if entry in entries and entries[entry].is_unknown
        ]
        idle = self.idle_power
        unknown = idle.basis == "assumed" or idle.basis == NOT_STATED != idle.source
        if unknown and not idle.value:
            found.append("idle power")
        return tuple(f"{what}: not stated for {self.name}, counted as 0" for what in found)

    @property
    def board_limit(self) -> Sourced[units.SomeWatts] | None:
        """What the board may draw: the design power where the voltage can follow the clock."""
        if self.power_limit is None and self.voltage_floor is not None:
            return self.tdp
        return self.power_limit

    @property
    def component_notes(self) -> tuple[str, ...]:
        """What comes from components and is extrapolated there, and a thermal limit passed."""
        idle_is_leakage = self.idle_power.source == SUMMED
        notes = tuple(part_notes(self.parts, idle_is_leakage=idle_is_leakage))
        if self.thermal_limit is None:
            return notes
        density = self.peak_power_density_w_m2
        if density is None:
            return (*notes, "the thermal limit is not checked: the area of the device is not known")
        if density <= self.thermal_limit.value:
            return notes
        return (
            *notes,
            f"at its peak the device draws {density * 1e-6:.3g} W/mm2, above its thermal limit of "
            f"{self.thermal_limit.value * 1e-6:.3g} W/mm2",
        )

    @property
    def area_m2(self) -> float | None:
        """Area as stated, else the sum of its components' areas; None: neither is known."""
        return None if self.area is None else self.area.value

    @property
    def peak_power_w(self) -> float:
        """Upper estimate of the power on the die.

        Idle power, every engine in its dearest format at its peak rate, and every level on the die
        at its peak bandwidth; a level without a bandwidth is left out.
        """
        engines = (
            max(
                rate.value * self.prices.price_j(engine.energy[format_], "J/FLOP")
                for format_, rate in engine.rates.items()
            )
            for engine in self.engines.values()
        )
        levels = (
            level.bandwidth.value * self.prices.price_j(level.energy, "J/B")
            for level in self.memory.values()
            if level.bandwidth is not None and level.kind != "dram"
        )
        return self.idle_power.value + sum(engines) + sum(levels)

    @property
    def peak_power_density_w_m2(self) -> float | None:
        """`peak_power_w` over the area; None where the area is not known."""
        return None if self.area is None else self.peak_power_w / self.area.value

    @property
    def capacity_bytes(self) -> float:
        """Capacity of the farthest memory level."""
        return self.memory[self.far_memory].capacity.value

    def _repr_html_(self) -> str:
        return views.html("device", self)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        peak = max(
            (rate.value, format_, name)
            for name, engine in self.engines.items()
            for format_, rate in engine.rates.items()
        )
        far = self.memory[self.far_memory]
        assert far.bandwidth is not None
        return (
            f"<Device {self.name}: {units.show(peak[0], 'FLOP/s')} {peak[1]} on {peak[2]}, "
            f"{far.capacity.value / 2**30:.4g} GiB {self.far_memory} "
            f"at {units.show(far.bandwidth.value, 'B/s')}>"
        )
