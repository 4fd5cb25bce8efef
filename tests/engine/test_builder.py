"""What is built is what was said, and what is malformed is refused by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ridgeline.engine
from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.engine.program import Account, Program
from ridgeline.engine.validate import check_program
from ridgeline.errors import RidgelineError


def small_builder() -> ProgramBuilder:
    builder = ProgramBuilder()
    engine = builder.add_resource("engine", 4.0)
    link = builder.add_resource("link", 2.0, shared=True)
    account = builder.add_account("network", "link", "B", 1e-12)
    ranks = [builder.add_rank(), builder.add_rank(multiplicity=3)]
    streams = [builder.add_stream(f"s{i}", rank) for i, rank in enumerate(ranks)]
    row = builder.add_cost([WorkPhase(0.5, {engine: 8.0, link: 1.0}, repeat=2)], {account: 2.0})
    group = builder.add_group(streams)
    builder.add_task("compute", "a", stream=streams[0], cost=row)
    builder.add_task(
        "collective", "b", group=group, cost=row, deps=[0], memory=[(ranks[1], "weights", 5, -2)]
    )
    builder.set_initial_memory(ranks[0], "activations", 7)
    return builder


def test_a_program_holds_what_was_added() -> None:
    p = small_builder().build()
    check_program(p)
    assert p.resource_names == ("engine", "link")
    assert p.shared.tolist() == [False, True]
    assert (p.latency_s.tolist(), p.repeat.tolist(), p.weight.tolist()) == ([0.5], [2], [1.0])
    assert (p.work_resource.tolist(), p.work_amount.tolist()) == ([0, 1], [8.0, 1.0])
    assert p.accounts == (Account("network", "link", "B", 1e-12),)
    assert (p.stream.tolist(), p.group.tolist()) == ([0, 0], [-1, 0])
    assert (p.dep_ptr.tolist(), p.dep_index.tolist()) == ([0, 0, 1], [0])
    assert (p.kind_names, p.label_names) == (("compute", "collective"), ("a", "b"))
    assert p.memory_kinds == ("weights", "activations")
    assert p.memory_initial.tolist() == [[0, 7], [0, 0]]
    assert (p.memory_start.tolist(), p.memory_end.tolist()) == ([5], [-2])


def test_equal_things_are_stored_once() -> None:
    builder = small_builder()
    assert builder.add_account("network", "link", "B", 1e-12) == 0
    assert builder.add_account("network", "link", "B", 2e-12) == 1
    assert builder.add_group([0, 1]) == 0
    assert builder.add_group([1, 0]) == 1
    assert builder.add_cost([WorkPhase(0.5, {1: 1.0, 0: 8.0}, repeat=2)], {0: 2.0}) == 0
    assert builder.add_cost([WorkPhase(0.5, {1: 1.0, 0: 8.0}, repeat=2)]) == 1
    assert builder.add_cost([WorkPhase(0.5, {1: 1.0, 0: 8.0}, 2, weight=2.0)], {0: 2.0}) == 2
    assert builder.add_cost([WorkPhase(0.5, {1: 1.0, 0: 8.0}, repeat=2)]) == 1


def test_a_built_program_does_not_change_with_its_builder() -> None:
    builder = small_builder()
    program = builder.build()
    builder.add_task("compute", "c", stream=0, cost=0)
    assert program.n_tasks == 2
    assert builder.build().n_tasks == 3


@pytest.mark.parametrize("deps", [[2], [-1], [0, 5]])
def test_dependencies_are_earlier_tasks(deps: list[int]) -> None:
    with pytest.raises(RidgelineError, match="must be from 0 to 1"):
        small_builder().add_task("x", "x", stream=0, cost=0, deps=deps)


@pytest.mark.parametrize("place", [{}, {"stream": 0, "group": 0}])
def test_a_task_has_a_stream_or_a_group(place: dict[str, Any]) -> None:
    with pytest.raises(RidgelineError, match="either a stream or a group"):
        small_builder().add_task("x", "x", cost=0, **place)


def test_a_group_has_streams() -> None:
    with pytest.raises(RidgelineError, match="at least one stream"):
        small_builder().add_group([])


def test_scaling_changes_one_capacity() -> None:
    program = small_builder().build()
    assert program.scaled({"link": 0.5}).capacity.tolist() == [4.0, 1.0]
    with pytest.raises(RidgelineError, match="wire"):
        program.scaled({"wire": 2.0})


@pytest.mark.parametrize(
    ("field", "entry", "value"),
    [
        ("capacity", 0, 0.0),
        ("capacity", 1, np.nan),
        ("weight", 0, 0.0),
        ("latency_s", 0, -1.0),
        ("latency_s", 0, np.inf),
        ("repeat", 0, 0),
        ("work_ptr", 0, 1),
        ("work_ptr", 1, 3),
        ("work_resource", 0, 2),
        ("work_resource", 0, 1),
        ("work_amount", 1, -1.0),
        ("event_account", 0, 1),
        ("event_count", 0, np.nan),
        ("phase_ptr", 1, 0),
        ("kind", 0, 2),
        ("stream", 0, -1),
        ("group", 1, 1),
        ("group", 1, -2),
        ("group_stream", 0, 1),
        ("group_ptr", 1, 1),
        ("cost", 0, 1),
        ("multiplicity", 0, 0),
        ("label", 0, 9),
        ("dep_ptr", 1, 2),
        ("dep_index", 0, 2),
        ("stream_rank", 1, 2),
        ("rank_multiplicity", 0, 0),
        ("memory_ptr", 1, 2),
        ("memory_rank", 0, 2),
        ("memory_kind", 0, 2),
        ("memory_initial", 0, -1),
    ],
)
def test_a_malformed_entry_is_refused_by_name(field: str, entry: int, value: Any) -> None:
    program = small_builder().build()
    getattr(program, field)[entry] = value
    with pytest.raises(RidgelineError, match=field):
        check_program(program)


def test_a_gang_is_led_by_one_of_its_streams() -> None:
    builder = small_builder()
    third = builder.add_stream("s2", 0)
    program = builder.build()
    program.stream[1] = third
    with pytest.raises(RidgelineError, match=r"stream\[1\] is 2"):
        check_program(program)


@pytest.mark.parametrize("field", sorted(small_builder().build().arrays()))
def test_arrays_of_another_type_or_shape_are_refused(field: str) -> None:
    program: Program = small_builder().build()
    array = getattr(program, field)
    for wrong in (array.astype(np.float32), array[np.newaxis]):
        with pytest.raises(RidgelineError, match=rf"{field} (is|must)"):
            check_program(replace(program, **{field: wrong}))


def test_the_package_imports_neither_numba_nor_simpy_until_it_plays() -> None:
    code = (
        "import sys, ridgeline.engine as e; e.ProgramBuilder; e.Program; e.check_program;"
        "assert not {'numba', 'simpy'} & set(sys.modules), 'too early';"
        "e.run; assert 'numba' in sys.modules; e.run_reference; assert 'simpy' in sys.modules"
    )
    paths = [path for path in sys.path if path]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {code}"], check=True
    )


def test_all_public_names_are_there() -> None:
    for name in ridgeline.engine.__all__:
        assert getattr(ridgeline.engine, name).__name__ == name
    assert set(ridgeline.engine.__all__) <= set(dir(ridgeline.engine))
    with pytest.raises(AttributeError, match="no attribute 'play'"):
        ridgeline.engine.play  # noqa: B018
