"""Compute that is slower than it could be.

Of a GPU for its power limit, heat, or its board; of a job for one rank that the others wait for; of
a model that does work again for each new shape that it is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts, RankFacts
from loaderdoctor.facts.host import LoopPlace
from loaderdoctor.facts.loop import CompileFacts, GpuLimitFacts, NewShapeFacts
from loaderdoctor.facts.step import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.exposure import severity
from loaderdoctor.findings.loop_words import name_of, where

# Of the time. An H200 in dense products was held by its power limit for 99 % of it, at 1515 of
# 1980 MHz; lightly used or idle for none, whatever its clock then was.
MIN_HELD_SHARE = 0.2
# Clocks are read once a window, and go in steps of 15 MHz.
MIN_SLOWED_SHARE = 0.05
# Waits are told apart to within the time a thread takes to wake: half a millisecond between two
# gloo ranks on two busy cores. What is below this explains nothing.
MIN_WAIT_MS = 0.5

_CAUSES = {
    "input": "getting its batches",
    "copy": "copying its batches to the device",
    "compute": "computing",
    "host": "host work",
}
_REMEDIES = {
    "input": "Look at what this rank reads: its shard, its storage, the CPUs left for its workers.",
    "copy": "Look at its link to the host: PCIe width, NUMA node, a shared switch.",
    "compute": "Look at its device: clock, temperature, other programs; and at uneven batches.",
    "host": "Look at what only this rank does (logging, saving) and at its CPU.",
}


def gpu_throttled(facts: Facts) -> Finding | None:
    """The GPU's clock is held down while it computes, by its power limit, heat or its board.

    Decides on: NVML's counters of the time in which each limit held the clock down, over plain
    windows, and the clock at their ends. What it explains is at most the part of computing that the
    highest clock would save.
    Abstains: no NVML (package nvidia-ml-py), a GPU that does not count, or a share of computing
    that is not known. A clock that is low because the GPU has little to do is counted by none of
    these limits.
    Fooled by: kernels bound by memory, which a higher clock would not shorten.
    """
    held = facts.gpu_limits
    computing = facts.share("compute")
    if held is None or computing is None or held.share < MIN_HELD_SHARE:
        return None
    if held.slowed_share < MIN_SLOWED_SHARE:
        return None
    share = held.slowed_share * min(1.0, computing)
    if share < MODERATE_SHARE:
        return None
    as_built = held.limit == "power" and not held.limit_lowered
    return Finding(
        kind=Kind.GPU_THROTTLED,
        severity=Severity.LOW if as_built else severity(share),
        share=share,
        summary=(
            f"The GPU is held down by {_what(held)} for {fmt.share(held.share)} of the time: "
            f"{held.sm_mhz:.0f} of {held.max_sm_mhz:.0f} MHz. Kernels bound by its clock would "
            f"take up to {fmt.share(held.slowed_share)} less at the highest."
        ),
        evidence={
            "limit": held.limit,
            "held_share": held.share,
            "sm_mhz": held.sm_mhz,
            "max_sm_mhz": held.max_sm_mhz,
            "temperature_c": held.temperature_c,
            "power_limit_w": held.limit_w,
            "max_power_limit_w": held.max_limit_w,
            "default_power_limit_w": held.default_limit_w,
            "step_ms": facts.step_ms,
        },
        advice=_advice(held),
    )


def _what(held: GpuLimitFacts) -> str:
    if held.limit == "heat":
        at = f" ({held.temperature_c:.0f} °C)" if held.temperature_c is not None else ""
        return f"heat{at}"
    if held.limit == "board":
        return "its board (power supply or brake)"
    return (
        f"its power limit ({held.limit_w:.0f} W)" if held.limit_w is not None else "its power limit"
    )


def _advice(held: GpuLimitFacts) -> str:
    if held.limit == "heat":
        return (
            "Look at its cooling and at what else heats the machine: nvidia-smi -q -d TEMPERATURE."
        )
    if held.limit == "board":
        return "Look at its power supply: nvidia-smi -q -d PERFORMANCE tells which brake is on."
    if held.limit_lowered and held.default_limit_w is not None:
        return (
            f"The limit is set below this GPU's default of {held.default_limit_w:.0f} W: "
            "nvidia-smi -pl raises it, where power and cooling allow it."
        )
    return (
        "It computes as fast as its power allows, and nothing is wrong with it: only less work a "
        "step (lower precision, fewer bytes moved) takes less."
    )


def slow_rank(facts: Facts) -> Finding | None:
    """The other ranks wait in collectives for one that comes late in every step.

    Decides on: what the other ranks wait for a later one (median) beyond what this rank waits
    itself, as a share of the step; and which part of its step is longest beyond its peers'.
    Abstains: one rank, or no collectives that could be matched between the traces.
    Fooled by: collectives of several process groups under one name, told apart by time alone; a
    rank that is slow only while it is profiled.
    """
    waiting = [r for r in facts.ranks if r.peer_wait_ms is not None]
    if len(waiting) < 2:
        return None
    slow = min(waiting, key=lambda r: r.peer_wait_ms or 0.0)
    others = [r for r in waiting if r is not slow]
    typical_ms = median(r.peer_wait_ms or 0.0 for r in others)
    cost_ms = typical_ms - (slow.peer_wait_ms or 0.0)
    wall_ms = median(r.wall_ms for r in others)
    if wall_ms <= 0 or cost_ms < MIN_WAIT_MS or cost_ms / wall_ms < MODERATE_SHARE:
        return None
    share = min(1.0, cost_ms / wall_ms)
    cause, excess_ms = _cause(slow, others)
    where = f" ({slow.host})" if slow.host and len({r.host for r in waiting}) > 1 else ""
    because = (
        f"{_CAUSES[cause]} takes it {fmt.ms(slow.part_ms(cause))} a step, {fmt.ms(excess_ms)} more "
        "than its peers"
        if cause is not None
        else "no part of its step stands out"
    )
    who = f"{len(others)} other ranks wait" if len(others) > 1 else "other rank waits"
    return Finding(
        kind=Kind.SLOW_RANK,
        severity=severity(share),
        share=share,
        summary=(
            f"Rank {slow.rank}{where} is late in every step: {because}. The {who} "
            f"{fmt.ms(typical_ms)} of {fmt.ms(wall_ms)} a step for it in collectives, which is not "
            "communication."
        ),
        evidence={
            "rank": slow.rank,
            "host": slow.host,
            "cause": cause,
            "cause_ms_per_step": slow.part_ms(cause) if cause is not None else None,
            "beyond_peers_ms_per_step": excess_ms if cause is not None else None,
            "peer_wait_ms_per_step": typical_ms,
            "own_peer_wait_ms_per_step": slow.peer_wait_ms,
            "n_ranks": len(facts.ranks),
            "step_ms": wall_ms,
        },
        advice=_REMEDIES[cause] if cause is not None else None,
    )


def _cause(slow: RankFacts, others: Sequence[RankFacts]) -> tuple[str | None, float]:
    """The part of the slow rank's step that is longest beyond the median of its peers (ms)."""
    excess = {}
    for part in _CAUSES:
        own = slow.part_ms(part)
        theirs = [v for r in others if (v := r.part_ms(part)) is not None]
        if own is not None and theirs:
            excess[part] = own - median(theirs)
    cause = max(excess, key=lambda part: excess[part], default=None)
    if cause is None or excess[cause] < MIN_WAIT_MS:
        return None, 0.0
    return cause, excess[cause]


