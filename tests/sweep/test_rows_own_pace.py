"""Trial 0 against the loop as it is: compared with its neighbours in time, and with a reason."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from loaderdoctor.facts import AS_IS
from loaderdoctor.instrument.wire.measured import CpuRecord, FetchRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.report.words.first_screen import SLOW_START
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.report_rows import REOPENED, pace_warning
from loaderdoctor.tryout import Options, Outcome
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.ranking import Ranking
from tests.tryout.simulator import SimulatedRun, Truth, observed

SLOW = 1.3


def swept(seed: int = 0, **changed: float) -> tuple[Outcome, Ranking]:
    given = {"noise": 0.01, **changed}
    script_run = SimulatedRun(
        lambda settings: Truth(step_ms=9.0),
        Truth(step_ms=10.0),
        seed=seed,
        **given,  # type: ignore[arg-type]
    )
    trials = (AS_IS, Settings(num_workers=1), Settings(num_workers=2))
    sweep = Sweep(
        observed(),
        trials,
        Options(budget_s=30.0, seed=seed),
        Equipment(script_run=script_run, clock=script_run.clock),
    )
    return sweep.run(), sweep.ranking()


def kind(outcome: Outcome, ranking: Ranking) -> str | None:
    told = pace_warning(outcome, ranking)
    return told.kind if told is not None else None


@pytest.mark.parametrize("seed", range(5))
def test_a_loop_that_is_slow_at_first_is_not_taken_for_the_cost_of_opening_its_loader_again(
    seed: int,
) -> None:
    assert kind(*swept(seed, slow_start=SLOW)) == SLOW_START
    assert kind(*swept(seed, plain_factor=SLOW)) == REOPENED
    assert kind(*swept(seed)) is None


def test_noise_and_drift_are_no_reason_to_speak_of_it() -> None:
    noisy = [kind(*swept(seed, noise=0.3)) for seed in range(16)]
    # 5 % by the interval (4 and 5 of 64 other seeds): more than 4 of 16 are 1 in 300.
    assert sum(k is not None for k in noisy) <= 4
    assert kind(*swept(drift_per_s=0.01)) is None


def with_cpu(window: WindowDone, *, faults: int, waited_ms: float = 0.0) -> WindowDone:
    waited_ns = int(waited_ms * 1e6) * window.n_steps
    cpu = CpuRecord(
        wall_ns=1, main_ns=1, thread_faults=faults * window.n_steps, thread_waited_ns=waited_ns
    )
    return msgspec.structs.replace(window, cpu=cpu)


def test_memory_fetched_anew_in_each_step_is_named_as_the_reason() -> None:
    outcome, ranking = swept(slow_start=SLOW)
    first, last = outcome.plain
    outcome.plain = [with_cpu(first, faults=1600), with_cpu(last, faults=3)]
    told = pace_warning(outcome, ranking)
    assert told is not None
    assert "1,600 page faults a step at first, 3 later" in told.text
    outcome.plain = [with_cpu(first, faults=1600), with_cpu(last, faults=1500)]
    told = pace_warning(outcome, ranking)
    assert told is not None
    assert "page faults" not in told.text


def test_first_steps_that_only_waited_for_a_cpu_are_no_slow_start() -> None:
    outcome, ranking = swept(slow_start=SLOW)
    first, last = outcome.plain
    outcome.plain = [with_cpu(first, faults=0, waited_ms=3.0), with_cpu(last, faults=0)]
    assert kind(outcome, ranking) is None
    # In the last window likewise: the loop had reached its pace all the same.
    held_up = msgspec.structs.replace(last, host_step_ns=tuple(ns * 2 for ns in last.host_step_ns))
    outcome.plain = [with_cpu(first, faults=0), with_cpu(held_up, faults=0, waited_ms=10.0)]
    assert kind(outcome, ranking) == SLOW_START
    outcome.plain = [with_cpu(first, faults=0), with_cpu(held_up, faults=0)]
    assert kind(outcome, ranking) is None


@pytest.mark.parametrize(("fetch_ms", "where"), [(4.0, "in getting batches)"), (1.0, "own work")])
def test_where_the_difference_lies_is_said(fetch_ms: float, where: str) -> None:
    outcome, ranking = swept(plain_factor=SLOW)

    def fetched(window: WindowDone, ms: float) -> WindowDone:
        one = FetchRecord(loader=0, start_ns=0, end_ns=int(ms * 1e6), thread=0)
        return msgspec.structs.replace(window, fetches=(one,) * window.n_steps)

    outcome.plain = [fetched(window, fetch_ms) for window in outcome.plain]
    own = outcome.trials[0]
    own.measurements = [
        replace(measurement, window=fetched(measurement.window, 1.0))
        for measurement in own.measurements
    ]
    told = pace_warning(outcome, ranking)
    assert told is not None
    assert where in told.text
