"""A loop that has not trained is let run on while that may tell whether it will."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loaderdoctor.diagnosis.gather import AFTER_PASS_S, LONGEST_PASS_S, Gatherer
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule, WindowRequest
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.windows import sizes
from tests.diagnosis.simulator import SimulatedRun


def asked(*, pass_s: float, trains: bool) -> list[WindowRequest]:
    """What a loop of 10 ms a batch is asked, with passes of so many seconds."""
    script_run = SimulatedRun({"plain": 10.0})
    seen = script_run.observed
    loaders = [
        msgspec.structs.replace(x, steps_per_epoch=round(pass_s * 100)) for x in seen.loaders
    ]
    seen = msgspec.structs.replace(seen, trains=trains, loaders=tuple(loaders))
    script_run.observed = seen
    Gatherer(
        script_run,
        LoopEvidence(observed=seen, sizes=sizes(seen, budget_s=45)),
        trace_path=Path("trace.json"),
        profiler=ProfilerSchedule(),
    ).await_training()
    return script_run.asked


def test_a_short_pass_is_let_end_and_what_follows_it_begin() -> None:
    (request,) = asked(pass_s=10.0, trains=False)
    assert request.mode == "plain"
    assert request.limit_s is not None
    assert 10.0 + AFTER_PASS_S - 1 < request.limit_s < 10.0 + AFTER_PASS_S + 1


def test_a_long_pass_is_not_waited_for_nor_a_loop_that_trains() -> None:
    assert asked(pass_s=2 * LONGEST_PASS_S, trains=False) == []
    assert asked(pass_s=10.0, trains=True) == []
