"""Time between training steps: validation by a loader of its own, saving, and what else lies there.

Shares here are of all the run's time, spread over its training steps; those of other findings are
of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loaderdoctor import format as fmt
from loaderdoctor.facts.loop import OutsideFacts, WallFacts
from loaderdoctor.facts.loop_lines import LoopPlace
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import severity
from loaderdoctor.findings.loop_words import advice_of, sentence_of
from loaderdoctor.findings.model import Finding, Kind

# Most of what was sampled between steps must surely be in one place for it to be named.
MIN_NAMED_SHARE = 0.5
# A pass that waits this much of its time for batches is told of workers first, else of its work.
WAITS_SHARE = 0.3
NEARLY_WHOLE = 0.01  # a mean of whole numbers of steps


def time_outside_steps(facts: Facts) -> Finding | None:
    """Validation by a loader of its own, saving, or work between epochs takes its part of the run.

    Decides on: how often each comes, by all steps of the run, times what one takes / all time.
    Abstains: nothing but steps was seen, or too little to know how often it comes.
    Fooled by: a first pass that is slower than all later ones, where only that one was seen (the
    severity is then uncertain); formats whose saving is not watched: they are other work.
    """
    wall = facts.wall
    if wall is None or wall.outside_share < MODERATE_SHARE:
        return None
    parts = [part for part in wall.outside if part.ms_per_step]
    first, total_ms = parts[0], wall.total_ms
    place = _sampled(first, facts)
    listed = "; ".join(f"{named(p)}, {fmt.ms(p.ms_per_step)}: {outside_words(p)}" for p in parts)
    return Finding(
        kind=Kind.TIME_OUTSIDE_STEPS,
        severity=severity(wall.outside_share, wall.low_share),
        share=wall.outside_share,
        loader=first.site if first.what == "validation" else None,
        summary=(
            f"{fmt.number(wall.outside_ms)} of {fmt.ms(total_ms)} a training step lie outside the "
            f"steps. {listed[:1].upper()}{listed[1:]}.{_sampled_words(place)}"
        ),
        evidence={
            "what": first.what,
            "site": first.site,
            "outside_ms_per_step": wall.outside_ms,
            "total_ms_per_step": total_ms,
            **{f"{what}_ms_per_step": ms for what, ms in _by_kind(parts).items()},
            "seconds_each": first.seconds,
            "every_n_steps": first.every_steps,
            "n_seen": first.n,
            "wait_share": first.wait_share,
            "with_grad": first.with_grad if first.what == "validation" else None,
        },
        advice=" ".join(dict.fromkeys(_advice(part, facts) for part in _worth_advice(parts, wall))),
    )


def _by_kind(parts: Sequence[OutsideFacts]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.what] = sums.get(part.what, 0.0) + (part.ms_per_step or 0.0)
    return sums


def _worth_advice(parts: Sequence[OutsideFacts], wall: WallFacts) -> list[OutsideFacts]:
    """The first of each kind that matters by itself, at least the largest."""
    firsts = {part.what: part for part in reversed(parts)}
    limit_ms = MODERATE_SHARE * wall.total_ms
    largest = [p for p in parts if p is firsts[p.what] and (p.ms_per_step or 0.0) >= limit_ms]
    return largest or [parts[0]]


def _advice(part: OutsideFacts, facts: Facts) -> str:
    if part.what == "validation":
        return _validation_advice(part, facts)
    if part.what == "saving":
        return (
            "Save less often, and only what a restart needs; or copy the state to host memory and "
            "let a thread write it while training goes on."
        )
    place = _sampled(part, facts)
    if place is not None:
        return advice_of(place, has_loader=True)
    return "Do the loop's other work less often, or in a thread or process of its own."


def _sampled(part: OutsideFacts, facts: Facts) -> LoopPlace | None:
    """Where stack samples found the loop's other work between epochs, if most of them agree."""
    places = facts.loop_lines.outside if facts.loop_lines is not None else ()
    if part.what != "other" or not places or places[0].low_share < MIN_NAMED_SHARE:
        return None
    return places[0]


def _sampled_words(place: LoopPlace | None) -> str:
    if place is None:
        return ""
    words = f"{place.n_samples} of {fmt.count(place.of_samples, 'stack sample')} there"
    return f" Most of it is in {sentence_of(place)} ({words})."


class Seen(Protocol):
    """Part of the wall, as facts and report have it."""

    @property
    def what(self) -> str: ...
    @property
    def site(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def n(self) -> int: ...
    @property
    def every_steps(self) -> float | None: ...
    @property
    def at_epoch_end(self) -> bool: ...


def named(part: Seen) -> str:
    """`validation (train.py:57)`."""
    what = "other work of the loop" if part.what == "other" else part.what
    return f"{what} ({part.site})" if part.site is not None else what


def outside_words(part: Seen) -> str:
    """`0.26 s every 4 steps, seen 12 times`."""
    if part.at_epoch_end:
        often = "at an epoch's end"
    elif part.every_steps is None:
        return f"{fmt.seconds(part.seconds)}, seen once"
    else:
        often = _every(part.every_steps)
    return f"{fmt.seconds(part.seconds)} {often}, seen {fmt.count(part.n, 'time')}"


def _every(n_steps: float) -> str:
    whole = round(n_steps)
    if abs(n_steps - whole) > NEARLY_WHOLE * n_steps:
        return f"every {fmt.number(n_steps)} steps"
    return f"every {fmt.count(whole, 'step')}" if whole != 1 else "each step"


def _validation_advice(part: OutsideFacts, facts: Facts) -> str:
    """What shortens the passes of this loader, by what they do."""
    record = next((x for x in facts.loaders if x.id == part.site), None)
    waits = (part.wait_share or 0.0) >= WAITS_SHARE
    advice = []
    if waits:
        waited = f"a pass waits {fmt.share(part.wait_share)} of its time for batches"
        if record is None or not record.settings.num_workers:
            advice.append(f"Give this loader workers (num_workers, persistent_workers): {waited}.")
        elif not record.settings.persistent_workers:
            advice.append(
                f"Keep its workers from pass to pass (persistent_workers=True): {waited}."
            )
        else:
            advice.append(f"Give this loader more workers: {waited}.")
    if part.with_grad:
        advice.append("Run it under torch.no_grad(): gradients are recorded for nothing.")
    if not waits:
        advice.append("Validate with larger batches, as nothing is kept for a backward pass.")
    advice.append("Validate less often, or on part of the data.")
    return " ".join(advice)
