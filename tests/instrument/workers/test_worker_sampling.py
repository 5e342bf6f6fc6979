"""What a worker tells of what its dataset holds, without running the user's code."""

from __future__ import annotations

import functools

import pytest

from loaderdoctor.instrument.workers import worker_sampling
from loaderdoctor.instrument.workers.worker_sampling import HeapFree, lengths


class Asked:
    """Has a `cache_info` of its own, which is no business of ours."""

    def cache_info(self) -> object:
        raise AssertionError


class Kept:
    other = Asked()

    def __init__(self) -> None:
        self.seen = [1, 2, 3]

    @functools.lru_cache(maxsize=8)  # noqa: B019  # that it keeps them is the point
    def read(self, index: int) -> int:
        return index


def test_only_a_cache_of_functools_is_asked_what_it_keeps() -> None:
    kept = Kept()
    kept.read(1)
    kept.read(2)
    assert lengths(kept) == {"seen": 3, "read()": 2}


def test_a_heap_that_takes_long_to_look_at_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_sampling, "MAX_ASKING_S", float("inf"))
    asked = HeapFree()
    if asked() is None:
        pytest.skip("malloc does not tell")
    assert asked() is not None
    monkeypatch.setattr(worker_sampling, "MAX_ASKING_S", -1.0)
    assert asked() is not None
    assert asked() is None  # not told from then on
