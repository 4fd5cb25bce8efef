"""The public face: names, errors, copies."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import ridgeline as rl
from stacked import stacked


def test_every_public_name_is_there_and_import_is_light() -> None:
    assert all(getattr(rl, name) is not None for name in rl.__all__)
    code = "import sys, ridgeline; print(sorted({'numpy', 'numba', 'pydantic'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_results_and_machines_can_be_pickled() -> None:
    cluster = rl.load_cluster("dgx1-v100", {"device.memory.hbm.bandwidth": "1 TB/s"})
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    result = rl.simulate("mlp", cluster, rl.Plan(data=8, global_batch=64))
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert again.to_json() == result.to_json()


def test_mistakes_in_python_are_ridgeline_errors() -> None:
    with pytest.raises(rl.RidgelineError, match="evenly by data=8"):
        rl.Plan(data=8, global_batch=1)
    with pytest.raises(rl.RidgelineError, match="did you mean 'data'"):
        rl.Plan(dta=8, global_batch=8)
    with pytest.raises(rl.RidgelineError, match="must be given"):
        rl.Plan(data=8)
    with pytest.raises(rl.RidgelineError, match="'resnet50'"):
        rl.simulate("resnet5", "dgx1-v100", rl.Plan(global_batch=8))


def test_a_plan_repeats_from_its_manifest() -> None:
    plan = stacked(data=4, global_batch=64, gradients__bucket="1 MB")
    assert stacked(data=4, global_batch=64, gradients__bucket=1e6) == plan
