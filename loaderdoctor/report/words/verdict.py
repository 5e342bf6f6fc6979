"""A verdict in few words, and an uncertain one in a sentence: what is known, and what is not."""

from __future__ import annotations

from collections.abc import Mapping

from loaderdoctor import format as fmt
from loaderdoctor.estimate import interval
from loaderdoctor.facts.shares import Bound
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import is_open, trace_alone
from loaderdoctor.findings.model import Kind
from loaderdoctor.report.model import Report, Shares

# How a step that computes is told which does so for each new shape; keys are kinds.
NEW_SHAPES: Mapping[str, str] = {
    Kind.RECOMPILATION.value: "torch.compile compiles again and again",
    Kind.AUTOTUNING_EACH_SHAPE.value: "cuDNN is tuned for each new shape",
    Kind.COMPUTE_DEPENDS_ON_NEW_SHAPES.value: "each new shape costs it anew",
}
_BOUND_WORDS = {
    "input": "Input-bound",
    "copy": "Copy-bound",
    "communication": "Communication-bound",
    "compute": "Compute-bound",
    "host": "Host-bound",
    "outside": "Outside the steps",
    "unknown": "No verdict",
}
TAKES = {
    "compute": "Computing takes",
    "communication": "Communication takes",
    "copy": "Copying takes",
    "input": "The loader takes",
    "host": "Python and launching take",
}
_SEEMS = {
    "input": "the loader seems to take",
    "copy": "copying seems to take",
    "communication": "communication seems to take",
    "host": "Python and launching seem to take",
}
# A part that takes most of the step is what is known of it, whatever another part may cost.
_MOST = 0.5


def headline(report: Report) -> tuple[str, str]:
    """(what, how sure): `Input-bound`, `high`; the second is empty where there is no verdict.

    Of an uncertain verdict the first words are what is known, not the bound that may be none.
    """
    verdict = report.verdict
    if verdict.bound == "unknown":
        only_reads = not report.trains and not report.calls_model
        return "No training seen" if only_reads else _BOUND_WORDS["unknown"], ""
    bound = _BOUND_WORDS[verdict.bound] + ("" if report.trains else " inference")
    if verdict.bound == "outside":
        bound += _mostly(report)
    if verdict.severity != "uncertain":
        if verdict.severity != "none" and not _is_largest(report):
            bound = f"Partly {bound[:1].lower()}{bound[1:]}"
        how = _if_nothing(report) if verdict.severity == "none" else verdict.severity
        return bound, how
    if verdict.bound == "outside":  # certain but for how long it takes the next time
        return bound, "seen once"
    known = largest_part(report.shares)
    if known is None or known[0] == verdict.bound or known[1] < _MOST:
        return f"Perhaps {bound.lower()}", "uncertain"
    return f"{TAKES[known[0]]} {fmt.share(known[1])}", f"{verdict.bound} uncertain"


def _mostly(report: Report) -> str:
    """What takes most of the time outside the steps, where that has a name."""
    parts = [part for part in report.wall.outside if part.ms_per_step] if report.wall else []
    largest = max(parts, key=lambda part: part.ms_per_step or 0.0, default=None)
    return f": {largest.what}" if largest is not None and largest.what != "other" else ""


def _is_largest(report: Report) -> bool:
    """Whether the bound is what takes most: nobody calls a step that computes input-bound."""
    known = largest_part(report.shares)
    own = getattr(report.shares, report.verdict.bound, None)
    return known is None or own is None or own >= known[1]


def _if_nothing(report: Report) -> str:
    """Of a step that waits for nothing known: healthy, if its threads and memory are in order."""
    for finding in report.findings:
        if finding.kind == Kind.ALLOCATOR_PAGE_FAULTS.value:
            return "its memory is fetched again each step"
        if finding.kind in NEW_SHAPES:
            return NEW_SHAPES[finding.kind]
        if finding.evidence.get("threads_of") == "loop":
            certain = finding.severity in ("high", "moderate")
            return "its threads compete" if certain else "its threads may compete"
    if any(finding.kind == Kind.WORKERS_JUST_KEEP_UP.value for finding in report.findings):
        return "at the edge"
    known = report.shares is not None and report.shares.input is not None
    return "healthy" if known else "input not recorded"


def largest_part(shares: Shares | Mapping[str, float | None] | None) -> tuple[str, float] | None:
    """(name, share) of the part that takes most of the step."""
    if shares is None:
        return None
    read = shares.get if isinstance(shares, Mapping) else lambda name: getattr(shares, name)
    known = [(name, value) for name in TAKES if (value := read(name)) is not None]
    return max(known, key=lambda item: item[1], default=None)


def of_loader(facts: Facts) -> str:
    """How a verdict on a loop that does not wait begins: with what is known of its loader."""
    if (still_open := open_sentence(facts)) is not None:
        return f"{still_open} "
    if facts.ablation is None and not trace_alone(facts):  # its waits alone were seen
        return ""
    return "Nothing is wrong with the loader. "


def open_sentence(facts: Facts) -> str | None:
    """What the loader may cost, where the noise leaves that open; else None."""
    part = facts.ablation.share("input") if facts.ablation is not None else None
    if part is None or not is_open("none", facts):
        return None
    return (
        "What the loader costs is still open: "
        f"{fmt.share_within(part.value, interval(part))} of the step."
    )


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
    measured = facts.ablation.share(bound) if facts.ablation is not None else None
    seems = (
        f"{_SEEMS.get(bound, f'{bound} seems to take')} "
        f"{fmt.share_within(share, interval(measured))}"
    )
    perhaps = "perhaps nothing" if measured is None or measured.low <= 0 else "perhaps little"
    noise = "the noise is as large"
    if facts.unsteady:
        noise = "the machine or the loop was not steady meanwhile"
    elif bound == "host" and "host" in (facts.shares_low or {}):
        noise = "it may be waiting for a CPU that other programs have"
    whole = f"of {fmt.number(step_ms)} ms a step"
    known = largest_part(facts.shares.as_dict() if facts.shares is not None else None)
    if known is None or known[0] == bound:
        sentence = f"{seems[:1].upper()}{seems[1:]} {whole}, {perhaps}: {noise}."
    else:
        sentence = f"{TAKES[known[0]]} {fmt.share(known[1])} {whole}; {seems}, {perhaps}."
    return f"{sentence} {why}" if why else sentence
