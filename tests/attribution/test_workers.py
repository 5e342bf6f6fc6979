"""Facts of real workers whose cost is known by construction."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from loaderdoctor.attribution.workers import worker_facts
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.instrument.wire.measured import FetchRecord
from loaderdoctor.instrument.wire.worker_log import WorkerLog
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker
from tests.instrument import worker_cases as cases


class Watched:
    """A loop over loaders with its fetches noted, as the measuring process does."""

    def __init__(self) -> None:
        self.fetches: list[FetchRecord] = []
        self.start_ns = 0
        self.n_steps = 0

    def epoch(self, source: DataLoader[Any], step_s: float = 0.0, loader: int = 0) -> None:
        iterator = iter(source)
        self.start_ns = self.start_ns or time.perf_counter_ns()
        while True:
            start_ns = time.perf_counter_ns()
            try:
                next(iterator)
            except StopIteration:
                return
            end_ns = time.perf_counter_ns()
            thread = threading.get_native_id()
            self.fetches.append(
                FetchRecord(loader=loader, start_ns=start_ns, end_ns=end_ns, thread=thread)
            )
            self.n_steps += 1
            time.sleep(step_s)


def facts_of(
    tmp_path: Path, run: Callable[[Watched], None]
) -> tuple[WorkerFacts, Watched, WorkerLog]:
    watched = Watched()
    worker.install(tmp_path / "records")
    try:
        run(watched)
    finally:
        end_ns = time.perf_counter_ns()
        worker.remove()
    log = read(tmp_path / "records")
    facts = worker_facts(
        log, watched.start_ns, end_ns, n_steps=watched.n_steps, fetches=watched.fetches
    )
    assert facts is not None
    return facts, watched, log


def test_batch_time_is_samples_plus_collate_and_quantiles_show_the_slow_ones(
    tmp_path: Path,
) -> None:
    dataset = cases.Sleeping(n=64, sleep_s=0.002, slow_every=8, slow_s=0.02)
    facts, _, _ = facts_of(tmp_path, lambda w: w.epoch(cases.loader(dataset, num_workers=2)))
    assert facts.n_workers == 2
    assert facts.n_batches == 16
    assert facts.n_samples == 64
    assert facts.collate_ms is not None
    assert facts.batch_ms == pytest.approx(facts.fetch_ms + facts.collate_ms)
    assert facts.fetch_ms >= (7 * 2 + 20) / 8 * 4 * 0.95
    quantiles = facts.sample_ms_quantiles
    assert quantiles is not None
    assert list(quantiles) == sorted(quantiles)
    # The median and 95 %: one in eight sleeps ten times as long, however late all wake up.
    assert quantiles[3] < 19.0 < quantiles[5]
    assert facts.cpu_share is not None
    assert facts.cpu_share < 0.3
    assert facts.cores == (tuple(sorted(os.sched_getaffinity(0))),) * 2
    assert facts.n_threads == 1
    assert facts.n_idle_workers == 0


def test_a_fast_loop_keeps_workers_busy_and_a_slow_one_leaves_them_idle(tmp_path: Path) -> None:
    dataset = cases.Sleeping(n=64, sleep_s=0.004)
    busy, _, _ = facts_of(
        tmp_path / "busy", lambda w: w.epoch(cases.loader(dataset, num_workers=2))
    )
    idle, _, _ = facts_of(
        tmp_path / "idle", lambda w: w.epoch(cases.loader(dataset, num_workers=2), step_s=0.08)
    )
    assert busy.idle_share is not None
    assert idle.idle_share is not None
    # Near 0 and 0.9 on a quiet machine; a neighbour takes turns from the busy ones.
    assert busy.idle_share < 0.55 < idle.idle_share
    assert idle.least_idle_share is not None
    assert 0.5 < idle.least_idle_share <= idle.idle_share


def test_what_the_loop_waits_while_its_batch_is_made_is_told_from_ready_batches(
    tmp_path: Path,
) -> None:
    dataset = cases.Sleeping(n=16, sleep_s=0.02)
    slow, _, _ = facts_of(tmp_path / "a", lambda w: w.epoch(cases.loader(dataset, num_workers=1)))
    ready, _, _ = facts_of(
        tmp_path / "b", lambda w: w.epoch(cases.loader(dataset, num_workers=1), step_s=0.2)
    )
    none, _, _ = facts_of(tmp_path / "c", lambda w: w.epoch(cases.loader(dataset)))
    assert slow.unready_share is not None and slow.unready_share > 0.3
    assert ready.unready_share is not None and ready.unready_share < slow.unready_share
    assert none.unready_share is None


def test_head_of_line_is_the_wait_for_a_slow_batch_as_far_as_workers_stood_idle(
    tmp_path: Path,
) -> None:
    """Batches of one sample; every 4th takes 80 ms, so one of two workers gets all of those.

    While the loop waits for it the other worker, half of the pool, has nothing to do.
    """
    dataset = cases.Sleeping(n=32, sleep_s=0.001, slow_every=4, slow_s=0.08)

    def run(watched: Watched, in_order: bool) -> None:
        watched.epoch(cases.loader(dataset, batch_size=1, num_workers=2, in_order=in_order))

    _, watched, log = facts_of(tmp_path / "a", lambda w: run(w, True))
    steady = watched.fetches[1:]  # the first one waits for the workers to start
    ordered = worker_facts(
        log, steady[0].start_ns, steady[-1].end_ns, n_steps=len(steady), fetches=steady
    )
    waits_ms = sum(f.end_ns - f.start_ns for f in steady) / 1e6 / len(steady)
    assert ordered is not None
    assert ordered.head_of_line_ms is not None
    # Half of it; other programs hold up workers that would be idle.
    assert 0.15 * waits_ms < ordered.head_of_line_ms < 0.6 * waits_ms
    free, _, _ = facts_of(tmp_path / "b", lambda w: run(w, False))
    assert free.head_of_line_ms == 0


def test_a_pool_that_is_busy_throughout_has_no_head_of_line_stall(tmp_path: Path) -> None:
    # Long beside the turns of a busy machine, which hold up one worker and not the other.
    even = cases.Sleeping(n=32, sleep_s=0.04)
    facts, watched, _ = facts_of(
        tmp_path,
        lambda w: w.epoch(cases.loader(even, batch_size=1, num_workers=2, prefetch_factor=6)),
    )
    waits_ms = sum(f.end_ns - f.start_ns for f in watched.fetches) / 1e6 / watched.n_steps
    assert facts.head_of_line_ms is not None
    assert facts.head_of_line_ms < 0.15 * waits_ms


def test_workers_without_a_shard_are_idle(tmp_path: Path) -> None:
    def run(watched: Watched, only_first: bool) -> None:
        watched.epoch(cases.loader(cases.Sharded(64, only_first), num_workers=3))

    facts, _, _ = facts_of(tmp_path / "a", lambda w: run(w, True))
    assert facts.n_idle_workers == 2
    facts, _, _ = facts_of(tmp_path / "b", lambda w: run(w, False))
    assert facts.n_idle_workers == 0


class ColdFirst(cases.Sleeping):
    """The first touch of an index waits, as on cold storage; the file is the page cache."""

    def __init__(self, cache: Path) -> None:
        super().__init__(n=40)
        self.cache = cache

    def __getitem__(self, i: int) -> torch.Tensor:
        mark = self.cache / str(i)
        cold = not mark.exists()
        mark.touch()
        time.sleep(0.05 if cold else 0.001)
        return torch.full((4,), float(i))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_first_touches_are_told_from_later_ones(tmp_path: Path, n_workers: int) -> None:
    cold = ColdFirst(tmp_path)

    def run(watched: Watched, dataset: Any) -> None:
        source = cases.loader(dataset, num_workers=n_workers, shuffle=True)
        watched.epoch(source)
        watched.epoch(source)

    facts, _, _ = facts_of(tmp_path / "a", lambda w: run(w, cold))
    assert facts.first_touch_ratio is not None
    assert facts.first_touch_ratio > 3
    assert facts.first_touch_ms is not None
    assert facts.first_touch_ms > 45
    facts, _, _ = facts_of(tmp_path / "b", lambda w: run(w, cases.Sleeping(n=40, sleep_s=0.01)))
    assert facts.first_touch_ratio is not None
    assert facts.first_touch_ratio < 2


def test_one_epoch_says_nothing_about_first_touches(tmp_path: Path) -> None:
    facts, _, _ = facts_of(tmp_path, lambda w: w.epoch(cases.loader(cases.Sleeping())))
    assert facts.first_touch_ratio is None


def test_receiving_counts_from_when_a_batch_is_ready_and_not_the_wait_for_it(
    tmp_path: Path,
) -> None:
    # Of 80 ms: on a busy machine the loop may wake up 10 ms late, and more.
    dataset = cases.Sleeping(n=24, sleep_s=0.02)
    slow, _, _ = facts_of(
        tmp_path / "slow", lambda w: w.epoch(cases.loader(dataset, num_workers=1))
    )
    assert slow.receive_ms is not None
    assert 0 < slow.receive_ms < slow.batch_ms / 2  # the loop waits nearly a batch each time


def test_at_no_workers_what_only_workers_have_is_absent(tmp_path: Path) -> None:
    facts, _, _ = facts_of(tmp_path, lambda w: w.epoch(cases.loader(cases.Sleeping())))
    assert facts.n_workers == 0
    assert facts.fetch_ms >= 8
    assert facts.sampler_ms is not None
    for absent in (facts.idle_share, facts.queue_put_ms, facts.n_threads, facts.head_of_line_ms):
        assert absent is None
    assert facts.receive_ms is None
    assert facts.cores == ()


def test_of_two_loaders_the_costlier_one_counts(tmp_path: Path) -> None:
    def run(watched: Watched) -> None:
        watched.epoch(cases.loader(cases.Sleeping(n=32, sleep_s=0.001)), loader=0)
        watched.epoch(cases.loader(cases.Sleeping(n=32, sleep_s=0.01), num_workers=1), loader=1)

    facts, _, _ = facts_of(tmp_path, run)
    assert facts.n_workers == 1
    assert facts.fetch_ms >= 40


def test_a_window_counts_whole_cycles_and_nothing_outside_it(tmp_path: Path) -> None:
    dataset = cases.Sleeping(n=60, sleep_s=0.004)
    _, watched, log = facts_of(
        tmp_path, lambda w: w.epoch(cases.loader(dataset, num_workers=2, prefetch_factor=1))
    )
    middle = watched.fetches[3:10]
    facts = worker_facts(
        log, middle[0].start_ns, middle[-1].end_ns, n_steps=len(middle), fetches=middle
    )
    assert facts is not None
    assert facts.n_batches % 2 == 0
    assert 4 <= facts.n_batches <= 8
    assert worker_facts(log, 0, 1, n_steps=1) is None


def test_hot_lines_carry_their_code(tmp_path: Path) -> None:
    facts, _, _ = facts_of(
        tmp_path, lambda w: w.epoch(cases.loader(cases.Spinning(), num_workers=1))
    )
    assert facts.lines
    top = facts.lines[0]
    assert top.file == cases.__file__
    assert top.code is not None
    assert sum(hotspot.share for hotspot in facts.lines) == pytest.approx(1)
    for phase in {hotspot.phase for hotspot in facts.lines}:
        hotspots = [hotspot for hotspot in facts.lines if hotspot.phase == phase]
        assert hotspots[0].of_stack_samples == sum(hotspot.n_stack_samples for hotspot in hotspots)
    assert top.phase == "fetch"
    assert top.phase_share > 0.9  # samples of 6 ms, collated in no time
    assert all(
        sum(x.n_stack_samples for x in hotspot.leaves) == hotspot.n_stack_samples
        for hotspot in facts.lines
    )


def test_looks_of_other_windows_count_once_each(tmp_path: Path) -> None:
    source = cases.loader(cases.Spinning())

    def run(watched: Watched) -> None:
        watched.epoch(source)
        watched.epoch(source)

    _, watched, log = facts_of(tmp_path, run)
    half = len(watched.fetches) // 2
    first, second = watched.fetches[:half], watched.fetches[half:]

    def stack_samples(*windows: list[FetchRecord]) -> int:
        spans = [(w[0].start_ns, w[-1].end_ns, w) for w in windows]
        facts = worker_facts(
            log, *spans[0][:2], n_steps=half, fetches=spans[0][2], sampled_in=spans[1:]
        )
        assert facts is not None
        return sum(hotspot.n_stack_samples for hotspot in facts.lines)

    everything = sum(hotspot.count for hotspot in log.lines)
    assert stack_samples(first) <= stack_samples(first, second) == everything
    assert stack_samples(first, second, first, second) == everything


class Multiplying(cases.Spinning):
    """Its native thread pool works beside the thread that makes the batch."""

    def __getitem__(self, i: int) -> int:
        torch.set_num_threads(4)  # as a worker_init_fn would
        return super().__getitem__(i)


def test_threads_a_worker_was_told_to_use_are_counted(tmp_path: Path) -> None:
    facts, _, _ = facts_of(tmp_path, lambda w: w.epoch(cases.loader(Multiplying(), num_workers=1)))
    assert facts.n_threads == 4
