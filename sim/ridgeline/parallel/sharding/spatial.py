"""Spatial parallelism: image rows and columns are split across devices.

Every device has all weights and some rows of every image. An op that reads windows (convolutions,
pools, enlarged images) first fetches the rows of other devices that its own windows reach, its
halo; its gradient fetches those of the output's gradient. N. Dryden et al., Improving
strong-scaling of CNN training by exploiting finer-grained parallelism, IPDPS 2019 (LBANN).
Gradients of weights are of a device's own rows, and are summed with those of the replicas.

A grid of rows and columns is divided one after the other, so that the halos of columns have the
corners in them: rows of neighbours are fetched first, and then columns of both.

Rows that the devices do not share evenly: every device is simulated with the largest share, for
which the others wait. Where an image has fewer rows than devices, or an op has no rows (fully
connected layers), it is gathered, and every device does all of the op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.errors import ConfigError
from ridgeline.parallel.sharding.axes import base, forward_name, without_halos
from ridgeline.parallel.sharding.axis_choice import FREE, STATIC, WHOLE
from ridgeline.parallel.sharding.halo import Counts, halo_rows, written
from ridgeline.parallel.sharding.inserted_ops import HALO
from ridgeline.parallel.sharding.shard import COLLECTIVES, Sharder
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Role, Tensor
from ridgeline.workload.ops.normalization import SHARED_STATISTICS
from ridgeline.workload.sharding_axes import COLUMNS, ROWS, OpAxes

_AXES = {"spatial.rows": -2, "spatial.columns": -1}
_LABELS = {"spatial.rows": ROWS, "spatial.columns": COLUMNS}
_IMAGE = 4  # dimensions, at least: samples, channels, rows, columns
PAIRS = "pairs"
"""Attribute of a halo: what each device sends to each other one, in parts of all (`written`)."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What one device does.

    Attributes
    ----------
    apart
        Weights whose gradients are of a device's own rows, by the dimension that has to sum them
        with those of the replicas.
    whole
        Kinds of the ops that every device does whole, and how many of each.
    """

    graph: Graph
    apart: dict[str, str]
    whole: dict[str, int]


def with_shared_images(
    graph: Graph, rows: int, columns: int, *, shared_statistics: bool = False
) -> Shared:
    """Divide the rows of images over `rows` devices and their columns over `columns`.

    Parameters
    ----------
    shared_statistics
        Add up the statistics of batch norms over these devices; else each has those of its part.

    Raises
    ------
    ConfigError
        If a sample is no image, or has fewer rows or columns than devices.
    """
    if shared_statistics and (rows, columns) != (1, 1):
        graph = replace(graph, ops=tuple(map(_summed, graph.ops)))
    found: dict[str, frozenset[str]] = {}
    whole: dict[str, int] = {}
    for dimension, degree in (("spatial.rows", rows), ("spatial.columns", columns)):
        if degree == 1:
            continue
        sharder = _SpatialSharder(graph, degree, dimension)
        sharder.check()
        sharder.look_ahead()
        for op in graph.ops:
            sharder.take(op)
        part = sharder.result()
        graph, found[dimension] = part.graph, part.apart
        whole = most(whole, part.whole)
    apart: dict[str, str] = {}
    for weight in sorted(frozenset().union(*found.values())):
        along = [dimension for dimension, weights in found.items() if weight in weights]
        apart[weight] = "data.spatial" if len(along) == 2 else along[0].replace("spatial", "data")
    return Shared(graph, apart, whole)


def most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the larger count of each kind."""
    return {kind: max(one.get(kind, 0), other.get(kind, 0)) for kind in sorted({*one, *other})}


def _summed(op: Op) -> Op:
    if op.kind != "batch-norm":
        return op
    return replace(op, attrs=(*op.attrs, (SHARED_STATISTICS, 1)))


