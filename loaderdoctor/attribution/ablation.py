"""Plain against substituted windows -> what the loader and the copies truly cost the step.

What the model does once for each new shape (compiling, tuning, planning) is no cost of the loader
that hands over the shapes: it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from loaderdoctor.attribution.step import of_steps_alone, usable, wall_per_window, window_times
from loaderdoctor.estimate import Estimate, Noise, Sample, mean, paired_difference
from loaderdoctor.facts.loop import AblationFacts, NewShapeFacts, PageFacts, StepFacts
from loaderdoctor.facts.step import Shares
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.units import NS_PER_MS

# More transfers let through than this and "free copies" was not held: the loop copies other
# things than it did while we learned. Half of what would move a 5-point share by one point.
MAX_MISS_SHARE = 0.10
MIN_BATCHES = 4  # an interval of fewer is as wide as what it is of


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: every kind of window once, in shuffled order. A missing kind is None."""

    plain: WindowDone
    no_input: WindowDone | None = None
    no_copy: WindowDone | None = None
    by_loader: Mapping[str, WindowDone] | None = None  # no_input of one loader alone
    again: WindowDone | None = None  # the batches of `no_input` once more, where they were new


def ablation_facts(
    rounds: Sequence[Round],
    *,
    steps_per_epoch: int | None,
    boundary_ms: float | None,
    own_boundary_ms: float | None = None,
    reason: str | None = None,
) -> AblationFacts | None:
    """Means per kind, and differences paired by round so that drift cancels.

    `own_boundary_ms` is the loop's own work at an epoch's end (`step.own_boundary_ms`): no loader
    however fast takes it away, so it is in every kind of window alike.

    None where no round holds both a usable plain and a usable no-input window.
    """
    held = [r for r in rounds if usable(r.plain)]
    with_input = [r for r in held if r.no_input is not None and usable(r.no_input)]
    if not with_input:
        return None
    walls = wall_per_window([r.plain for r in held], steps_per_epoch, boundary_ms)
    plain = {id(r): wall for r, wall in zip(held, walls, strict=True)}
    own_boundary_ms = kept_without_loader(with_input, own_boundary_ms)
    own_ms = {id(r): _own_ms(r.plain, steps_per_epoch, own_boundary_ms) for r in held}
    no_input = {id(r): _within(r.no_input).plus(own_ms[id(r)]) for r in with_input}
    with_copy = [r for r in with_input if r.no_copy is not None and _copies_held(r.no_copy)]
    no_copy = {id(r): _within(r.no_copy).plus(own_ms[id(r)]) for r in with_copy}
    copies_asked = [r for r in with_input if r.no_copy is not None]
    if copies_asked and not with_copy:
        reason = reason or _copy_reason(copies_asked)
    kinds = (plain, no_input, no_copy)
    noise = Noise.of([list(kind.values()) for kind in kinds])
    return AblationFacts(
        plain_ms=noise.mean(list(plain.values())),
        no_input_ms=noise.mean(list(no_input.values())),
        no_copy_ms=noise.mean(list(no_copy.values())) if no_copy else None,
        input_ms=noise.difference(list(plain.items()), list(no_input.items())),
        copy_ms=noise.difference(list(no_input.items()), list(no_copy.items())),
        n_rounds=len(with_input),
        reason=reason,
        by_loader_ms=_by_loader(with_input, plain, own_ms),
        pages=page_facts([(r.plain, r.no_input) for r in with_input if r.no_input is not None]),
        main_cpu_ms=_main_cpu_ms([r.no_input for r in with_input if r.no_input is not None]),
        synthetic_faults_per_step=synthetic_faults([r.no_input for r in with_input if r.no_input]),
        new_shapes=new_shape_facts(
            [r.no_input for r in with_input if r.no_input],
            [(r.no_input, r.again) for r in with_input if r.no_input and r.again],
        ),
    )


def _within(window: WindowDone | None) -> Sample:
    assert window is not None
    return window_times(window).within


def kept_without_loader(rounds: Sequence[Round], own_boundary_ms: float | None) -> float | None:
    """The loop's own work at a boundary: no more of it than steps with ready batches have there.

    What is beyond the loader's calls may also be steps that workers slow down by starting.
    """
    windows = [r.no_input for r in rounds if r.no_input is not None and usable(r.no_input)]
    times = [window_times(w) for w in windows]
    seen = [t.boundary_ms for t in times if t.boundary_ms is not None]
    if own_boundary_ms is None or not seen:
        return own_boundary_ms
    return max(0.0, min(own_boundary_ms, fmean(seen)))


def _own_ms(plain: WindowDone, steps_per_epoch: int | None, own_boundary_ms: float | None) -> float:
    """The loop's own work between epochs, a step; no more than `plain`'s own boundary took."""
    times = window_times(plain)
    if not steps_per_epoch or own_boundary_ms is None or times.n_boundaries >= times.n_steps:
        return 0.0
    most_ms = times.boundary_ms if times.boundary_ms is not None else own_boundary_ms
    return max(0.0, min(own_boundary_ms, most_ms)) / steps_per_epoch


