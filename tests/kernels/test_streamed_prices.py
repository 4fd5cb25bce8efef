"""Prices of streaming that devices share: what was simulated before changes no step."""

from __future__ import annotations

import ridgeline as rl
from stacked import stacked


def test_devices_with_other_processors_share_no_prices_of_launches() -> None:
    model = rl.load_model("vit-b16", {"layers": 1})
    plan = stacked(global_batch=4, optimizer__impl="fused")

    def step_s(cores: int) -> float:
        own = {"device.memory.registers.instances": cores}
        return rl.simulate(model, rl.load_cluster("mi300x", own), plan).time_s["optimizer"]

    alone = [step_s(cores) for cores in (97, 211)]
    assert alone[0] != alone[1]
    assert [step_s(cores) for cores in (97, 211)] == alone
