"""The table of ImageNet records: 1 to 2,048 devices, as `validate imagenet` has them."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.study.validate import imagenet, shipped
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import read_rows

_TOLERANCE = 0.2
_GROUPS = {"time_s": "time to train", "scaling_efficiency": "scaling efficiency"}


def reproduce() -> Reproduction:
    """Predict every run of the table whose network and machine are described."""
    return Reproduction(
        name="imagenet-records",
        title="ImageNet by 1 to 2,048 devices, from FireCaffe to four minutes",
        source=(
            "slide 43 of A. Pedram, C. Lynch and G. Lauterbach, 2018, and its references; "
            "DAWNBench; each row's own source stands in the rows of `ridgeline validate imagenet`"
        ),
        rows=tuple(_rows()),
        fits=(),
        notes=(
            "The slide's row of Preferred Networks says 256 GPUs in 15 minutes; the paper (Akiba "
            "et al., arXiv:1711.04325) has 1,024 P100s, which is what is simulated.",
            "Epochs are the published ones: time to an accuracy is not predicted here.",
            "Times hold input, validation and start-up as far as the rows say what they are.",
        ),
    )


def _rows() -> Iterator[ReproducedFigure]:
    rows = {row.text("id"): row for row in read_rows(shipped("imagenet"))}
    for found in imagenet.predict(rows.values()):
        if not isinstance(found, Outcome):
            continue
        row = rows[found.id]
        yield ReproducedFigure(
            group=_GROUPS.get(found.quantity, found.quantity.replace("_", " ")),
            quantity=f"{row.text('ref')}: {row.text('model')}, {row.text('n_accel')} "
            f"{row.text('accelerator')}",
            unit="s" if found.quantity.endswith("_s") else "",
            published=(found.measured, found.measured),
            predicted=found.predicted,
            unfitted=found.predicted,
            tolerance=_TOLERANCE,
        )
