"""Small simulated results that figures, exports and notebooks are tested on."""

from __future__ import annotations

import pytest

from machines import write_machine
from ridgeline.report.result import Result
from ridgeline.study.point import Point


def simulated(model: str, cluster: str, **plan: object) -> Result:
    return Point(model, cluster, plan, software="ideal").simulate()


@pytest.fixture(scope="session")
def result() -> Result:
    """Eight devices, few images a device: much communication that nothing hides."""
    return simulated("alexnet", "dgx1-v100", data=8, global_batch=64)


@pytest.fixture(scope="session")
def single() -> Result:
    """One device: no network stream; matrix and vector work on different engines."""
    return simulated("resnet18", "dgx1-v100", global_batch=64, precision="fp16-mixed")


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A machine without any measured efficiency, and gradients that accumulate."""
    node = write_machine(tmp_path_factory.mktemp("machine"))
    return simulated("alexnet", str(node), data=4, global_batch=64, micro_batch=4)


@pytest.fixture(scope="session")
def too_large() -> Result:
    """A step that does not fit into memory."""
    return simulated("alexnet", "dgx1-v100", global_batch=8192)


@pytest.fixture(scope="session")
def unfolded() -> Result:
    """Every rank is simulated, so that collectives occupy several streams together."""
    from ridgeline.hardware.load import load_cluster
    from ridgeline.parallel.plan.plan import Plan
    from ridgeline.simulation import simulate
    from ridgeline.workload.files import load_model

    plan = Plan(data=4, global_batch=32)
    return simulate(
        load_model("lenet5"), load_cluster("dgx1-v100"), plan, software="ideal", fold=False
    )


@pytest.fixture(params=["result", "single", "toy", "too_large", "unfolded"])
def any_result(request: pytest.FixtureRequest) -> Result:
    found: Result = request.getfixturevalue(request.param)
    return found
