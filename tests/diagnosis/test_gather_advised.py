"""The winner of the trials is traced for its picture: within the time left, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.diagnosis.gather import kept_back_s, trace_advised
from loaderdoctor.diagnosis.verify import Verification
from loaderdoctor.errors import RunError
from loaderdoctor.estimate import Noise, Sample
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule, WindowDone, WindowRequest
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import Trial
from loaderdoctor.tryout.comparing import Compared


@dataclass
class Run:
    """A run that answers each request with a trace, or as told."""

    fails: bool = False
    ended: object = None
    asked: list[WindowRequest] = field(default_factory=list)

    def measure(self, requests: Sequence[WindowRequest], **_: Any) -> list[WindowDone]:
        self.asked += requests
        if self.fails:
            raise RunError("it hangs")
        return [traced(request) for request in requests]


def traced(request: WindowRequest) -> WindowDone:
    n = request.n_steps
    return WindowDone(
        id=request.id, n_steps=n, mode="trial", status="ok", start_ns=0, end_ns=n * 10**7,
        host_step_ns=(10**7,) * n, trace_path=request.trace_path,
    )  # fmt: skip


def winner(step_ms: float = 20.0, num_workers: int = 6) -> Verification:
    best = Compared(
        trial=Trial(index=1, settings=Settings(num_workers=num_workers)),
        steps=[(i, Sample(value=step_ms)) for i in range(3)],
        noise=Noise(),
    )
    return Verification(tried=(best,), best=best, complete=True)


def asked(run: Run, verification: Verification | None, left_s: float = 10.0) -> object:
    return trace_advised(
        run,  # type: ignore[arg-type]
        verification,
        Path("raw"),
        ProfilerSchedule(),
        left_s,
    )


def test_the_winner_is_traced_for_two_batches_of_each_worker() -> None:
    run = Run()
    found = asked(run, winner())
    (request,) = run.asked
    assert (request.mode, request.n_steps) == ("trial", 12)
    assert request.settings == Settings(num_workers=6)
    assert found is not None


@pytest.mark.parametrize(
    ("run", "verification", "left_s"),
    [
        (Run(), None, 10.0),
        (Run(), Verification(tried=(), best=None, complete=True), 10.0),
        (Run(), winner(), 2.0),  # opening it alone may take that
        (Run(), winner(step_ms=500.0), 10.0),
        (Run(ended=object()), winner(), 10.0),
    ],
)
def test_without_a_winner_or_time_nothing_is_asked_for(
    run: Run, verification: Verification | None, left_s: float
) -> None:
    assert asked(run, verification, left_s) is None
    assert run.asked == []


def test_a_run_that_breaks_meanwhile_costs_only_the_picture() -> None:
    assert asked(Run(fails=True), winner()) is None


def test_trials_leave_it_a_tenth_at_most() -> None:
    assert kept_back_s(45.0) == 4.0
    assert kept_back_s(20.0) == 2.0