# A sum of stack samples at one place names the cause if it is this much of what new shapes cost.
MIN_NAMED_PART = 0.5
# How torch tells that a shape did not fit, 2.5 to 2.14.
_SHAPE = re.compile(r"size mismatch|stride mismatch|rank mismatch|\.size\(|\.shape\[|\bsize\b")
PAD = "pad batches to multiples of a length (64, say), so that few shapes come"
UNTUNED = f"torch.backends.cudnn.benchmark = False; or {PAD}."
DYNAMIC = (
    "torch.compile(…, dynamic=True), or torch._dynamo.mark_dynamic(batch, dim) for the dimensions "
    f"that vary; or {PAD}."
)
OTHER_GUARD = (
    "Keep what differs from step to step out of the compiled code: numbers as tensors, or what "
    "reads them outside of it. TORCH_LOGS=recompiles lists each reason."
)


def recompilation(facts: Facts) -> Finding | None:
    """torch.compile makes code again and again, in steps long after the loop was warm.

    Decides on: seconds that torch.compile's own counters add in plain windows / step time.
    Abstains: nothing was compiled in them, or this torch has other counters.
    Fooled by: compiling on other threads while the loop goes on; code that is compiled once, but
    late (a first validation), where few steps were timed.
    """
    seen, step_ms = _compiling(facts), facts.step_ms
    if seen is None or not step_ms:
        return None
    share = min(1.0, seen.ms_per_step / step_ms)
    if share < MODERATE_SHARE:
        return None
    which = f" {fmt.plain(seen.function)}" if seen.function is not None else ""
    why = f": {fmt.plain(seen.reason)}" if seen.reason is not None else ""
    return Finding(
        kind=Kind.RECOMPILATION,
        severity=severity(share),
        share=share,
        summary=(
            f"torch.compile compiled{which} {fmt.count(seen.n, 'time')} in "
            f"{fmt.count(seen.n_steps, 'step')}, {fmt.ms(share * step_ms)} of {fmt.ms(step_ms)} a "
            f"step{why}."
        ),
        evidence={
            "compilations_per_step": seen.n / seen.n_steps,
            "compile_ms_per_step": seen.ms_per_step,
            "function": seen.function,
            "reason": seen.reason,
            "step_ms": step_ms,
        },
        advice=_compile_advice(seen),
    )


