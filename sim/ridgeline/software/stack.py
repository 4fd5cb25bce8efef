"""Schema of a software stack: what a training program does beside the choice of distribution.

A measured step is a model on a machine under a program. A stack describes the program: how its
host launches kernels, which kernels it has, how it keeps and sends gradients, what it overlaps,
how it updates weights, what it allocates, and which fields of a `Plan` it has unless told
otherwise.

Values are plain; where each comes from is in `Stack.provenance`, by dotted path. The defaults of
the schema describe a program without any of these costs: kernels are launched in no time, every op
is one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from ridgeline import units, views
from ridgeline.config import Aliases, Document, FieldError, Strict, validate
from ridgeline.errors import ConfigError, nearest

ConvLibrary = Literal["cudnn2", "cudnn4", "cudnn5", "caffe", "torch7"]
"""Whose kernels convolutions are, where that is another than what a device was measured with."""
Fusion = Literal["fused", "primitive", "eager", "routed", "tanh-gelu"]
AttentionKernel = Literal["separate", "eager", "flash", "flash-1"]
MainGrads = Literal["wide", "narrow", "flat", "both"]
OptimizerImpl = Literal["foreach", "fused", "per-tensor", "graph"]
Family = Literal[
    "megatron", "pytorch", "deepspeed", "fsdp", "jax", "tensorflow", "mxnet", "caffe", "torch7",
    "other", "ideal",
]  # fmt: skip
"""Families of stacks, by which prediction errors are pooled."""


def si_bytes(raw: object) -> object:
    """Let Python code give bytes as a number, as a manifest does; text needs its unit."""
    return f"{raw!r} B" if isinstance(raw, int | float) and not isinstance(raw, bool) else raw


def si_seconds(raw: object) -> object:
    """Let Python code give seconds as a number, as `si_bytes`."""
    return f"{raw!r} s" if isinstance(raw, int | float) and not isinstance(raw, bool) else raw


SizeOrZero = Annotated[units.MaybeBytes, BeforeValidator(si_bytes)]
Size = Annotated[units.Bytes, BeforeValidator(si_bytes)]
Duration = Annotated[units.Seconds, BeforeValidator(si_seconds)]


class HostSettings(Strict):
    """The host process that launches kernels."""

    launch_time: Duration = 0.0
    """Time of the host to launch one op of the forward or backward pass, on a current processor
    (`hardware.node.Host.issue` scales it); 0: ops are recorded or compiled (CUDA graphs, XLA), so
    that the host is never waited for."""
    async_launch: bool = True
    """Whether the host launches ops ahead of the device; else it waits for each before the next."""
    step_wait: Duration = 0.0
    """Time of a step in which the device waits for the host, once a step (ops that run there)."""


class KernelSettings(Strict):
    """Kernels of one op, and which ops are one kernel."""

    attention: AttentionKernel | None = None
    """Kernel of attention: fused (``flash``; ``flash-1``: FlashAttention of 2022), products and
    softmax as ``separate`` ops, or these with every mask and scale op by op (``eager``); None: as
    the network's description says."""
    attention_since: int = Field(default=0, ge=0, le=2100)
    """Year of the oldest devices that the fused attention kernel runs on; older ones take
    `attention_fallback`. 0: all devices."""
    attention_fallback: AttentionKernel | None = None
    """Kernel of attention on devices older than `attention_since`."""
    attention_transpose: bool = False
    """Whether products of attention read copies in which the rows of a head are together; else they
    read heads where they lie, side by side in the features of a position (`passes.layout`)."""
    fusion: Fusion = "fused"
    """Whether gelu, dropout, norms, rotations and gates are one kernel each, or the ops of a
    framework that has none for the whole: ``primitive`` (TensorFlow without XLA), ``eager``
    (PyTorch without a compiler), ``routed`` (routers of experts and rotations of latent attention
    alone), ``tanh-gelu`` (gelu alone, in its tanh form: GPT-2 of Hugging Face)."""
    fused_layers: Literal["time", "energy", "bytes"] | None = None
    """What is least of a step whose consecutive layers are computed some rows at a time, with what
    lies between them on chip (`kernels.fusion`): its time, its energy, or bytes of far memory.
    None: every op is done by itself, and keeps whole tensors on chip as its device does."""
    norm: Literal["shared", "by-channel", "fused"] = "shared"
    """Whether all multiprocessors share a norm over images, one thread block has each mean
    (``by-channel``, kernels for channels first), or the kernel also adds the shortcut and applies
    relu (``fused``)."""
    sync_batch_norm: bool = False
    """Whether batch norms of images that devices share normalise with the whole image's statistics,
    which are then summed up; else with those of a device's own part."""
    layout: Literal["channels-last", "channels-first"] = "channels-last"
    """How images lie in memory: as tensor cores want them, or so that each convolution there copies
    what it reads and writes."""
    conv_library: ConvLibrary | None = None
    """Whose kernels convolutions are, where not those that a device was measured with."""
    conv_workspace: SizeOrZero | None = None
    """Work space that a convolution may have: kernels that need more are not taken; None: as much
    as they need."""
    input_gradients: bool = False
    """Whether the first layers form the gradients of the data, which nobody reads."""
    cross_entropy: Literal["fused", "separate", "log-softmax"] | None = None
    """Cross entropy of tokens: one kernel, all its steps kernels of their own (Megatron-LM), or
    log-softmax and the loss of its result (PyTorch); None: as the network's description says."""
    embedding_tables: Literal["master", "computed"] | None = None
    """Which tables tokens are looked up in: those that are updated, or copies in the format of
    products (Megatron-LM, whose weights are all in 16 bits); None: as the network says."""


