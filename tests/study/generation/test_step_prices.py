"""Prices of steps: against whole steps that are played, bounds, and faster devices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ridgeline import Plan, generate, load_cluster, load_model
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.software.load import load_software
from ridgeline.study.generation.batching import GenerationWork
from ridgeline.study.generation.generate import EngineOptions, generation_engine
from ridgeline.study.generation.step_prices import StepPrices, grid_around
from ridgeline.workload.model import Model
from thoroughly import further


def prices(
    name: str, cluster: str = "dgx-h100", software: str = "vllm", **plan: object
) -> StepPrices:
    model = load_model(name)
    assert isinstance(model, Model)
    fields = {"global_batch": plan.get("data", 1), "precision": "bf16-true", **plan}
    stack = load_software(software)
    library = software if software != "ideal" else ""
    return StepPrices(model, load_cluster(cluster), Plan(**fields), stack, library=library)


def work(decoding: list[int], *prefilled: tuple[int, int]) -> GenerationWork:
    return GenerationWork(np.array(decoding, np.int64), prefilled)


CASES = [
    ("llama3.2-1b", {}),
    ("llama3-8b", {"tensor": 8}),
    ("mixtral-8x7b", {"tensor": 4}),
    ("deepseek-v2-lite", {"data": 4, "expert": 4}),
    *further(
        ("gemma3-4b", {"tensor": 4}), ("gpt-oss-20b", {}), ("qwen3-next-80b-a3b", {"tensor": 4}),
        ("nemotron-h-8b", {"tensor": 8}), ("llama3-8b", {"tensor": 2, "pipeline": 2}),
        ("deepseek-v3.2", {"tensor": 8}),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_a_price_is_that_of_the_step_when_it_is_played(name: str, plan: dict[str, int]) -> None:
    of = prices(name, **plan)
    shares = of.ranks * of.plan.pipeline
    for sequences, context in ((16, 1024), (64, 256)):
        played = of.played(sequences, 1, context).timeline.makespan_s
        priced = of.price(work([context] * sequences * shares)).time_s
        assert priced == pytest.approx(played, rel=0.01)
    played = of.played(1, 512, 1024).timeline.makespan_s
    priced = of.price(work([], *[(512, 1024)] * shares)).time_s
    assert priced == pytest.approx(played, rel=0.03)  # classifiers compute one row more or less


@pytest.mark.parametrize("count", [3, 5, 11, 23, 200])
def test_between_priced_rows_a_step_is_interpolated(count: int) -> None:
    of = prices("llama3.2-1b")
    low, high = grid_around(count)
    assert low <= count <= high <= 1.5 * low + 1
    exact = of.played(count, 1, 1).timeline.makespan_s
    assert of.price(work([1] * count)).time_s == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(("name", "plan"), CASES[:4])
def test_no_step_is_faster_than_its_weights_and_cache_pass_memory(
    name: str, plan: dict[str, int]
) -> None:
    whole = Plan(global_batch=plan.get("data", 1), **plan)
    engine = generation_engine(name, "dgx-h100", whole, software="trtllm")
    of, layout = engine.prices, engine.layout
    device = of.cluster.device
    bandwidth = device.memory[device.far_memory].bandwidth
    assert bandwidth is not None
    for sequences, context in ((1, 1), (1, 4096), (32, 512), (128, 4096)):
        shares = of.ranks * of.plan.pipeline
        time_s = of.price(work([context] * sequences * shares)).time_s
        cache = sequences * layout.token_bytes * context
        chosen = 0.0 if "mixtral" in name or "deepseek" in name else engine.weight_bytes
        table = of.model.network.vocabulary * of.model.network.hidden * 2
        assert time_s >= (cache + max(0.0, chosen - table)) / bandwidth.value


def test_longer_contexts_and_fuller_batches_never_take_less() -> None:
    of = prices("llama3-8b")
    for contexts in ([8, 64, 500, 2000, 9000], [100, 101, 102, 103]):
        times = [of.price(work([context] * 32)).time_s for context in contexts]
        assert times == sorted(times)
    times = [of.price(work([777] * n)).time_s for n in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)]
    assert all(b >= 0.98 * a for a, b in pairwise(times))


def test_windows_bound_what_a_context_costs() -> None:
    of = prices("mistral-7b")  # a window of 4,096 in every layer
    assert of.price(work([8192] * 16)).time_s == pytest.approx(
        of.price(work([60000] * 16)).time_s, rel=1e-6
    )


def test_a_faster_device_generates_no_slower() -> None:
    found = []
    for bandwidth in ("3.35 TB/s", "4.8 TB/s"):
        cluster = load_cluster("dgx-h100", {"node.device.memory.hbm.bandwidth": bandwidth})
        result = generate(
            "llama3.2-1b", cluster, lengths="uniform:20:200/uniform:10:60", requests=40,
            software="vllm",
        )  # fmt: skip
        found.append(result.makespan_s)
    assert found[1] < found[0]


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    def text(seed: int) -> str:
        return generate(
            "llama3.2-1b", "dgx-h100", lengths="lognormal:64:1:500/lognormal:32:1:200",
            requests=30, samples=2, rate=300.0, seed=seed,
        ).to_json()  # fmt: skip

    assert text(3) == text(3) != text(4)


def test_a_result_adds_up() -> None:
    result = generate(
        "llama3.2-1b", "dgx-h100", Plan(global_batch=2, data=2), lengths="50/20", requests=31
    )
    found = result.to_dict()
    assert result.replicas == 2
    assert found["output_tokens"] == 31 * 20
    assert found["prefilled_tokens"] == 31 * 50
    assert found["devices"] == 2
    assert found["time_to_first_token_s"]["median"] <= found["latency_s"]["median"]
    assert 0 < found["utilisation"] <= 1
    assert found["kv"]["peak_share"] <= 1
    idle_w = result.engine.prices.cluster.device.idle_power.value
    assert found["energy_j"] > 2 * idle_w * found["makespan_s"]


def test_two_batches_hide_the_shorter_of_computing_and_communicating() -> None:
    plain, halves = (
        generation_engine(
            "deepseek-v2-lite", "hgx-h200-ndr", Plan(global_batch=16, data=16, expert=16),
            software="sglang", options=EngineOptions(two_batches=two),
        ).prices.price(work([1024] * 128 * 16)).time_s
        for two in (False, True)
    )  # fmt: skip
    assert 0.5 * plain < halves < plain


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"context": 2}, "divides no positions"),
        ({"zero_stage": 3, "data": 2, "expert": 2}, "no state of an optimizer"),
        ({"tensor": 999}, "needs 999 devices"),
    ],
)
def test_plans_that_mean_nothing_are_refused(plan: dict[str, int], why: str) -> None:
    with pytest.raises(RidgelineError, match=why):
        generation_engine("mixtral-8x7b", "dgx-h100", Plan(global_batch=2, **plan))


def test_what_does_not_fit_and_mistakes_of_options() -> None:
    with pytest.raises(RidgelineError, match="nothing is left for keys and values"):
        generate("llama3-70b", "dgx-h100")
    with pytest.raises(ConfigError, match="--rate: must be positive"):
        generate("llama3.2-1b", "dgx-h100", rate=-1.0)
    with pytest.raises(ConfigError, match="--memory-share"):
        generate("llama3.2-1b", "dgx-h100", options=EngineOptions(memory_share=1.5))
    with pytest.raises(RidgelineError, match="has room for a sequence"):
        generate("llama3.2-1b", "dgx-h100", lengths="9000000/10")
