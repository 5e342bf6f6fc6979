"""A diagnosis whose first window is slower than those of its rounds says so, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from loaderdoctor.attribution.ablation import Round
from loaderdoctor.diagnosis.gather import Evidence
from loaderdoctor.diagnosis.plan import sizes
from loaderdoctor.diagnosis.slow_start import slow_start
from loaderdoctor.instrument.counters import CpuRecord
from loaderdoctor.instrument.protocol import WindowDone
from tests.sweep.simulator import observed


def window(ms: float, *, faults: int = 0, waited_ms: float = 0.0) -> WindowDone:
    cpu = CpuRecord(
        wall_ns=1, main_ns=1, thread_faults=20 * faults, thread_waited_ns=int(20e6 * waited_ms)
    )
    return WindowDone(
        id=1, mode="plain", status="ok", n_steps=20, host_step_ns=(int(ms * 1e6),) * 20, cpu=cpu
    )


def evidence(first: WindowDone, rounds: Sequence[float]) -> Evidence:
    seen = observed()
    found = Evidence(observed=seen, sizes=sizes(seen, budget_s=30.0), plain=[first])
    found.rounds = [Round(plain=window(ms, faults=3), no_input=window(1.0)) for ms in rounds]
    return found


STEADY = (20.0, 20.4, 19.7, 20.1)


def test_a_slow_first_window_is_told_with_its_page_faults() -> None:
    told = slow_start(evidence(window(25.0, faults=1600), STEADY))
    assert told is not None
    assert told.startswith("the loop took 25.0 ms a step at first and 20.1 in the rounds")
    assert "1,600 page faults a step at first, 3 later" in told
    plain = slow_start(evidence(window(25.0), STEADY))
    assert plain is not None
    assert "page faults" not in plain


def test_nothing_is_told_of_noise_of_other_programs_or_of_too_few_rounds() -> None:
    assert slow_start(evidence(window(20.3, faults=1600), STEADY)) is None
    assert slow_start(evidence(window(25.0), (20.0, 28.0, 17.0, 22.0))) is None
    assert slow_start(evidence(window(25.0, waited_ms=4.0), STEADY)) is None
    assert slow_start(evidence(window(25.0), STEADY[:2])) is None
    assert slow_start(evidence(window(15.0), STEADY)) is None