class GradientSettings(Strict):
    """How gradients of weights are kept, added up and sent."""

    main_grads: MainGrads = "wide"
    """Format in which gradients are summed and sent: that of the update (``wide``); that in which
    the passes compute, from which the update widens them (``narrow``, apex O2), or copies of them
    (``flat``, DeepSpeed's fp16); or wide, beside those of one micro-batch (``both``, DeepSpeed's
    bf16)."""
    accumulation_fusion: bool = False
    """Whether the products that make gradients of weights add them to those of earlier
    micro-batches; else kernels of their own do."""
    bucket: Size = 25 * 2.0**20
    """Gradients are reduced in buckets of at least this size."""
    bucket_per_rank: SizeOrZero = 0.0
    """And of at least this size for each replica, since rings pass as many parts of a bucket."""
    bucket_copies: bool = False
    """Whether gradients are copied into their buckets and back; else they are made where they are
    reduced."""
    reduce_dtype: Literal["", "bf16", "fp16"] = ""
    """Number format in which gradients are sent and summed over replicas, if it is narrower than
    their own: they are cast into their buckets and back."""
    sweeps: int = Field(default=0, ge=0, le=64)
    """How often kernels read or write all gradients at the end of a step, besides their reduction
    and the update: to set them to zero, divide, scale and check them."""
    fusion_cycle_time: Duration = 0.0
    """How often a coordinator looks for gradients that all ranks have (Horovod's cycle time): the
    last of a step wait half as long, on average; 0: their reduction is launched behind them."""
    update_interval: int = Field(default=1, ge=0, le=2**20)
    """Batches that share one weight update, each with its own reduction of gradients; 0: weights
    are not updated (benchmarks of the passes alone)."""


class OverlapSettings(Strict):
    """What goes on beside what."""

    gradients: bool | Literal["gathers"] = True
    """Whether gradients are reduced, and sharded weights gathered, while the passes go on;
    "gathers": weights are, and gradients are reduced behind the backward pass (XLA on TPUs)."""
    tensor: bool | Literal["gathers", "pieces"] = False
    """Whether ops that need nothing of a collective between tensor-parallel ranks run while that
    goes on; "gathers": beside gathers alone; "pieces": products next to gathers and scattered sums
    are cut, so that they run beside them."""
    moe_a2a: bool = False
    """Whether a backward pass and the forward pass of another micro-batch go on side by side, each
    while the other waits for rows of experts (1F1B with all-to-all overlap)."""
    contention: bool = False
    """Whether ops that run beside collectives are slowed by what these take of the device's
    multiprocessors and memory."""


class OptimizerSettings(Strict):
    """How weights are updated."""

    impl: OptimizerImpl = "foreach"
    """Kernels for many tensors in one launch (``foreach``) or in launches of 320 chunks (``fused``:
    apex, Transformer Engine); or tensor after tensor and op by op, by a loop over them
    (``per-tensor``) or as ops of TensorFlow's graph (``graph``)."""
    clip_sweeps: int = Field(default=0, ge=0, le=64)
    """How often kernels read or write the gradients that a device updates weights with, before it
    does: for their norm, and to scale them by it (clipping)."""
    loss_scale_check: bool = False
    """Whether a kernel scales all gradients back and looks for infinite ones before the update, and
    the host waits for what it found (loss scaling of PyTorch and apex in fp16)."""


