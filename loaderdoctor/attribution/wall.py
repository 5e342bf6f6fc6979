"""What the run counted outside its steps -> milliseconds a training step: the whole wall.

How often something comes is known from all steps of the run, how long it takes from those that
nothing of ours changed. What was seen too rarely to know its period has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from loaderdoctor.facts.loop import OutsideFacts, StepFacts, WallFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.instrument.wire.records import OutsideRecord, WallRecord
from loaderdoctor.units import NS_PER_S

# The first of so many also pays for cold caches and the start of a pool that then lives on.
MIN_WITHOUT_FIRST = 3
# Fewer steps with something behind them than this say nothing of what else lies there: the noise
# of a single step may be as large.
MIN_CROSSINGS = 3
MS_PER_S = 1000.0
# The step behind a pass is slower than others, as caches went cold: 36 ms for 16, behind 200 ms.
# What is left of it is other work only if it takes longer than a step, and this part of what is
# known by name there.
MIN_OF_KNOWN = 0.25


def wall_facts(record: WallRecord | None, step: StepFacts | None) -> WallFacts | None:
    """All of the time, spread over the training steps; None without an account or a step."""
    if record is None or step is None:
        return None
    seen = [_part(one, record, step) for one in record.outside if one.n_timed]
    parts = [part for part in seen if part.what != "training"]
    crossing_s = _rest_of_crossing_s(record, step)
    if crossing_s is not None and crossing_s < 0.0:
        parts = _no_more_than_seen(parts, record, crossing_s)
    known = [*parts, *_other(record, step, crossing_s)]
    whole_ms = step.wall_ms.value + sum(p.ms_per_step or 0.0 for p in known)
    # Other work is what is left of two sums: small, it is their noise.
    kept = [
        p for p in known if p.what != "other" or (p.ms_per_step or 0.0) >= MODERATE_SHARE * whole_ms
    ]
    return WallFacts(
        step_ms=step.wall_ms.value,
        outside=tuple(sorted(kept, key=lambda p: -(p.ms_per_step or 0.0))),
        n_steps=record.n_steps,
        elsewhere=tuple(part for part in seen if part.what == "training"),
    )


def _part(one: OutsideRecord, record: WallRecord, step: StepFacts) -> OutsideFacts:
    at_epoch_end = 2 * one.n_at_epoch_end > one.n
    is_pass = one.what == "pass"
    return OutsideFacts(
        what=_what(one) if is_pass else "saving",
        site=one.site,
        seconds=_seconds(one),
        n=one.n,
        every_steps=_every_steps(one, record, step, at_epoch_end=at_epoch_end),
        at_epoch_end=at_epoch_end,
        in_steps=record.in_steps and not at_epoch_end,
        wait_share=one.wait_ns / one.timed_ns if is_pass and one.timed_ns else None,
        n_batches=one.n_batches / one.n_timed if is_pass else None,
        with_grad=is_pass and 2 * one.n_with_grad > one.n_batches,
    )


def _what(one: OutsideRecord) -> Literal["training", "gradients", "validation"]:
    """What passes over a loader are for, by what follows most of their batches."""
    if not one.works:
        return "validation"
    return "training" if one.trains else "gradients"


def _seconds(one: OutsideRecord) -> float:
    """What it takes once."""
    if one.n_timed >= MIN_WITHOUT_FIRST:
        return (one.timed_ns - one.first_ns) / (one.n_timed - 1) / NS_PER_S
    return one.timed_ns / one.n_timed / NS_PER_S


def _every_steps(
    one: OutsideRecord, record: WallRecord, step: StepFacts, *, at_epoch_end: bool
) -> float | None:
    """Training steps from one to the next, on average; None: seen once, at no epoch's end."""
    if at_epoch_end and step.steps_per_epoch and record.n_epochs:
        return step.steps_per_epoch * max(record.n_epochs, one.n_visits) / one.n
    if one.n_visits < 2:
        return step.steps_per_epoch if at_epoch_end else None
    between = (one.last_step - one.first_step) / (one.n_visits - 1)
    return between * one.n_visits / one.n


def _rest_of_crossing_s(record: WallRecord, step: StepFacts) -> float | None:
    """What a crossing holds besides its step, the loader and what is known by name; may be < 0."""
    if record.in_steps or record.n_crossings < MIN_CROSSINGS:
        return None
    rest_ns = record.crossings_ns - record.crossings_loader_ns - record.crossings_known_ns
    return rest_ns / record.n_crossings / NS_PER_S - step.within_epoch_ms.value / MS_PER_S


def _no_more_than_seen(
    parts: list[OutsideFacts], record: WallRecord, crossing_s: float
) -> list[OutsideFacts]:
    """Parts behind a step that leave it less than a step takes: the step's own work is in them.

    So it is where the host waits, at the beginning of a pass, for the accelerator to finish the
    steps before.
    """
    known_s = record.crossings_known_ns / record.n_crossings / NS_PER_S
    scale = max(0.0, 1.0 + crossing_s / known_s) if known_s > 0.0 else 1.0
    return [p if p.at_epoch_end else replace(p, seconds=p.seconds * scale) for p in parts]


def _other(record: WallRecord, step: StepFacts, crossing_s: float | None) -> list[OutsideFacts]:
    """What else lies behind such steps, and between epochs."""
    found = []
    behind = [x for x in record.outside if 2 * x.n_at_epoch_end <= x.n and x.n_visits > 1]
    if crossing_s is not None and behind and _is_work(crossing_s, record, step):
        often = max(behind, key=lambda x: x.n_visits)
        every = (often.last_step - often.first_step) / (often.n_visits - 1)
        found.append(_rest(crossing_s, record.n_crossings, every, at_epoch_end=False))
    if record.n_gaps and step.steps_per_epoch:
        rest_ns = record.gaps_ns - record.gaps_loader_ns - record.gaps_known_ns
        rest_s = rest_ns / record.n_gaps / NS_PER_S
        found.append(_rest(rest_s, record.n_gaps, step.steps_per_epoch, at_epoch_end=True))
    return [part for part in found if part.seconds > 0.0]


def _is_work(crossing_s: float, record: WallRecord, step: StepFacts) -> bool:
    known_s = record.crossings_known_ns / record.n_crossings / NS_PER_S
    return crossing_s > max(step.within_epoch_ms.value / MS_PER_S, MIN_OF_KNOWN * known_s)


def _rest(seconds: float, n: int, every: float, *, at_epoch_end: bool) -> OutsideFacts:
    return OutsideFacts(
        what="other",
        site=None,
        seconds=seconds,
        n=n,
        every_steps=every,
        at_epoch_end=at_epoch_end,
    )
