"""Simulated faults are told once, with their cause; look-alikes and noise are not told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.alerts import Alert
from tests.alerts.runs import T0_S, Phase, play

STEADY = Phase(n_steps=1000)


def only(alerts: list[Alert]) -> Alert:
    assert len(alerts) == 1, [a.line for a in alerts]
    return alerts[0]


def slow(**more: object) -> Phase:
    """Waits of 60 ms where there were none."""
    return Phase(n_steps=400, wait_ms=60.0, **more)  # type: ignore[arg-type]


def test_a_steady_run_is_told_nothing() -> None:
    assert not play([Phase(n_steps=20_000)])


def test_storage_that_becomes_slow_is_named_within_two_hundred_steps() -> None:
    alert = only(play([STEADY, Phase(n_steps=200, wait_ms=60.0, batch_ms=240.0)]))
    assert (alert.kind, alert.cause) == ("input-begins", "storage")
    assert 950 <= alert.step <= 1060
    assert "240 ms for a batch (80.0 ms before)" in alert.text


def test_other_programs_that_take_the_cpus_are_named() -> None:
    alert = only(play([STEADY, slow(batch_ms=240.0, around={"other_cpus": 1.9})]))
    assert (alert.kind, alert.cause) == ("input-begins", "other-programs")
    assert "1.9 CPUs" in alert.text


def test_a_quota_that_throttles_is_named() -> None:
    alert = only(play([STEADY, slow(batch_ms=240.0, around={"throttled_share": 0.6})]))
    assert alert.cause == "quota"


def test_samples_that_cost_more_cpu_are_no_slow_storage() -> None:
    alert = only(play([STEADY, slow(batch_ms=240.0, batch_cpu_ms=225.0)]))
    assert alert.cause == "costlier-samples"


def test_a_page_cache_that_no_longer_holds_the_data_is_told_with_its_reads() -> None:
    alert = only(play([STEADY, slow(batch_ms=240.0, around={"read_bytes_per_s": 3e8})]))
    assert alert.cause == "storage"
    assert "page cache" in alert.text


def test_a_wait_that_nothing_explains_is_told_without_a_cause() -> None:
    alert = only(play([STEADY, slow()]))
    assert (alert.kind, alert.cause, alert.advice) == ("input-begins", None, None)
    assert "was not seen" in alert.text


def test_without_workers_the_thread_tells_cpu_from_storage() -> None:
    own = Phase(n_steps=1000, batch_ms=None)
    waits = Phase(n_steps=400, wait_ms=60.0, batch_ms=None)
    works = Phase(n_steps=400, wait_ms=60.0, batch_ms=None, cpu_ms=108.0)
    assert only(play([own, waits])).cause == "storage"
    assert only(play([own, works])).cause == "costlier-samples"


def test_a_loop_that_itself_becomes_slow_is_no_input() -> None:
    alert = only(play([STEADY, Phase(n_steps=400, step_ms=180.0, cpu_ms=128.0)]))
    assert (alert.kind, alert.cause) == ("slower", "own-work")


def test_input_that_ends_to_matter_is_told() -> None:
    alerts = play([slow(), Phase(n_steps=1000)])
    assert [a.kind for a in alerts] == ["input-bound", "input-ends"]


def test_a_loader_that_costs_from_the_beginning_is_said_once() -> None:
    alert = only(play([Phase(n_steps=5000, wait_ms=60.0)]))
    assert alert.kind == "input-bound"


def test_a_pace_that_creeps_is_told() -> None:
    creeping = [Phase(n_steps=640, step_ms=100.0 * 1.012**i) for i in range(60)]
    alerts = play([Phase(n_steps=12_000), *creeping])
    assert alerts and alerts[0].kind in ("drift", "slower")
    assert all(a.kind in ("drift", "slower") for a in alerts)


@pytest.mark.parametrize(("waits", "cause"), [(True, "late-batch"), (False, None)])
def test_stalls_that_recur_are_told_with_their_period(waits: bool, cause: str | None) -> None:
    shard = Phase(n_steps=4000, stall_every=50, stall_ms=900.0, stall_waits=waits)
    alerts = [a for a in play([STEADY, shard]) if a.kind == "stalls"]
    alert = only(alerts)
    assert "Every 50 steps" in alert.text
    assert alert.cause == cause


SHORT: dict[str, object] = {"n_cpus": 2.0, "own_cpus": 0.7, "other_cpus": 1.3}
AMPLE: dict[str, object] = {"n_cpus": 64.0, "own_cpus": 3.0, "other_cpus": 0.6, "cpu_pressure": 0.0}


def cause_of_stalls(around: dict[str, object], *, waits: bool, **more: object) -> str | None:
    """Of steps of 5 ms, some of which take 12 ms longer."""
    even = Phase(n_steps=600, step_ms=5.0, noise=0.2, batch_ms=None, around=around)
    stalls: Phase = replace(even, n_steps=4000, stall_waits=waits, **{"stall_ms": 12.0} | more)  # type: ignore[arg-type]
    told = {a.cause for a in play([even, stalls]) if a.kind == "stalls"}
    assert len(told) == 1, told
    return told.pop()


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    "around",
    [SHORT, {"other_cpus": 1.3, "cpu_pressure": 0.4}, {**AMPLE, "cpu_pressure": 0.4}],
)
def test_turns_of_other_programs_are_no_slow_shard(around: dict[str, object], waits: bool) -> None:
    assert cause_of_stalls(around, waits=waits, stall_every_s=0.12) == "other-programs"


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("around", "every"),
    [
        (AMPLE, {"stall_every": 10, "stall_ms": 25.0}),  # a log: nobody waits for a CPU
        (AMPLE, {"stall_every_s": 0.12}),
        (SHORT, {"stall_every": 20}),  # the scheduler knows no steps
        ({**SHORT, "other_cpus": 0.1}, {"stall_every_s": 0.12}),
        ({"other_cpus": 1.3}, {"stall_every_s": 0.12}),  # of how many, is not known
        (SHORT, {"stall_every_s": 0.8, "stall_ms": 90.0}),  # longer than a turn
    ],
)
def test_other_programs_are_not_blamed_for_the_programs_own_stalls(
    around: dict[str, object], every: dict[str, object], waits: bool
) -> None:
    assert cause_of_stalls(around, waits=waits, **every) == ("late-batch" if waits else None)


def test_workers_that_give_all_at_once_are_no_stalls() -> None:
    # Four workers begin together, take 80 ms each, and the loop waits for the first of each round.
    rhythm = Phase(n_steps=2000, step_ms=5.0, stall_every=4, stall_ms=60.0, batch_ms=80.0)
    assert {a.kind for a in play([rhythm])} <= {"input-bound"}


def test_a_stall_before_the_pace_is_known_is_told_by_what_it_adds() -> None:
    alert = next(a for a in play([Phase(n_steps=400, stall_every=20, stall_ms=900.0)]))
    assert "takes 90" in alert.text  # and not 1,000


def test_long_collections_are_named() -> None:
    alert = only(play([STEADY, Phase(n_steps=400, gc_ms=300.0)]))
    assert (alert.kind, alert.cause) == ("collections", "collections")


def test_short_collections_are_not() -> None:
    assert not play([STEADY, Phase(n_steps=2000, gc_ms=8.0)])


def test_a_worker_that_dies_is_told() -> None:
    alert = only(play([STEADY, Phase(n_steps=100, n_died=1)]))
    assert (alert.kind, alert.cause) == ("workers-died", "workers-gone")


@pytest.mark.parametrize("walked", [True, False])
def test_memory_that_will_be_full_is_told_once_with_the_hours_left(walked: bool) -> None:
    leak = Phase(n_steps=2500, memory_per_s=4e6, free_bytes=40_000_000_000, walked=walked)
    alert = only([a for a in play([leak]) if a.kind == "memory-fills"])
    assert alert.cause == "worker-memory-growth"
    assert "will be full in 2 h" in alert.text


def test_a_leak_of_processes_too_large_to_walk_their_pages_is_told_within_half_a_minute() -> None:
    leak = Phase(n_steps=300, memory_per_s=8e8, free_bytes=400_000_000_000, walked=False)
    alert = only([a for a in play([leak]) if a.kind == "memory-fills"])
    assert alert.cause == "worker-memory-growth"
    assert alert.at_s - T0_S < 32.0


@pytest.mark.parametrize("walked", [True, False])
@pytest.mark.parametrize("fill_steps", [50, 100, 200])
def test_memory_that_fills_and_stops_is_not(walked: bool, fill_steps: int) -> None:
    fills = Phase(n_steps=fill_steps, memory_per_s=2e7, walked=walked)
    assert not play([fills, Phase(n_steps=3000, walked=walked)])


@pytest.mark.parametrize("lasts_s", [8, 40])
def test_a_spell_that_is_over_is_told_to_be_over(lasts_s: int) -> None:
    usual = Phase(n_steps=4000, step_ms=5.0, wait_ms=0.1, batch_ms=4.0)
    spell = replace(usual, n_steps=100 * lasts_s, step_ms=10.0)
    waits = replace(usual, n_steps=100 * lasts_s, wait_ms=5.0)
    kinds = [[a.kind for a in play([usual, one, usual])] for one in (spell, waits)]
    assert kinds == [["slower", "faster"], ["input-begins", "input-ends"]]