class _SpatialSharder(Sharder):
    """Divides rows, or columns; all else is whole."""

    def __init__(self, graph: Graph, degree: int, dimension: str) -> None:
        super().__init__(graph, degree, dimension, False, 1.0)
        self.positions = True  # nothing begins to be divided but what images are
        self.axis, self.label = _AXES[dimension], _LABELS[dimension]
        self.fetched: dict[tuple[str, str], str] = {}  # (tensor, pairs): rows of neighbours
        self._find_readers()

    @cached_property
    def _gradients(self) -> dict[str, list[Op]]:
        """Ops that make gradients of each weight out of activations."""
        found: dict[str, list[Op]] = {}
        for op in self.graph.ops:
            if forward_name(op) in self.forward and op.name not in self.forward:
                for name in op.outputs:
                    if self.tensors[name].role is Role.WEIGHT_GRADIENT:
                        found.setdefault(self._root(base(name)), []).append(op)
        return found

    def check(self) -> None:
        """Raise ConfigError if a sample has no image, or too small a one."""
        inputs = [of for of in self.graph.tensors.values() if of.role is Role.INPUT]
        sizes = [of.shape[self.axis] for of in inputs if len(of.shape) >= _IMAGE]
        if not sizes:
            raise ConfigError(
                f"spatial shares the rows of images, and a sample of {self.graph.name} is none; "
                "allowed: 1",
                field="plan.spatial",
            )
        if max(sizes) < self.degree:
            raise ConfigError(
                f"spatial shares the {max(sizes)} {self.label} of the images of {self.graph.name} "
                f"over {self.degree} devices; allowed: at most {max(sizes)}",
                field="plan.spatial",
            )

    def _by_position(self, of: Tensor) -> int:
        """Divide images; every device reads what it needs of all else that a sample has."""
        is_image = of.role is Role.INPUT and len(of.shape) >= _IMAGE
        if is_image and of.shape[self.axis] >= self.degree:
            return len(of.shape) + self.axis
        return FREE if of.role in {Role.INPUT, Role.BUFFER} else WHOLE

    def _divides(self, label: str, op: Op, sig: OpAxes) -> bool:
        """Whether each device can have some of the rows: windows may change how many there are."""
        if label in sig.units or label in sig.strict or label in sig.of_grid:
            return False  # parts side by side are no rows next to each other
        sizes: set[int] = set()
        tensors = zip((*op.inputs, *op.outputs), (*sig.inputs, *sig.outputs), strict=True)
        for name, labels in tensors:
            if label not in labels:
                continue
            of = self.tensors[name]
            if of.role in STATIC and of.role is not Role.BUFFER:
                return False
            sizes.add(of.shape[labels.index(label)])
        known = label in sig.windows or len(sizes) == 1
        return known and bool(sizes) and min(sizes) >= self.degree

    def _is_apart(self, weight: str) -> bool:
        """Whether all gradients of a weight are of a device's own rows."""
        weight = self._root(weight)
        if weight not in self.apart:
            gradients = self._gradients.get(weight, ())
            self.apart[weight] = bool(gradients) and all(
                (sig := self._signature(op)) is not None and self._follow(op, sig) is not None
                for op in gradients
            )
        return self.apart[weight]

    def _sums_later(self, gradient: str) -> bool:
        return self._is_apart(base(gradient))

    def _own(self, size: int) -> int:
        """Rows of the largest share."""
        return -(-size // self.degree)

    def _part(self, op: Op, sig: OpAxes, label: str | None, inputs: Iterable[str]) -> Op:
        """Return the op with the rows of one device, after fetching what its windows reach."""
        if label is None:
            return replace(op, inputs=tuple(inputs))
        mine, total = self._work(op, sig, label)
        scaled = {
            name: -(-getattr(op, name) * mine // total)
            for name in ("vector_flops", "recomputed_flops")
        }
        attrs = op.attrs
        if op.kind in COLLECTIVES:
            attrs = tuple(
                (k, -(-int(v) * mine // total) if k == "size_bytes" else v) for k, v in attrs
            )
        names, loops = tuple(inputs), self._loops(op, sig, label)
        halos = self._halos(op, sig, label, names)
        passes = op.input_passes
        if halos:
            count = int(dict(attrs).get(HALO, 0)) + len(halos)
            attrs = (*(item for item in attrs if item[0] != HALO), (HALO, count))
            passes = (*passes, *(1 for _ in halos)) if passes else passes
        return replace(
            op, inputs=(*names, *halos), loops=loops, attrs=attrs, input_passes=passes, **scaled
        )

    def _work(self, op: Op, sig: OpAxes, label: str) -> tuple[int, int]:
        """Rows of one device and of all, in which the work of an op is counted."""
        named = list(zip((*op.outputs, *op.inputs), (*sig.outputs, *sig.inputs), strict=True))
        name, labels = next((name, labels) for name, labels in named if label in labels)
        total = self.tensors[name].shape[labels.index(label)]
        return self._own(total), total

    def _loops(self, op: Op, sig: OpAxes, label: str) -> Gemm | Conv | None:
        """Return the loop nest of one device: what its windows reach, without padding."""
        loops = op.loops
        if isinstance(loops, Conv) and label in sig.windows:
            window = sig.windows[label]
            out = loops.h_out if label == ROWS else loops.w_out
            reach = (self._own(out) - 1) * window.stride
            reach += (window.kernel - 1) * window.dilation + 1
            if label == ROWS:
                return replace(loops, h_in=reach, padding=(0, loops.padding[1]))
            return replace(loops, w_in=reach, padding=(loops.padding[0], 0))
        if loops is None:
            return None
        extents = sig.loops.get(label, ())
        forward = self.forward.get(forward_name(op), op)
        mine, total = self._work(forward, self._signature(forward) or sig, label)
        changes = {name: -(-getattr(loops, name) * mine // total) for name in extents}
        return replace(loops, **changes)

    # Halos

    def _halos(self, op: Op, sig: OpAxes, label: str, inputs: Sequence[str]) -> tuple[str, ...]:
        """Fetch rows of neighbours; return the tensors that they come in, of which some are new."""
        window = sig.windows.get(label)
        if window is None or op.kind in COLLECTIVES:
            return ()
        forward = self.forward.get(forward_name(op), op)
        plain, known = without_halos(forward), self._signature(forward)
        assert known is not None
        n_in = self._size(plain.inputs, known.inputs, label)
        n_out = self._size(forward.outputs, known.outputs, label)
        ahead, back = (
            halo_rows(window, n_in, n_out, self.degree, back=turned) for turned in (False, True)
        )
        makes = {self.tensors[name].role for name in op.outputs}
        wanted: dict[bool, list[str]] = {False: [], True: []}
        insides = {base(name) for name in plain.inputs}
        for name, whole_name, labels in zip(inputs, op.inputs, sig.inputs, strict=True):
            if label not in labels:
                continue
            if base(whole_name) not in insides or op is forward:
                turned = op is not forward
                reads = op is forward or Role.ACTIVATION_GRADIENT in makes
            else:
                turned, reads = False, Role.WEIGHT_GRADIENT in makes
            if reads:
                wanted[turned].append(name)
        found: list[str] = []
        for names, rows in ((wanted[False], ahead), (wanted[True], back)):
            if names and rows.any():
                found += self._fetch(op, names, rows)
        return tuple(found)

    def _size(self, names: Sequence[str], labels: Sequence[tuple[str, ...]], label: str) -> int:
        return next(
            self.tensors[name].shape[of.index(label)]
            for name, of in zip(names, labels, strict=False)
            if label in of
        )

    def _fetch(self, op: Op, names: Sequence[str], rows: Counts) -> list[str]:
        """Return the rows of neighbours of some tensors, fetched all at once if they are not here.

        What a device holds of them is the most that one of them needs.
        """
        pairs = written(rows)
        missing = [name for name in names if (name, pairs) not in self.fetched]
        if missing:
            outputs, size = [], 0
            for name in missing:
                whole = self.tensors[name]
                here, at = self.local[name], len(whole.shape) + self.axis
                new = self._fresh(f"{name}.{HALO}")

                def of(count: int, like: Tensor = here, at: int = at, new: str = new) -> Tensor:
                    shape = (*like.shape[:at], count, *like.shape[at + 1 :])
                    role = Role.ACTIVATION if like.role is Role.INPUT else like.role
                    return replace(like, name=new, shape=shape, role=role)

                self.local[new] = of(int(rows.sum(axis=1).max()))
                self.tensors[new], self.layout[new] = self.local[new], WHOLE
                size += of(int(rows.sum())).bytes
                self.fetched[name, pairs] = new
                outputs.append(new)
            attrs = (
                ("dimension", self.dimension), ("size_bytes", size), ("repeat", 1), (PAIRS, pairs),
            )  # fmt: skip
            self._add(
                Op(
                    outputs[0], HALO, op.pass_, op.layer, tuple(missing), tuple(outputs),
                    input_passes=tuple(1 for _ in missing), attrs=attrs,
                )
            )  # fmt: skip
        return [self.fetched[name, pairs] for name in names]