def _main_cpu_ms(windows: Sequence[WindowDone]) -> float | None:
    """CPU time of the training process, a step; None where it was not recorded."""
    known = of_steps_alone([w for w in windows if w.main_cpu_ns is not None])
    cpu_ns = sum(w.main_cpu_ns or 0 for w in known)
    wall_ns = sum(w.end_ns - w.start_ns for w in known)
    step_ns = sum(sum(w.host_step_ns) for w in known)
    n_steps = sum(w.n_steps for w in known)
    if not wall_ns or not n_steps:
        return None
    return cpu_ns / wall_ns * step_ns / n_steps / NS_PER_MS


def _copies_held(window: WindowDone) -> bool:
    copies = window.copies
    if not usable(window) or copies is None or not copies.n_hits:
        return False
    return copies.n_misses <= MAX_MISS_SHARE * (copies.n_hits + copies.n_misses)


def _copy_reason(rounds: Sequence[Round]) -> str:
    for r in rounds:
        if r.no_copy is not None and r.no_copy.reason:
            return r.no_copy.reason
    return "the loop's transfers could not be answered with ready tensors often enough"


def _by_loader(
    rounds: Sequence[Round], plain: Mapping[int, Sample], own_ms: Mapping[int, float]
) -> tuple[tuple[str, Estimate], ...]:
    names = sorted({name for r in rounds for name in (r.by_loader or {})})
    out = []
    for name in names:
        alone = [
            (id(r), _within(r.by_loader[name]).plus(own_ms[id(r)]))
            for r in rounds
            if r.by_loader and name in r.by_loader and usable(r.by_loader[name])
        ]
        noise = Noise.of([list(plain.values()), [x for _, x in alone]])
        cost = noise.difference([(n, plain[n]) for n, _ in alone], alone)
        if cost is not None:
            out.append((name, cost))
    return tuple(out)


def page_facts(rounds: Sequence[tuple[WindowDone, WindowDone]]) -> PageFacts | None:
    """Of (plain, no_input) windows, round by round, while memory allocators may change their ways.

    None where faults were not counted or no batch was probed.
    """
    probed = [w.pages for pair in rounds for w in pair if w.pages is not None]
    counted = [(_faults(plain), _faults(ready)) for plain, ready in rounds]
    known = [(a, b) for a, b in counted if a is not None and b is not None]
    if not probed or not known:
        return None
    pages = max(probed, key=lambda x: x.n_batches)  # each record covers those before it
    return PageFacts(
        batch_bytes=pages.n_bytes,
        faults_per_batch=pages.n_faults,
        touch_ms=pages.touch_ns / NS_PER_MS,
        release_ms=pages.release_ns / NS_PER_MS,
        faults_per_step=median(a for a, _ in known),
        extra_faults_per_step=median(a - b for a, b in known),
    )


def synthetic_faults(windows: Sequence[WindowDone]) -> float | None:
    """The fewest of these no_input windows, a step; None where they were not counted."""
    return min((n for w in windows if (n := _faults(w)) is not None), default=None)


def _faults(window: WindowDone) -> float | None:
    """Minor faults of the training thread, a step; None where they were not counted."""
    faults = window.cpu.thread_faults if window.cpu is not None else None
    return faults / window.n_steps if faults is not None and window.n_steps else None


def new_shape_facts(
    ready: Sequence[WindowDone], again: Sequence[tuple[WindowDone, WindowDone]]
) -> NewShapeFacts | None:
    """`ready` are windows with ready batches; `again` pairs of one and of its batches again.

    None where no batches were made ahead.
    """
    made = [w.ready for w in ready if w.ready is not None]
    n_batches = sum(r.n_batches for r in made)
    if not n_batches:
        return None
    steps = [
        (window_times(first).within_ms, window_times(second).within_ms) for first, second in again
    ]
    if len(again) == 1:
        steps = _by_batch(*again[0]) or steps
    return NewShapeFacts(
        new_part=sum(r.n_new for r in made) / n_batches,
        cost_ms=paired_difference([a for a, _ in steps], [b for _, b in steps]) if steps else None,
        cost_share=mean([(a - b) / a for a, b in steps]) if steps else None,
    )


def _by_batch(first: WindowDone, second: WindowDone) -> list[tuple[float, float]]:
    """Host times of a step with each batch, new and again: slow steps leave time for one round.

    Batch by batch, as each pays for its own shape; empty where boundaries or too few steps would
    say more of themselves.
    """
    n_steps = min(first.n_steps, second.n_steps)
    if n_steps < MIN_BATCHES or first.boundary_steps or second.boundary_steps:
        return []
    pairs = zip(first.host_step_ns[:n_steps], second.host_step_ns[:n_steps], strict=True)
    return [(a / NS_PER_MS, b / NS_PER_MS) for a, b in pairs]


def computing_new_shapes(
    shares: Shares | None, step: StepFacts, ablation: AblationFacts | None
) -> Shares | None:
    """The shares with at least as much `compute` as was seen to be done for new shapes.

    Compilers and planners are Python, which traces take for the host's.
    """
    if shares is None or shares.compute is None or not shares.host or step.wall_ms.value <= 0:
        return shares
    seen = [0.0]
    if step.compiling is not None:
        seen.append(step.compiling.ms_per_step / step.wall_ms.value)
    cost = ablation.new_shapes.cost_share if ablation is not None and ablation.new_shapes else None
    if cost is not None and cost.bounded and cost.low > 0.0:
        seen.append(cost.value * (1.0 - (shares.input or 0.0)))
    moved = min(shares.host, max(0.0, max(seen) - shares.compute))
    return replace(shares, compute=shares.compute + moved, host=shares.host - moved)
