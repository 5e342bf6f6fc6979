"""Compute that is slower than it could be.

Of a GPU for its power limit, heat, or its board; of a CPU for numbers below a float's normal range;
of a job for one rank that the others wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts, RankFacts
from loaderdoctor.facts.loop import GpuLimitFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.exposure import has_accelerator, severity

# Of the time. An H200 in dense products was held by its power limit for 99 % of it, at 1515 of
# 1980 MHz; lightly used or idle for none, whatever its clock then was.
MIN_HELD_SHARE = 0.2
# Clocks are read once a window, and go in steps of 15 MHz.
MIN_SLOWED_SHARE = 0.05
# An operation that takes 40 times as long on one value in a hundred takes 1.4 times as long.
MIN_SHARE = 0.01
# Two timings of some microseconds each: less may be the machine's.
MIN_SLOWDOWN = 3.0
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


def subnormal_numbers(facts: Facts) -> Finding | None:
    """What a loop on the CPU trains holds subnormal numbers, and they cost time here.

    Decides on: their share among parameters, gradients and the optimizer's state, looked at once
    after the first steps, and a product of them timed against one of normal numbers.
    Abstains: an accelerator, no optimizer of torch's, or a CPU that flushes them.
    Fooled by: activations, which are not looked at; and tensors that the step hardly touches.
    """
    seen = facts.subnormals
    if seen is None or has_accelerator(facts):
        return None
    if seen.share < MIN_SHARE or seen.slowdown < MIN_SLOWDOWN:
        return None
    return Finding(
        kind=Kind.SUBNORMAL_NUMBERS,
        severity=Severity.LOW,  # what of the step it is was not measured
        share=None,
        summary=(
            f"{fmt.share(seen.share)} of the {seen.where} are subnormal numbers (below 1.2e-38): "
            f"a product of them takes {fmt.number(seen.slowdown)} times as long on this CPU as one "
            "of others, timed in this run. What they cost a step was not measured."
        ),
        evidence={
            "where": seen.where,
            "subnormal_share": seen.share,
            "values_looked_at": seen.n_looked_at,
            "slowdown": seen.slowdown,
            "step_ms": facts.step_ms,
        },
        advice="torch.set_flush_denormal(True) once, before training: they are then taken for 0, "
        "which changes results by less than 1.2e-38 an operation.",
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
