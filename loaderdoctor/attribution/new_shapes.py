"""What the model does once for each new shape: compiling, tuning, planning.

It computes, and is no cost of the loader that hands over the shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loaderdoctor.attribution.step import window_times
from loaderdoctor.estimate import mean, paired_difference
from loaderdoctor.facts.loop import AblationFacts, NewShapeFacts, StepFacts
from loaderdoctor.facts.shares import Shares
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.units import NS_PER_MS

MIN_BATCHES = 4  # an interval of fewer is as wide as what it is of


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
