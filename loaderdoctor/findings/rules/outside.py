"""Time between training steps: validation by a loader of its own, saving, and what else lies there.

Shares here are of all the run's time, spread over its training steps; those of other findings are
of the step. And what a script reads before its first training step: statistics, skipped batches,
checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LoopPlace
from loaderdoctor.facts.loop import OutsideFacts, WallFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.exposure import severity
from loaderdoctor.findings.loop_words import (
    advice_of,
    named,
    next_to_elsewhere,
    outside_words,
    sentence_of,
)
from loaderdoctor.instrument.wire.records import PassRecord

# Most of what was sampled between steps must surely be in one place for it to be named.
MIN_NAMED_SHARE = 0.5
# A pass that waits this much of its time for batches is told of workers first, else of its work.
WAITS_SHARE = 0.3
# Shorter than this nobody waits for it: imports and a first epoch's caches take as long.
MIN_S = 5.0
# It is paid once a run, and how long the run is nobody knows: it is never high, and moderate where
# it takes as long as an epoch of training, or where that is not known, a minute.
MODERATE_S = 60.0

SKIPS = (
    "Start the sampler behind the batches that are done, instead of reading and dropping them: a "
    "sampler that yields its indices from an offset on, or torchdata's StatefulDataLoader, which "
    "saves its place with the checkpoint and goes on from there."
)
READS = (
    "Compute it once, save the result next to the data, and load that in later runs; a few "
    "thousand samples often do as well as all of them."
)
_AHEAD = (
    "Let other processes do it, several at a time, while training goes on; or do it for many at "
    "once (environments, files, sequences) in place of one after the other, or less often."
)
EVALUATES = (
    "If its outputs are used again (features of a frozen model), save them once and load them in "
    "later runs; if it is a check, let it take fewer batches (Lightning: num_sanity_val_steps)."
)


def time_outside_steps(facts: Facts) -> Finding | None:
    """Validation by a loader of its own, saving, or work between epochs takes its part of the run.

    Decides on: how often each comes, by all steps of the run, times what one takes / all time.
    Abstains: nothing but steps was seen, or too little to know how often it comes.
    Fooled by: a first pass that is slower than all later ones, where only that one was seen (the
    severity is then uncertain); formats whose saving is not watched: they are other work.
    """
    wall = facts.wall
    if wall is None or wall.total_ms <= 0:
        return None
    elsewhere_ms = wall.seen_again.elsewhere_ms
    scale = wall.total_ms / (wall.total_ms + elsewhere_ms)
    share = wall.outside_share * scale
    if share < MODERATE_SHARE:
        return None
    parts = [part for part in wall.outside if part.ms_per_step]
    first, total_ms = parts[0], wall.total_ms
    place = _sampled(first, facts)
    listed = "; ".join(f"{named(p)}, {fmt.ms(p.ms_per_step)}: {outside_words(p)}" for p in parts)
    return Finding(
        kind=Kind.TIME_OUTSIDE_STEPS,
        severity=severity(share, wall.low_share * scale),
        share=share,
        loader=first.site if first.what in ("validation", "gradients") else None,
        summary=(
            f"{fmt.number(wall.outside_ms)} of {fmt.ms(total_ms)} a training step lie outside the "
            f"steps. {listed[:1].upper()}{listed[1:]}.{_sampled_words(place)}"
            f"{next_to_elsewhere(wall)}"
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
    if part.what in ("validation", "gradients"):
        return _validation_advice(part, facts)
    if part.what == "saving":
        return (
            "Save less often, and only what a restart needs; or copy the state to host memory and "
            "let a thread write it while training goes on."
        )
    if not facts.loaders:  # what it makes between steps is what it trains on, as a rule
        return _AHEAD
    place = _sampled(part, facts)
    if place is not None:
        return advice_of(place, facts)
    return "Do the loop's other work less often, or in another thread or process."


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


def _validation_advice(part: OutsideFacts, facts: Facts) -> str:
    """What shortens the passes of this loader, by what they do."""
    waits = (part.wait_share or 0.0) >= WAITS_SHARE
    advice = []
    if waits:
        advice.append(_workers_advice(part, facts))
    if part.what == "gradients":
        advice.append("Do it less often, or on part of the data.")
        return " ".join(advice)
    if part.with_grad:
        advice.append("Run it under torch.no_grad(): gradients are recorded for nothing.")
    if not waits:
        advice.append("Validate with larger batches, as nothing is kept for a backward pass.")
    advice.append("Validate less often, or on part of the data.")
    return " ".join(advice)


def _workers_advice(part: OutsideFacts, facts: Facts) -> str:
    """For a loader whose passes wait for batches."""
    record = next((x for x in facts.loaders if x.id == part.site), None)
    waited = f"a pass waits {fmt.share(part.wait_share)} of its time for batches"
    if record is None or not record.settings.num_workers:
        return f"Give this loader workers (num_workers, persistent_workers): {waited}."
    # Kept by a loader that is built again for each pass they are started all the same, and of a
    # dataset that the loop changes they would not hear.
    step = facts.step
    kept = step is not None and (step.changed or record.id in step.rebuilt)
    if not record.settings.persistent_workers and not kept:
        return f"Keep its workers from pass to pass (persistent_workers=True): {waited}."
    return f"Give this loader more workers: {waited}."


def trains_elsewhere(facts: Facts) -> Finding | None:
    """Another loader's passes train as well, and none of the shares are of their steps.

    Decides on: passes whose batches are followed by an optimizer's step, and how often they come;
    the share is what they wait for batches, of all the training's time. Passes seen once are not
    in it, or where they are all there is, it is uncertain: how often they come is not known.
    Abstains: no such pass was seen, or its batches belong to the steps that were measured. With an
    accelerator its waits may be hidden: then the share is not known, and it is a hint.
    Fooled by: a pass whose optimizer steps train something else than the model.
    """
    wall = facts.wall
    parts = [p for p in wall.elsewhere if not p.in_steps] if wall is not None else []
    if wall is None or not parts:
        return None
    known = wall.seen_again
    again = known.elsewhere_wait_ms / (known.total_ms + known.elsewhere_ms)
    perhaps = wall.elsewhere_wait_ms / (wall.total_ms + wall.elsewhere_ms)
    once = again < MODERATE_SHARE <= perhaps or not known.elsewhere_ms
    counted = wall if once else known
    share = perhaps if once else again
    hidden = facts.step is None or facts.step.clock == "device"
    first = max(
        [p for p in parts if p in counted.elsewhere],
        key=lambda p: (p.ms_per_step or 0.0) * (p.wait_share or 0.0 if not hidden else 1.0),
    )
    wait = None if hidden else share
    told = "; ".join(_trains_words(part, wall) for part in parts)
    part_of_all = known.elsewhere_ms / (known.total_ms + known.elsewhere_ms)
    whole = f", {fmt.share(part_of_all)} of the time," if known.elsewhere_ms else ""
    return Finding(
        kind=Kind.TRAINS_ELSEWHERE,
        severity=Severity.LOW if wait is None else severity(wait, again),
        share=wait,
        loader=first.site,
        summary=(
            f"Steps are taken on other loaders too{whole} and are not in the measured step: {told}."
        ),
        evidence={
            "seconds_each": first.seconds,
            "every_n_steps": first.every_steps,
            "n_seen": first.n,
            "n_batches": first.n_batches,
            "wait_share": first.wait_share,
            "elsewhere_ms_per_step": wall.elsewhere_ms,
        },
        advice=(
            _workers_advice(first, facts)
            if (first.wait_share or 0.0) >= WAITS_SHARE and wait is not None
            else "To measure these steps, let a run train on that loader alone."
        ),
    )


def _trains_words(part: OutsideFacts, wall: WallFacts) -> str:
    """`tune.py:9 (5 passes of 24 batches, 33 ms a batch, 20 ms of it for getting it)`."""
    n = part.n_batches or 0.0
    each = ""
    if n:
        ms = part.seconds * 1e3 / n
        each = f", {fmt.ms(ms)} a batch"
        if part.wait_share is not None:
            each += f", {fmt.ms(ms * part.wait_share)} of it to get it"
    passes = fmt.count(part.n, "pass", "passes")
    of = fmt.count(round(n), "batch", "batches")
    once = ""
    if part.n == 1:
        once = "; seen once, so how often it comes is not known"
        if part.ms_per_step:
            share = part.ms_per_step / (wall.total_ms + wall.elsewhere_ms)
            once += f": {fmt.share(share)} of the time if as often as until then"
    return f"{part.site} ({passes} of {of}{each}{once})"


def pass_before_training(facts: Facts) -> Finding | None:
    """Time goes by before training begins, in passes over a loader that train nothing.

    Decides on: seconds of all passes before the first backward pass or optimizer step, against an
    epoch of training; and, for the advice, whether the longest calls a model, and whether training
    went on in the middle of it.
    Abstains: the script does not train, or these passes took less than five seconds.
    Fooled by: training that neither calls backward() nor steps a torch optimizer; a pass that only
    this run has, such as a warm-up of caches that later runs find warm.
    """
    known = [one for one in facts.before_training if one.took_s is not None]
    total_s = sum(one.took_s or 0.0 for one in known)
    if not facts.trains or total_s < MIN_S:
        return None
    longest = max(known, key=lambda one: one.took_s or 0.0)
    step = facts.step
    epoch_s = None
    if step is not None and step.steps_per_epoch is not None:
        epoch_s = step.wall_ms.value * step.steps_per_epoch / 1e3
    as_long = (
        f", as long as {total_s / epoch_s:.1f} epochs of it"
        if epoch_s and epoch_s < total_s
        else ""
    )
    others = ""
    if len(known) > 1:
        others = f" The longest of {len(known)} such places."
    return Finding(
        kind=Kind.PASS_BEFORE_TRAINING,
        severity=(Severity.MODERATE if total_s >= (epoch_s or MODERATE_S) else Severity.LOW),
        share=None,
        summary=(
            f"{fmt.seconds(total_s)} went by before training began{as_long}: "
            f"{described(longest)}.{others}"
        ),
        evidence={
            "total_s": total_s,
            "longest_s": longest.took_s,
            "n_passes": longest.n_passes,
            "n_batches": longest.n_batches,
            "calls_model": longest.calls_model,
            "code": longest.code,
        },
        loader=longest.loader,
        advice=SKIPS if longest.skips else EVALUATES if evaluates(longest) else READS,
    )


def evaluates(one: PassRecord) -> bool:
    """Whether it is for what a model says of the batches, not for the batches."""
    return bool(one.calls_model) or (one.calls_model is None and one.without_grad)


def described(one: PassRecord) -> str:
    """What was read, where, and that it trains nothing."""
    batches = fmt.count(one.n_batches, "batch", "batches")
    if one.skips:
        return f"{batches} of {one.loader} were read and thrown away at {one.site} before it"
    passes = "a pass" if one.n_passes == 1 else f"{one.n_passes:,} passes"
    what = "trains" if one.n_passes == 1 else "train"
    model = ", with a model" if evaluates(one) else ""
    return f"{passes} over {one.loader} at {one.site} that {what} nothing ({batches}{model})"
