"""Not the loader: the accelerator waits for the host between fetch and fetch."""

from __future__ import annotations

import re

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.facts.trace import HostHotspot
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import exposed, host_share, severity
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

# Host time per kernel that the profiled launches of `traces/` take (55-112 µs a kernel, H100): host
# work inside ops and between two of them is launching up to this.
LAUNCH_ALLOWANCE_US = 120.0
# Python between two ops takes microseconds; half a millisecond in one place is work.
MIN_HOTSPOT_MS = 0.5

# Between two ops lie tens of microseconds of Python where they are launched one after another, up
# to some hundred where a module's own code is long: ten times that in one place, once a step or
# twice, is no launching. In traces of an H100 and an H200 a loop with such work is silent for
# 6.7 ms once a step; loops without for 0.63 ms at most (0.02 to 0.39 where each step has one), but
# for the autograd thread's wait of up to 1.63 ms, which ends at the optimizer and does not count.
MIN_SILENCE_MS = 1.0
MAX_SILENCES_PER_STEP = 2.0

# Silences that come once a step; `aten::ones_like` begins the backward pass, whose ops run on
# autograd's own thread.
_BACKWARD = ("backward", "Python between aten::ones_like and ", "autograd::")
# Between two of its nodes nothing of the loop's own runs; silence is a wait for the GIL or a CPU.
_WITHIN_BACKWARD = re.compile(r"Python between autograd::.* and autograd::")
_ONCE_A_STEP = re.compile(r"the fetch|\.step\b|\.zero_grad\b|outside any op")
_WAITING = ("cuda", "hip", "ProfilerStep", "Optimizer.")


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


def launch_bound(facts: Facts) -> Finding | None:
    """Kernels shorter than their own launch: the accelerator waits for the host all along the step.

    Decides on: host share, mean kernel time, and idle time per kernel, less work between steps.
    Abstains: no accelerator or no kernels, or the step waits longer for its input or copies.
    Fooled by: the profiler, which slows launches up to 2.3x; with plain windows the share is
    theirs, with a trace alone it is an upper bound.
    """
    trace, share = facts.trace, host_share(facts)
    if trace is None or not trace.has_accelerator or share is None or trace.kernels.mean_us is None:
        return None
    if trace.kernels.n_per_step < MIN_KERNELS_PER_STEP:
        return None
    between_ms, _ = trace_work(facts)
    # Silence that may be waiting for an unrecorded loader is not launching either.
    launching_ms = max(
        0.0, trace.host.exposed_ms - between_ms - (trace.fetching.unmarked_wait_ms or 0.0)
    )
    if trace.host.exposed_ms > 0:
        share *= launching_ms / trace.host.exposed_ms
    gap_us = 1000 * launching_ms / trace.kernels.n_per_step
    if share < HIGH_SHARE or trace.kernels.mean_us > MAX_MEAN_KERNEL_US:
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
            f"{fmt.share(share)} of the step. No loader setting helps; a bigger batch, CUDA graphs "
            "or torch.compile do."
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


def trace_work(facts: Facts) -> tuple[float, HostHotspot | None]:
    """Exposed host work that is not launching, ms a step of the trace, and its largest place.

    A silence that comes once a step, or an annotation of the user's, counts as it is. A frame of
    the user's code and an op hold launches too: they count beyond what launching takes.
    """
    trace = facts.trace
    if trace is None or trace.wall_ms <= 0:
        return 0.0, None
    smallest_ms = max(MIN_HOTSPOT_MS, MODERATE_SHARE * trace.wall_ms)
    hotspots = [
        x for x in trace.host.hotspots if x.ms_per_step >= smallest_ms and not _is_waiting(x)
    ]
    sure = [x for x in hotspots if not _holds_launches(x)]
    mixed = [x for x in hotspots if _holds_launches(x)]
    launching_ms = trace.kernels.n_per_step * LAUNCH_ALLOWANCE_US / 1000
    beyond_ms = sum(x.ms_per_step for x in mixed) - launching_ms
    if beyond_ms < smallest_ms:
        mixed, beyond_ms = [], 0.0
    largest = max([*sure, *mixed], key=lambda x: x.ms_per_step, default=None)
    return sum(x.ms_per_step for x in sure) + beyond_ms, largest


def _is_waiting(hotspot: HostHotspot) -> bool:
    if hotspot.file is not None:
        return False
    return hotspot.name.startswith((*_BACKWARD, *_WAITING)) or bool(
        _WITHIN_BACKWARD.match(hotspot.name)
    )


def _holds_launches(hotspot: HostHotspot) -> bool:
    if hotspot.file is not None:
        return True
    if "::" not in hotspot.name:
        return False
    if "Python" in hotspot.name and _ONCE_A_STEP.search(hotspot.name):
        return False
    return not _long_silence(hotspot)


def _long_silence(hotspot: HostHotspot) -> bool:
    """Whether it comes no more than once a step or two, and each time as long as many launches."""
    n = hotspot.n_per_step
    if n is None or n <= 0 or n > MAX_SILENCES_PER_STEP:
        return False
    return hotspot.ms_per_step / n >= MIN_SILENCE_MS
