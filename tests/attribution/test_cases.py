"""Real H100 traces against what each part truly costs, measured by ablation without a profiler."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution import facts_of as facts_of_attributed
from loaderdoctor.attribution.combine import best_shares, facts_of_trace
from loaderdoctor.attribution.verdict import judge_trace, verdict_from_shares
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.findings.rules import find
from loaderdoctor.report.words.verdict import nothing_judged
from loaderdoctor.trace import read_trace
from loaderdoctor.trace.columns import DEVICE_CATEGORIES, Category, Trace
from tests.findings.builders import step
from tests.trace_facts import trace_facts

TRACES = Path(__file__).parents[2] / "traces"
TRUTH: dict[str, Any] = json.loads((TRACES / "truth.json").read_text())["cases"]


@cache
def facts_of(case: str) -> TraceFacts:
    return trace_facts(read_trace(TRACES / f"{case}.pt.trace.json.gz"))


@pytest.fixture(params=list(TRUTH))
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_verdict_is_what_ablation_says(case: str) -> None:
    assert verdict_from_shares(facts_of(case).shares)[0] in TRUTH[case]["expect_bound"]


@pytest.mark.parametrize("share", ["input", "copy"])
def test_the_shares_lie_within_tolerance_of_the_truth(case: str, share: str) -> None:
    found = facts_of(case).shares.as_dict()[share]
    assert found is not None
    truth = TRUTH[case][f"{share}_share"]
    assert found == pytest.approx(truth, abs=TRUTH[case]["trace_share_tolerance"])


def test_nothing_is_left_over_and_the_sum_is_exact(case: str) -> None:
    facts = facts_of(case)
    assert (facts.shares.other or 0.0) < 0.02
    assert sum(v or 0 for v in facts.shares.as_dict().values()) == pytest.approx(1, abs=1e-9)


def test_steps_are_counted_once_and_timed_by_the_device(case: str) -> None:
    facts = facts_of(case)
    assert facts.step_clock == "device"
    # The first of 20 opens the window: torch's profiler drained the device before it.
    assert (facts.n_steps, facts.left_out.n_edge_steps) == (TRUTH[case]["active_steps"] - 1, 1)
    assert sum(facts.step_walls_ms) / facts.n_steps == pytest.approx(facts.wall_ms)


@pytest.mark.parametrize("case", ["enough_workers", "pinned_same_stream", "side_stream_overlap"])
def test_a_device_bound_step_lasts_as_long_as_without_a_profiler(case: str) -> None:
    # The host is slowed by profiling, the device's cadence is not.
    assert facts_of(case).wall_ms == pytest.approx(TRUTH[case]["step_ms"], rel=0.01)


def test_running_ahead_is_seen() -> None:
    ahead = facts_of("pinned_same_stream").host.run_ahead_steps
    assert ahead is not None
    assert ahead >= 5
    assert facts_of("item_every_step").host.run_ahead_steps == 0


def test_a_long_wait_that_costs_nothing_is_hidden() -> None:
    facts = facts_of("side_stream_overlap")
    assert facts.fetching.raw_wait_ms is not None
    assert facts.hidden.input_ms is not None
    assert (facts.shares.input or 0.0) * facts.wall_ms < 0.01 * facts.fetching.raw_wait_ms
    assert facts.hidden.input_ms > 0.9 * facts.fetching.raw_wait_ms
    assert facts.hidden.copy_ms is not None
    assert facts.hidden.copy_ms > 1


def test_worker_startup_of_each_epoch_is_found() -> None:
    facts = facts_of("respawn_each_epoch")
    assert (facts.fetching.n_iterators_created, facts.fetching.n_exhausted) == (5, 5)
    assert len(facts.fetching.startup_ms) == 5
    assert all(ms > 50 for ms in facts.fetching.startup_ms)


def test_an_iterator_per_step_is_found_with_its_teardown() -> None:
    facts = facts_of("recreated_iterator")
    assert (facts.fetching.n_iterators_created, facts.fetching.n_exhausted) == (19, 0)
    # Only 12.7 of some 113 ms a step lie within `__next__`.
    assert (facts.shares.input or 0.0) > 0.9


def test_one_slow_sample_shows_in_the_waits_not_in_their_middle() -> None:
    waits = sorted(facts_of("one_slow_sample").fetching.waits_ms)
    assert waits[len(waits) // 2] < 1
    assert sum(waits) > 0.7 * facts_of("one_slow_sample").wall_ms * 19


def test_pageable_copies_are_named_and_block_the_host() -> None:
    for case in ("pageable_big_copy", "pageable_nonblocking"):
        worst = facts_of(case).copies[0]
        assert worst.source == "pageable"
        assert worst.same_stream_as_compute
        assert worst.host_blocked_ms_per_step > 10
        assert worst.exposed_ms_per_step > 10
        assert worst.bandwidth_gb_per_s is not None
        assert worst.bandwidth_gb_per_s < 15


def test_copies_on_a_side_stream_are_told_apart() -> None:
    assert [c.same_stream_as_compute for c in facts_of("side_stream_overlap").copies] == [False]
    assert [c.same_stream_as_compute for c in facts_of("pinned_same_stream").copies] == [True]


def test_only_the_loop_that_reads_its_loss_syncs_every_step(case: str) -> None:
    facts = facts_of(case)
    assert facts.syncs.n_per_step == (1.0 if case == "item_every_step" else 0.0)
    if case == "item_every_step":
        assert facts.syncs.wait_ms is not None
        assert facts.syncs.idle_after_ms is not None
        # What could be gained is the idle time after it, not the wait.
        assert 0 < facts.syncs.idle_after_ms < 0.5 * facts.syncs.wait_ms


def test_a_resident_loop_gets_its_input_for_nothing() -> None:
    facts = facts_of("gpu_resident")
    assert not facts.fetching.recorded
    assert facts.fetching.raw_wait_ms is None
    assert facts.shares.input == 0.0  # nothing is copied to the device: there is no loader


def test_launches_are_counted() -> None:
    facts = facts_of("launch_bound_tiny")
    assert facts.kernels.n_per_step == pytest.approx(facts.kernels.n_calls_per_step)
    assert facts.kernels.n_per_step > 200
    assert facts.kernels.mean_us is not None
    assert facts.kernels.mean_us < 10
    hotspots = facts.host.hotspots
    assert 0 < len(hotspots) <= 10
    assert [s.ms_per_step for s in hotspots] == sorted(
        (s.ms_per_step for s in hotspots), reverse=True
    )


def without(case: str, *categories: Category) -> Trace:
    trace = read_trace(TRACES / f"{case}.pt.trace.json.gz")
    kept = ~np.isin(trace.spans.category, np.asarray(categories, np.int8))
    return replace(trace, spans=trace.spans.where(kept), kernel_shapes=None)


@pytest.mark.parametrize("with_calls", [True, False])
def test_a_trace_without_the_accelerators_work_judges_no_wait(with_calls: bool) -> None:
    """`activities=[ProfilerActivity.CPU]`: 63 % of the step in `__next__`, which costs nothing."""
    lost = DEVICE_CATEGORIES if with_calls else (*DEVICE_CATEGORIES, Category.RUNTIME)
    facts = trace_facts(without("pinned_same_stream", *lost))
    assert facts.device_unseen
    assert judge_trace(facts) == ("unknown", "none")
    assert find(facts_of_trace(facts)) == ()
    assert facts.shares.input is None
    assert facts.fetching.raw_wait_ms == pytest.approx(8.4, abs=0.1)  # what is known stays
    assert "ProfilerActivity.CUDA" in nothing_judged(facts_of_trace(facts))
    # Nor does a run take its waits for exposed by it.
    assert best_shares(facts, step(clock="device"), None) is None


@pytest.mark.parametrize(
    "case", ["side_stream_overlap", "item_every_step", "launch_bound_tiny", "pinned_same_stream"]
)
def test_copies_without_the_kernels_that_were_launched_judge_nothing(case: str) -> None:
    """By the copies alone the accelerator idles: 36 % input where there is none."""
    for lost in ((Category.KERNEL,), (Category.KERNEL, Category.MEMSET)):
        facts = trace_facts(without(case, *lost))
        assert facts.device_unseen and not facts.has_accelerator
        assert judge_trace(facts) == ("unknown", "none")
        assert find(facts_of_trace(facts)) == ()
    assert not trace_facts(without(case, Category.RUNTIME, Category.KERNEL)).device_unseen


def test_what_others_record_beside_a_gpu_says_nothing_of_a_loop_without_its_calls() -> None:
    """A model without an operator that only a GPU has: what ran where is not known."""
    nothing = without("gpu_resident", *DEVICE_CATEGORIES, Category.RUNTIME)
    attributed = attribute(nothing)
    assert facts_of_attributed(attributed, recorded_here=False).device_unseen
    assert not facts_of_attributed(attributed).device_unseen  # ours records what a loop uses
    on_cpu = attribute(replace(nothing, devices=()))
    assert not facts_of_attributed(on_cpu, recorded_here=False).device_unseen
