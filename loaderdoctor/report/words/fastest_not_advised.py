"""The trial that leads the table and is not recommended: why not, in one sentence."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.report.model import Recommendation, Report, Trial
from loaderdoctor.settings import AXES_BY_NAME, Settings

# Less than this in front of the loop as it is, or of what is recommended, is no clear lead.
CLEAR_LEAD = MODERATE_SHARE


def leader_not_advised(report: Report) -> str | None:
    """The sentence; None where nothing leads clearly, or what leads is recommended."""
    leader = _leader(report)
    if leader is None or leader.compared_ms is None:
        return None
    advised = [r for r in report.recommendations if r.measured_step_ms is not None]
    if _is_advised(leader, report.recommendations):
        return None
    fastest_ms = min((r.measured_step_ms or 0.0 for r in advised), default=None)
    if fastest_ms is not None and leader.compared_ms > (1.0 - CLEAR_LEAD) * fastest_ms:
        return None
    time = fmt.step_ms(leader.step_ms, leader.step_ms_ci)
    return (
        f"{leader.label} is first among the trials ({time} a step) and not advised: "
        f"{_why(leader, bool(advised))}"
    )


def _why(leader: Trial, others_advised: bool) -> str:
    again = " when measured again" if leader.gain_confirmed else ""
    if leader.gain_ms is None:
        return "it was not measured in turns with the loop as it is."
    if leader.gain_ms_ci is None:
        return "it was seen beside the loop as it is only once, which has no noise to go by."
    gain = fmt.ms(leader.gain_ms, leader.gain_ms_ci)
    if leader.gain_ms_ci[0] <= 0.0:
        return (
            f"taking turns with the loop as it is, it gained {gain} a step{again}, which may be "
            "noise. Measure again with nothing else running, or longer (--budget)."
        )
    if others_advised:
        return (
            f"it gained {gain} a step in turns with the loop as it is{again}, and what is advised "
            "changes less, or was no slower beyond the noise in the same rounds."
        )
    if leader.gain_confirmed is False:
        return f"the {gain} a step that it gained in the rounds were not confirmed."
    return f"it gained {gain} a step in turns with the loop as it is{again}: too little to advise."


def _leader(report: Report) -> Trial | None:
    """The fastest trial of the loop's own work, where it is clearly faster than the loop."""
    trials = report.trials
    if not trials or trials[0].row is not None or trials[0].compared_ms is None:
        return None  # published rows are claims, not advice
    base = trials[0]
    known = [t for t in trials[1:] if _competes(t, base)]
    leader = min(known, key=lambda t: t.compared_ms or 0.0, default=None)
    if leader is None or leader.compared_ms is None or base.compared_ms is None:
        return None
    return leader if leader.compared_ms <= (1.0 - CLEAR_LEAD) * base.compared_ms else None


def _competes(trial: Trial, base: Trial) -> bool:
    if trial.status != "ok" or trial.compared_ms is None:
        return False
    if (trial.hardware, trial.group) != (base.hardware, base.group):
        return False
    changed = Settings(**{k: v for k, v in trial.settings.items() if k in AXES_BY_NAME})
    other_work = trial.changes_numerics and changed.numerics != ("num_threads",)
    clear = fmt.is_measured_well(trial.step_ms, trial.step_ms_ci)
    return clear and bool(changed.changed()) and not changed.probes and not other_work


def _is_advised(trial: Trial, advised: tuple[Recommendation, ...]) -> bool:
    rows = {(r.setting, r.to) for r in advised}
    return all((k, v) in rows for k, v in trial.settings.items() if v is not None)
