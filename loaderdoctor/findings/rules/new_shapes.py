"""Not the loader: the model does work again for each new shape that it is given."""

from __future__ import annotations

import re

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LoopPlace
from loaderdoctor.facts.loop import CompileFacts, NewShapeFacts
from loaderdoctor.facts.step import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.exposure import severity
from loaderdoctor.findings.loop_words import name_of, where

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
