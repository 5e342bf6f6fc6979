"""What to change, grouped as it was tried: the source of the first sentence and of the list alike.

Three words say where a figure comes from, everywhere: measured here, predicted by ablation,
predicted from the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from loaderdoctor import format as fmt
from loaderdoctor.advice.plan import PredictedFrom
from loaderdoctor.facts.loop import UNLIKE_SHARE
from loaderdoctor.report.model import Recommendation, Report

MEASURED = "measured here"
PREDICTED: Mapping[PredictedFrom, str] = {
    "ablation": "predicted by ablation",
    "trace": "predicted from the trace",
}
_MEANINGS = {
    MEASURED: "tried in this run, beside the loop as it is",
    PREDICTED["ablation"]: "computed from windows with ready batches",
    PREDICTED["trace"]: "computed from where the step's time was seen to go",
}


@dataclass(frozen=True, slots=True)
class Change:
    """Settings that were tried or predicted together, or one change of code."""

    rows: tuple[Recommendation, ...]

    @property
    def first(self) -> Recommendation:
        """The row that speaks for all of them: they share their figures."""
        return self.rows[0]

    @property
    def is_code(self) -> bool:
        """Whether it is written in the user's code, and no setting."""
        return self.first.from_ is None and self.first.to is None

    @property
    def measured_ms(self) -> float | None:
        """The step with it, where it was tried."""
        return self.first.measured_step_ms

    def own_ms(self, step_ms: float | None) -> float | None:
        """The loop as it is, in the rounds in which it was tried; else the report's step."""
        return self.first.own_step_ms if self.first.own_step_ms is not None else step_ms

    def times_as_fast(self, step_ms: float | None) -> float | None:
        """As fast as the loop as it is, in the same rounds where known; None: not tried."""
        own_ms, measured_ms = self.own_ms(step_ms), self.measured_ms
        return own_ms / measured_ms if own_ms is not None and measured_ms else None

    def beside(self, step_ms: float | None) -> str:
        """What it is as fast as, where the loop then had another pace than the report's step."""
        own_ms = self.first.own_step_ms
        if own_ms is None or step_ms is None or abs(own_ms - step_ms) <= UNLIKE_SHARE * step_ms:
            return ""
        return f" as the loop as it is in the same rounds, {fmt.ms(own_ms)}"

    def words(self) -> str:
        """`num_workers=6 with pin_memory=True`; a change of code by its title."""
        if self.is_code:
            return self.first.setting
        words = list(dict.fromkeys(f"{r.setting}={r.to}" for r in self.rows))
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} with {words[-1]}"

    def prediction(self) -> str | None:
        """`2.2 ms a step, predicted by ablation`; None where nothing was."""
        predicted = self.first.predicted_step_ms
        if predicted is None:
            return None
        at_best = "at best " if self.is_code else ""
        return f"{at_best}{fmt.ms(predicted)} a step, {self.basis}"

    @property
    def basis(self) -> str:
        """Where the prediction comes from, in the words of all reports."""
        return PREDICTED.get(self.first.predicted_from or "trace", PREDICTED["trace"])


def changes_of(recommendations: Sequence[Recommendation]) -> tuple[Change, ...]:
    """In the report's order, the first first."""
    groups = groupby(
        enumerate(recommendations),
        key=lambda item: (
            item[1].measured_step_ms,
            item[1].measured_ci_ms,
            item[1].predicted_step_ms,
            # Changes of code are never one, however alike their figures.
            item[0] if item[1].from_ is None and item[1].to is None else None,
        ),
    )
    return tuple(Change(tuple(row for _, row in group)) for _, group in groups)


def nothing_helps(report: Report) -> str:
    """For where no change is recommended: never more than the trials and findings beside it say."""
    was_best = [t for t in report.trials if t.gain_confirmed and t.gain_ms_ci is not None]
    if any(t.gain_ms_ci is not None and t.gain_ms_ci[0] > 0 for t in was_best):
        return "No change of settings gains enough to be worth it."
    if was_best:
        return (
            "No change of settings is shown to help: what did best in the rounds was not faster "
            "beyond the noise when measured again."
        )
    tests = [test for finding in report.findings for test in finding.tested]
    faster = any(t.outcome == "faster" for t in tests) or any(
        t.gain_ms_ci is not None and t.gain_ms_ci[0] > 0 for t in report.trials
    )
    if faster:
        return "No change of settings is shown to help: what was faster was not confirmed."
    return "No change of settings is known to help."


def vocabulary(changes: Sequence[Change]) -> str | None:
    """What the words used beside these changes mean; None where there are none."""
    used = []
    for change in changes:
        if change.measured_ms is not None:
            used.append(MEASURED)
        if change.first.predicted_step_ms is not None:
            used.append(change.basis)
    known = [word for word in _MEANINGS if word in used]
    return "; ".join(f"{word}: {_MEANINGS[word]}" for word in known) + "." if known else None
