"""Tensor parallelism in rows and columns: published volumes, conservation, folding, mistakes."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.text import make_plan, plan_fields
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.parallel.sharding.tensor_2d import Grid, Mode
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Pass, Role
from stacked import stacked

MODES: tuple[Mode, ...] = ("summa", "gather", "stationary")
BYTES = 2  # bf16


def decoder(heads: int, size: int, batch: int, sequence: int) -> Graph:
    """Training graph of a GPT-2 with two layers of other widths."""
    hidden = heads * size
    of = {
        "layers": 2, "hidden": hidden, "attention.heads": heads, "sequence": sequence,
        "feed_forward.width": 4 * hidden, "vocabulary": 512,
    }  # fmt: skip
    return load_model("gpt2", of).training(batch, "bf16-mixed")


def on_grid(graph: Graph, grid: Grid) -> Graph:
    return divide(graph, ShardingSpec(tensor=grid.rows * grid.columns, two=grid)).graph


def volumes(graph: Graph) -> dict[tuple[str, bool], int]:
    """Elements that collectives of products of a block move, by dimension, in the forward pass.

    An all-reduce counts as what it is made of, a reduce-scatter and an all-gather.
    """
    found: Counter[tuple[str, bool]] = Counter()
    for op in graph.ops:
        attrs = dict(op.attrs)
        if "dimension" in attrs and op.layer.startswith("blocks.0.") and "norm" not in op.layer:
            size = int(attrs["size_bytes"]) * (2 if op.kind == "all-reduce" else 1)
            found[str(attrs["dimension"]), op.pass_ is Pass.FORWARD] += size
    return {key: size // BYTES for key, size in found.items()}


shapes = st.tuples(
    st.sampled_from([(2, 2), (4, 2), (2, 4), (4, 4), (2, 8), (3, 2)]),
    st.integers(1, 2),  # heads of a column
    st.sampled_from([8, 16, 24]),
    st.integers(1, 2),  # samples of a row
    st.sampled_from([32, 64]),
)


@settings(max_examples=7, deadline=None)
@given(shapes)
def test_optimus_moves_what_its_table_says(
    shape: tuple[tuple[int, int], int, int, int, int],
) -> None:
    """Xu et al., Optimus, 2021, arXiv:2104.05343, Table 1, for a layer of b s tokens.

    Forward 7 b s h along the rows and 12 h h along the columns, each device its part of them, and
    both twice in the backward pass (there three times: with the forward pass done again). Their
    factor log(p)/2 is that of a broadcast in a tree.
    """
    (rows, columns), heads, size, samples, sequence = shape
    q = math.lcm(rows, columns)
    graph = decoder(heads * columns, size * q // math.gcd(size, q), samples * rows, sequence)
    hidden = graph.tensors["blocks.0.norm1.y"].shape[-1]
    tokens = samples * rows * sequence
    moved = volumes(on_grid(graph, Grid(rows, columns, "summa")))
    for is_forward, times in ((True, 1), (False, 2)):
        assert moved["tensor.columns", is_forward] * rows == times * 7 * tokens * hidden
        assert moved["tensor.rows", is_forward] * columns == times * 12 * hidden**2


@settings(max_examples=7, deadline=None)
@given(shapes)
def test_gathering_moves_less(shape: tuple[tuple[int, int], int, int, int, int]) -> None:
    """Each weight once a pass, and 4 b s h: what is narrower moves, inputs or outputs.

    Xu et al., GSPMD, 2021, arXiv:2105.04663, section 5.1, whose finalized sharding gathers [b s, h]
    before the first product of a pair and scatters it behind the second.
    """
    (rows, columns), heads, size, samples, sequence = shape
    size *= rows  # so that rows divide each weight
    graph = decoder(heads * columns, size, samples * rows, sequence)
    hidden, tokens = heads * columns * size, samples * rows * sequence
    moved = volumes(on_grid(graph, Grid(rows, columns, "gather")))
    assert moved["tensor.columns", True] * rows == 4 * tokens * hidden
    assert moved["tensor.rows", True] * columns == 12 * hidden**2
    # once more where it was gathered, for the gradients of weights
    assert moved["tensor.columns", False] * rows == 6 * tokens * hidden
    assert moved["tensor.rows", False] * columns == 2 * 12 * hidden**2


@settings(max_examples=7, deadline=None)
@given(
    st.sampled_from([(2, 4), (2, 8), (4, 8), (4, 4), (2, 2), (4, 2)]),
    st.sampled_from([8, 16]),
    st.integers(1, 3),
    st.sampled_from([32, 64]),
)
def test_weights_that_stay_cost_what_activations_move(
    shape: tuple[int, int], size: int, batch: int, sequence: int
) -> None:
    """Pope et al., 2023, arXiv:2211.05102, section 3.2.2: 2 B L (E / X + F / YZ) for two products.

    X is our rows, YZ our columns. Where hidden features are few against columns another form of
    the product moves less.
    """
    rows, columns = shape
    graph = decoder(rows * columns, size, batch, sequence)
    hidden, tokens = rows * columns * size, batch * sequence
    made = on_grid(graph, Grid(rows, columns, "stationary"))
    feed = [op for op in made.ops if op.layer.startswith("blocks.0.feed-forward")]
    sizes = [
        int(dict(op.attrs)["size_bytes"]) // BYTES
        for op in feed
        if op.pass_ is Pass.FORWARD and "dimension" in dict(op.attrs)
    ]
    said = 2 * tokens * (hidden / rows + 4 * hidden / columns)
    assert sum(sizes) <= said
    if columns >= 4:
        assert sum(sizes) == said
    weights = {Role.WEIGHT, Role.WEIGHT_COPY, Role.WEIGHT_GRADIENT}
    assert not any(
        made.tensors[name].role in weights
        for op in made.ops
        if "dimension" in dict(op.attrs) and op.layer.startswith("blocks.")
        for name in op.inputs
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["bert-base", "resnet18"])
def test_nothing_is_done_or_held_twice(name: str, mode: Mode) -> None:
    """But biases and weights of norms, that rows of samples have whole; classes are padded."""
    graph = load_model(name).training(4)
    made = on_grid(graph, Grid(2, 2, mode))
    flops = [sum(op.matrix_flops for op in g.ops) for g in (graph, made)]
    assert 1 <= flops[1] * 4 / flops[0] < 1.0001
    held = {
        role: [
            sum(t.bytes for t in g.tensors.values() if t.role is role and len(t.shape) > 1)
            for g in (graph, made)
        ]
        for role in (Role.WEIGHT, Role.STATE)
    }
    for before, after in held.values():
        assert 1 <= after * 4 / before < 1.001 if before else not after
    assert 1 <= made.activation_bytes * 4 / graph.activation_bytes < 1.1


def test_every_activation_between_products_is_in_as_many_parts_as_devices() -> None:
    graph = decoder(8, 16, 4, 64)
    for mode in MODES:
        made = on_grid(graph, Grid(2, 4, mode))
        read = {name for op in made.ops if op.pass_ is not Pass.FORWARD for name in op.inputs}
        for name in read.intersection(graph.tensors):
            of, mine = graph.tensors[name], made.tensors[name]
            if of.role is Role.ACTIVATION and len(of.shape) > 2 and "mask" not in name:
                assert mine.elements * 8 == of.elements, (mode, name)


@pytest.mark.parametrize("text", ["tensor=1x4", "tensor=4x1", "tensor=4,tensor_rows=1"])
def test_a_grid_of_one_row_or_column_is_a_plan_in_one_dimension(text: str) -> None:
    plan = make_plan(plan_fields(text, {"global_batch": 4}))
    assert plan == rl.Plan(global_batch=4, tensor=4)
    assert plan.tensor_grid is None


def test_one_row_of_features_moves_what_one_dimension_does() -> None:
    """All-reduces of a pair are its gather and its scatter."""
    graph = decoder(4, 16, 2, 64)
    one = divide(graph, ShardingSpec(tensor=4)).graph
    moved = volumes(on_grid(graph, Grid(1, 4, "stationary")))
    plain = volumes(one)
    assert moved["tensor.columns", True] == plain["tensor", True]
    flops = [sum(op.matrix_flops for op in g.ops) for g in (one, on_grid(graph, Grid(1, 4)))]
    assert flops[0] == flops[1]


def test_neighbours_are_along_a_row() -> None:
    mesh = Mesh.of(rl.Plan(global_batch=8, tensor="2x4", data=2))  # type: ignore[arg-type]
    assert mesh.groups(0, "tensor.columns").tolist()[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups(0, "tensor.rows").tolist()[:2] == [[0, 4], [1, 5]]
    assert mesh.groups(0, *mesh.along("data.grid")).tolist()[0] == [0, 4, 8, 12]


@pytest.mark.parametrize(
    "plan",
    [
        {"tensor_mode": "summa", "data": 2, "overlap__tensor": True},
        {"tensor_mode": "summa", "pipeline": 2, "micro_batch": 2, "recompute": "full"},
        {"tensor_mode": "gather", "data": 2, "zero_stage": 2, "micro_batch": 2},
        {"tensor_mode": "gather", "pipeline": 2, "micro_batch": 2, "recompute": "selective"},
        {"tensor_mode": "stationary", "data": 2, "zero_stage": 3, "recompute": "full"},
        {"tensor_mode": "stationary", "pipeline": 2, "context": 2, "offload": "all"},
    ],
)
def test_one_rank_stands_for_all(plan: dict[str, object]) -> None:
    made = stacked(global_batch=8, tensor="2x2", **plan)  # type: ignore[arg-type]
    model = load_model("gpt2", {"layers": 2, "sequence": 128})
    cluster = "selene-a100" if made.devices > 8 else "dgx-a100"
    folded, every = (rl.simulate(model, cluster, made, fold=fold) for fold in (True, False))
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
    assert folded.memory_bytes == every.memory_bytes
    assert folded.energy_j["total"] == pytest.approx(every.energy_j["total"], rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_the_program_sends_what_the_graph_says(mode: Mode) -> None:
    plan = rl.Plan(global_batch=8, tensor="2x2", tensor_mode=mode, data=2)  # type: ignore[arg-type]
    model = load_model("gpt2", {"layers": 2, "sequence": 128})
    lowered = rl.simulate(model, "dgx-a100", plan).details.lowered
    said = Counter(
        float(dict(op.attrs)["size_bytes"]) * int(dict(op.attrs)["repeat"])
        for op in lowered.graph.ops
        if "dimension" in dict(op.attrs)
    )
    of_grid = [
        talk.size_bytes
        for (row, _), talk in lowered.talks.items()
        if lowered.dimension_of_row[row] == "tensor"
    ]
    assert Counter(of_grid) == said


def test_gradients_that_are_scattered_are_added_up() -> None:
    """Of every micro-batch but the first: read twice and written, each weight's part."""
    model = load_model("gpt2", {"layers": 2, "sequence": 128})
    tasks = {}
    for micro_batch in (8, 4):
        plan = rl.Plan(global_batch=8, tensor="2x2", micro_batch=micro_batch)  # type: ignore[arg-type]
        program = rl.simulate(model, "dgx-a100", plan).details.lowered.program
        tasks[micro_batch] = sum("accumulate" in program.label_names[k] for k in program.label)
    assert tasks[8] == 0
    assert tasks[4] > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensor=4x", "ROWSxCOLUMNS"),
        ("tensor=x4", "ROWSxCOLUMNS"),
        ("tensor=0x4", "ROWSxCOLUMNS"),
        ("tensor=2x2x2", "ROWSxCOLUMNS"),
        ("tensor=-2x2", "ROWSxCOLUMNS"),
        ("tensor=two", "ROWSxCOLUMNS"),
        ("tensor=4x2,tensor_rows=2", "has 4 rows, but tensor_rows=2"),
        ("tensor=6,tensor_rows=4", "tensor_rows=4 must divide tensor=6"),
        ("tensor=2x2,tensor_mode=sumna", "tensor_mode"),
        ("tensor=2x2,spatial=2", "spatial=2 is not modelled together with a grid"),
        ("tensor=2x2,sequence=on", "sequence=4 is not modelled together with a grid"),
        ("tensor=2x2,data=2,expert=2", "expert=2 is not modelled together with a grid"),
        ("tensor=2x2,layers=[fc*: tensor=2]", "layers"),
        ("tensor=2x2,replicas=2-1", "replicas=2-1 is not modelled together with a grid"),
    ],
)
def test_plans_that_cannot_be_say_why(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(plan_fields(text, {"global_batch": 8}))


def test_networks_that_a_grid_cannot_divide_say_so() -> None:
    with pytest.raises(ConfigError, match="4 rows can not share the 2 samples"):
        on_grid(load_model("gpt2").training(2), Grid(4, 2, "gather"))
    with pytest.raises(ConfigError, match=r"tensor=2x8: a row of 8 devices does not divide the 12"):
        on_grid(load_model("gpt2").training(2), Grid(2, 8, "gather"))
    mixture = load_model("mixtral-8x7b", {"layers": 1}).training(2, "bf16-mixed")
    with pytest.raises(ConfigError, match="mixtures of experts"):
        on_grid(mixture, Grid(2, 2, "gather"))
    plan = rl.Plan(global_batch=16, tensor="4x4")  # type: ignore[arg-type]
    with pytest.raises(RidgelineError, match="the plan needs 16 devices, but dgx-a100 has 8"):
        rl.simulate("gpt2", "dgx-a100", plan)


def test_a_plan_of_a_grid_is_written_as_it_is_read() -> None:
    plan = make_plan(plan_fields("tensor=4x2,tensor_mode=summa", {"global_batch": 8}))
    assert (plan.tensor, plan.tensor_rows) == (8, 4)
    assert make_plan(plan_fields(str(plan))) == plan
    assert rl.Plan(**plan.model_dump()) == plan
