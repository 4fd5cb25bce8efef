"""What would make a plan fit is tried by simulating it."""

from __future__ import annotations

from pathlib import Path

from machines import write_machine
from ridgeline.study.fit import fitting_changes, largest_fitting_micro_batch
from ridgeline.study.point import Point


def test_changes_that_fit_are_found(tmp_path: Path) -> None:
    node = str(write_machine(tmp_path))
    point = Point.parse(
        "gpt3-760m",
        node,
        "data=4,micro_batch=2",
        {"global_batch": 8, "precision": "fp16-mixed"},
        {},
    )
    result = point.simulate()
    assert not result.fits
    assert largest_fitting_micro_batch(point, 2) is None
    changes = fitting_changes(point, result)
    assert changes is not None
    assert set(changes) > {"micro_batch"}
    values = {f"plan.{name}": value for name, value in changes.items()}
    assert point.with_values(values).simulate().fits
