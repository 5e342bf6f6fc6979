"""Bounds against what twenty loops took (`benchmarks/first_advice.py`, two quiet CPUs).

`recorded_trials.json` holds, as [value, low, high] in milliseconds, what each loop's own windows
and its trials measured; the bounds are computed from it by today's code.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import AblationFacts, Mechanisms
from loaderdoctor.findings.input_parts import least_rest_ms, least_without_ms, pool_ms
from tests.findings.builders import healthy, loader, machine, step, workers

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "recorded_trials.json").read_text()
)
OF_POOL = {"num_workers", "persistent_workers"}


def estimate(figures: list[float]) -> Estimate:
    value, low, high = figures
    return Estimate(value=value, low=low, high=high, n=3)


def facts_of(row: dict[str, Any]) -> Facts:
    n = row["num_workers"]
    wall, cost = estimate(row["step"]), estimate(row["claimed_input"])
    got = row["receiving_cpu"]
    seen = Mechanisms(
        wait_ms=None,
        got_ms=estimate(got) if got is not None else None,
        exposed=True,
        run_queue_ms=None,
        cpu_ms=None,
        interpreter_ms=None,
    )

    def ablation(no_input: list[float], raw: AblationFacts | None = None) -> AblationFacts:
        return AblationFacts(
            plain_ms=wall,
            no_input_ms=estimate(no_input),
            no_copy_ms=None,
            input_ms=cost,
            copy_ms=None,
            n_rounds=3,
            mechanisms=seen,
            raw=raw,
        )

    own = step(raw_wait_ms=row["batch_ms"], main_cpu_cores=None, worker_cpu_cores=None)
    return healthy(
        step=replace(own, wall_ms=wall),
        loaders=(loader(settings={"num_workers": n}),),
        workers=workers(
            n_workers=n, batch_ms=row["batch_ms"], cpu_share=row["cpu_share"], run_wait_share=None
        ),
        ablation=ablation(row["claimed_no_input"], ablation(row["no_input"])),
        machine=machine(usable_cpus=2.0, device_name=None),
    )


def bound_ms(row: dict[str, Any], settings: dict[str, Any]) -> float | None:
    """As it is proposed: by the pool, or by what of making batches falls away."""
    facts = facts_of(row)
    if settings.get("cache"):
        part = 1.0 if settings.get("batched") else row["fetch_ms"] / row["batch_ms"]
        return least_without_ms(facts, part * row["claimed_input"][0])
    if set(settings) <= OF_POOL:
        return pool_ms(facts, settings["num_workers"], at_best=True)[0]
    return None


TRIALS = [
    pytest.param(row, trial, id=f"{row['loop']}: {trial['settings']}")
    for row in RECORDED
    for trial in row["trials"]
    if bound_ms(row, trial["settings"]) is not None
]


@pytest.mark.parametrize(("row", "trial"), TRIALS)
def test_a_bound_is_never_beaten(row: dict[str, Any], trial: dict[str, Any]) -> None:
    bound = bound_ms(row, trial["settings"])
    assert bound is not None
    _, _, high = trial["step"]
    assert bound <= high


def test_bounds_say_something() -> None:
    """Half of them lie within a quarter of what was measured, none at less than a quarter of it."""
    parts = sorted(
        (bound_ms(row, trial["settings"]) or 0.0) / trial["step"][0]
        for row in RECORDED
        for trial in row["trials"]
        if set(trial["settings"]) <= OF_POOL or trial["settings"].get("cache")
    )
    assert len(parts) > 60
    assert parts[len(parts) // 2] > 0.75
    assert parts[0] > 0.25


def test_the_rest_is_what_ready_batches_took() -> None:
    for row in RECORDED:
        rest = least_rest_ms(facts_of(row))
        assert rest is not None and rest <= row["claimed_no_input"][0]
        assert rest >= min(row["no_input"][1], row["claimed_no_input"][0])
