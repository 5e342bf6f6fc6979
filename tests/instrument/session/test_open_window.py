"""Collections are counted by the collector's own callback, which is gone afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from loaderdoctor.instrument.session.open_window import CollectionCount


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is collected but what the test asks for."""
    was = gc.isenabled()
    gc.disable()
    yield
    if was:
        gc.enable()


@pytest.mark.usefixtures("quiet")
def test_collections_are_counted_by_generation_and_the_line_that_asks_is_named() -> None:
    before = list(gc.callbacks)
    count = CollectionCount()
    gc.collect(0)
    gc.collect(1)
    gc.collect()
    gc.collect()
    found = count.stop()
    assert gc.callbacks == before
    assert found is not None
    assert found.n == (1, 1, 2)
    assert found.ns[2] == sum(found.full_ns) == found.asked_ns > 0
    assert found.code == "gc.collect()" and found.library is None
    assert found.site is not None and found.site.startswith("test_open_window.py:")


@pytest.mark.usefixtures("quiet")
def test_what_comes_by_itself_was_asked_by_no_line() -> None:
    thresholds = gc.get_threshold()
    count = CollectionCount()
    gc.set_threshold(50, 1, 1)
    gc.enable()
    kept = [[i] for i in range(5_000)]
    gc.disable()
    gc.set_threshold(*thresholds)
    found = count.stop()
    assert kept and found is not None
    assert sum(found.n) > 20
    assert (found.asked_ns, found.site) == (0, None)


@pytest.mark.usefixtures("quiet")
def test_nothing_collected_is_nothing_recorded() -> None:
    count = CollectionCount()
    assert count.stop() is None
    assert count.stop() is None  # an end after a failure: nothing left to remove
