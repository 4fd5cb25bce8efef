"""What Calculon's three JSON files may hold: application, execution and system.

The fields are those of Calculon as published (Isaev et al., SC 2023, calculon-ai/calculon), in all
forms that its files have had. Systems: an engine's rate and efficiencies by number format, one rate
with efficiencies by format, or one of each for all formats; collective factors as
``[factor, offset]`` or as a number. Applications: with a name, and without the sizes that a block
of Megatron has (a feed-forward network of four times the width, heads that share it out).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ridgeline.config import FieldError, Strict

DataType = Literal["float8", "float16", "bfloat16", "float32"]
MAX_NODE = 1024
"""Devices that a node has at most."""
NO_LIMIT_GIB = 2.0**30
"""1 EiB: a system with a memory of as much or more has one without a limit."""
UNNAMED: tuple[DataType, ...] = ("float16", "bfloat16")
"""Formats of an engine whose file names none: those that Calculon's runs are in."""
Count = Annotated[int, Field(ge=1, le=10**6)]
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Step = Annotated[tuple[NotNegative, Share], Field(strict=False)]
Steps = Annotated[tuple[Step, ...], Field(strict=False, min_length=1)]
Factor = Annotated[tuple[Positive, float | None], Field(strict=False)]


class CalculonApplication(Strict):
    """A decoder of equal blocks."""

    name: str | None = None
    hidden: Count
    feedforward: Count
    seq_size: Count
    attn_heads: Count
    attn_size: Count
    num_blocks: Annotated[int, Field(ge=1, le=1000)]

    @model_validator(mode="before")
    @classmethod
    def _sizes_of_a_block(cls, raw: Any) -> Any:
        """Fill in what the first versions did not state."""
        if not isinstance(raw, dict):
            return raw
        hidden, heads = raw.get("hidden"), raw.get("attn_heads")
        first = {}
        if type(hidden) is int:
            first["feedforward"] = 4 * hidden
            if type(heads) is int and heads > 0:
                if hidden % heads and "attn_size" not in raw:
                    raise FieldError(
                        f"{heads} heads do not divide the width {hidden}; state attn_size",
                        "attn_heads",
                    )
                first["attn_size"] = hidden // heads
        if "num_layers" in raw and "num_blocks" not in raw:
            first["num_blocks"] = raw["num_layers"]
            raw = {name: value for name, value in raw.items() if name != "num_layers"}
        return {**first, **raw}


class CalculonExecution(Strict):
    """How it is distributed. Fields with a default are not in files of older versions."""

    num_procs: Count
    tensor_par: Count
    pipeline_par: Count
    data_par: Count
    tensor_par_net: Annotated[int, Field(ge=0)]
    pipeline_par_net: Annotated[int, Field(ge=0)]
    data_par_net: Annotated[int, Field(ge=0)]
    batch_size: Annotated[int, Field(ge=1, le=2**31)]
    microbatch_size: Annotated[int, Field(ge=1, le=2**31)]
    datatype: DataType
    fused_activation: bool = False
    attention_type: Literal["multihead", "multiquery"] = "multihead"
    activation_recompute: Literal["full", "attn_only", "none"]
    pipeline_interleaving: Annotated[int, Field(ge=1, le=10**4)]
    optimizer_sharding: bool
    tensor_par_comm_type: Literal["ar", "p2p_rs_ag", "rs_ag"]
    in_network_reduction: bool = False
    tensor_par_overlap: Literal["none", "ring", "pipe"] = "none"
    seq_par_ag_redo: bool
    data_par_overlap: bool
    weight_offload: bool
    activations_offload: bool
    optimizer_offload: bool
    training: bool

    @model_validator(mode="after")
    def _consistent(self) -> CalculonExecution:
        product = self.tensor_par * self.pipeline_par * self.data_par
        if self.num_procs != product:
            raise FieldError(
                f"{self.num_procs} is not tensor_par x pipeline_par x data_par = {product}",
                "num_procs",
            )
        if self.batch_size % (self.data_par * self.microbatch_size):
            raise FieldError(
                f"{self.batch_size} is no multiple of data_par x microbatch_size ="
                f" {self.data_par * self.microbatch_size}",
                "batch_size",
            )
        if self.pipeline_interleaving > 1 and self.pipeline_par == 1:
            raise FieldError("needs pipeline_par of at least 2", "pipeline_interleaving")
        for field in ("weight_offload", "optimizer_offload"):
            if getattr(self, field):
                raise FieldError("not simulated; of all that waits, activations can be", field)
        if not self.training:
            raise FieldError("inference is not simulated, only training steps", "training")
        return self


