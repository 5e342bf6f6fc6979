"""Rules about starting iterators and their workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.batch_making import iterator_recreated, worker_startup_each_epoch
from loaderdoctor.instrument.wire.records import LoaderRecord
from tests.findings.builders import healthy, loader, step, trace, with_exposed, workers
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import LOW
from tests.trace_facts import changed

THREE = tuple(loader(id=f"train.py:41{n}", steps_per_epoch=4) for n in ("", "#2", "#3"))
STEP = step(
    boundary_ms=28.0, steps_per_epoch=4, n_iterators_created=50, most_iterators_of=THREE[1].id
)
CHEAP = workers(loader=THREE[0].id, batch_ms=0.5, idle_share=0.95)


def replace_settings(record: LoaderRecord, **changes: Any) -> LoaderRecord:
    return structs.replace(record, settings=replace(record.settings, **changes))


def joined(**changes: Any) -> Facts:
    """Three loaders in `zip`, four steps an epoch: twelve workers for each epoch."""
    facts = with_exposed(
        input_=0.8,
        step=STEP,
        loaders=THREE,
        workers=CHEAP,
        other_workers=tuple(replace(CHEAP, loader=x.id) for x in THREE[1:]),
    )
    return replace(facts, **changes)


CASES = (
    Case(
        rule=worker_startup_each_epoch,
        ill=joined(),
        share=0.7,
        severity=Severity.HIGH,
        evidence={"num_workers": 12, "startup_ms_per_step": 7.0},
        says=("12 workers of 3 loaders start again", "num_workers=0", "1.50 ms of a step"),
        silent={
            "all persistent": joined(
                loaders=tuple(replace_settings(x, persistent_workers=True) for x in THREE)
            ),
            "none has workers": joined(
                loaders=tuple(replace_settings(x, num_workers=0) for x in THREE)
            ),
        },
    ),
    Case(
        rule=iterator_recreated,
        ill=joined(
            step=step(steps_per_epoch=4, n_iterators_created=200, most_iterators_of=THREE[1].id)
        ),
        share=0.8,
        severity=Severity.HIGH,
        evidence={"n_iterators_created": 200},
        says=("a new iterator 200 times",),
        silent={"one of each loader for each epoch": joined()},
    ),
    Case(
        rule=worker_startup_each_epoch,
        ill=with_exposed(input_=0.55, step=step(boundary_ms=40.0, steps_per_epoch=8)),
        share=0.5,
        severity=Severity.HIGH,
        evidence={"boundary_ms": 40.0, "startup_ms_per_step": 5.0, "steps_per_epoch": 8},
        says=(
            "4 workers start again for each epoch of 8 steps, and until the first batch 40.0 ms go "
            "by: 50 % of the run",
        ),
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


def test_the_loader_whose_workers_start_again_is_named_though_the_first_has_none() -> None:
    first = replace_settings(THREE[0], num_workers=0)
    finding = worker_startup_each_epoch(joined(loaders=(first, *THREE[1:])))
    assert finding is not None
    assert finding.loader == THREE[1].id
    assert finding.evidence["num_workers"] == 8


def test_dear_batches_are_not_to_be_made_by_the_loop_itself() -> None:
    dear = tuple(replace(CHEAP, loader=x.id, batch_ms=9.0) for x in THREE)
    finding = worker_startup_each_epoch(joined(workers=dear[0], other_workers=dear[1:]))
    assert finding is not None
    assert [p.setting for p in finding.predictions] == ["persistent_workers"]


def test_a_loader_built_for_each_epoch_must_be_kept_for_its_workers_to_stay() -> None:
    facts = joined(step=replace(STEP, rebuilt=frozenset({THREE[0].id})))
    finding = worker_startup_each_epoch(facts)
    assert finding is not None
    assert "built again" in finding.summary
    assert "of a loader built once" in finding.predictions[0].sentence
    assert finding.evidence["loader_built_each_epoch"] is True


def test_startup_in_a_trace_must_be_most_of_its_input_time() -> None:
    shares = with_exposed(input_=0.6).shares
    assert shares is not None
    seen = trace(shares=shares, n_iterators_created=2, startup_ms=(50.0, 50.0))
    finding = worker_startup_each_epoch(facts_of_trace(seen))
    assert finding is not None
    assert finding.share == pytest.approx(0.5)
    assert worker_startup_each_epoch(facts_of_trace(changed(seen, startup_ms=(20.0,)))) is None
    assert worker_startup_each_epoch(facts_of_trace(changed(seen, n_iterators_created=20))) is None


def test_without_workers_a_batch_costs_at_best_what_was_made_while_a_cpu_was_free() -> None:
    """Twelve workers that start together queue for the CPUs; the loop alone does not."""
    crowded = replace(CHEAP, batch_ms=2.0, cpu_share=0.2, idle_share=0.98, run_wait_share=0.018)
    finding = worker_startup_each_epoch(
        joined(
            workers=crowded,
            other_workers=tuple(replace(crowded, loader=x.id) for x in THREE[1:]),
        )
    )
    assert finding is not None
    (without,) = [p for p in finding.predictions if p.setting == "num_workers"]
    assert without.step_ms == pytest.approx(2.0 + 3 * 2.0 * 0.2)  # the rest, and its CPU time
    asleep = replace(crowded, run_wait_share=0.0)
    others = tuple(replace(asleep, loader=x.id) for x in THREE[1:])
    finding = worker_startup_each_epoch(joined(workers=asleep, other_workers=others))
    assert finding is not None
    (without,) = [p for p in finding.predictions if p.setting == "num_workers"]
    assert without.step_ms == pytest.approx(2.0 + 3 * 2.0)