class ZeroSettings(Strict):
    """How weights that data-parallel ranks share (ZeRO stage 3, FSDP) are gathered."""

    reshard_after_forward: Literal["all", "blocks"] = "all"
    """Which weights are gathered again for the backward pass: all, or those of every block but the
    last, where the others stay gathered since the forward pass (PyTorch's FSDP)."""
    gather_copies: bool = False
    """Whether gathered weights are copied out of a buffer (PyTorch's FSDP2)."""


class PipelineSettings(Strict):
    """How stages of a pipeline pass activations on."""

    p2p_scatter_gather: Literal["both", "forward", "none"] = "both"
    """Which messages between stages tensor-parallel ranks send in parts, each its own, where all
    have the same: both ways (Megatron-LM), activations only (DeepSpeed), none."""
    deallocate_outputs: bool = True
    """Whether a stage frees what it has sent with the last op that reads it (Megatron-LM since
    2022); else it keeps it until the backward pass of the same micro-batch (DeepSpeed)."""
    buffers_per_stage: float = Field(default=0.0, ge=0.0, le=64.0)
    """Buffers that every stage but the last has all the time of each tensor that its backward pass
    reads of the forward pass, for each stage of the pipeline (OneFlow: 2); 0: one for each
    micro-batch that is under way."""


class MoeSettings(Strict):
    """How tokens reach their experts."""

    dispatch: Literal["per-expert", "node-limited"] = "per-expert"
    """What ranks send of a token: a row for each of its experts, or one to each node that has some,
    where it is passed on (DeepEP)."""
    combine: Literal["gathered", "atomic"] = "gathered"
    """How rows of experts are added up for their tokens: by a kernel that gathers those of each, or
    number by number, by atomic additions (Megatron-Core by default)."""
    grouped_gemm: bool = True
    """Whether the products of a device's experts are launched as one op; else one by one, by a host
    that has waited for how many rows each expert has (Transformer Engine's `GroupedLinear`)."""


class InputSettings(Strict):
    """How the program prepares samples that a data set feeds it with."""

    preparing: Annotated[float, Field(ge=0, le=1e3)] = 1.0
    """What a core of the host does with a sample, over decoding it alone."""
    pixels: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """What it does besides for every 224 x 224 pixels of an image that the network gets."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Processes that prepare samples for one device, at most; 0: as many as there are cores."""


class MemorySettings(Strict):
    """What the program takes of a device's memory besides tensors."""

    runtime: SizeOrZero = 0.0
    """Context, loaded kernels and buffers of collectives of each device."""
    allocator: Literal["exact", "caching"] = "exact"
    """What of the device counts as taken: its tensors, or what PyTorch's caching allocator reserves
    for them, which it does not give back."""
    communicators: tuple[Literal["world", "tensor", "data", "model"], ...] = Field(
        default=(), strict=False
    )
    """Groups of ranks with NCCL communicators, whose buffers count where `runtime` is given."""


class ReportingSettings(Strict):
    """How the program counts what it states of itself."""

    counts_recompute: bool = True
    """Whether its FLOP/s count what is computed again."""
    counts_parameters: bool = False
    """Whether it counts six FLOPs a parameter and token, and half of those of causal attention."""


