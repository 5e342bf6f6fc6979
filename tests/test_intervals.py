"""The algebra against a brute force that looks at every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.intervals import EMPTY, Intervals

SIZE = 40

spans = st.lists(st.tuples(st.integers(0, SIZE), st.integers(-3, 12)), max_size=12).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


def of(pairs: list[tuple[int, int]]) -> Intervals:
    return Intervals.of([a for a, _ in pairs], [b for _, b in pairs])


def instants(intervals: Intervals) -> set[int]:
    return {t for a, b in zip(intervals.starts, intervals.ends, strict=True) for t in range(a, b)}


def brute(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def assert_canonical(intervals: Intervals) -> None:
    assert (intervals.ends > intervals.starts).all()
    assert (intervals.starts[1:] > intervals.ends[:-1]).all()
    assert intervals.starts.dtype == np.int64


@given(spans)
def test_any_spans_become_their_set_of_instants(pairs: list[tuple[int, int]]) -> None:
    built = of(pairs)
    assert_canonical(built)
    assert instants(built) == brute(pairs)
    assert built.total_ns == len(brute(pairs))
    assert int(built.lengths_ns.sum()) == built.total_ns


@given(spans, spans)
def test_union_intersect_and_subtract_agree_with_sets(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    for result, expected in (
        (of(a).union(of(b)), brute(a) | brute(b)),
        (of(a).intersect(of(b)), brute(a) & brute(b)),
        (of(a).subtract(of(b)), brute(a) - brute(b)),
    ):
        assert_canonical(result)
        assert instants(result) == expected


@given(spans, spans)
def test_what_is_taken_and_what_is_left_make_the_whole(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    taken, left = of(a).intersect(of(b)), of(a).subtract(of(b))
    assert taken.total_ns + left.total_ns == of(a).total_ns
    assert taken.union(left) == of(a)


@given(spans, st.integers(-5, SIZE + 20), st.integers(-5, SIZE + 20))
def test_clipping_keeps_what_lies_within(pairs: list[tuple[int, int]], a: int, b: int) -> None:
    clipped = of(pairs).clip(a, b)
    assert_canonical(clipped)
    assert instants(clipped) == {t for t in brute(pairs) if a <= t < b}


@given(spans, st.lists(st.integers(-5, SIZE + 20), max_size=8))
def test_time_covered_before_an_instant_and_membership(
    pairs: list[tuple[int, int]], at: list[int]
) -> None:
    known = brute(pairs)
    assert of(pairs).covered_before(at).tolist() == [sum(t < x for t in known) for x in at]
    assert of(pairs).contains(at).tolist() == [x in known for x in at]


@given(spans, st.lists(st.integers(-5, SIZE + 20), max_size=40))
def test_membership_of_many_instants_in_order(pairs: list[tuple[int, int]], at: list[int]) -> None:
    covered = brute(pairs)
    assert of(pairs).contains(sorted(at)).tolist() == [x in covered for x in sorted(at)]


@given(spans, st.randoms(use_true_random=False))
def test_order_of_spans_and_splitting_one_change_nothing(
    pairs: list[tuple[int, int]], random: object
) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' Random
    split = [
        piece
        for a, b in shuffled
        for piece in ([(a, (a + b) // 2), ((a + b) // 2, b)] if b > a else [(a, b)])
    ]
    assert of(split) == of(pairs)


def test_the_empty_set_is_neutral() -> None:
    some = Intervals.span(3, 7)
    assert EMPTY.total_ns == 0
    assert len(EMPTY) == 0
    assert some.union(EMPTY) == some
    assert some.subtract(EMPTY) == some
    assert some.intersect(EMPTY) == EMPTY
    assert EMPTY.subtract(some) == EMPTY
    assert Intervals.span(7, 3) == EMPTY
    assert some != "something else"


def test_times_of_a_real_clock_stay_exact() -> None:
    # Nanoseconds since 1970 exceed what a float holds.
    start = 1_790_857_026_000_000_001
    some = Intervals.of([start, start + 10], [start + 3, start + 11])
    assert some.total_ns == 4
    assert some.subtract(Intervals.span(start + 1, start + 2)).total_ns == 3
