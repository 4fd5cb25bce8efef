"""A sample of a property's cases: how many are drawn, beside fixtures and parameters."""

from __future__ import annotations

from hypothesis import strategies as st

from thoroughly import sample_of

drawn: list[tuple[int, int, int]] = []


@sample_of(3, 7, st.integers(0, 1000), st.data())
def a_property(tmp: int, number: int, data: st.DataObject) -> None:
    drawn.append((tmp, number, data.draw(st.integers(0, 1000))))


def test_a_sample_is_the_beginning_of_all_cases() -> None:
    counts = {}
    for count in (3, 7):
        drawn.clear()
        a_property(examples=count, tmp=1)
        counts[count] = list(drawn)
    assert (len(counts[3]), len(counts[7])) == (3, 7)
    assert counts[7][:3] == counts[3]
    assert {tmp for tmp, *_ in counts[7]} == {1}


def test_all_cases_are_thorough() -> None:
    (mark,) = a_property.pytestmark  # type: ignore[attr-defined]
    few, many = mark.args[1]
    assert few == 3
    assert many.values == (7,)
    assert [of.name for of in many.marks] == ["thorough"]
