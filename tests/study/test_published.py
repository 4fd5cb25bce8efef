"""The published measurements, and how far the predictions are from them."""

from __future__ import annotations

import statistics

import pytest

from ridgeline import catalog
from ridgeline.study.point import Point
from ridgeline.study.published_rows import measurements, residuals

NVIDIA = [("fp32", 1, 112, 367), ("fp32", 8, 112, 2855),
          ("fp16-mixed", 1, 256, 1200), ("fp16-mixed", 8, 256, 8322)]  # fmt: skip


def test_every_measurement_has_a_source_and_names_that_exist() -> None:
    rows = measurements()
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.source
        assert row.framework
        assert row.samples_per_s > 0
        assert row.model in catalog.names("models")
        assert row.device in catalog.names("devices")


@pytest.mark.parametrize(("precision", "devices", "batch", "published"), NVIDIA)
def test_resnet50_on_a_dgx1(precision: str, devices: int, batch: int, published: float) -> None:
    """Within 25 % of NVIDIA's PyTorch numbers; nothing is fitted to them."""
    plan = {"data": devices, "global_batch": devices * batch, "precision": precision}
    found = [
        residual
        for residual in residuals(Point("resnet50", "dgx1-v100", plan).simulate())
        if residual.measurement.framework.startswith("PyTorch (NVIDIA")
    ]
    assert [residual.measurement.samples_per_s for residual in found] == [published]
    assert abs(found[0].error) <= 0.25


def test_the_median_over_all_published_rows() -> None:
    """Frameworks differ by 30 % and more on one machine, so the median is what can be asked for."""
    errors = []
    for row in measurements():
        if row.devices > 8 or "DataLoader" in row.framework:  # bound by the input pipeline
            continue
        cluster = "dgx1-p100" if row.device == "p100-sxm2" else "dgx1-v100"
        plan = {
            "data": row.devices,
            "global_batch": row.devices * row.batch_per_device,
            "precision": row.precision,
        }
        result = Point(row.model, cluster, plan).simulate()
        errors.append(result.samples_per_s / row.samples_per_s - 1)
    assert len(errors) >= 60
    assert abs(statistics.median(errors)) < 0.15
