"""What a diagnosis tries, window by window, and what it says of it, pinned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.budget import DiagnosisOptions
from loaderdoctor.diagnosis.verify import Verifier
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.measuring import Equipment
from tests.attribution.builders import observed
from tests.diagnosis.simulator import SimulatedRun
from tests.diagnosis.test_gather import gatherer
from tests.tryout.pinned import asked, check, rounded, rows

PINNED = Settings(pin_memory=True, non_blocking=True)
CACHED, UINT8 = Settings(cache=True), Settings(uint8=True)
TWO, FOUR = Settings(num_workers=2), Settings(num_workers=4)


def workers_and_pinning(changed: Mapping[str, Any]) -> float:
    """20 ms in the loop's own process; four workers leave 8 ms, pinning takes 3 ms more."""
    ms = 20.0 - 3.0 * min(4, int(changed.get("num_workers") or 0))
    return ms - 3.0 if changed.get("pin_memory") and changed.get("non_blocking") else ms


def cached(changed: Mapping[str, Any]) -> float:
    return 5.0 if changed.get("cache") else workers_and_pinning(changed)


def threads(changed: Mapping[str, Any]) -> float:
    ms = 6.0 if changed.get("num_threads") == 1 else 20.0
    return ms - 2.0 if changed.get("num_workers") else ms


@dataclass(frozen=True, kw_only=True)
class Case:
    trial_ms: Callable[[Mapping[str, Any]], float] = workers_and_pinning
    candidates: Sequence[Settings] = (TWO, FOUR, PINNED)
    in_code: Sequence[Settings] = ()
    until: float = 1e9
    rest_ms: float | None = None
    trial_limit_s: float | None = None
    epoch: int | None = 100
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "combination": Case(options={"noise": 0.01}),
    "clear winner": Case(rest_ms=8.0, options={"noise": 0.001}, candidates=(FOUR, PINNED)),
    "tie": Case(trial_ms=lambda _: 15.0, options={"noise": 0.02}),
    "nothing helps": Case(trial_ms=lambda _: 20.0, options={"noise": 0.05}),
    "hidden by noise": Case(
        trial_ms=lambda _: 14.0, candidates=(FOUR,), options={"noise": 0.12, "seed": 5}
    ),
    "short budget": Case(until=24.0, rest_ms=8.0, options={"noise": 0.01}),
    "shorter budget": Case(
        until=9.0, candidates=(*(Settings(num_workers=n) for n in range(1, 5)),)
    ),
    "no time": Case(until=0.0),
    "failing": Case(options={"failing": frozenset({"trial"})}),
    "plain fails": Case(options={"failing": frozenset({"plain"})}),
    "script ends": Case(options={"ends_after": 7}),
    "in code": Case(
        trial_ms=cached, in_code=(CACHED, UINT8), options={"noise": 0.01}, trial_limit_s=7.0
    ),
    "in code, short": Case(trial_ms=cached, in_code=(CACHED, UINT8), until=30.0, rest_ms=20.0),
    "threads": Case(trial_ms=threads, candidates=(Settings(num_threads=1), TWO), rest_ms=18.0),
    "whole epochs": Case(
        candidates=(Settings(num_workers=8, prefetch_factor=4), TWO), epoch=90, until=90.0
    ),
    "caught up": Case(
        trial_ms=lambda c: 5.0 if c.get("pin_memory") else 20.0, until=10.6, options={"noise": 0.01}
    ),
    "drift": Case(options={"drift_per_window": 0.01, "seed": 7}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_tried_is_as_pinned(name: str) -> None:
    case = CASES[name]
    script_run = SimulatedRun({"plain": 20.0}, trial_ms=case.trial_ms, **case.options)
    script_run.observed = observed(step_ms=20.0, steps_per_epoch=case.epoch)
    evidence = gatherer(script_run).evidence
    evidence.observed = msgspec.structs.replace(evidence.observed, device="cuda:0")
    verifier = Verifier(
        evidence,
        Equipment(script_run=script_run, clock=lambda: script_run.now_s),
        left_s=case.until - script_run.now_s,
        trial_limit_s=case.trial_limit_s,
    )
    found = verifier.verify(case.candidates, rest_ms=case.rest_ms, in_code=case.in_code)
    outcome = {
        "best": found.best.settings.label() if found.best is not None else None,
        "complete": found.complete,
        "tried": [
            [t.settings.label(), t.n_rounds, rounded(t.step), rounded(t.gain), t.trial.reason]
            for t in found.tried
        ],
    }
    check("pinned_verify", name, {"asked": asked(script_run.asked), "outcome": outcome})


@pytest.mark.parametrize(
    ("name", "true_ms", "options", "budget_s"),
    [
        ("starved", {"plain": 25.0, "no_input": 10.0}, {}, 45.0),
        ("starved, short", {"plain": 25.0, "no_input": 10.0}, {}, 20.0),
        ("uncertain", {"plain": 100.0, "no_input": 83.0}, {"noise": 0.12, "seed": 2}, 120.0),
        ("healthy", {"plain": 25.0, "no_input": 24.9}, {"noise": 0.01}, 45.0),
        (
            "threads fight",
            {"plain": 25.0, "no_input": 24.0},
            {"n_threads": 2, "waiting_threads": 1.6},
            60.0,
        ),
        (
            "copies",
            {"plain": 13.0, "no_input": 10.0, "no_copy": 5.0},
            {"device": "cuda:0", "noise": 0.01},
            45.0,
        ),
    ],
)
def test_a_whole_diagnosis_is_as_pinned(
    name: str, true_ms: dict[str, float], options: dict[str, Any], budget_s: float, tmp_path: Path
) -> None:
    script_run = SimulatedRun(
        true_ms,
        trial_ms=lambda c: 0.6 * true_ms["plain"] if c.get("num_workers") else 9.0,
        **options,
    )
    made = Diagnosis(
        script_run,
        target="train.py",
        raw=tmp_path,
        options=DiagnosisOptions(budget_s=budget_s, profiler=ProfilerSchedule()),
        clock=lambda: script_run.now_s,
    )
    made.measure(script_run.observed)
    report = made.report()
    outcome = {
        "verdict": report.verdict.summary,
        "recommendations": rows(report.recommendations),
        "trials": rows(report.trials),
        "withheld": rows(report.not_advised),
        "warnings": [warning.kind for warning in report.warnings],
    }
    check("pinned_diagnosis", name, {"asked": asked(script_run.asked), "outcome": outcome})
