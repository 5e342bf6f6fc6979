"""Rules about the host between fetch and fetch: syncs, launches, the loop's own work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.facts.trace import HostHotspot
from loaderdoctor.findings.model import Severity
from loaderdoctor.findings.rules.host import launch_bound, sync_every_step, work_between_steps
from tests.findings.builders import healthy, shares, trace, with_exposed
from tests.findings.case import Case, fires, stays_silent
from tests.trace_facts import changed

SYNCS = trace(
    shares=shares(host=0.15), n_syncs_per_step=1.0, idle_after_sync_ms=1.0, sync_wait_ms=7.0
)
TINY = trace(
    shares=shares(host=0.8),
    n_kernels_per_step=250.0,
    mean_kernel_us=3.0,
    kernel_busy_ms=0.75,
    host_exposed_ms=8.0,
)
LOGGING = HostHotspot(name="Python between SGD.step and the fetch", ms_per_step=4.0)
FRAME = HostHotspot(name="train.py(57): log", ms_per_step=9.0, file="train.py", line=57)
WORK = trace(shares=shares(host=0.5), host_exposed_ms=5.0, host_hotspots=(LOGGING,))

CASES = (
    Case(
        rule=sync_every_step,
        ill=healthy(shares=SYNCS.shares, trace=SYNCS),
        share=0.1,
        severity=Severity.MODERATE,
        evidence={
            "n_syncs_per_step": 1.0,
            "idle_after_sync_ms_per_step": 1.0,
            "sync_wait_ms_per_step": 7.0,
        },
        # The wait of 7 ms is earlier compute, and promised to nobody.
        says=("1.0 syncs a step", "idles 1.00 ms of 10.0 ms"),
        silent={
            "a sync now and then": healthy(
                shares=SYNCS.shares, trace=changed(SYNCS, n_syncs_per_step=0.1)
            ),
            "work is queued again at once": healthy(
                shares=SYNCS.shares, trace=changed(SYNCS, idle_after_sync_ms=0.1)
            ),
            "the loader's wait, not the host's": with_exposed(
                input_=0.5, host=0.01, trace=changed(SYNCS, idle_after_sync_ms=5.0)
            ),
        },
        missing={
            "gaps": healthy(shares=SYNCS.shares, trace=changed(SYNCS, idle_after_sync_ms=None)),
            "accelerator": healthy(
                shares=SYNCS.shares, trace=replace(SYNCS, has_accelerator=False)
            ),
            "trace": healthy(trace=None),
        },
    ),
    Case(
        rule=launch_bound,
        ill=healthy(shares=TINY.shares, trace=TINY),
        share=0.8,
        severity=Severity.HIGH,
        evidence={"n_kernels_per_step": 250.0, "mean_kernel_us": 3.0, "idle_per_kernel_us": 32.0},
        says=("250 kernels a step of 3.0 µs each", "80 % of the step", "No loader setting helps"),
        silent={
            "long kernels": healthy(shares=TINY.shares, trace=changed(TINY, mean_kernel_us=70.0)),
            "long gaps: not launching": healthy(
                shares=TINY.shares, trace=changed(TINY, n_kernels_per_step=21.0)
            ),
            "hidden launches": healthy(trace=replace(TINY, shares=shares())),
            "the step waits for its loader": with_exposed(
                input_=0.6, host=0.25, trace=changed(TINY, host_exposed_ms=2.5)
            ),
            "the loop's own work": healthy(
                shares=TINY.shares,
                trace=changed(TINY, host_hotspots=(replace(LOGGING, ms_per_step=7.0),)),
            ),
        },
        missing={
            "kernels": healthy(shares=TINY.shares, trace=changed(TINY, mean_kernel_us=None)),
            "trace": healthy(trace=None),
        },
    ),
    Case(
        rule=work_between_steps,
        ill=healthy(shares=WORK.shares, trace=WORK),
        share=0.4,
        severity=Severity.HIGH,
        evidence={"work_ms_per_step": 4.0, "spot": LOGGING.name},
        says=("4.00 ms of 10.0 ms a step", "Python between SGD.step and the fetch"),
        silent={
            "little of it": healthy(
                shares=WORK.shares,
                trace=changed(WORK, host_hotspots=(replace(LOGGING, ms_per_step=0.3),)),
            ),
            "backward": healthy(
                shares=WORK.shares,
                trace=changed(
                    WORK,
                    host_hotspots=(
                        HostHotspot(name="backward (autograd thread)", ms_per_step=3.0),
                        HostHotspot(
                            name="Python between aten::ones_like and SGD.step", ms_per_step=1.0
                        ),
                    ),
                ),
            ),
            "launching from the loop's frame": healthy(
                shares=WORK.shares,
                trace=changed(WORK, host_hotspots=(replace(FRAME, ms_per_step=5.0),)),
            ),
            "hidden behind the accelerator": healthy(trace=replace(WORK, shares=shares())),
        },
        missing={
            "spots": healthy(shares=WORK.shares, trace=changed(WORK, host_hotspots=())),
            "trace": healthy(trace=None),
        },
    ),
)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_a_line_of_the_loop_is_named_where_the_trace_has_stacks() -> None:
    seen = trace(
        shares=shares(host=0.9), wall_ms=10.0, n_kernels_per_step=20.0, host_hotspots=(FRAME,)
    )
    finding = work_between_steps(facts_of_trace(seen))
    assert finding is not None
    # 20 kernels may take 2.4 ms to launch from that frame; what is beyond them is work.
    assert finding.share == pytest.approx(0.66)
    assert finding.evidence["line"] == 57
    assert "train.py(57): log" in finding.summary


def test_a_spot_is_given_in_the_time_of_steps_without_the_profiler() -> None:
    """Recording made the step 1.7 times as long: of its 17 ms, 6.8 are 4 of 10."""
    slowed = changed(
        WORK, wall_ms=17.0, host_hotspots=(replace(LOGGING, ms_per_step=6.8),), host_exposed_ms=8.5
    )
    finding = work_between_steps(healthy(shares=WORK.shares, trace=slowed))
    assert finding is not None
    assert finding.evidence["work_ms_per_step"] == pytest.approx(4.0)
    assert finding.evidence["spot_ms_per_step"] == pytest.approx(4.0)


def test_silence_within_the_backward_pass_is_no_work_of_the_loop() -> None:
    """Without an accelerator autograd runs on the training thread, and waits for the GIL there."""
    node = "autograd::engine::evaluate_function: "
    names = (f"Python between {node}AddmmBackward0 and {node}AccumulateGrad",)
    hotspots = tuple(HostHotspot(name=name, ms_per_step=4.0) for name in names)
    seen = changed(WORK, n_kernels_per_step=0.0, host_hotspots=hotspots)
    assert work_between_steps(healthy(shares=WORK.shares, trace=seen)) is None
    after = HostHotspot(name=f"Python between {node}AccumulateGrad and aten::mul", ms_per_step=4.0)
    seen = changed(seen, host_hotspots=(after,))
    assert work_between_steps(healthy(shares=WORK.shares, trace=seen)) is not None


def test_work_that_no_line_is_known_of_says_how_to_have_it_named() -> None:
    unnamed = work_between_steps(healthy(shares=WORK.shares, trace=WORK))
    assert unnamed is not None and "--with-stack" in (unnamed.advice or "")
    seen = changed(WORK, n_kernels_per_step=0.0, host_hotspots=(FRAME,))
    named = work_between_steps(healthy(shares=WORK.shares, trace=seen))
    assert named is not None and "--with-stack" not in (named.advice or "")
