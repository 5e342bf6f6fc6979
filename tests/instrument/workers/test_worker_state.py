"""What a worker tells of what its dataset holds, without running the user's code."""

from __future__ import annotations

import functools

from loaderdoctor.instrument.workers.worker_state import lengths


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
