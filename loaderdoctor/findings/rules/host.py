"""Not the loader: the accelerator waits for the host between fetch and fetch."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.host_work import work_between
from loaderdoctor.facts.shares import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.facts.trace import workers_set_the_pace
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import exposed, host_share, severity, trace_alone
from loaderdoctor.findings.model import Finding, Kind

# A few steps of a trace may lack their sync (the window's edges).
MIN_SYNCS_PER_STEP = 0.9
# One kernel costs the host 36-50 µs through Python, autograd and the launch (step time / kernels
# of `launch_bound_tiny` and `gpu_resident`, unprofiled, H100). A mean kernel this much shorter
# can't hide the next launch, so the accelerator runs dry between kernels.
MAX_MEAN_KERNEL_US = 25.0
# A handful of kernels is not a stream of launches; their host work is something else.
MIN_KERNELS_PER_STEP = 20.0
# Idle time per kernel beyond this is not launching (profiled launches took 55-82 µs there).
MAX_GAP_PER_KERNEL_US = 250.0


def sync_every_step(facts: Facts) -> Finding | None:
    """A sync each step drains the accelerator's queue, which then runs dry until work comes again.

    Decides on: syncs per step that wait for compute, and the accelerator's idle time from the
    sync's end to the next kernel. Promises that gap, never the time inside the call: the wait is
    earlier compute surfacing there.
    Abstains: no accelerator, or gaps not recorded.
    Fooled by: a loop that waits for its loader anyway; so the gap counts only as far as the host
    share goes.
    """
    trace = facts.trace
    share = host_share(facts)
    if trace is None or not trace.has_accelerator or share is None:
        return None
    if trace.syncs.n_per_step < MIN_SYNCS_PER_STEP or trace.syncs.idle_after_ms is None:
        return None
    gap_share = min(trace.syncs.idle_after_ms / trace.wall_ms, share)
    step_ms = facts.step_ms or trace.wall_ms
    if gap_share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.SYNC_EVERY_STEP,
        severity=severity(gap_share),
        share=gap_share,
        summary=(
            f"{trace.syncs.n_per_step:.1f} syncs a step (.item(), .cpu() or a synchronize) empty "
            f"the accelerator's queue: it then idles {fmt.ms(gap_share * step_ms)} of "
            f"{fmt.ms(step_ms)} until the next kernel, and that is what removing them can gain. "
            "Keep losses on the device and read them every few hundred steps."
        ),
        evidence={
            "n_syncs_per_step": trace.syncs.n_per_step,
            "idle_after_sync_ms_per_step": gap_share * step_ms,
            "idle_after_sync_ms_in_trace": trace.syncs.idle_after_ms,
            "sync_wait_ms_per_step": trace.syncs.wait_ms,
            "step_ms": step_ms,
        },
        advice="Accumulate the loss on the device (loss.detach()) and call .item() only when "
        "logging.",
    )


def _of_profiler(facts: Facts, launching_ms: float) -> bool:
    """Of a trace alone: whether too little of it is left without what recording likely took."""
    trace = facts.trace
    if trace is None or not trace_alone(facts) or trace.host.profiler is None:
        return False
    own_ms = min(trace.host.profiler.likely_ms, trace.host.exposed_ms)
    left_ms = launching_ms * (1 - own_ms / trace.host.exposed_ms) if launching_ms > 0 else 0.0
    return left_ms < HIGH_SHARE * (trace.wall_ms - own_ms)


def launch_bound(facts: Facts) -> Finding | None:
    """Kernels shorter than their own launch: the accelerator waits for the host all along the step.

    Decides on: host share, mean kernel time, and idle time per kernel, less work between steps.
    Abstains: no accelerator or no kernels, or the step waits longer for its input or copies, or, in
    a trace alone, worker processes set its pace.
    Fooled by: the profiler, which slows launches up to 2.3x; with plain windows the share is
    theirs, with a trace alone it is an upper bound.
    """
    trace, share = facts.trace, host_share(facts)
    if trace is None or not trace.has_accelerator or share is None or trace.kernels.mean_us is None:
        return None
    if trace.kernels.n_per_step < MIN_KERNELS_PER_STEP:
        return None
    between_ms, _ = work_between(trace)
    # Silence that may be waiting for an unrecorded loader is not launching either, nor is copying.
    launching_ms = max(
        0.0,
        trace.host.exposed_ms
        - between_ms
        - (trace.fetching.unmarked_wait_ms or 0.0)
        - sum(c.op_host_ms_per_step for c in trace.copies),
    )
    if trace.host.exposed_ms > 0:
        share *= launching_ms / trace.host.exposed_ms
    gap_us = 1000 * launching_ms / trace.kernels.n_per_step
    if trace_alone(facts) and workers_set_the_pace(trace):
        return None
    if (
        share < HIGH_SHARE
        or _of_profiler(facts, launching_ms)
        or trace.kernels.mean_us > MAX_MEAN_KERNEL_US
    ):
        return None
    waits = [exposed(facts, "input"), exposed(facts, "copy")]
    if any(cost is not None and cost.share > share for cost in waits):
        return None  # the step first waits for something else; launching hides behind that
    if not trace.kernels.mean_us < gap_us <= MAX_GAP_PER_KERNEL_US:
        return None
    step_ms = facts.step_ms or trace.wall_ms
    return Finding(
        kind=Kind.LAUNCH_BOUND,
        severity=severity(share),
        share=share,
        summary=(
            f"{trace.kernels.n_per_step:.0f} kernels a step of {trace.kernels.mean_us:.1f} µs each "
            f"are shorter than their launches: the accelerator waits for the host "
            f"{fmt.share(share)} of the step. No loader setting changes that; a bigger batch, CUDA "
            "graphs or torch.compile do."
        ),
        evidence={
            "n_kernels_per_step": trace.kernels.n_per_step,
            "mean_kernel_us": trace.kernels.mean_us,
            "idle_per_kernel_us": gap_us,
            "launch_call_ms_per_step": trace.host.launch_call_ms,
            "kernel_busy_ms_per_step": trace.kernels.busy_ms,
            "step_ms": step_ms,
        },
        advice="A bigger batch (with learning-rate warm-up), torch.compile(mode='reduce-overhead') "
        "or CUDA graphs, and fused optimizers.",
    )