class PlanDefaults(Strict):
    """Fields of a `Plan` that the program has unless told otherwise; None: as `Plan` itself."""

    sequence: bool | None = None
    """Whether tensor-parallel ranks share the positions between the ops that they divide."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    hybrid_shard_size: Literal["slice"] | None = None
    """``slice``: state is sharded within each slice of a machine, or node; slices replicate."""
    expert_tensor_parallel: Annotated[int, Field(ge=0)] | None = None
    cp_comm_type: Literal["all-gather", "ring"] | None = None
    recompute: str | None = None
    """A mode or modules, as `Plan.recompute`."""
    schedule: str | None = None
    stage_balance: Literal["even", "layers", "ends"] | None = None
    precision: str | None = None


class SupportedRuns(Strict):
    """What the program can run; an empty list does not restrict."""

    networks: tuple[str, ...] = Field(default=(), strict=False)
    """Kinds of networks, as `workload.families` has them: decoder, cnn, ..."""
    vendors: tuple[str, ...] = Field(default=(), strict=False)
    """Makers of devices, as `Device.vendor` has them: nvidia, amd, google, intel, ..."""
    plan: tuple[str, ...] = Field(default=(), strict=False)
    """Dimensions of a plan of more than one: data, tensor, context, pipeline, expert, spatial."""
    precisions: tuple[str, ...] = Field(default=(), strict=False)
    """Precisions."""


class Provenance(Strict):
    """Where a value of a stack comes from."""

    source: str
    """A key of `Stack.sources`, or a citation in words."""
    note: str = ""
    basis: str = ""
    of: str = ""
    """The stack whose file says it, where that is a base of this one."""


GROUPS = (
    "host", "kernels", "gradients", "overlap", "optimizer", "zero", "pipeline", "moe", "input",
    "memory", "reporting", "plan",
)  # fmt: skip


_BY_USER = Provenance(source="override by the user", basis="assumed")


class Stack(Strict):
    """A software stack: the program, and its version, that runs a training step."""

    kind: Literal["software"] = "software"
    name: str = Field(min_length=1)
    """Name in the catalogue: lower case with hyphens."""
    description: str = ""
    """One line for people."""
    aliases: Aliases = ()
    """What people call it besides, where case, hyphens and vendors are not all that differs."""
    family: Family = "other"
    """Family by which prediction errors are pooled."""
    year: int | None = Field(default=None, ge=1980, le=2100)
    """Year of the release, or from which on the program behaved so."""
    base: str = ""
    """The stack that this one starts from, or ""."""
    bound: bool = False
    """Whether the stack describes no program but a bound: no host, no noise of devices."""
    supports: SupportedRuns = SupportedRuns()

    host: HostSettings = HostSettings()
    kernels: KernelSettings = KernelSettings()
    gradients: GradientSettings = GradientSettings()
    overlap: OverlapSettings = OverlapSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    zero: ZeroSettings = ZeroSettings()
    pipeline: PipelineSettings = PipelineSettings()
    moe: MoeSettings = MoeSettings()
    input: InputSettings = InputSettings()
    memory: MemorySettings = MemorySettings()
    reporting: ReportingSettings = ReportingSettings()
    plan: PlanDefaults = PlanDefaults()

    sources: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Citations by short name; values refer to them."""
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, exclude=True, repr=False)
    """Source of every value that a file states, by dotted path; put here by the loader."""
    overrides: Mapping[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    """Fields that were replaced on the way from the file, by dotted path."""

    @model_validator(mode="after")
    def _check(self) -> Stack:
        if self.kernels.attention_since and self.kernels.attention_fallback is None:
            raise FieldError(
                "attention_since needs attention_fallback, the kernel of older devices",
                *("kernels", "attention_since"),
            )
        return self

    @property
    def settings(self) -> tuple[Strict, ...]:
        """All that the compiler reads of a stack: equal for stacks that differ in name alone."""
        return tuple(getattr(self, name) for name in GROUPS)

    def __hash__(self) -> int:
        return hash((self.bound, *self.settings))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stack):
            return NotImplemented
        return (self.name, self.bound, self.settings) == (other.name, other.bound, other.settings)

    def with_settings(self, values: Mapping[str, Any]) -> Stack:
        """Return this stack with settings replaced: ``{"host.launch_time": 15e-6}``.

        Raises
        ------
        ConfigError
            If a path names no setting, or a value is not allowed.
        """
        data = self.model_dump(exclude={"provenance", "overrides"})
        known = set(setting_paths())
        for path, value in values.items():
            if path not in known:
                raise ConfigError(
                    f"a software stack has no setting {path!r}{unknown_setting(path)}",
                    field=f"software.{path}",
                )
            group, _, field = path.partition(".")
            data[group] = {**data[group], field: value}
        document = Document(f"software {self.name}", data, {}, tuple(values))
        sources = {**self.provenance, **dict.fromkeys(values, _BY_USER)}
        said = {**self.overrides, **values}
        changed = {"provenance": sources, "overrides": said}
        return validate(document, Stack).model_copy(update=changed)

    def _repr_html_(self) -> str:
        return views.html("stack", self)

    def __repr__(self) -> str:
        return f"<Stack {self.name}>"

    def __str__(self) -> str:
        return self.name


def setting_paths() -> list[str]:
    """Return the dotted paths of all settings: host.launch_time, kernels.attention, ..."""
    return [
        f"{group}.{name}"
        for group in GROUPS
        for name in type(getattr(Stack(name="any"), group)).model_fields
    ]


def unknown_setting(path: str) -> str:
    """Ask for the setting whose path is nearest to one that is unknown; "" if none is near."""
    return nearest(path, setting_paths())


FUSIONS: tuple[Fusion, ...] = get_args(Fusion)
