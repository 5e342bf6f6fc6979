"""Rules about the host between fetch and fetch: syncs and launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.facts.trace import HostHotspot
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.host import launch_bound, sync_every_step
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
        says=(
            "250 kernels a step of 3.0 µs each",
            "80 % of the step",
            "No loader setting changes that",
        ),
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
)


def test_a_sync_gains_no_more_than_it_waits() -> None:
    """16 ms of the loop's own behind a sync of 2.8: without it the host comes 2.8 ms sooner."""
    seen = changed(SYNCS, idle_after_sync_ms=1.4, sync_wait_ms=0.6)
    found = sync_every_step(healthy(shares=shares(host=0.2), trace=seen))
    assert found is not None
    assert found.share == pytest.approx(0.06)
    assert "idles 1.40 ms of 10.0 ms" in found.summary
    assert "can gain 0.60 ms of it" in found.summary
    seen = changed(seen, sync_wait_ms=0.1)
    assert sync_every_step(healthy(shares=shares(host=0.2), trace=seen)) is None


def test_kernels_of_a_cuda_graph_are_launched_as_one() -> None:
    graph = changed(TINY, n_kernels_per_call=250.0)
    assert launch_bound(healthy(shares=TINY.shares, trace=graph)) is None
    # 25 launches of ten kernels each, which together are no shorter than a launch.
    several = changed(TINY, n_kernels_per_call=10.0)
    assert launch_bound(healthy(shares=TINY.shares, trace=several)) is None


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)
