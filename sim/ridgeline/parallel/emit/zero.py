"""ZeRO sharding: weights, gradients and optimizer state split over data-parallel ranks.

Rajbhandari et al., ZeRO, SC 2020, arXiv:1910.02054, Section 5: of d ranks each holds and updates a
d-th of the optimizer state (stage 1), of the gradients, too (2), and of the weights, too (3, in
PyTorch "fully sharded data parallel"). The collectives are put into the graph as ops:

- stage 1 and 2: what the ops compute with is gathered once a step, before it is first read;
- stage 3: it is gathered for the forward pass of every micro-batch, and again for its backward
  pass, one bucket ahead of the ops that read it, and given back after the last of these; or the
  last block and what is in no block stay gathered from one pass to the other; what is gathered may
  be copied out of a buffer (PyTorch's FSDP2, whose parameters are tensors of their own:
  `all_gather_copy_out` in _fsdp_collectives.py);
- stage 2 and 3: gradients are scattered (and summed) as soon as a bucket of them is complete, in
  every micro-batch; stage 1 scatters them once at the end of the step, which is not done here.

A weight that has a copy in another format is held in full in that format only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ridgeline.parallel.checkpointing.blocks import forward_blocks, forward_ops
from ridgeline.parallel.emit.buckets import gradient_buckets
from ridgeline.parallel.emit.grad_accumulation import casts
from ridgeline.parallel.emit.owned_matrices import of_matrices, share_matrices
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass, Passes, Role, Tensor

SHARD, SCATTERED = ".shard", ".scattered"
GATHERED = ".gathered"
BUFFER = ".buffer"


def with_sharding(
    graph: Graph,
    stage: int,
    ranks: int,
    bucket_bytes: float,
    *,
    dimension: str = "data",
    without: frozenset[str] = frozenset(),
    regather: str = "all",
    beyond: str = "",
    copies: bool = False,
) -> Graph:
    """Return what one of the ranks does and holds.

    Parameters
    ----------
    graph
        Of one pipeline stage and one micro-batch.
    stage
        1, 2 or 3; 0 changes nothing.
    ranks
        How many share.
    bucket_bytes
        Gradients and weights are moved in buckets of at least this size.
    dimension
        Of the plan, along which the ranks lie.
    without
        Weights, and copies of them, that are not shared so.
    regather
        Of stage 3, what is gathered again for the backward pass (`Plan.regather`).
    beyond
        Dimension along which others share the same, whose gradients are added to each part's; "":
        there are none.
    copies
        Of stage 3, whether what is gathered is copied out of a buffer (`Plan.gather_copies`).
    """
    if stage == 0 or ranks == 1:
        return graph
    graph = share_matrices(graph, ranks, dimension, exchanged=stage >= 2, without=without)
    kept = _stay_gathered(graph) if regather == "blocks" else frozenset()
    of = _Sharing(
        graph, stage, ranks, bucket_bytes=bucket_bytes, dimension=dimension, without=without,
        kept=kept, beyond=beyond, copies=copies,
    )  # fmt: skip
    return of.result()


def _stay_gathered(graph: Graph) -> frozenset[str]:
    """Name what the forward pass reads in its last block and outside of all blocks."""
    inner = {i for block in forward_blocks(graph)[:-1] for i in block}
    outer = [graph.ops[i] for i in forward_ops(graph) if i not in inner]
    others = frozenset(name for i in inner for name in graph.ops[i].inputs)
    return frozenset(name for op in outer for name in op.inputs) - others


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Tensors that are moved together, and the first and the last op that first reads one."""

    names: tuple[str, ...]
    size_bytes: int
    at: int
    last: int


def _copy_out(gather: Op, outputs: tuple[str, ...]) -> Op:
    """Return the copy of what an op has gathered out of its buffers."""
    name, ones = f"{gather.name}.copy-out", (1,) * len(outputs)
    return Op(
        name, "rearrange", gather.pass_, gather.layer, gather.outputs, outputs, input_passes=ones
    )


