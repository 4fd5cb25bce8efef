"""Steps whose layers are fused: what `fuse` finds is what the step takes, and all of it adds up."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.hardware.templates import device_template
from ridgeline.kernels.breakdown import time_breakdown
from ridgeline.kernels.cost import op_energy_j
from ridgeline.kernels.fusion.fused_cost import fused_cost
from ridgeline.kernels.fusion.schedule import fuse
from ridgeline.report.result import Result
from ridgeline.workload.fused_op import FusedOp, FusedRows, fused_op
from ridgeline.workload.graph import Pass
from thoroughly import further

KINDS = ("systolic", "spatial", "gpu", "bsp", "chiplet")


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for kind in KINDS:
        path = tmp_path_factory.mktemp("fused") / f"{kind}.yaml"
        path.write_text(device_template(kind), "utf-8")
        found[kind] = str(path)
    return found