def autotuning_each_shape(facts: Facts) -> Finding | None:
    """The autotuner of cuDNN tries its algorithms again for each new shape.

    Decides on: steps with batches of new shapes against the same batches again, where
    torch.backends.cudnn.benchmark is on. Uncertain where steps are so slow that nothing could be
    compared, batches differ in shape, there are convolutions, and Python and launching cost 20 %.
    Abstains: no accelerator, the autotuner is off, shapes are alike, or no interval above zero.
    Fooled by: a plan of the user's own for each shape, next to an autotuner that costs little.
    """
    new = _costly(facts)
    on = facts.machine is not None and facts.machine.cudnn_benchmark
    if not on or _compiling(facts) is not None:
        return None
    if new is not None:
        return _of_new_shapes(
            facts,
            new,
            Kind.AUTOTUNING_EACH_SHAPE,
            "torch.backends.cudnn.benchmark is on, and its autotuner starts again for each new "
            "shape",
            UNTUNED,
        )
    return _tuning_uncompared(facts) if facts.ablation is None else None


def _tuning_uncompared(facts: Facts) -> Finding | None:
    """The suspicion alone: on an H200 three convolutions took 1.1 s a step so, 13 ms without."""
    shares, step_ms = facts.shares, facts.step_ms
    compute = facts.trace.compute if facts.trace is not None else None
    vary = any(x.role == "train" and x.shapes_vary for x in facts.loaders)
    if shares is None or shares.host is None or not step_ms or compute is None or not vary:
        return None
    if shares.host < HIGH_SHARE or not compute.convolution_ms:
        return None
    return Finding(
        kind=Kind.AUTOTUNING_EACH_SHAPE,
        severity=Severity.UNCERTAIN,
        share=None,
        summary=(
            "torch.backends.cudnn.benchmark is on, batches differ in shape, and its autotuner "
            "starts again for each new shape. What that costs was not measured: Python and "
            f"launching take {fmt.ms(shares.host * step_ms)} of {fmt.ms(step_ms)} a step."
        ),
        evidence={
            "host_ms_per_step": shares.host * step_ms,
            "convolution_ms_per_step": compute.convolution_ms,
            "step_ms": step_ms,
        },
        advice=UNTUNED,
    )


