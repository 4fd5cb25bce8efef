"""Parts of a network with plans of their own, against naive schedules and hand calculations."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.engine.builder import ProgramBuilder
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.parallel.comm.comm_cost import FarMemory, Wires
from ridgeline.simulation import shared_topology
from ridgeline.study.parts.part_plans import parse_parts
from ridgeline.study.parts.parts_result import parts_result
from ridgeline.study.parts.parts_step import play_parts
from ridgeline.study.parts.sample_rounds import SampleRounds, forwards_before, pieces
from ridgeline.workload.network_parts import divided, part_models

MODEL = """
kind: model
name: small-vlm
family: decoder
title: A small network that sees
citation: of these tests
vocabulary: 1000
sequence: 128
layers: 2
hidden: 64
attention: {heads: 4, kv_heads: 4, head_size: 16, bias: false}
feed_forward: {width: 256, activation: swiglu, bias: false}
norm: rms-norm
positions: rotary
tied: false
optimizer: adamw
towers:
  - name: vision
    inputs: INPUTS
    rows: 64
    features: 48
    positions: 64
    layers: 3
    hidden: 32
    attention: {heads: 2}
    feed_forward: {width: 128, activation: gelu}
    projector: [{join: 4, width: 64, function: gelu}, {width: 64}]
    taps: [0]
    tap_projector: [{join: 4, width: 64}]
