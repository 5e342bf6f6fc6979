"""Rules about starting iterators and their workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.findings.model import Severity
from loaderdoctor.findings.rules.startup import iterator_recreated, worker_startup_each_epoch
from tests.findings.builders import healthy, loader, step, trace, with_exposed
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import LOW
from tests.trace_facts import changed

CASES = (
    Case(
        rule=worker_startup_each_epoch,
        ill=with_exposed(input_=0.55, step=step(boundary_ms=40.0, steps_per_epoch=8)),
        share=0.5,
        severity=Severity.HIGH,
        evidence={"boundary_ms": 40.0, "startup_ms_per_step": 5.0, "steps_per_epoch": 8},
        says=("Starting 4 workers again costs 40.0 ms each epoch of 8 steps, 50 % of the run",),
        silent={
            "long epochs": with_exposed(input_=0.55, step=step(boundary_ms=40.0)),
            "persistent workers": with_exposed(
                input_=0.55,
                step=step(boundary_ms=40.0, steps_per_epoch=8),
                loaders=(loader(settings={"persistent_workers": True}),),
            ),
            LOW: healthy(step=step(boundary_ms=40.0, steps_per_epoch=8)),
        },
        missing={
            "boundary": with_exposed(input_=0.55, step=step(boundary_ms=None)),
            "epoch length": with_exposed(input_=0.55, step=step(steps_per_epoch=None)),
        },
    ),
    Case(
        rule=iterator_recreated,
        ill=with_exposed(input_=0.9, step=step(n_iterators_created=200)),
        share=0.9,
        severity=Severity.HIGH,
        evidence={"n_iterators_created": 200, "n_steps": 200},
        says=("a new iterator 200 times in 200 steps", "4 workers are started for it"),
        silent={
            "once an epoch": with_exposed(input_=0.9, step=step(n_iterators_created=2)),
            "an epoch is one step": with_exposed(
                input_=0.9,
                step=step(n_iterators_created=200),
                loaders=(loader(steps_per_epoch=1),),
            ),
            LOW: healthy(step=step(n_iterators_created=200)),
        },
        missing={
            "steps and loader events": replace(
                with_exposed(input_=0.9), step=None, trace=trace(loader_events=False)
            ),
        },
    ),
)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_startup_in_a_trace_must_be_most_of_its_input_time() -> None:
    shares = with_exposed(input_=0.6).shares
    assert shares is not None
    seen = trace(shares=shares, n_iterators_created=2, startup_ms=(50.0, 50.0))
    finding = worker_startup_each_epoch(facts_of_trace(seen))
    assert finding is not None
    assert finding.share == pytest.approx(0.5)
    assert worker_startup_each_epoch(facts_of_trace(changed(seen, startup_ms=(20.0,)))) is None
    assert worker_startup_each_epoch(facts_of_trace(changed(seen, n_iterators_created=20))) is None