def compute_depends_on_new_shapes(facts: Facts) -> Finding | None:
    """Batches of new shapes cost more than the same batches again: something is made per shape.

    Decides on: steps with batches made ahead, against the same batches handed out once more.
    Abstains: batches are alike, they could not be handed out again, or no interval above zero.
    Fooled by: caches of the processor or the allocator that a second pass finds warm.
    """
    new = _costly(facts)
    if new is None:
        return None
    place = _place(facts, new)
    named = f", most of it in {_code_of(place)}" if place is not None else ""
    return _of_new_shapes(
        facts,
        new,
        Kind.COMPUTE_DEPENDS_ON_NEW_SHAPES,
        f"The step does work again for each new shape{named}",
        f"Keep what is made for a shape (a plan, an index, a mask) for ranges of shapes, or {PAD}.",
        place,
    )


def _of_new_shapes(
    facts: Facts,
    new: NewShapeFacts,
    kind: Kind,
    cause: str,
    advice: str,
    place: LoopPlace | None = None,
) -> Finding:
    step_ms, cost = facts.step_ms, _cost(facts, new)
    assert step_ms is not None
    assert cost is not None
    share = min(1.0, cost.value)
    return Finding(
        kind=kind,
        severity=severity(share, cost.low),
        share=share,
        summary=(
            f"{cause}: {fmt.ms(share * step_ms)} of {fmt.ms(step_ms)} a step. Of batches that the "
            f"loader made ahead {fmt.share(new.new_part)} had a new shape; the same "
            "batches once more were that much faster."
        ),
        evidence={
            "new_shape_ms_per_step": share * step_ms,
            "file": place.at.file if place is not None else None,
            "line": place.at.line if place is not None else None,
            "step_ms": step_ms,
        },
        advice=advice,
    )


def _code_of(place: LoopPlace) -> str:
    """The function that does it rather than what that calls: plans are kept by function."""
    function = place.at.function.rpartition(".")[2]
    if function.startswith("<"):
        return name_of(place)
    return f"{fmt.plain(function)} ({fmt.plain(where(place.at))})"


def _compiling(facts: Facts) -> CompileFacts | None:
    return facts.step.compiling if facts.step is not None else None


def _compile_advice(seen: CompileFacts) -> str:
    if seen.reason is None or _SHAPE.search(seen.reason):
        return DYNAMIC
    return OTHER_GUARD


def _costly(facts: Facts) -> NewShapeFacts | None:
    """Where new shapes cost a moderate part of the step, beyond the noise."""
    new = facts.ablation.new_shapes if facts.ablation is not None else None
    cost = _cost(facts, new) if new is not None else None
    if cost is None or not facts.step_ms or not cost.bounded or cost.low <= 0.0:
        return None
    return new if cost.value >= MODERATE_SHARE else None


def _cost(facts: Facts, new: NewShapeFacts) -> Estimate | None:
    """As a share of the step: what was measured with ready batches, next to its loader."""
    if new.cost_share is None:
        return None
    return new.cost_share.scaled(1.0 - (facts.share("input") or 0.0))


def _place(facts: Facts, new: NewShapeFacts) -> LoopPlace | None:
    """The loop's own code that was seen to take most of it."""
    places = facts.loop_lines.places if facts.loop_lines is not None else ()
    cost = _cost(facts, new)
    if not places or cost is None or places[0].share < MIN_NAMED_PART * cost.value:
        return None
    return places[0]
