"""AlexNet's convolutions on Eyeriss, with the mapping that its authors chose and with ours."""

from __future__ import annotations

import csv
from importlib import resources

from ridgeline.hardware import Device, load_device
from ridgeline.kernels.spatial.count import Counts
from ridgeline.kernels.spatial.machine import Elements, elements_of
from ridgeline.kernels.spatial.nest import ConvolutionNest, SpatialLayout, TemporalLoop, nest_of
from ridgeline.kernels.spatial.search import best_layout, evaluate
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.workload.graph import Conv

_TOLERANCE = 0.10
_WORD_BYTES = 2
_BUFFER_MB = 208.5  # accesses of the global buffer in the five layers, same table


def reproduce() -> Reproduction:
    """Compute the latency of each layer."""
    text = resources.files(__package__).joinpath("eyeriss.csv").read_text("utf-8")
    device = load_device("eyeriss")
    elements, clock_hz = _array(device)
    layers = [_Layer(line, elements, clock_hz) for line in csv.DictReader(text.splitlines())]
    buffer_mb = sum(layer.buffer_words for layer in layers) * _WORD_BYTES / 1e6
    return Reproduction(
        name="eyeriss",
        title="AlexNet's convolutions on 12 x 14 elements at 200 MHz, batch 4, 16 bit",
        source=(
            "Y.-H. Chen, T. Krishna, J. Emer, V. Sze, 'Eyeriss: An Energy-Efficient Reconfigurable "
            "Accelerator for Deep Convolutional Neural Networks', IEEE JSSC 52(1), 2017, Table V "
            "(processing latency) and the mapping parameters of its AlexNet layers (as recalled)"
        ),
        rows=(
            *(layer.row("Authors' mapping", layer.given, _TOLERANCE) for layer in layers),
            _row("Authors' mapping", "buffer, MB", "MB", _BUFFER_MB, buffer_mb, None),
            *(layer.row("Fastest mapping", layer.found, None) for layer in layers),
        ),
        fits=(),
        notes=(
            "No constant is fitted; elements, registers, buffer and the widths of the networks are "
            "the data sheet's.",
            "Processing latency leaves the memory out, and so do these cycles; the searched "
            "mapping is the fastest one for array and memory together, and the chip's authors "
            "looked for the least energy.",
            "Layers 4 and 5 have the same passes, 384 and 256 of them, but the published latencies "
            "are 41.7 and 39.1 us a pass: no law of passes meets both closer than 3 %.",
        ),
    )


def _array(device: Device) -> tuple[Elements, float]:
    array = device.engines["array"].spatial
    assert array is not None
    words = device.memory[array.buffer].capacity.value / _WORD_BYTES
    far = device.memory[device.far_memory].bandwidth
    assert far is not None
    width = far.value / (_WORD_BYTES * array.clock.value)
    return elements_of(array, words, width), array.clock.value


class _Layer:
    """One layer: published, with the authors' mapping, with the fastest one."""

    def __init__(self, line: dict[str, str], elements: Elements, clock_hz: float) -> None:
        number = {name: int(text) for name, text in line.items() if text.isdigit()}
        nest = nest_of(
            Conv(
                number["batch"], number["c_in"], number["size"], number["size"], number["c_out"],
                number["filter"], number["filter"], (number["stride"],) * 2,
                (number["padding"],) * 2, groups=number["groups"],
            )
        )  # fmt: skip
        self.name, self.published_ms = line["layer"], float(line["latency_ms"])
        self.clock_hz = clock_hz
        self.given = evaluate(nest, elements, layout_of(nest, elements, number)).counts
        self.found = best_layout(nest, elements).counts

    @property
    def buffer_words(self) -> int:
        """Words that the array exchanges with the buffer; filters pass by it."""
        return self.given.x_words + self.given.in_words + self.given.out_words

    def row(self, group: str, counts: Counts, tolerance: float | None) -> ReproducedFigure:
        """Compare cycles with the published latency."""
        latency_ms = counts.cycles / self.clock_hz * 1e3
        return _row(group, f"{self.name}, ms", "ms", self.published_ms, latency_ms, tolerance)


def _row(
    group: str, quantity: str, unit: str, published: float, predicted: float,
    tolerance: float | None,
) -> ReproducedFigure:  # fmt: skip
    return ReproducedFigure(
        group, quantity, unit, (published, published), predicted, predicted, tolerance=tolerance
    )


def layout_of(nest: ConvolutionNest, elements: Elements, given: dict[str, int]) -> SpatialLayout:
    """Return the layout of the paper's parameters.

    A pass does n images, q channels and p filters in each element, with r channel groups and t
    filter groups beside each other in sets of R x e elements; m filters stay in the buffer.
    """
    size = nest.size
    m, n, e, p, q, r, t = (given[name] for name in "mnepqrt")
    sets_down = elements.rows // (size("r") * r)  # sets that fit below each other
    rows, columns = {"r": size("r"), "c": r}, {"p": e}
    if e > elements.columns:  # a set is folded
        fold = -(-e // elements.columns)
        rows["p"], columns["p"] = fold, -(-e // fold)
    if sets_down >= t:
        rows["k"] = t
    else:
        columns["k"] = t
    memory = {
        "g": size("g"), "k": -(-size("k") // m), "n": -(-size("n") // n), "p": -(-size("p") // e),
        "c": -(-size("c") // (q * r)),
    }  # fmt: skip
    buffer = {"k": -(-m // (p * t)), "n": n, "q": size("q")}
    return SpatialLayout(
        {"s": size("s"), "k": p, "c": q},
        rows,
        columns,
        tuple(TemporalLoop(d, trips) for d, trips in buffer.items()),
        tuple(TemporalLoop(d, trips) for d, trips in memory.items()),
    )
