"""Steps and traces with their collectives packet by packet."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import ridgeline as rl
from parallel.test_execution import compute, execution, reduce
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.network.collectives import collective
from ridgeline.network.resolve import topology_of
from ridgeline.network.transport import PRESETS, Transport
from ridgeline.report.result import Result
from ridgeline.study.packet_step import packet_step

TREE = "Tree(8, 4, 1, 10 GB/s, 1 us)"
WHERE = f"{TREE} @ h100-sxm5-80gb"


def step(plan: rl.Plan, *, fold: bool = False) -> Result:
    return rl.simulate("mlp", WHERE, plan, software="ideal", fold=fold)


def test_a_step_takes_the_ratio_of_its_collective_at_both_levels() -> None:
    result = step(rl.Plan(data=8, global_batch=512))
    transport = Transport(payload_bytes=4000.0)
    found = packet_step(result, transport)
    (call,) = found.calls
    assert call.kept == ""
    where, name = topology_of(TREE), call.algorithm
    flows = collective(call.op, call.size_bytes, where, algorithm=name)
    packets = collective(
        call.op, call.size_bytes, where, algorithm=name, network="packets", transport=transport
    )
    assert call.packets_s == pytest.approx(packets.time_s, rel=1e-9)
    # a round is as long as its last message here, there its slowest latency and its fullest link
    assert 0.98 * flows.time_s <= call.flows_s <= flows.time_s * (1 + 1e-9)
    # nothing is hidden behind it: the step is longer by as much
    more_s = call.packets_s - call.flows_s
    assert found.packets_s - found.flows_s == pytest.approx(more_s, rel=0.05)
    assert call.packets_s > call.flows_s


def test_groups_of_a_kind_are_played_together() -> None:
    """Two rings of four across two leaves, hashed onto one way up, take twice as long."""
    result = step(rl.Plan(data=4, tensor=2, global_batch=512))
    found = packet_step(result, replace(PRESETS["pfc"], payload_bytes=1000.0))
    rings = [call for call in found.calls if call.groups == 2 and call.ranks == 4]
    assert rings
    alone = packet_step(step(rl.Plan(data=4, global_batch=512)), PRESETS["pfc"])
    assert all(call.groups == 1 for call in alone.calls)


def test_messages_between_stages_are_found() -> None:
    result = step(rl.Plan(data=2, pipeline=4, global_batch=512, micro_batch=32))
    found = packet_step(result, Transport(payload_bytes=1000.0))
    sends = [call for call in found.calls if call.op == "send"]
    assert sends
    for call in sends:
        assert call.groups == 2  # one of each replica
        assert call.flows_s <= call.packets_s <= call.flows_s * 1.5
    assert found.packets_s > found.flows_s


def test_what_stays_flows_says_why() -> None:
    result = rl.simulate(
        "gpt2", "superpod-h100", rl.Plan(data=4, tensor=4, global_batch=8), fold=False
    )
    found = packet_step(result, Transport())
    kept = {call.kept for call in found.calls}
    assert "inside of nodes" in kept
    inside = [call for call in found.calls if call.kept]
    assert all(call.factor == 1.0 and call.packets == 0 for call in inside)


def test_folded_steps_and_too_many_packets_are_refused() -> None:
    with pytest.raises(RidgelineError, match="every rank"):
        packet_step(step(rl.Plan(data=8, global_batch=512), fold=True), Transport())
    with pytest.raises(RidgelineError, match="packets in 1 kinds of collectives"):
        packet_step(step(rl.Plan(data=8, global_batch=512)), Transport(payload_bytes=0.1))


def test_a_trace_takes_its_collective_packet_by_packet() -> None:
    made = execution([[compute(1e12), reduce(8e6, 0, group=0)]] * 8, groups=[list(range(8))])
    result = rl.simulate(made, rl.load_cluster(WHERE), format="bf16")
    found = packet_step(result, Transport(payload_bytes=1000.0))
    (call,) = found.calls
    assert call.op == "all-reduce"
    assert call.packets_s > call.flows_s
    more_s = call.packets_s - call.flows_s
    assert found.packets_s - found.flows_s == pytest.approx(more_s, rel=0.05)


def test_the_verb_prints_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "mlp", WHERE, "--plan", "data=8", "--batch", "512", "--software", "ideal"]
    assert execute([*words, "--network", "packets", "--transport", "dcqcn"]) == 0
    text = capsys.readouterr().out
    assert "with packets" in text
    assert "known of its error" in text
    assert execute([*words, "--network", "packets", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["packets"]
    assert found["packets_s"] >= found["flows_s"]
    assert found["calls"][0]["kept"] == ""
    assert execute([*words, "--transport", "dcqcn"]) == 2
    assert "add --network packets" in capsys.readouterr().err
    assert execute([*words, "--network", "packets", "--quantity", "mfu"]) == 2
    assert "--network packets goes with none of" in capsys.readouterr().err
