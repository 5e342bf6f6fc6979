"""Python's garbage collector as a cause: its share, its pauses, and lines that call it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.advice.prescription import prescribe
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import CollectionFacts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.memory import gc_in_workers, gc_pauses
from tests.findings.builders import healthy, shares, with_exposed, workers
from tests.findings.case import Case, check_fires, check_silent

SEEN = CollectionFacts(
    n=400,
    n_full=40,
    n_steps=400,
    ms_per_step=3.0,
    low_ms_per_step=2.1,
    full_ms_per_step=2.9,
    asked_ms_per_step=0.0,
    longest_ms=310.0,
    n_longer_than_step=40,
)


def collecting(facts: Facts | None = None, **changes: Any) -> Facts:
    facts = facts if facts is not None else healthy()
    assert facts.step is not None
    machine = replace(facts.machine, device_name=None) if facts.machine is not None else None
    step = replace(facts.step, collecting=replace(SEEN, **changes))
    return replace(facts, step=step, machine=machine, trace=None)


PAUSES = Case(
    rule=gc_pauses,
    ill=collecting(),
    share=0.3,
    severity=Severity.HIGH,
    evidence={"collection_ms_per_step": 3.0, "full_collections": 40, "longest_ms": 310.0},
    says=("40 full collections in 400 steps", "The longest took 310 ms", "gc.freeze()"),
    silent={
        "young ones that cost nothing": collecting(
            n=4000, n_full=0, ms_per_step=0.05, full_ms_per_step=0.0, n_longer_than_step=0
        ),
        "one pause in a long run": collecting(n_full=1, n_longer_than_step=1, ms_per_step=0.3),
        "nothing collected": healthy(),
    },
    missing={"no plain windows": replace(collecting(), step=None)},
)


def test_gc_pauses() -> None:
    check_fires(PAUSES)
    check_silent(PAUSES)


def test_rare_pauses_that_double_steps_are_told_as_a_hint() -> None:
    found = gc_pauses(collecting(ms_per_step=0.2, low_ms_per_step=0.1, n_longer_than_step=4))
    assert found is not None and found.severity is Severity.LOW
    assert gc_pauses(collecting(ms_per_step=0.2, n_longer_than_step=2)) is None


def test_one_long_pause_is_uncertain() -> None:
    found = gc_pauses(collecting(n_full=1, low_ms_per_step=0.0, n_longer_than_step=1))
    assert found is not None and found.severity is Severity.UNCERTAIN


def test_a_line_that_collects_is_named_and_no_setting_is_advised() -> None:
    found = gc_pauses(collecting(asked_ms_per_step=2.8, site="train.py:57", code="gc.collect()"))
    assert found is not None and found.advice is not None
    assert found.summary.startswith("gc.collect() at train.py:57 stops the loop 40 times")
    assert "gc.freeze" not in found.advice and "train.py:57" in found.advice
    assert "at the end of an epoch, not in the steps" in found.advice
    # Where it is there already, that is no advice.
    found = gc_pauses(collecting(asked_ms_per_step=2.8, site="train.py:57", n_epoch_ends=40))
    assert found is not None and found.advice is not None
    assert "after several of these short epochs, not after each" in found.advice


def test_young_collections_get_other_advice_than_full_ones() -> None:
    found = gc_pauses(collecting(n=8000, full_ms_per_step=0.4))
    assert found is not None and found.advice is not None
    assert "8,000 collections" in found.summary and "gc.freeze" not in found.advice


def test_next_to_an_accelerator_it_costs_no_more_than_that_idles() -> None:
    facts = healthy()
    assert facts.machine is not None
    busy = replace(
        collecting(), machine=replace(facts.machine, device_name="GPU"), shares=shares(host=0.1)
    )
    found = gc_pauses(busy)
    assert found is not None and found.share is not None
    assert found.share <= 0.1 + (busy.share("input") or 0.0) + 1e-9


def test_an_input_share_that_is_open_lets_no_collection_count_on_a_busy_gpu() -> None:
    """An H200, 93 % computing: the loader "seems to take 5 % (0 to 27 %), perhaps nothing"."""
    device = replace(healthy().machine, device_name="GPU")  # type: ignore[type-var]
    split = shares(input_=0.054, host=0.009)
    ill = replace(collecting(), machine=device, shares=split)
    assert gc_pauses(replace(ill, shares_low={"input": -0.16, "copy": 0.0})) is None
    found = gc_pauses(replace(ill, shares_low={"input": 0.05, "copy": 0.0}))
    assert found is not None and found.share == pytest.approx(0.063)


def test_both_ways_to_spare_the_steps_are_tried_and_none_where_a_line_asks() -> None:
    def tried(facts: Facts) -> list[tuple[str | None, bool]]:
        found = prescribe(facts, find(facts)).candidates
        return [(c.settings.gc, c.caution is not None) for c in found if c.settings.gc is not None]

    def on_gpu(**changes: Any) -> Facts:
        return replace(collecting(**changes), machine=healthy().machine, shares=shares(host=0.5))

    assert tried(on_gpu()) == [("manual", True), ("frozen", False)]
    assert tried(on_gpu(n=8000, full_ms_per_step=0.4)) == [("manual", True)]
    assert tried(on_gpu(asked_ms_per_step=2.8, site="train.py:57")) == []
    assert tried(healthy()) == []


def test_lines_that_collections_fall_into_are_not_the_cause() -> None:
    kinds = {x.kind for x in find(collecting())}
    assert Kind.GC_PAUSES in kinds


def in_workers(collecting_ms: float | None = 8.0, *, input_: float = 0.6, **more: Any) -> Facts:
    """Four workers that take 40 ms a batch: 6 of 10 ms a step."""
    pool = workers(
        batch_ms=40.0, collecting_ms=collecting_ms, full_collections=0.25, idle_share=0.0, **more
    )
    return replace(with_exposed(input_=input_), workers=pool)


IN_WORKERS = Case(
    rule=gc_in_workers,
    ill=in_workers(),
    share=0.12,
    severity=Severity.MODERATE,
    evidence={"collecting_ms_per_batch": 8.0, "collecting_share_of_batch": 0.2},
    says=(
        "8.00 ms of the 40.0 ms that a worker needs",
        "a full collection every 4.00 batches",
        "gc.freeze()",
    ),
    silent={
        "little of a batch": in_workers(2.0),
        "none": in_workers(0.0),
        "the loop does not wait": in_workers(input_=0.0),
        "the pool keeps up": in_workers(input_=0.02),
    },
    missing={
        "not recorded": in_workers(None),
        "no workers recorded": replace(in_workers(), workers=None),
    },
)


def test_gc_in_workers() -> None:
    check_fires(IN_WORKERS)
    check_silent(IN_WORKERS)


def test_first_samples_that_are_slow_for_their_collections_are_no_cold_storage() -> None:
    """Two million objects: a first sample took 12 times as long, and no file was read."""

    def kinds(collecting_ms: float) -> set[Kind]:
        slow_at_first = in_workers(collecting_ms, first_touch_ratio=12.0, first_touch_ms=120.0)
        return {x.kind for x in find(slow_at_first)}

    assert Kind.COLD_STORAGE in kinds(0.0)
    assert kinds(32.0) & {Kind.COLD_STORAGE, Kind.GC_IN_WORKERS} == {Kind.GC_IN_WORKERS}


def test_both_ways_to_spare_workers_collections_are_tried_by_what_they_explain() -> None:
    def tried(facts: Facts) -> dict[object, float | None]:
        found = prescribe(facts, find(facts)).candidates
        all_ = {c.settings.worker_gc: c.predicted_step_ms for c in found}
        return {how: ms for how, ms in all_.items() if how is not None}

    told = tried(in_workers())
    assert list(told) == ["frozen", "rarely"]
    assert all(ms is not None and 5.0 < ms < 9.0 for ms in told.values())  # of 10: 1.2 at best
    assert not tried(in_workers(2.0)) and not tried(in_workers(input_=0.02))
