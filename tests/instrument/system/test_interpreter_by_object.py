"""Values kept for objects while these live, whatever they compare by."""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor.instrument.system import ByObject


@dataclass
class Point:
    x: int


def test_objects_that_are_equal_have_a_value_each_while_they_live() -> None:
    found = ByObject[str]()
    one, other = Point(1), Point(1)
    found[one] = "one"
    assert (found.get(one), found.get(other)) == ("one", None)
    found[one] = "again"
    found[other] = "other"
    assert (found.get(one), found.get(other)) == ("again", "other")
    del one
    assert found.get(other) == "other"
    assert len(found._held) == 1
