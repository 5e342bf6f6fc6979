"""Handing batches over, or fetching each sample alone, as the whole cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.advice.prescription import candidates
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.saturated import overhead_bound_loader
from loaderdoctor.settings import Settings
from tests.findings.builders import healthy, loader, with_exposed, workers
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import BY_ITSELF, LOW, NO_WORKERS

# One worker makes a batch in 0.4 ms and waits; receiving it takes the loop 2 of its 10 ms.
HANDED_OVER = workers(
    n_workers=1, batch_ms=0.4, fetch_ms=0.1, collate_ms=0.3, idle_share=0.9, receive_ms=2.0
)
ONE_WORKER = (loader(settings={"num_workers": 1}),)

CASES = (
    Case(
        rule=overhead_bound_loader,
        ill=with_exposed(
            input_=0.5,
            loaders=NO_WORKERS,
            workers=workers(
                n_workers=0,
                batch_ms=2.6,
                fetch_ms=2.0,
                collate_ms=0.6,
                n_samples=20_480,
                sample_ms_quantiles=(0.008, 0.009, 0.01, 0.011, 0.012, 0.02, 0.03, 0.2),
            ),
        ),
        share=0.494,  # without the epoch's start
        severity=Severity.HIGH,
        evidence={"sample_us": 11.0, "batch_ms": 2.6, "num_workers": 0},
        says=("A sample takes 11 µs", "More workers would add the price of a queue"),
        silent={
            "samples of some cost": with_exposed(input_=0.5, workers=BY_ITSELF),
            "batches too cheap to explain it": with_exposed(
                input_=0.5,
                workers=workers(
                    batch_ms=0.1, fetch_ms=0.1, queue_put_ms=0.05, sample_ms_quantiles=(0.01,) * 8
                ),
            ),
            "a rare slow sample": with_exposed(
                input_=0.5,
                workers=workers(
                    fetch_ms=16.0,
                    sample_ms_quantiles=(0.01, 0.01, 0.02, 0.02, 0.02, 0.02, 0.03, 120.0),
                ),
            ),
            "costly collating": with_exposed(
                input_=0.5,
                workers=workers(
                    fetch_ms=0.6, collate_ms=15.0, sample_ms_quantiles=(0.01,) * 8, sampler_ms=0.0
                ),
            ),
            "a stream": with_exposed(
                input_=0.5,
                loaders=(loader(kind="iterable"),),
                workers=workers(fetch_ms=0.6, sample_ms_quantiles=(0.01,) * 8),
            ),
        },
        missing={
            "workers": with_exposed(input_=0.5, workers=None),
            "sample times": with_exposed(
                input_=0.5, workers=workers(sample_ms_quantiles=None, n_samples=0)
            ),
            "loader": with_exposed(input_=0.5, loaders=()),
        },
    ),
    Case(
        rule=overhead_bound_loader,
        ill=with_exposed(input_=0.25, loaders=ONE_WORKER, workers=HANDED_OVER),
        share=0.2,
        severity=Severity.HIGH,
        evidence={"receive_ms_per_batch": 2.0, "batch_ms": 0.4, "num_workers": 1},
        says=(
            "costs the loop 2.00 ms, making it costs a worker 0.40 ms: 2.00 of 10.0 ms a step",
            "8.40 ms a step",
        ),
        silent={
            "making costs more": with_exposed(
                input_=0.25,
                loaders=ONE_WORKER,
                workers=replace(HANDED_OVER, batch_ms=3.0, fetch_ms=2.7),
            ),
            "the pool falls short": with_exposed(
                input_=0.9,
                loaders=ONE_WORKER,
                workers=replace(
                    HANDED_OVER, batch_ms=1.9, fetch_ms=1.7, n_samples=80, idle_share=0.0
                ),
            ),
            "receiving is a small part": with_exposed(
                input_=0.25, loaders=ONE_WORKER, workers=replace(HANDED_OVER, receive_ms=0.45)
            ),
            LOW: healthy(loaders=ONE_WORKER, workers=HANDED_OVER),
        },
        missing={
            "receiving": with_exposed(
                input_=0.25, loaders=ONE_WORKER, workers=replace(HANDED_OVER, receive_ms=None)
            ),
        },
    ),
)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_no_workers_are_tried_where_receiving_costs_more_than_making() -> None:
    facts = with_exposed(input_=0.25, loaders=ONE_WORKER, workers=HANDED_OVER)
    findings = find(facts)
    assert [x.kind for x in findings if x.share][:1] == [Kind.OVERHEAD_BOUND_LOADER]
    tried = {c.settings: c for c in candidates(facts, findings)}
    one = tried[Settings(num_workers=0)]
    assert one.predicted_step_ms == pytest.approx(0.99 * 8.4)
