"""Equivalent ranks."""

from __future__ import annotations

from ridgeline.parallel.stages.fold import equivalent_ranks


def test_equal_ranks_in_one_group_are_one_class() -> None:
    assert equivalent_ranks(["v100"] * 4, [("sum", range(4))]) == [[0, 1, 2, 3]]


def test_a_different_role_splits_its_class() -> None:
    assert equivalent_ranks(["a", "a", "b", "a"], []) == [[0, 1, 3], [2]]


def test_groups_split_what_roles_do_not() -> None:
    # 0 and 1 talk to each other, 2 and 3 too, 4 is alone.
    groups = [("sum", [0, 1]), ("sum", [2, 3])]
    assert equivalent_ranks(["a"] * 5, groups) == [[0, 1, 2, 3], [4]]


def test_a_difference_spreads_along_groups() -> None:
    # A chain 0-1-2-3-4 whose one end differs: every rank is at another distance from it.
    groups = [("sum", [0, 1]), ("sum", [3, 4]), ("sum", [1, 2]), ("sum", [2, 3])]
    assert equivalent_ranks(["b", "a", "a", "a", "a"], groups) == [[0], [1], [2], [3], [4]]
    assert equivalent_ranks(["a"] * 5, groups) == [[0, 4], [1, 3], [2]]


def test_the_order_of_collectives_tells_ranks_apart() -> None:
    groups = [("sum", [i, i + 1]) for i in range(4)]  # from one end of the chain to the other
    assert equivalent_ranks(["a"] * 5, groups) == [[0], [1], [2], [3], [4]]
