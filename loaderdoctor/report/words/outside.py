"""What lies outside the training steps, in sentences: the whole wall."""

from __future__ import annotations

from collections.abc import Sequence

from loaderdoctor import format as fmt
from loaderdoctor.facts.loop import OutsideFacts, WallFacts
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.findings.model import Finding as FoundFinding
from loaderdoctor.findings.model import Kind
from loaderdoctor.findings.rules.outside import named, outside_words
from loaderdoctor.report.model import Finding, Report
from loaderdoctor.report.run_model import Outside

# More places than this are not named in one sentence.
_MOST_NAMED = 3


def outside_sentence(wall: WallFacts, findings: Sequence[FoundFinding]) -> str:
    """The verdict where most lies outside: how much, what, where, and what to do."""
    mine = next((f for f in findings if f.kind is Kind.TIME_OUTSIDE_STEPS), None)
    once = ""
    if wall.low_share < MODERATE_SHARE:
        once = " It was seen once only: that may be the slowest."
    advice = f" {mine.advice}" if mine is not None and mine.advice else ""
    return f"{outside_cost(wall)}{once}{advice}"


def outside_cost(wall: WallFacts) -> str:
    """How much lies outside the steps, what and where, next to the step itself."""
    known = [part for part in wall.outside if part.ms_per_step]
    listed = "; ".join(_named(part) for part in known[:_MOST_NAMED])
    if len(known) == 1:  # then its milliseconds are those of all
        listed = f"{named(known[0])}, {outside_words(known[0])}"
    return (
        f"Of {fmt.number(wall.total_ms)} ms for each training step {fmt.number(wall.outside_ms)} "
        f"pass outside the steps ({fmt.share(wall.outside_share)}): {listed}. The step itself "
        f"takes {fmt.number(wall.own_ms)} ms."
    )


def wall_sentence(report: Report) -> str | None:
    """What a training step takes with all that lies outside; None where nothing is known to.

    Of what the verdict says nothing is repeated.
    """
    wall = report.wall
    if wall is None or not wall.outside:
        return None
    known = [part for part in wall.outside if part.ms_per_step]
    seen = [part for part in wall.outside if not part.ms_per_step]
    said = []
    if known and report.verdict.bound != "outside":
        listed = "; ".join(_named(part) for part in known)
        said.append(
            f"With what lies outside the steps, a training step takes {fmt.ms(wall.total_ms)}, "
            f"{fmt.share(wall.outside_share)} of it outside: {listed}."
        )
    said += [
        f"{_upper(named(part))}: {outside_words(part)}. How often it comes is not "
        f"known after {fmt.count(wall.n_steps, 'step')}."
        for part in seen
    ]
    return " ".join(said) or None


def share_words(finding: Finding) -> str:
    """`33 % of the step`; of all the time where the finding is about what lies outside."""
    outside = finding.kind == Kind.TIME_OUTSIDE_STEPS.value
    return f"{fmt.share(finding.share)} of {'all the time' if outside else 'the step'}"


def _named(part: OutsideFacts | Outside) -> str:
    """`validation (train.py:57) 36.4 ms, 0.2 s every 5 steps, seen 40 times`."""
    return f"{named(part)} {fmt.ms(part.ms_per_step)}, {outside_words(part)}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
