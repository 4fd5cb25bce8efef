"""Orders of tasks against sorts by all of their keys."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.engine.task_order import by_start, on_streams


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=60))
def test_tasks_are_sorted_by_start_then_end_then_number(times: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in times], float)
    end = start + np.array([b for _, b in times], float)
    np.testing.assert_array_equal(by_start(start, end), np.lexsort((end, start)))


@given(st.data())
def test_each_stream_has_its_tasks_in_order(data: st.DataObject) -> None:
    """Alone or in a group, a task stands once on every stream that it holds."""
    groups = data.draw(st.lists(st.sets(st.integers(0, 4), min_size=2), max_size=4))
    sizes = [len(group) for group in groups]
    held = data.draw(
        st.lists(st.tuples(st.integers(0, 4), st.integers(-1, len(groups) - 1)), max_size=30)
    )
    order = np.array(data.draw(st.permutations(range(len(held)))), np.int64)
    program = SimpleNamespace(
        stream_rank=np.zeros(5, np.int32),
        stream=np.array([s for s, _ in held], np.int32),
        group=np.array([g for _, g in held], np.int32),
        group_ptr=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        group_stream=np.array([s for group in groups for s in sorted(group)], np.int32),
    )
    ptr, tasks = on_streams(program, order)  # type: ignore[arg-type]
    for stream in range(5):
        mine = [
            task
            for task in order.tolist()
            if (held[task][0] == stream if held[task][1] < 0 else stream in groups[held[task][1]])
        ]
        assert tasks[ptr[stream] : ptr[stream + 1]].tolist() == mine
