"""Where the analysis looks for its evidence."""

from __future__ import annotations

from loaderdoctor.diagnosis.analysis import _unprofiled
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.windows import sizes
from tests.attribution.builders import observed


def done(mode: str, start_ns: int, end_ns: int) -> WindowDone:
    return WindowDone(
        id=start_ns,
        mode=mode,  # type: ignore[arg-type]
        status="ok",
        start_ns=start_ns,
        end_ns=end_ns,
        n_steps=1,
    )


def test_looks_of_the_whole_run_count_but_for_the_profiled_window_and_the_trials() -> None:
    seen = observed(step_ms=10.0)
    evidence = LoopEvidence(observed=seen, sizes=sizes(seen, budget_s=45))
    evidence.plain = [done("plain", 100, 200), done("plain", 400, 500)]
    assert _unprofiled(evidence) == [(0, 500)]
    evidence.profiled = done("profiled", 250, 350)
    assert _unprofiled(evidence) == [(0, 250), (350, 500)]
    evidence.profiled = done("profiled", 600, 700)  # after ablation, with an accelerator
    assert _unprofiled(evidence) == [(0, 600), (700, 700)]
