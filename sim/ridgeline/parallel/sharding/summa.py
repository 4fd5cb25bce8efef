"""Products of SUMMA in steps: panels are broadcast one after the other, instead of gathered.

A product y[m, n] = x[m, k] w[n, k] of devices in R rows and C columns, each with a part of x, w and
y, is a sum over panels of k: in a step the devices that have a panel of x send it along their row,
those that have the one of w along their column, and all add their product to y. Its gradients are
made panel by panel, too: one operand is broadcast, and the panel of the result summed where it
belongs. R. van de Geijn and J. Watts, SUMMA: scalable universal matrix multiplication algorithm,
Concurrency 9(4), 1997; Q. Xu et al., Optimus, 2021, arXiv:2104.05343, Algorithms 1 to 3.

There are as many steps as both rows and columns divide: lcm(R, C). The panels of the next step are
asked for before the product of a step, which runs beside them where `overlap_tensor` lets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from ridgeline.parallel.sharding.axes import forward_name
from ridgeline.parallel.sharding.inserted_ops import GRID
from ridgeline.workload.builder import settle
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Passes, Role, free_name

_ADDED = (2,)  # a result that is read and written


def with_panels(graph: Graph, steps: int) -> Graph:
    """Return a graph that is divided over a grid with its products in so many steps."""
    return _Panels(graph, steps).result()


class _Panels:
    def __init__(self, graph: Graph, steps: int) -> None:
        self.graph, self.steps = graph, steps
        self.tensors = dict(graph.tensors)
        self.readers = Counter(name for op in graph.ops for name in op.inputs)
        along = [op for op in graph.ops if op.outputs and dict(op.attrs).get("dimension") in GRID]
        self.gathers = {op.outputs[0]: op for op in along if op.kind == "all-gather"}
        self.scatters = {op.inputs[0]: op for op in along if op.kind == "reduce-scatter"}
        in_steps = [op for op in graph.ops if self._is_stepped(op)]
        read = Counter(name for op in in_steps for name in op.inputs)
        self.panels = {
            name for name in self.gathers if read[name] and read[name] == self.readers[name]
        }
        self.stepped = {op.name for op in in_steps if self.panels.intersection(op.inputs)}
        self.summed = {
            name
            for op in in_steps
            if op.name in self.stepped
            for name in op.outputs
            if self._is_summed(op, name)
        }

    def result(self) -> Graph:
        """Return the graph with all steps."""
        gone = {self.gathers[name].name for name in self.panels}
        gone |= {self.scatters[name].name for name in self.summed}
        ops: list[Op] = []
        for op in self.graph.ops:
            if op.name in self.stepped:
                ops += self._steps(op)
            elif op.name not in gone or not op.outputs:
                ops.append(op)
        used = {name for op in ops for name in (*op.inputs, *op.outputs)}
        tensors = {name: of for name, of in self.tensors.items() if name in used}
        return replace(self.graph, ops=settle(ops, tensors), tensors=tensors)

    def _is_stepped(self, op: Op) -> bool:
        """Whether what a product of two matrices gathers is panels of its inputs' features."""
        if op.kind != "gemm" or not isinstance(op.loops, Gemm) or op.loops.batch > 1:
            return False
        sliced = [name for name in op.inputs if self._is_sliced(op, name)]
        made = () if op.pass_ is Pass.FORWARD else op.outputs
        extent = getattr(op.loops, _extent(op))
        widths = {self.tensors[name].shape[-1] for name in (*sliced, *made)}
        return widths == {extent} and all(self._axis(name) in {None, -1} for name in op.inputs)

    def _is_sliced(self, op: Op, name: str) -> bool:
        """Whether a step reads a panel of an input: all but the gradient of the result."""
        of_result = self.tensors[name].role is Role.ACTIVATION_GRADIENT
        return op.pass_ is Pass.FORWARD or name in self.gathers or not of_result

    def _axis(self, name: str) -> int | None:
        """Return the dimension along which a tensor is gathered, -1: the last; None: it is not."""
        if name not in self.gathers:
            return None
        of = self.gathers[name]
        parts, whole = (self.tensors[n].shape for n in (of.inputs[0], of.outputs[0]))
        (axis,) = (d for d, (a, b) in enumerate(zip(parts, whole, strict=True)) if a != b)
        return -1 if axis == len(whole) - 1 else axis

    def _is_summed(self, op: Op, name: str) -> bool:
        """Whether a gradient is scattered along its features, as it is made."""
        if op.pass_ is Pass.FORWARD or name not in self.scatters or self.readers[name] > 1:
            return False
        part = self.tensors[self.scatters[name].outputs[0]].shape
        return part[:-1] == self.tensors[name].shape[:-1]

    def _steps(self, op: Op) -> Iterator[Op]:
        """Yield broadcasts, products and sums of a product; broadcasts are a step ahead."""
        assert isinstance(op.loops, Gemm)
        extent = _extent(op)
        loops = replace(op.loops, **{extent: -(-getattr(op.loops, extent) // self.steps)})
        gathered = [name for name in dict.fromkeys(op.inputs) if name in self.panels]
        ahead = [self._broadcast(op, name, 0) for name in gathered]
        yield from ahead
        for step in range(self.steps):
            here = dict(zip(gathered, (move.outputs[0] for move in ahead), strict=True))
            if step + 1 < self.steps:
                ahead = [self._broadcast(op, name, step + 1) for name in gathered]
                yield from ahead
            yield self._product(op, loops, step, here)
            for name in op.outputs:
                if name in self.summed:
                    yield self._sum(op, name, step)

    def _product(self, op: Op, loops: Gemm, step: int, here: dict[str, str]) -> Op:
        """Return the product of a step: it adds to the result, or makes a panel of it."""
        forward = op.pass_ is Pass.FORWARD
        part = Fraction(1, self.steps)
        of_inputs = op.input_passes or (1,) * len(op.inputs)
        passes: Passes = tuple(
            count * part if name not in here and self._is_sliced(op, name) else count
            for name, count in zip(op.inputs, of_inputs, strict=True)
        )
        writes: Passes = (_ADDED if step else (1,)) * len(op.outputs)
        outputs = op.outputs
        if not forward:
            outputs = tuple(
                self._panel(f"{name}.panel{step}", name) if name in self.summed else name
                for name in op.outputs
            )
            writes = tuple(1 if name in self.summed else part for name in op.outputs)
        of = forward_name(op)
        return replace(
            op,
            name=f"{of}.step{step}{op.name.removeprefix(of)}",
            inputs=tuple(here.get(name, name) for name in op.inputs),
            outputs=outputs,
            loops=loops,
            vector_flops=-(-op.vector_flops // self.steps),
            recomputed_flops=-(-op.recomputed_flops // self.steps),
            input_passes=passes,
            output_passes=writes,
        )

    def _broadcast(self, op: Op, name: str, step: int) -> Op:
        of = self.gathers[name]
        new = self._panel(f"{of.inputs[0]}.broadcast", name)
        return self._move("broadcast", of, op, new, (of.inputs[0],), (new,), step)

    def _sum(self, op: Op, name: str, step: int) -> Op:
        """Sum a panel on the devices that it belongs to; the last one completes their part."""
        of, last = self.scatters[name], step == self.steps - 1
        panel = f"{name}.panel{step}"
        outputs = of.outputs if last else ()
        return self._move("reduce", of, op, f"{panel}.reduce", (panel,), outputs, step)

    def _move(
        self,
        kind: str,
        of: Op,
        op: Op,
        name: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        step: int,
    ) -> Op:
        """Return the collective of a panel, instead of one of the whole."""
        attrs = dict(of.attrs)
        whole, done = int(attrs["size_bytes"]), self.steps
        size = whole * (step + 1) // done - whole * step // done
        attrs = {**attrs, "size_bytes": size}
        return Op(
            name, kind, op.pass_, of.layer, inputs, outputs, input_passes=(1,),
            attrs=tuple(attrs.items()),
        )  # fmt: skip

    def _panel(self, name: str, like: str) -> str:
        """Enter a panel of a tensor under a new name."""
        fresh = free_name(name, self.tensors)
        of = self.tensors[like]
        shape = (*of.shape[:-1], -(-of.shape[-1] // self.steps))
        self.tensors[fresh] = replace(of, name=fresh, shape=shape)
        return fresh


def _extent(op: Op) -> str:
    """Return the extent of a product's loops that its panels cut: k of y[m, n] = x[m, k] w[n, k].

    Its gradients dx[m, k] and dw[n, k] have it in their columns.
    """
    return "k" if op.pass_ is Pass.FORWARD else "n"
