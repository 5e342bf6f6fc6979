"""An uncertain verdict in a sentence: what is known, what is not, and why it was left so."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.shares import HIGH_SHARE, Bound
from loaderdoctor.facts.whole import Facts
from loaderdoctor.report.words.headline import TAKES, largest_part

_SEEMS = {
    "input": "the loader seems to take",
    "copy": "copying seems to take",
    "communication": "communication seems to take",
    "host": "Python and launching seem to take",
}


def uncertain_sentence(bound: Bound, facts: Facts, step_ms: float, why: str | None) -> str:
    """What takes most of the step, and the part that may be none: with its noise.

    `why` says what kept it from being settled.
    """
    share = facts.share(bound) or 0.0
    waiting_ms = facts.trace.fetching.unmarked_wait_ms if facts.trace is not None else None
    if bound == "host" and waiting_ms is not None:
        return (
            f"{_SEEMS[bound]} {fmt.share(share)} of {fmt.number(step_ms)} ms a step; but "
            f"{fmt.number(waiting_ms)} ms of it may be waiting for batches, which this trace does "
            "not record."
        )
    measured = measured_share(bound, facts)
    margin = measured.margin if measured is not None else None
    seems = f"{_SEEMS.get(bound, f'{bound} seems to take')} {fmt.share_within(share, margin)}"
    perhaps = "perhaps nothing" if measured is None or measured.low <= 0 else "perhaps little"
    noise = "the noise is as large"
    if facts.unsteady:
        noise = "the machine or the loop was not steady meanwhile"
    whole = f"of {fmt.number(step_ms)} ms a step"
    known = largest_part(facts.shares.as_dict() if facts.shares is not None else None)
    if known is None or known[0] == bound:
        sentence = f"{seems[:1].upper()}{seems[1:]} {whole}, {perhaps}: {noise}."
    else:
        sentence = f"{TAKES[known[0]]} {fmt.share(known[1])} {whole}; {seems}, {perhaps}."
    return f"{sentence} {why}" if why else sentence


def measured_share(bound: Bound, facts: Facts) -> Estimate | None:
    """The share as ablation measured it; None where it did not."""
    ablation = facts.ablation
    if ablation is None or bound not in ("input", "copy"):
        return None
    part = ablation.input_ms if bound == "input" else ablation.copy_ms
    if part is None or not part.bounded or ablation.plain_ms.value <= 0:
        return None
    return part.scaled(1.0 / ablation.plain_ms.value)


def is_open(severity: str, facts: Facts) -> bool:
    """Whether the noise leaves the verdict open: an uncertain one, or a health that may be none."""
    if severity == "uncertain":
        return True
    part = measured_share("input", facts)
    return severity == "none" and part is not None and part.low <= 0.0 and part.high >= HIGH_SHARE
