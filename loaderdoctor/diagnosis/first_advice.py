"""What the first advice still lacks when the budget is used up, and may take a second one for."""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.diagnosis.analysis import Analysis
from loaderdoctor.diagnosis.prescribe import leading, prescribed_rows
from loaderdoctor.diagnosis.verify import Verification
from loaderdoctor.tryout.comparing import Compared
from loaderdoctor.tryout.competition import is_loose

PREDICTED = "the first advice is still a prediction after {0}: it is tried for longer, until {1}."
LOOSE = "what the first advice brings is known to ± {2} only after {0}: it is measured again, "
LOOSE += "until {1}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """Windows of what was tried and leads; None: what is advised first was not shown to help."""

    again: Compared | None

    def told(self, budget_s: float, most_s: float) -> str:
        """Why it takes longer than `budget_s`, in a sentence; `most_s` is the second cap."""
        step = self.again.step if self.again is not None else None
        text, to = (PREDICTED, "") if step is None else (LOOSE, fmt.share(step.margin / step.value))
        return text.format(f"{budget_s:g} s", f"{most_s:g} s at most", to)


def lacks(known: Analysis, verification: Verification | None, *, undecided: bool) -> Lacks | None:
    """What it lacks for a headline that holds; None where nothing, or no trial can tell it.

    `undecided`: whether something was tried too seldom to tell, or not at all.
    """
    rows = prescribed_rows(known.facts, known.prescription, verification)
    if not rows or rows[0].to is None:
        return None  # without `to` it is a change of code, which no trial measures
    if rows[0].measured_step_ms is None:
        return Lacks(again=None) if undecided else None
    lead = loose_lead(verification)
    return Lacks(again=lead) if lead is not None else None


def loose_lead(verification: Verification | None) -> Compared | None:
    """What leads of all that was tried, where its own step is not known well enough to be told."""
    lead = leading(verification)
    return lead if lead is not None and is_loose(lead) else None
