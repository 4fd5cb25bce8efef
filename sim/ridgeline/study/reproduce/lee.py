"""Lee et al., 2017: VGG-A on 128 Xeon nodes, batch 256 and 512.

The two speed-ups together rule out that all gradients are summed behind the computation: of T, the
time of one image on one node, a step takes 4.07 T at two images a node and 6.57 T at four, 2.5 T
more for two images; what is hidden behind a backward pass can only shrink when that grows. Weight
gradients of the fully connected layers that every node computes for the whole batch, from gathered
inputs and errors, grow with the batch and need no sum over nodes.
"""

from __future__ import annotations

from ridgeline.kernels.single_op import gemm
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.study.reproduce.das import nodes, one_node_s
from ridgeline.study.reproduce.programs import program, software_note
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.workload.files import load_network
from ridgeline.workload.graph import Conv, Gemm, Pass
from ridgeline.workload.model import Model

_NODES = 128
_PUBLISHED = ((256, 62.97), (512, 77.97))
_TOLERANCE = 0.15
_FP32 = 4
_MOMENTUM_PASSES = 5  # weight, gradient and momentum are read, weight and momentum written


def reproduce(software: str | None = None) -> Reproduction:
    """Compute the two speed-ups, and what summing all gradients would give."""
    rows = []
    for batch, published in _PUBLISHED:
        one = one_node_s("vgg-a", batch, software)
        for scheme, step_s, tolerance in (
            (
                "classifier's weight gradients from gathered inputs",
                gathered_s(batch, software),
                _TOLERANCE,
            ),
            ("all gradients summed, update on every node", _summed_s(batch, 0, software), None),
            ("all gradients summed, update in parts", _summed_s(batch, 1, software), None),
        ):
            rows.append(
                ReproducedFigure(
                    group=f"speed-up on {_NODES} nodes, batch {batch}",
                    quantity=scheme,
                    unit="",
                    published=(published, published),
                    predicted=one / step_s,
                    unfitted=one / step_s,
                    tolerance=tolerance,
                )
            )
    return Reproduction(
        name="lee",
        title="VGG-A on 128 Xeon nodes, communication hidden behind computation by a thread",
        source=(
            "S. Lee, D. Jha, A. Agrawal, A. Choudhary, W. Liao, 'Parallel Deep Convolutional Neural"
            " Network Training by Exploiting the Overlapping of Computation and Communication', "
            "HiPC 2017, abstract"
        ),
        rows=tuple(rows),
        fits=(),
        notes=(
            software_note(software),
            "No constant is fitted; the nodes are those of `reproduce das` (cori-haswell-aries). "
            "The abstract does not say which nodes these were: assumed.",
            "That inputs and errors are gathered, and the classifier's weight gradients computed "
            "for the whole batch on every node, is concluded from the two figures and not read in "
            "the paper. Convolutions are simulated data parallel; the gathering (11 ms at 512) is "
            "taken as hidden behind them.",
        ),
    )


def _summed_s(batch: int, sharding: int, software: str | None) -> float:
    plan = Plan(global_batch=batch, data=_NODES, zero_stage=sharding)
    return simulate(load_network("vgg-a"), nodes(), plan, software=program(software)).step_time_s


def gathered_s(batch: int, software: str | None = None) -> float:
    """Time of a step whose classifier sums no gradients."""
    plan = Plan(global_batch=batch, data=_NODES)
    step = simulate(_convolutions(), nodes(), plan, software=program(software))
    return step.step_time_s + _classifier_s(batch)


def _convolutions() -> Model:
    """Return VGG-A with one output instead of its classifier."""
    layers = load_network("vgg-a").network.model_dump()["layers"]
    first = next(i for i, layer in enumerate(layers) if layer["layer"] == "linear")
    kept = [{k: v for k, v in layer.items() if v is not None} for layer in layers[:first]]
    out = {"layer": "linear", "name": "out", "features": 1}
    return load_network("vgg-a", {"layers": [*kept, out], "published": {}})


def _classifier_s(batch: int) -> float:
    """Products of a node's share of the batch, weight gradients of all of it, and the update."""
    device, share = nodes().device, batch // _NODES
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None
    total = 0.0
    graph = load_network("vgg-a").training(share, "fp32")
    for op in graph.ops:
        if op.loops is None or isinstance(op.loops, Conv):
            continue
        size = (
            op.loops if op.pass_ is not Pass.WEIGHT_GRADIENT else _of_batch(op.loops, share, batch)
        )
        total += gemm(size.m, size.n, size.k, device).time_s
    weights = sum(
        op.loops.n * op.loops.k
        for op in graph.ops
        if isinstance(op.loops, Gemm) and op.pass_ is Pass.FORWARD
    )
    moved = _MOMENTUM_PASSES * weights * _FP32
    return total + moved / (far.bandwidth.value * far.achievable.value)


def _of_batch(loops: Gemm, share: int, batch: int) -> Gemm:
    """Sum over the whole batch instead of a node's share."""
    assert loops.k == share
    return Gemm(m=loops.m, n=loops.n, k=batch)
