"""Not the loader: the accelerator waits for the host between fetch and fetch.

For launches and reads of values, or for work of the loop's own, told by the line that does it.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import WAITS, LoopLineFacts, LoopPlace, work_between
from loaderdoctor.facts.step import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.facts.trace import silent_behind_copies_ms, workers_set_the_pace
from loaderdoctor.findings import EvidenceValue, Finding, Kind
from loaderdoctor.findings.exposure import (
    exposed,
    has_accelerator,
    host_share,
    severity,
    trace_alone,
)
from loaderdoctor.findings.loop_words import (
    TOLD,
    advice_of,
    before_forward,
    between_words,
    name_of,
    sentence_of,
    where,
)

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
# Reading a value waits for the accelerator, which is its computing surfacing; reads beyond the
# first few of a step find it idle already, and what they take is the loop's own. Of few reads only
# the copies themselves are.
MIN_READS_PER_STEP = 8.0
# Where a function's operators take more than this many times its own Python they are few and large.
# A choice: operators on single numbers take about as long as the Python that calls them.
MAX_OPERATORS_PART = 3.0
# Places with less of the loop's own work are not listed behind the first.
MIN_LISTED_PART = 0.2
MAX_LISTED = 3


def sync_every_step(facts: Facts) -> Finding | None:
    """A sync each step drains the accelerator's queue, which then runs dry until work comes again.

    Decides on: syncs per step that wait for compute, and the accelerator's idle time from the
    sync's end to the next kernel. Promises that gap, but no more of it than the time inside the
    calls: without them the host comes to its next launch no sooner than by that.
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
    # What recording takes of the host, the wait would be longer without.
    profiler = trace.host.profiler
    waited_ms = (trace.syncs.wait_ms or 0.0) + (profiler.likely_ms if profiler is not None else 0.0)
    gain_share = min(gap_share, waited_ms / trace.wall_ms)
    if gain_share < MODERATE_SHARE:
        return None
    gain = "that is what removing them can gain"
    if gain_share < gap_share:
        gain = (
            f"removing them can gain {fmt.ms(gain_share * step_ms)} of it, as they wait no longer"
        )
    return Finding(
        kind=Kind.SYNC_EVERY_STEP,
        severity=severity(gain_share),
        share=gain_share,
        summary=(
            f"{trace.syncs.n_per_step:.1f} syncs a step (.item(), .cpu() or a synchronize) empty "
            f"the accelerator's queue: it then idles {fmt.ms(gap_share * step_ms)} of "
            f"{fmt.ms(step_ms)} until the next kernel, and {gain}. Keep losses on the device and "
            "read them every few hundred steps."
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

    Decides on: host share, mean kernel time, and idle time per launch, less work between steps.
    Kernels that one call launches together (a CUDA graph's) are as one.
    Abstains: no accelerator or no kernels, or the step waits longer for its input or copies, or, in
    a trace alone, worker processes set its pace.
    Fooled by: the profiler, which slows launches up to 2.3x; with plain windows the share is
    theirs, with a trace alone it is an upper bound.
    """
    trace, share = facts.trace, host_share(facts)
    if trace is None or not trace.has_accelerator or share is None or trace.kernels.mean_us is None:
        return None
    n_calls = trace.kernels.n_calls_per_step
    launched_us = trace.kernels.mean_us * trace.kernels.n_per_call
    if n_calls < MIN_KERNELS_PER_STEP:
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
    gap_us = 1000 * launching_ms / n_calls
    if trace_alone(facts) and workers_set_the_pace(trace):
        return None
    if share < HIGH_SHARE or _of_profiler(facts, launching_ms) or launched_us > MAX_MEAN_KERNEL_US:
        return None
    waits = [exposed(facts, "input"), exposed(facts, "copy")]
    if any(cost is not None and cost.share > share for cost in waits):
        return None  # the step first waits for something else; launching hides behind that
    if not launched_us < gap_us <= MAX_GAP_PER_KERNEL_US:
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


def work_between_steps(facts: Facts) -> Finding | None:
    """Python between fetch and fetch (logging, preprocessing, a sleep) that the step waits for.

    Decides on: stack samples of the loop's own work / all in steps, in windows without the
    profiler; of a trace alone, the longest exposed host hotspot that is not a framework op / step
    time. No more than the host share either way: on a CPU torch's operators compute, and with an
    accelerator what runs while that is busy costs nothing.
    Abstains: no stack samples, and host work not named by the trace. Uncertain where it may be
    batches that are made, as far as the trace has no event of that.
    Fooled by: Python of the model's own, which is the forward pass's; without stack samples, a
    hotspot that waits for the accelerator under another name.
    """
    lines = facts.loop_lines
    return _by_samples(facts, lines) if lines is not None else _by_trace(facts)


def _by_samples(facts: Facts, lines: LoopLineFacts) -> Finding | None:
    step_ms, host = facts.step_ms, host_share(facts)
    if step_ms is None:
        return None
    limit = 1.0 if host is None else host
    own = min(lines.own_share, limit)
    reads = _reads(facts, lines, limit - own)
    # Steps of a trace hold what the loop does between epochs, and so does its host share.
    # Where it is known what lies outside the steps, that has a finding of its own.
    told = host is None or facts.wall is not None
    outside = 0.0 if told else min(lines.outside_share, limit - own)
    share, places, words = own + reads, lines.places if own >= reads else lines.waits, None
    low = min(lines.own_low_share, own) if own >= reads else None
    if outside > share:
        share, low, places, words = outside, None, lines.outside, "between epochs"
    if share < MODERATE_SHARE or not places:
        return None
    first = places[0]
    if first.what == "save" and _saves_each_step(facts):
        return None  # `time-outside-steps` tells of it, with what each save takes
    if not has_accelerator(facts):
        more = _one_by_one(places)
        low = low * (share + more) / share if low is not None else None
        share += more
    listed = [x for x in places[:MAX_LISTED] if x.n_samples >= MIN_LISTED_PART * first.n_samples]
    also = f"; then {', '.join(name_of(x) for x in listed[1:])}" if listed[1:] else ""
    return Finding(
        kind=Kind.WORK_BETWEEN_STEPS,
        severity=severity(share, low),
        share=share,
        summary=(
            f"{fmt.ms(share * step_ms)} of {fmt.ms(step_ms)} a step go into work "
            f"{words or between_words(first)}, most of it in {sentence_of(first)}{also} "
            f"({_counted(first)}).{_to_host(facts, first)}"
        ),
        evidence={
            "work_ms_per_step": share * step_ms,
            "spot": name_of(first),
            "spot_ms_per_step": min(first.share, share) * step_ms,
            "file": first.at.file,
            "line": first.at.line,
            "step_ms": step_ms,
            **_place_evidence(first),
        },
        advice=advice_of(first, facts),
    )


def _saves_each_step(facts: Facts) -> bool:
    parts = facts.wall.outside if facts.wall is not None else ()
    return any(part.what == "saving" and part.in_steps for part in parts)


def _one_by_one(places: tuple[LoopPlace, ...]) -> float:
    """Operators that a function of the loop's calls for single elements, which count as compute.

    On a CPU such an operator takes as long as the Python around it: taking the work out of the
    loop saves both.
    """
    counted = [x for x in places if x.what in ("item", "elements")]
    return sum(
        x.n_operators / x.of_samples
        for x in counted
        if x.n_operators <= MAX_OPERATORS_PART * x.n_samples
    )


def _reads(facts: Facts, lines: LoopLineFacts, limit: float) -> float:
    """What reading values of the device takes beyond the loop's other own work.

    All of it where values are read one by one; else what the copies themselves take.
    """
    trace = facts.trace
    if not has_accelerator(facts) or trace is None or trace.wall_ms <= 0:
        return 0.0
    taken = lines.waiting_share
    if trace.syncs.n_per_step < MIN_READS_PER_STEP:
        taken = min(taken, (trace.syncs.to_host_ms or 0.0) / trace.wall_ms)
    return max(0.0, min(taken, limit))


def _to_host(facts: Facts, place: LoopPlace) -> str:
    """How much is copied to the host, of work that reads values of the device; else nothing."""
    syncs = facts.trace.syncs if facts.trace is not None else None
    if place.what not in WAITS or syncs is None or not syncs.to_host_bytes:
        return ""
    return (
        f" A step copies {fmt.n_bytes(syncs.to_host_bytes)} to the host, in "
        f"{fmt.count(round(syncs.n_to_host_per_step or 0.0), 'copy', 'copies')}."
    )


def _counted(place: LoopPlace) -> str:
    """`93 of 400 stack samples, and 50 in operators that it calls`."""
    words = f"{place.n_samples} of {fmt.count(place.of_samples, 'stack sample')}"
    if not place.n_operators:
        return words
    return f"{words}, and {place.n_operators} in operators that it calls"


def _place_evidence(place: LoopPlace) -> dict[str, EvidenceValue]:
    return {
        "what": place.what,
        "calls": place.calls,
        "library": place.library,
        "code": place.at.code,
        "called_from": where(place.called_from),
        "before_forward_pass": before_forward(place),
        "stack_samples": place.n_samples,
        "of_stack_samples": place.of_samples,
    }


def _by_trace(facts: Facts) -> Finding | None:
    trace, share = facts.trace, host_share(facts)
    work_ms, hotspot = work_between(trace)
    if trace is None or share is None or hotspot is None:
        return None
    # Silence behind copies that pinning may explain is not called the loop's own.
    hotspot_share = min(share, (work_ms - silent_behind_copies_ms(trace)) / trace.wall_ms)
    if hotspot_share < MODERATE_SHARE:
        return None
    step_ms = facts.step_ms or trace.wall_ms
    # So may be batches that are freed, or made where no event tells.
    freeing_share = min(trace.host.freeing_ms / trace.wall_ms, hotspot_share)
    unmarked_share = min((trace.fetching.unmarked_wait_ms or 0.0) / trace.wall_ms, hotspot_share)
    unsure_share = max(freeing_share, unmarked_share)
    surely = hotspot_share - unsure_share if unsure_share else None
    fetches = bool(trace.fetching.n_per_step)
    where = "between fetch and fetch" if fetches else "of the loop's own"
    remedy = "less often, in the workers," if fetches else "less often"
    advised = f"Do it {remedy}"
    if unmarked_share:
        advised = (
            f"Up to {fmt.ms(unmarked_share * step_ms)} of it may be making batches or waiting for "
            f"them, of which the trace has no event. If it is other work, do it {remedy}"
        )
    elif freeing_share:
        advised = (
            f"Up to {fmt.ms(freeing_share * step_ms)} of it may be freeing batches that nobody "
            f"pinned, which pinning spares: no event tells. If it is work, do it {remedy}"
        )
    # Copies to the host that nothing else overlaps are the host's too, and no Python.
    to_host_ms = trace.syncs.to_host_ms or 0.0
    copied = ""
    if to_host_ms >= MODERATE_SHARE * trace.wall_ms:
        copied = (
            f" {fmt.ms(to_host_ms / trace.wall_ms * step_ms)} of it copy "
            f"{fmt.n_bytes(trace.syncs.to_host_bytes)} to the host. {TOLD['to-host'].advice}"
        )
    return Finding(
        kind=Kind.WORK_BETWEEN_STEPS,
        severity=severity(hotspot_share, surely),
        share=hotspot_share,
        summary=(
            f"{fmt.ms(hotspot_share * step_ms)} of {fmt.ms(step_ms)} a step go into work {where}, "
            f"most of it in {hotspot.name}, while nothing else runs. {advised} or on the "
            f"device.{copied}"
        ),
        evidence={
            "work_ms_per_step": hotspot_share * step_ms,
            "spot": hotspot.name,
            "spot_ms_per_step": hotspot.ms_per_step / trace.wall_ms * step_ms,
            **({"perhaps_freeing_ms_per_step": freeing_share * step_ms} if freeing_share else {}),
            "file": hotspot.file,
            "line": hotspot.line,
            "step_ms": step_ms,
        },
        advice=(
            "Move preprocessing into the dataset or collate_fn, and log every n steps."
            if fetches
            else "Log every n steps; make batches in the workers of a DataLoader."
        )
        + (
            ""
            if hotspot.file is not None or facts.command != "analyze"
            else " `loaderdoctor diagnose` names the line, without stacks in the trace."
        ),
    )
