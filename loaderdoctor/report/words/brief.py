"""What a brief report says in place of the whole: how far to trust it, and findings as aspects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.report.model import Finding, Report

# Kinds of warnings that decide how far the first screen can be trusted, the gravest first: what
# was not measured, then what else the machine did meanwhile.
_DOUBTS = (
    "interrupted",
    "malformed-events",
    "evidence-missing",
    "script-ended-early",
    "script-killed",
    "ranks-missing",
    "process-alone",
    "ranks-not-matched",
    "rank-not-read",
    "processes-left-out",
    "unexplained-time",
    "noisy-machine",
    "not-steady",
    "busy-machine",
    "shared-gpu",
    "core-contention",
    "unlike-hardware",
    "shortened",
    "drift",
)
# What follows of it, where its first sentence does not say so.
_SO: Mapping[str, str] = {
    "busy-machine": "; alone it may be faster, and another setting best",
    "noisy-machine": "; small gains can't be seen",
}
_SWEEP_CUT_SHORT = "sweep-"  # and how it ended
# So much of a finding is read at a glance: three lines of 80 columns.
_MOST_LETTERS = 230
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z“`])")


def trust_sentence(report: Report) -> str | None:
    """What makes this report less than certain, in a line; None where nothing is known to."""
    found = [w for w in report.warnings if _doubt(w.kind) is not None]
    if not found:
        return None
    first = min(found, key=lambda w: _doubt(w.kind) or 0)
    said = sentences(first.text)[0].rstrip(".")
    then = _SO.get(first.kind, "")
    more = len(found) - 1
    also = f" ({fmt.count(more, 'more warning')} in the whole report)" if more else ""
    return f"{said[:1].upper()}{said[1:]}{then}.{also}"


def _doubt(kind: str) -> int | None:
    if kind.startswith(_SWEEP_CUT_SHORT):
        return 0
    return _DOUBTS.index(kind) if kind in _DOUBTS else None


def sentences(text: str) -> list[str]:
    """The text cut between its sentences."""
    return _SENTENCE.split(text)


def shortened(text: str, most: int = _MOST_LETTERS) -> str:
    """Whole sentences of it from the first on, one at least, as many as `most` letters hold."""
    kept = ""
    for sentence in sentences(text):
        longer = f"{kept} {sentence}".strip()
        if kept and len(longer) > most:
            break
        kept = longer
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Findings that are about the same time of the same loader: the first says what it is."""

    first: Finding
    aspects: tuple[Finding, ...]


def causes(findings: Sequence[Finding]) -> tuple[Cause, ...]:
    """In the report's order, each with the findings that are the same time seen otherwise."""
    groups: list[list[Finding]] = []
    for finding in findings:
        of = (group for group in groups if group[0].kind == finding.aspect_of)
        group = next(of, None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return tuple(Cause(first=first, aspects=tuple(rest)) for first, *rest in groups)
