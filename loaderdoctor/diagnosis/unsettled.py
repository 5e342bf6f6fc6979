"""Why a diagnosis left something open, in a sentence, and what would settle it."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.diagnosis.analysis import Analysis
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.facts.shares import MODERATE_MIN_LOW_SHARE
from loaderdoctor.findings.exposure import is_open
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.command.repeated_run import RepeatedRun
from loaderdoctor.tryout.ablating import MAX_LONGER_ROUNDS, LoopEvidence

_LET_IT_RUN = "Let it run longer (more epochs, more data) to have that too."


def unsettled(
    analysis: Analysis,
    evidence: LoopEvidence | None,
    script_run: ScriptRunLike,
    *,
    budget_s: float,
    ablates: bool,
    interrupted: bool,
) -> str | None:
    """Why an uncertain verdict was not settled, and what would settle it; None: it is settled.

    `ablates`: whether the loop was to be compared with batches already in memory.
    """
    if not is_open(analysis.severity, analysis.facts) or evidence is None:
        return None
    if interrupted:
        return "It was interrupted before more could be measured."
    if ended_by_itself(script_run):
        return f"The script ended before more could be measured. {not_again(script_run)}"
    if not ablates:
        return "Nothing was compared with batches already in memory, which would tell."
    ablation = analysis.facts.ablation
    if ablation is None:
        reason = evidence.ablation_reason or "no round was measured to its end"
        return f"It could not be compared with batches already in memory: {reason.rstrip('.')}."
    if ablation.contended_ms:
        return "What else ran on these CPUs may be all of it: see the warnings."
    if (waited_ms := _carried_by_nothing_recorded_ms(ablation)) is not None:
        return (
            f"{ablation.n_rounds} rounds show it, but not by what: getting batches takes "
            f"{fmt.ms(waited_ms)} a step, and what else may carry it was not recorded. More rounds "
            "would not tell."
        )
    if ablation.n_rounds >= MAX_LONGER_ROUNDS:
        return (
            f"{ablation.n_rounds} rounds did not settle it: something else takes turns with "
            "the loop on this machine. Run it again when that is idle."
        )
    used = f"The budget of {budget_s:g} s was used up"
    if evidence.observed.device is not None and evidence.profiled is not None:
        # None follows the profile there (see gather).
        used = f"What rounds may take of the budget of {budget_s:g} s was used up"
    return f"{used}: --budget {2 * budget_s:g} measures longer."


def _carried_by_nothing_recorded_ms(ablation: AblationFacts) -> float | None:
    """The wait, where the rounds alone show a cost that nothing recorded bears; else None."""
    seen, measured, found = ablation.mechanisms, ablation.raw, ablation.input_ms
    shown = measured.input_ms if measured is not None else None
    if seen is None or seen.wait_ms is None or shown is None or found is None:
        return None
    least_ms = MODERATE_MIN_LOW_SHARE * ablation.plain_ms.value
    several = ablation.n_rounds > 1  # of a single one most is not known for that
    return seen.wait_ms.value if several and found.low < least_ms <= shown.low else None


def ended_by_itself(script_run: ScriptRunLike) -> bool:
    """Whether the script's end, and not the budget's, is why no more was measured."""
    if isinstance(script_run, RepeatedRun) and script_run.out_of_time:
        return False
    ended = script_run.ended
    return ended is not None and ended.how in ("script-ended", "script-failed")


def not_again(script_run: ScriptRunLike) -> str:
    """Why a script that ended too early was not run again, or what to do about it; a sentence."""
    refused = script_run.refused if isinstance(script_run, RepeatedRun) else None
    return refused or _LET_IT_RUN
