"""Slow steps of a pool that falls short: settings are measured within the second cap.

Opening a trial's pool and using up what the loop's own made meanwhile takes longer than its steps:
as in imagenet/main.py and timm's train.py with four workers on an H200's host, where two rounds of
eight steps in 90 s told nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from loaderdoctor.diagnosis.gather import Gatherer
from loaderdoctor.diagnosis.seconds import Allowance
from loaderdoctor.diagnosis.verify import Verification, Verifier
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.windows import sizes
from tests.diagnosis.pool_run import PoolRun

BUDGET_S = 45.0  # the default
IMAGENET = (121.0, 1187.0)  # the rest of a step, and a batch, milliseconds
TIMM = (64.0, 640.0)
COUNTS = (10, 15, 5)


def tried(
    script_run: PoolRun, *, counts: Sequence[int] = COUNTS, budget_s: float = BUDGET_S
) -> Verification:
    """What a diagnosis does: it gathers, tries settings, and goes on up to the second cap."""
    seconds = Allowance(begun_s=0.0, budget_s=budget_s)

    def clock() -> float:
        return script_run.now_s

    evidence = LoopEvidence(
        observed=script_run.observed, sizes=sizes(script_run.observed, budget_s=budget_s)
    )
    Gatherer(
        script_run,
        evidence,
        trace_path=Path("trace.json"),
        profiler=ProfilerSchedule(),
        clock=clock,
    ).gather(
        until=seconds.rounds_until_s(0.0),
        first_until=seconds.until_s,
        finer_until=seconds.finer_until_s(0.0),
        may_defer=True,
        ablate=True,
        with_copy=False,
    )
    verifier = Verifier(
        evidence,
        Equipment(script_run=script_run, clock=clock),
        left_s=seconds.until_s - clock(),
    )
    found = verifier.verify([Settings(num_workers=n) for n in counts], rest_ms=script_run.rest_ms)
    return found if found.best is not None else verifier.go_on(seconds.most_until_s - clock())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("loop", [IMAGENET, TIMM], ids=["imagenet", "timm"])
@pytest.mark.parametrize("start_s", [1.5, 3.0])
def test_more_workers_are_measured(
    loop: tuple[float, float], noise: float, start_s: float, seed: int
) -> None:
    rest_ms, batch_ms = loop
    script_run = PoolRun(
        rest_ms=rest_ms,
        batch_ms=batch_ms,
        workers=4,
        start_s=start_s,
        vary=0.15,
        noise=noise,
        seed=seed,
    )
    found = tried(script_run)
    assert found.best is not None and found.best.settings.num_workers == 10
    assert found.best.part < 0.65  # of 0.41
    assert script_run.now_s <= 2 * BUDGET_S


def test_windows_are_whole_cycles_of_the_trials_own_workers() -> None:
    script_run = PoolRun(rest_ms=IMAGENET[0], batch_ms=IMAGENET[1], workers=4)
    tried(script_run)
    asked = [r for r in script_run.asked if r.mode == "trial"]
    assert asked
    for request in asked:
        assert request.settings is not None and request.settings.num_workers is not None
        assert request.n_steps % request.settings.num_workers == 0
        assert request.n_steps > 8


def test_where_more_workers_change_nothing_none_are_recommended() -> None:
    for seed in range(6):
        script_run = PoolRun(
            rest_ms=300.0, batch_ms=900.0, workers=4, start_s=2.0, noise=0.05, seed=seed
        )
        assert tried(script_run).best is None


def test_a_smaller_gain_is_told_by_whole_cycles() -> None:
    """Six workers on six CPUs, 321 ms → 214: of twelve runs most are told, of none before."""
    told = 0
    for seed in range(12):
        script_run = PoolRun(
            rest_ms=121.0,
            batch_ms=1283.0,
            workers=4,
            cpus=6.0,
            start_s=2.7,
            vary=0.15,
            noise=0.05,
            seed=seed,
        )
        found = tried(script_run, counts=(6,), budget_s=30.0)
        told += found.best is not None
        assert script_run.now_s <= 60.0
    assert told >= 6
