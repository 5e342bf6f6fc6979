"""The first words of a report: what the step is bound by, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping

from loaderdoctor import format as fmt
from loaderdoctor.findings.model import Kind
from loaderdoctor.report.model import Report, Shares

_BOUND_WORDS = {
    "input": "Input-bound",
    "copy": "Copy-bound",
    "communication": "Communication-bound",
    "compute": "Compute-bound",
    "host": "Host-bound",
    "unknown": "No verdict",
}
TAKES = {
    "compute": "Computing takes",
    "communication": "Communication takes",
    "copy": "Copying takes",
    "input": "The loader takes",
    "host": "Python and launching take",
}
# A part that takes most of the step is what is known of it, whatever another part may cost.
_MOST = 0.5


def headline(report: Report) -> tuple[str, str]:
    """(what, how sure): `Input-bound`, `high`; the second is empty where there is no verdict.

    Of an uncertain verdict the first words are what is known, not the bound that may be none.
    """
    verdict = report.verdict
    if verdict.bound == "unknown":
        return _BOUND_WORDS["unknown"], ""
    if verdict.severity != "uncertain":
        how = _if_nothing(report) if verdict.severity == "none" else verdict.severity
        return _BOUND_WORDS[verdict.bound], how
    known = largest_part(report.shares)
    if known is None or known[0] == verdict.bound or known[1] < _MOST:
        return f"Perhaps {_BOUND_WORDS[verdict.bound].lower()}", "uncertain"
    return f"{TAKES[known[0]]} {fmt.share(known[1])}", f"{verdict.bound} uncertain"


def _if_nothing(report: Report) -> str:
    """Of a step that waits for nothing known: healthy, if its threads and memory are in order."""
    for finding in report.findings:
        if finding.kind == Kind.ALLOCATOR_PAGE_FAULTS.value:
            return "its memory comes anew each step"
        if finding.evidence.get("threads_of") == "loop":
            certain = finding.severity in ("high", "moderate")
            return "its threads compete" if certain else "its threads may compete"
    known = report.shares is not None and report.shares.input is not None
    return "healthy" if known else "input not recorded"


def largest_part(shares: Shares | Mapping[str, float | None] | None) -> tuple[str, float] | None:
    """(name, share) of the part that takes most of the step."""
    if shares is None:
        return None
    read = shares.get if isinstance(shares, Mapping) else lambda name: getattr(shares, name)
    known = [(name, value) for name in TAKES if (value := read(name)) is not None]
    return max(known, key=lambda item: item[1], default=None)