class _Sharing:
    def __init__(
        self, graph: Graph, stage: int, ranks: int, *, bucket_bytes: float, dimension: str,
        without: frozenset[str], kept: frozenset[str], beyond: str, copies: bool,
    ) -> None:  # fmt: skip
        self.beyond = beyond
        self.graph, self.stage, self.ranks = graph, stage, ranks
        self.bucket_bytes, self.dimension, self.kept = bucket_bytes, dimension, kept
        self.copies = copies
        self.others = self._of_others(without)
        self.whole_matrices = of_matrices(graph)
        self.tensors = dict(graph.tensors)
        self.part = Fraction(1, ranks)
        self.copied = {
            op.inputs[0] for op in graph.ops if self._role(op.outputs) is Role.WEIGHT_COPY
        }
        self.widened = {op.outputs[0] for op in graph.ops if op.pass_ is Pass.UPDATE and casts(op)}

    def _of_others(self, weights: frozenset[str]) -> frozenset[str]:
        """Name weights that are not shared, their states, and all that updates make of them."""
        if not weights:
            return weights
        graph = self.graph
        found = {g for w, g in weight_gradients(graph).items() if w in weights} | weights
        for op in graph.ops:
            if op.pass_ is Pass.UPDATE and found.intersection(op.inputs):
                found.update(n for n in (*op.inputs, *op.outputs))
        return frozenset(found)

    def _role(self, names: Sequence[str]) -> Role | None:
        return self.graph.tensors[names[0]].role if names else None

    def result(self) -> Graph:
        """Put in the collectives and leave every rank its part of what is shared."""
        before: dict[int, list[Op]] = {}
        after: dict[int, list[Op]] = {}
        renamed: dict[int, dict[str, str]] = {}
        computed = self._computed()
        self.copied -= computed  # both: held in full as it is, too
        if self.stage == 3:
            for again in (False, True):
                self._gather_for_pass(computed, again, before, renamed)
        else:
            for bucket in self._in_order(computed, lambda op: True):
                self._gather_once(bucket, before)
        shards = self._scatter(after) if self.stage >= 2 else {}
        ops: list[Op] = []
        for i, op in enumerate(self.graph.ops):
            ops += before.get(i, ())
            ops.append(self._own(self._read(op, renamed.get(i, {}), shards)))
            ops += after.get(i, ())
        held = {name for op in ops for name in (*op.inputs, *op.outputs)}
        tensors = {name: self._held(t) for name, t in self.tensors.items() if name in held}
        return replace(self.graph, ops=tuple(ops), tensors=tensors)

    def _computed(self) -> frozenset[str]:
        """Weights and copies that the ops compute with."""
        reads = (
            name
            for op in self.graph.ops
            if op.pass_ is not Pass.UPDATE and self._role(op.outputs) is not Role.WEIGHT_COPY
            for name in op.inputs
        )
        of_weights = {Role.WEIGHT, Role.WEIGHT_COPY}
        return frozenset(
            name
            for name in reads
            if self.graph.tensors[name].role in of_weights and name not in self.others
        )

    def _in_order(self, names: Iterable[str], counts: Callable[[Op], bool]) -> list[_Bucket]:
        """Bucket weights in the order in which the ops of a pass first read them."""
        wanted, buckets = set(names), []
        found: list[str] = []
        size, at, last = 0, -1, -1
        for i, op in enumerate(self.graph.ops):
            if op.pass_ is Pass.UPDATE or not counts(op):
                continue
            if self._role(op.outputs) is Role.WEIGHT_COPY:
                continue
            for name in op.inputs:
                if name in wanted:
                    wanted.discard(name)
                    at, last = at if found else i, i
                    found.append(name)
                    size += self.graph.tensors[name].bytes
            if size >= self.bucket_bytes:
                buckets.append(_Bucket(tuple(found), size, at, last))
                found, size = [], 0
        if found:
            buckets.append(_Bucket(tuple(found), size, at, last))
        return buckets

    def _gather_once(self, bucket: _Bucket, before: dict[int, list[Op]]) -> None:
        """Gather what is held in full, at the beginning of the step."""
        first = bucket.names[0]
        sources = tuple(self._shard(name) for name in bucket.names)
        op = self._collective("all-gather", f"{first}.gather", bucket, sources, bucket.names)
        before.setdefault(bucket.last, []).append(op)

    def _gather_for_pass(
        self,
        names: frozenset[str],
        backward: bool,
        before: dict[int, list[Op]],
        renamed: dict[int, dict[str, str]],
    ) -> None:
        """Gather for the forward or the backward pass, one bucket ahead."""

        def counts(op: Op) -> bool:
            return (op.pass_ is not Pass.FORWARD) is backward

        kept = names & self.kept if backward else frozenset()
        buckets = self._in_order(names - kept, counts)
        suffix = ".gathered-again" if backward else GATHERED
        new = {name: f"{name}{GATHERED}" for name in kept}
        for k, bucket in enumerate(buckets):
            outputs = tuple(f"{name}{suffix}" for name in bucket.names)
            for name, output in zip(bucket.names, outputs, strict=True):
                of = self.graph.tensors[name]
                self.tensors[output] = replace(of, name=output, role=Role.ACTIVATION_GRADIENT)
                new[name] = output
            pass_ = Pass.INPUT_GRADIENT if backward else Pass.FORWARD
            label = f"{bucket.names[0]}{suffix}"
            come = self._buffers(outputs) if self.copies else outputs
            op = self._collective("all-gather", label, bucket, bucket.names, come, pass_=pass_)
            before.setdefault(buckets[max(k - 1, 0)].at, []).append(op)
            if self.copies:
                before.setdefault(bucket.at, []).append(_copy_out(op, outputs))
        for i, op in enumerate(self.graph.ops):
            copies = self._role(op.outputs) is Role.WEIGHT_COPY
            if op.pass_ is not Pass.UPDATE and counts(op) and not copies:
                renamed[i] = new

    def _buffers(self, names: Sequence[str]) -> tuple[str, ...]:
        """Declare what gathered weights come in before they are copied out of it."""
        for name in names:
            self.tensors[f"{name}{BUFFER}"] = self.tensors[name].renamed(f"{name}{BUFFER}")
        return tuple(f"{name}{BUFFER}" for name in names)

    def _scatter(self, after: dict[int, list[Op]]) -> dict[str, str]:
        """Scatter gradients by buckets as they are made; return their parts' names."""
        shards: dict[str, str] = {}
        for bucket in gradient_buckets(self.graph, self.bucket_bytes, self.others):
            shards.update((name, f"{name}{SHARD}") for name in bucket.tensors)
            outputs = self._parts_of(bucket.tensors, SCATTERED if self.beyond else SHARD)
            moved = _Bucket(bucket.tensors, bucket.size_bytes, bucket.ready, bucket.ready)
            op = self._collective(
                "reduce-scatter",
                f"reduce-scatter {bucket.tensors[0]}",
                moved,
                bucket.tensors,
                outputs,
                pass_=Pass.WEIGHT_GRADIENT,
            )
            after.setdefault(bucket.ready, []).append(op)
            if self.beyond:
                outputs = self._parts_of(bucket.tensors, SHARD)
                after[bucket.ready].append(self._summed(op, outputs, bucket.size_bytes))
        return shards

    def _parts_of(self, gradients: Iterable[str], suffix: str) -> tuple[str, ...]:
        """Declare a rank's parts of gradients."""
        parts = []
        for name in gradients:
            of = self.graph.tensors[name]
            shape = (-(-of.elements // self.ranks),)
            self.tensors[f"{name}{suffix}"] = replace(of, name=f"{name}{suffix}", shape=shape)
            parts.append(f"{name}{suffix}")
        return tuple(parts)

    def _summed(self, scattered: Op, outputs: tuple[str, ...], size_bytes: int) -> Op:
        """Sum the parts of a bucket over those that have the same."""
        attrs = {**dict(scattered.attrs), "dimension": self.beyond}
        attrs["size_bytes"] = -(-size_bytes // self.ranks)
        return replace(
            scattered,
            name=scattered.name.replace("reduce-scatter", "all-reduce", 1),
            kind="all-reduce",
            inputs=scattered.outputs,
            outputs=outputs,
            attrs=tuple(attrs.items()),
        )

    def _collective(
        self,
        kind: str,
        name: str,
        bucket: _Bucket,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        pass_: Pass = Pass.FORWARD,
    ) -> Op:
        attrs = (("dimension", self.dimension), ("size_bytes", bucket.size_bytes), ("repeat", 1))
        layer = self.graph.ops[bucket.at].layer
        passes: Passes = (1,) * len(inputs)
        return Op(name, kind, pass_, layer, inputs, outputs, input_passes=passes, attrs=attrs)

    def _shard(self, name: str) -> str:
        """Name of the part of a held weight or copy that its rank has made."""
        part = f"{name}{SHARD}"
        if self.graph.tensors[name].role is not Role.WEIGHT_COPY:
            return name  # updated in its place in the whole
        of = self.graph.tensors[name]
        shape = (-(-of.elements // self.ranks),)
        self.tensors[part] = replace(of, name=part, shape=shape, role=Role.ACTIVATION)
        return part

    def _read(self, op: Op, gathered: Mapping[str, str], shards: Mapping[str, str]) -> Op:
        """Let an op read what was gathered, and an update the part of the gradient."""
        inputs = op.inputs
        if gathered:
            inputs = tuple(gathered.get(name, name) for name in inputs)
        if op.pass_ is Pass.UPDATE and shards:
            inputs = tuple(shards.get(name, name) for name in inputs)
        return op if inputs == op.inputs else replace(op, inputs=inputs)

    def _own(self, op: Op) -> Op:
        """Leave a rank its part of updates and of the copies of weights."""
        copies = self._role(op.outputs) is Role.WEIGHT_COPY
        if op.pass_ is not Pass.UPDATE and not copies:
            return op
        if op.name in self.whole_matrices or self.others.intersection((*op.inputs, *op.outputs)):
            return op
        if op.attrs and dict(op.attrs).get("dimension"):  # between other devices, of its part
            sizes = {"size_bytes": self.ranks} if op.pass_ is Pass.UPDATE else {}
            attrs = tuple((k, -(-int(v) // sizes[k]) if k in sizes else v) for k, v in op.attrs)
            return replace(op, attrs=attrs)
        outputs = op.outputs
        if copies and self.stage < 3:
            outputs = tuple(self._shard(name) for name in outputs)
        inputs = op.input_passes or (1,) * len(op.inputs)
        writes = op.output_passes or (1,) * len(outputs)
        return replace(
            op,
            outputs=outputs,
            vector_flops=-(-op.vector_flops // self.ranks),
            input_passes=self._of_part(op.inputs, inputs),
            output_passes=self._of_part(outputs, writes),
        )

    def _of_part(self, names: Sequence[str], passes: Passes) -> Passes:
        """How often the whole of each tensor is streamed if only a rank's part is."""
        return tuple(
            count if self._is_part(self.tensors[name]) else count * self.part
            for name, count in zip(names, passes, strict=True)
        )

    def _is_part(self, tensor: Tensor) -> bool:
        """Whether a rank has only a part of a tensor."""
        if tensor.name in self.others:
            return False
        if tensor.name.endswith(SHARD) or tensor.role is Role.STATE:
            return True
        if tensor.name in self.widened:
            return True
        if tensor.role is Role.WEIGHT:
            return self.stage == 3 or tensor.name in self.copied
        return tensor.role is Role.WEIGHT_COPY and self.stage == 3

    def _held(self, tensor: Tensor) -> Tensor:
        """Return a tensor as a rank has it."""
        if not self._is_part(tensor) or tensor.name.endswith(SHARD):
            return tensor
        return replace(tensor, shape=(-(-tensor.elements // self.ranks),))