"""
ROWS_BYTES = 2 * 16 * 64 * 2  # of an image: two tensors of 16 rows of 64 features in bf16


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "small-vlm.yaml"
    path.write_text(MODEL.replace("INPUTS", "1"))
    return str(path)


@pytest.fixture(scope="module")
def model(file):
    return rl.load_model(file)


def plan(batch=8, **fields):
    return rl.Plan(**{"global_batch": batch, "precision": "bf16-mixed", "micro_batch": 1, **fields})


def played(model, text, of=None, cluster="selene-a100", **more):
    return play_parts(model, cluster, of or plan(), parse_parts(text), software="ideal", **more)


def result(model, text, of=None, cluster="selene-a100", **more):
    return parts_result(played(model, text, of, cluster, **more))


# --- graphs ---


@pytest.mark.parametrize("names", [["vision"], ["vision", "projector"], ["vision.0", "vision"]])
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_parts_do_the_work_of_the_whole_whatever_is_frozen(model, names, frozen):
    order = divided(model.forward(1), names).names
    for chosen in itertools.combinations(order, frozen):
        if len(chosen) == len(order):
            continue
        models = part_models(model, names, chosen)
        whole = replace(model, network=models[0].network).training(2, "bf16-mixed")
        trained = divided(models[0].whole(2, "bf16-mixed"), names).trained
        graphs = [
            part.training(2, "bf16-mixed") if goes else part.inference(2, "bf16-mixed")
            for part, goes in zip(models, trained, strict=True)
        ]
        assert sum(graph.flops() for graph in graphs) == whole.flops()
        assert sum(graph.parameters for graph in graphs) == whole.parameters


def test_several_images_of_a_sample_are_as_many_images(tmp_path, model):
    file = tmp_path / "three.yaml"
    file.write_text(MODEL.replace("INPUTS", "3"))
    three = rl.load_model(str(file))
    one = part_models(model, ["vision"])[0].forward(1)
    assert part_models(three, ["vision"])[0].forward(1).flops() == 3 * one.flops()
    assert three.forward(1).parameters == model.forward(1).parameters
    (boundary,) = divided(three.forward(1), ["vision"]).boundaries
    assert {tensor.shape for tensor in boundary.tensors} == {(1, 48, 64)}


def test_layers_that_are_frozen_keep_neither_gradient_nor_state(file):
    whole = rl.load_model(file).training(2, "bf16-mixed")
    frozen = rl.load_model(file, {"frozen_layers": ["vision"]}).training(2, "bf16-mixed")
    forward = part_models(rl.load_model(file), ["vision"])[0].forward(2)
    # an encoder that nothing is trained before passes forward alone
    encoder = sum(op.matrix_flops for op in forward.ops)
    stem = 2 * 2 * 64 * 48 * 32  # images get no gradient
    assert whole.flops() - frozen.flops() == 2 * encoder - stem
    vision = [t for t in frozen.tensors.values() if t.name.startswith("vision")]
    assert not [t for t in vision if t.role in {"weight-gradient", "state"}]
    assert {t.format for t in vision if t.role == "weight"} == {"bf16"}


def test_a_whole_network_cannot_be_frozen(file):
    model = rl.load_model(file, {"frozen_layers": ["*"]})
    with pytest.raises(RidgelineError, match="nothing is trained"):
        model.training(1, "bf16-mixed")
    with pytest.raises(RidgelineError, match="is called 'vison'; did you mean"):
        rl.load_model(file, {"frozen_layers": ["vison"]})


# --- samples ---


def test_pieces_join_the_chunks_of_two_parts_sample_by_sample():
    random = np.random.default_rng(5)
    for _ in range(200):
        sides = []
        total = int(random.choice([12, 24, 48]))
        for _ in range(2):
            data = int(random.choice([n for n in range(1, 13) if total % n == 0]))
            each = total // data
            micro = int(random.choice([n for n in range(1, each + 1) if each % n == 0]))
            sides.append(SampleRounds(data, micro, each // micro))
        want: dict[tuple[int, ...], int] = {}
        for sample in range(total):
            key = []
            for side in sides:
                chunk = sample // side.micro_batch
                key += [chunk // side.data, chunk % side.data]
            want[tuple(key)] = want.get(tuple(key), 0) + 1
        got = pieces(*sides)
        assert {p[:4]: p.samples for p in got} == want
        assert len(got) == len(want)
        own, behind = sides
        needs = [min(behind.rounds, k + 2) for k in range(behind.rounds)]
        for j, count in enumerate(forwards_before(own, behind, needs)):
            last = (j + 1) * own.samples - 1  # of the round whose gradients come
            until = needs[last // behind.samples] * behind.samples  # samples that went forward
            assert count == next(
                n for n in range(own.rounds + 1) if n * own.samples >= min(until, total)
            )


# --- time ---


def naive_ends(step):
    """Return the end of each part: tasks one after the other, waiting for what others send."""
    topology = shared_topology(step.cluster, step.devices)
    wires = Wires(ProgramBuilder(), topology, FarMemory(0, 0))
    wires_time = lambda a, b, size: wires.time_s("send", np.array([a, b]), size)  # noqa: E731
    first, second = step.parts
    lists = []
    for part in step.parts:
        program = part.timeline.program
        (names, label) = program.label_names, program.label
        lists.append(
            [(names[label[t]], part.step.timeline.durations_s[t]) for t in range(program.n_tasks)]
        )
    found = pieces(first.rounds, second.rounds)
    ends = [[0.0] * len(tasks) for tasks in lists]

    def of(part, name):
        return [i for i, (label, _) in enumerate(lists[part]) if label == name]

    hand, take = of(0, "hand-over.to-decoder"), of(1, "take-over.from-vision")
    give = of(1, "take-over.from-vision.give-back")
    come = of(0, "hand-over.to-decoder.input-gradient")
    message = wires_time(second.ranks[0], first.ranks[0], ROWS_BYTES * found[0].samples)
    for _ in range(2 * len(found) + 3):
        arrivals = [{}, {}]
        for piece in found:
            at = ends[0][hand[piece.source_round]] + message
            key = take[piece.target_round]
            arrivals[1][key] = max(arrivals[1].get(key, 0.0), at)
            if give:
                at = ends[1][give[piece.target_round]] + message
                key = come[piece.source_round]
                arrivals[0][key] = max(arrivals[0].get(key, 0.0), at)
        for part, tasks in enumerate(lists):
            now = 0.0
            for i, (_, length_s) in enumerate(tasks):
                now = max(now, arrivals[part].get(i, 0.0)) + length_s
                ends[part][i] = now
    return [of_part[-1] for of_part in ends]


@pytest.mark.parametrize(
    "text",
    [
        "vision: micro_batch=1",
        "vision: micro_batch=2",
        "vision: micro_batch=1,ahead=0",
        "vision: frozen",
        "vision: micro_batch=4,frozen",
    ],
)
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_two_parts_wait_for_each_other_as_in_a_naive_schedule(model, text, micro_batch):
    step = played(model, text, plan(micro_batch=micro_batch))
    ends = naive_ends(step)
    assert [part.timeline.makespan_s for part in step.parts] == pytest.approx(ends, rel=1e-9)
    assert step.step_time_s == pytest.approx(max(ends), rel=1e-9)
    alone = [part.step.timeline.makespan_s for part in step.parts]
    assert max(alone) <= step.step_time_s < sum(alone) * 1.5


def test_one_device_takes_for_the_parts_what_it_takes_for_the_whole(model):
    """Colocated, all samples at once: the same ops in the same order."""
    of = plan(micro_batch=8)
    whole = rl.simulate(model, "selene-a100", of, software="ideal")
    parts = result(model, "vision: colocated,micro_batch=8", of)
    assert parts.step_time_s == pytest.approx(whole.step_time_s, rel=1e-6)
    assert parts.flops_per_step == whole.flops_per_step
    assert parts.mfu == pytest.approx(whole.mfu, rel=1e-6)
    for component in ("compute", "dram", "total"):
        assert parts.energy_j[component] == pytest.approx(whole.energy_j[component], rel=1e-3)
    ours = {k: v for k, v in parts.part("vision").memory_bytes.items() if k != "in transit"}
    for kind in ("weights", "optimizer"):
        assert ours[kind] == whole.memory_bytes[kind]


def test_colocated_parts_take_turns(model):
    step = played(model, "vision: colocated,micro_batch=1", plan(data=2, tensor=2))
    alone = math_sum(part.step.timeline.makespan_s for part in step.parts)
    rows_s = max(float(step.sent.durations_s.max()), 0.0)
    seed_s = 3e-6  # the backward pass of the encoder is seeded before its gradients come
    assert alone - seed_s <= step.step_time_s <= alone + 16 * rows_s
    vision, decoder = (part.timeline for part in step.parts)
    labels = vision.program.label_names
    handed = vision.program.label == labels.index("hand-over.to-decoder")
    back = vision.program.label == labels.index("hand-over.to-decoder.input-gradient")
    assert vision.end_s[handed].max() <= decoder.start_s[decoder.durations_s > 0].min()
    assert vision.start_s[back].min() >= decoder.makespan_s


def math_sum(values):
    return float(sum(values))


@pytest.mark.parametrize(
    "text",
    [
        "vision: data=4",
        "vision: data=2,tensor=2",
        "vision: colocated",
        "vision: data=4,frozen; projector: data=2",
    ],
)
def test_folded_ranks_are_as_every_rank(model, text):
    of = plan(16, data=2, tensor=2)
    folded, every = (result(model, text, of, fold=fold) for fold in (True, False))
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=2e-2)
    assert folded.energy_j["compute"] == pytest.approx(every.energy_j["compute"], rel=1e-9)
    assert folded.sent_bytes == every.sent_bytes
    for a, b in zip(folded.parts, every.parts, strict=True):
        for kind in ("weights", "optimizer", "gradients"):
            assert a.memory_bytes[kind] == b.memory_bytes[kind]


def test_what_parts_send_is_what_samples_have(model):
    frozen = result(model, "vision: data=2,frozen", plan(8, data=2))
    trained = result(model, "vision: data=2", plan(8, data=2))
    assert frozen.sent_bytes == 8 * ROWS_BYTES
    assert trained.sent_bytes == 2 * 8 * ROWS_BYTES
    assert frozen.energy_j["network"] < trained.energy_j["network"]
    assert frozen.part("vision").memory_bytes["optimizer"] == 0
    assert trained.part("vision").memory_bytes["optimizer"] > 0


def test_a_trained_part_before_a_pipeline_does_as_many_ahead_as_stages(model):
    step = played(model, "vision: micro_batch=1", plan(8, pipeline=2))
    assert step.parts[0].step.run.ahead == 2
    step = played(model, "vision: micro_batch=1,ahead=0", plan(8, pipeline=2))
    assert step.parts[0].step.run.ahead == 1
    # a round of it has the samples of two of the rest: before gradients of round 0 come, the rest
    # has begun three rounds, which are one and a half
    step = played(model, "vision: micro_batch=2,ahead=0", plan(8, pipeline=2))
    assert step.parts[0].step.run.ahead == 1
    step = played(model, "vision: micro_batch=4,ahead=0", plan(16, pipeline=2))
    assert step.parts[0].step.run.ahead == 1


@pytest.mark.parametrize(
    "text",
    [
        "vision: data=4",
        "vision: frozen",
        "vision: colocated,frozen",
        "projector: data=2; vision: data=4",
    ],
)
def test_time_of_every_part_is_accounted_for(model, text):
    found = result(model, text, plan(16, data=2, pipeline=2))
    for part in found.parts:
        assert sum(part.shares.values()) == pytest.approx(1, abs=1e-9)
        assert min(part.shares.values()) >= -1e-12
    assert found.fits
    assert found.energy_j["total"] > 0


def test_more_devices_for_the_encoder_and_faster_links_do_not_slow_a_step(model):
    of = plan(32, data=8)
    times = [result(model, f"vision: data={n}", of).step_time_s for n in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.1 * times[1]
    first = result(model, "vision: data=2", of)
    again = result(model, "vision: data=2", of)
    assert first == again


def test_parts_on_devices_that_are_named(model):
    found = result(model, "vision: first_device=4,data=4", plan(8, data=2), "dgx-a100")
    assert found.part("vision").first_device == 4


# --- mistakes ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no part is given"),
        ("vision", "expected PART: field=value"),
        ("vision: data", "expected field=value or one of frozen, colocated, found 'data'"),
        ("vision: froze", "did you mean 'frozen'"),
        ("vision: frozen=maybe", "allowed: true, false; found 'maybe'"),
        ("vision: data=2,data=3", "'data' is given twice"),
        ("vision: data=2; vision: data=3", "the part 'vision' is given twice"),
        ("vision: dta=2", "did you mean 'data'"),
        ("vision: data=zero", "expected a whole number"),
        ("vision: data=0", "vision"),
        ("vision: global_batch=8", "is not a field of a part"),
        ("vison: data=2", "has no part 'vison'; did you mean 'vision'"),
        ("decoder: data=2; vision: data=1", "belongs into the plan"),
        ("decoder: frozen", "no part is given besides the rest"),
        ("vision: frozen; decoder: frozen", "all parts are frozen"),
        ("blocks.0: data=1", "reads what the rest of the network makes"),
        ("head: data=1", "reads what the rest"),
        ("vision: colocated,data=3", "batch"),
        ("vision: colocated,tensor=2", "no whole number"),
        ("vision: first_device=0", "device 0 is of 'decoder', too"),
        ("vision: first_device=9999", "has 4480"),
        ("vision: data=1,first_device=100000", "need 100001 devices"),
        ("vision: colocated,first_device=1", "is on the devices of the rest"),
        ("vision: frozen,ahead=1", "does not wait for any"),
        ("vision: ahead=-1", "whole number from 0"),
        ("vision: replicas=2-1", "not a field of a part"),
        ("vision: schedule=gpipe", "gpipe is not modelled"),
        ("vision: data=2,micro_batch=3", "micro"),
    ],
)
def test_mistakes_are_said(model, text, said):
    with pytest.raises((ConfigError, RidgelineError)) as error:
        result(model, text)
    message = str(error.value)
    assert said in message
    assert "\n" not in message


def test_files_of_parts(tmp_path, model):
    file = tmp_path / "parts.yaml"
    file.write_text("vision: {data: 2, frozen: true}\n")
    assert result(model, str(file), plan(8)).part("vision").frozen
    file.write_text("vision: {data: 2, frozn: true}\n")
    with pytest.raises(ConfigError, match=r"parts.yaml.*frozn"):
        parse_parts(str(file))


def test_the_command_prints_what_the_function_returns(file, model, capsys):
    words = ["parts", file, "selene-a100", "--batch", "8", "--plan", "micro_batch=1", "--precision",
             "bf16-mixed", "--software", "ideal", "--parts", "vision: data=2,frozen"]  # fmt: skip
    assert execute([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    want = result(model, "vision: data=2,frozen")
    assert found["step_time_s"] == want.step_time_s
    assert found["parts"][0]["shares"] == want.parts[0].shares
    assert execute(words) == 0
    said = capsys.readouterr().out
    assert "waiting for rows" in said
    assert "software: ideal" in said
    assert execute([*words[:-1], "vison: data=2"]) == 2
    assert "did you mean 'vision'" in capsys.readouterr().err