class CalculonRate(Strict):
    """An engine in one number format: peak, and the share of it by size of the op in GFLOP."""

    tflops: Positive
    gflops_efficiency: Steps

    @model_validator(mode="after")
    def _consistent(self) -> CalculonRate:
        check_steps(self.gflops_efficiency, "gflops_efficiency")
        return self


class CalculonProcessor(Strict):
    """An engine by number format."""

    float8: CalculonRate | None = None
    float16: CalculonRate | None = None
    bfloat16: CalculonRate | None = None
    float32: CalculonRate | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_rate(cls, raw: Any) -> Any:
        """Turn one rate with efficiencies by format into a rate for each format."""
        if not isinstance(raw, dict) or "tflops" not in raw:
            return raw
        known = {"tflops", "gflops_efficiency"}
        if unknown := sorted(set(raw) - known):
            raise FieldError(f"unknown field {unknown[0]!r}", unknown[0])
        steps = raw.get("gflops_efficiency")
        if isinstance(steps, list):
            steps = dict.fromkeys(UNNAMED, steps)
        if not isinstance(steps, dict):
            raise FieldError(
                "expected rows of [size, efficiency], or such rows by number format",
                "gflops_efficiency",
            )
        return {
            format_: {"tflops": raw["tflops"], "gflops_efficiency": of}
            for format_, of in steps.items()
        }

    def rates(self) -> dict[DataType, CalculonRate]:
        """Return the formats that it has."""
        found: dict[DataType, CalculonRate | None] = {
            "float8": self.float8,
            "float16": self.float16,
            "bfloat16": self.bfloat16,
            "float32": self.float32,
        }
        return {format_: rate for format_, rate in found.items() if rate is not None}


class CalculonMemory(Strict):
    """A memory: the share of its bandwidth by size of the access in MB."""

    GiB: Positive
    GBps: Positive
    MB_efficiency: Steps

    @property
    def unlimited(self) -> bool:
        """Whether its size stands for no limit."""
        return self.GiB >= NO_LIMIT_GIB

    @property
    def size_gib(self) -> float:
        """Its size; of a memory without a limit the largest that a memory has here."""
        return min(self.GiB, NO_LIMIT_GIB)

    @model_validator(mode="after")
    def _consistent(self) -> CalculonMemory:
        check_steps(self.MB_efficiency, "MB_efficiency")
        return self


class CalculonOps(Strict):
    """Bytes that an operation moves over bytes of the operand; of collectives with an offset."""

    p2p: Positive | Factor
    reduce_scatter: Positive | Factor
    all_gather: Positive | Factor
    all_reduce: Positive | Factor


class CalculonNetwork(Strict):
    """A tier of the network."""

    bandwidth: Positive
    efficiency: Share
    size: Count
    latency: NotNegative
    ops: CalculonOps
    collective_minus1_scalar: bool | None = None
    must_be_filled: bool = False
    processor_usage: Annotated[float, Field(ge=0, lt=1)] = 0.0


class CalculonSystem(Strict):
    """A machine."""

    matrix: CalculonProcessor
    vector: CalculonProcessor
    mem1: CalculonMemory
    mem2: CalculonMemory
    processing_mode: Literal["roofline", "no_overlap"]
    networks: Annotated[tuple[CalculonNetwork, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> CalculonSystem:
        for engine in ("matrix", "vector"):
            if not getattr(self, engine).rates():
                raise FieldError("there is no number format", engine)
        if len(self.networks) > 2:
            raise FieldError(
                f"found {len(self.networks)} tiers; one or two can be read: a node, and a fabric",
                "networks",
            )
        if (size := self.networks[0].size) > MAX_NODE:
            raise FieldError(
                f"found {size} processors; at most {MAX_NODE} on the first tier can be read",
                *("networks", 0, "size"),
            )
        return self


def check_steps(steps: tuple[tuple[float, float], ...], field: str) -> None:
    """Raise FieldError unless sizes fall down to 0, so that every size has a share."""
    sizes = [size for size, _ in steps]
    if sizes != sorted(set(sizes), reverse=True):
        raise FieldError("sizes must fall from row to row", field)
    if sizes[-1] != 0:
        raise FieldError(f"the last size must be 0, found {sizes[-1]:g}", field, len(sizes) - 1)
