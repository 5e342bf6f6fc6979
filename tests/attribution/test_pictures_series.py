"""Waits in order, with the marks that explain them; sample times as a histogram."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.attribution.pictures import (
    MAX_BATCHES,
    sample_times,
    waits_of_trace,
    waits_of_windows,
)
from loaderdoctor.instrument.wire.records import BoundaryRecord
from loaderdoctor.trace import read_trace
from tests.attribution.builders import observed, window
from tests.attribution.recorded import recorded
from tests.instrument import worker_cases as cases

TRACES = Path(__file__).parents[2] / "traces"


def begun(at_ns: int, loader: str = "train.py:1") -> BoundaryRecord:
    return BoundaryRecord(loader=loader, create_ns=0, first_wait_ns=0, teardown_ns=0, at_ns=at_ns)


def test_cycles_are_averaged_within_their_window() -> None:
    first = window("plain", [10.0] * 5, waits_ms=(9, 1, 9, 1, 9))
    second = window("plain", [10.0] * 4, waits_ms=(8, 0, 8, 0))
    series = waits_of_windows(observed(workers=2), [first, second])
    assert series is not None
    assert series.waits_ms == pytest.approx((9, 1, 9, 1, 9, 8, 0, 8, 0))
    assert series.windows == (5,)
    assert [at for at, _ in series.cycle_means_ms] == [0, 2, 5, 7]
    assert [mean for _, mean in series.cycle_means_ms] == pytest.approx([5, 5, 4, 4])


def test_an_epoch_begins_at_the_batch_fetched_after_its_iterator_was_made() -> None:
    plain = window("plain", [10.0] * 4, waits_ms=(1, 1, 50, 1))
    third_ns = plain.fetches[2].start_ns
    marks = (begun(third_ns - 1), begun(third_ns - 1, loader="train.py:2"))
    series = waits_of_windows(observed(), [msgspec.structs.replace(plain, boundaries=marks)])
    assert series is not None
    assert series.epochs == (2,)
    assert series.cycle == 0 and series.cycle_means_ms == ()


def test_a_loop_whose_fetches_were_not_seen_has_no_series() -> None:
    assert waits_of_windows(observed(), [window("plain", [10.0] * 4)]) is None
    assert waits_of_windows(observed(), []) is None


def test_a_long_run_is_shown_from_its_beginning() -> None:
    n = MAX_BATCHES + 7
    series = waits_of_windows(observed(workers=4), [window("plain", [1.0] * n, waits_ms=[0.5] * n)])
    assert series is not None
    assert (len(series.waits_ms), series.n_left_out) == (MAX_BATCHES, 7)
    assert series.cycle_means_ms[-1][0] + 4 == MAX_BATCHES


@pytest.mark.parametrize(
    ("case", "epochs"),
    [
        ("respawn_each_epoch", (2, 6, 10, 14, 18)),
        ("recreated_iterator", tuple(range(19))),
        ("sync_loader_decode", ()),
    ],
)
def test_waits_of_a_trace_are_those_of_its_facts(case: str, epochs: tuple[int, ...]) -> None:
    attributed = attribute(read_trace(TRACES / f"{case}.pt.trace.json.gz"))
    series = waits_of_trace(attributed)
    assert series is not None
    assert series.waits_ms == facts_of(attributed).fetching.waits_ms
    assert series.epochs == epochs


def test_a_trace_without_loader_events_has_no_series() -> None:
    assert waits_of_trace(attribute(read_trace(TRACES / "gpu_resident.pt.trace.json.gz"))) is None


def test_slow_samples_show_in_the_histogram(tmp_path: Path) -> None:
    dataset = cases.Sleeping(n=64, sleep_s=0.001, slow_every=16, slow_s=0.05)
    log, start_ns, end_ns = recorded(tmp_path, [cases.loader(dataset, num_workers=2)])
    times = sample_times(log, start_ns, end_ns)
    assert times is not None
    assert times.n == sum(times.counts) == 64
    assert len(times.edges_ms) == len(times.counts) + 1
    assert times.logarithmic
    slow = sum(n for edge, n in zip(times.edges_ms, times.counts, strict=False) if edge >= 25)
    assert slow >= 4
    assert times.median_ms < times.p95_ms <= times.max_ms
    assert sample_times(log, end_ns, end_ns + 1) is None
