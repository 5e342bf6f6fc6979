"""Why a diagnosis left something open, in a sentence, and what would settle it."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.diagnosis.analysis import Analysis
from loaderdoctor.diagnosis.gather import MemoryHistory
from loaderdoctor.diagnosis.seconds import DiagnosisOptions
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.facts.shares import MODERATE_MIN_LOW_SHARE, VerdictSeverity
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import is_open
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.command.repeated_run import RepeatedRun
from loaderdoctor.tryout.ablating import MAX_LONGER_ROUNDS, NO_TIME, LoopEvidence
from loaderdoctor.tryout.windows import MIN_ROUNDS

_LET_IT_RUN = "Let it run longer (more epochs, more data) to have that too."


def unsettled(
    analysis: Analysis,
    evidence: LoopEvidence | None,
    script_run: ScriptRunLike,
    *,
    budget_s: float,
    ablates: bool,
    interrupted: bool,
    beyond: bool = False,
) -> str | None:
    """Why an uncertain verdict was not settled, and what would settle it; None: it is settled.

    `ablates`: whether the loop was to be compared with batches already in memory; `beyond`: whether
    that went on when the budget was used up.
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
    if beyond:
        return f"Twice the budget was used up: --budget {4 * budget_s:g} measures longer."
    used = f"The budget of {budget_s:g} s was used up"
    if evidence.observed.device is not None and evidence.profiled is not None:
        # None follows the profile there (see gather).
        used = f"What rounds may take of the budget of {budget_s:g} s was used up"
    return f"{used}: --budget {2 * budget_s:g} measures longer."


def lacks_rounds(severity: VerdictSeverity, facts: Facts, evidence: LoopEvidence) -> bool:
    """Whether it is open what the loader costs because there were too few rounds, or none.

    A public script of 425 ms a step had none in 25 s and was called healthy by its waits, 1 %;
    ready batches save it 10 %, which its workers' CPU time took.
    """
    if len(evidence.rounds) >= MIN_ROUNDS:
        return False
    if evidence.rounds:  # whatever the verdict is of
        return is_open(severity, facts) or is_open("none", facts)
    return _no_time(evidence) and severity in ("none", "uncertain")


def open_beyond(budget_s: float, most_s: float) -> str:
    """Why it takes longer than `budget_s`, in a sentence; `most_s` is the second cap."""
    return (
        f"what the loader costs is still open after {budget_s:g} s: it is measured for longer, "
        f"until {most_s:g} s at most."
    )


def not_compared(evidence: LoopEvidence | None, severity: VerdictSeverity) -> str | None:
    """What a verdict of the loop's waits alone leaves out; None where rounds were measured."""
    if evidence is None or evidence.rounds or not _no_time(evidence):
        return None
    if severity not in ("none", "uncertain"):
        return None
    return (
        "The loop was not compared with batches already in memory: there was no time for it. What "
        "is said of the loader is what the loop waits for it; what its workers take of the CPUs "
        "that the loop needs too is not known. A larger --budget measures it."
    )


def not_measured(
    options: DiagnosisOptions,
    evidence: LoopEvidence | None,
    *,
    history: MemoryHistory | None,
    trials: bool,
) -> list[str]:
    """Evidence that was wanted and is not there, in words; `trials`: settings were not tried."""
    assert evidence is not None
    lacking = {
        "the profiled window": options.profile and evidence.profiled is None,
        "comparing with batches already in memory": options.ablate
        and len(evidence.rounds) < MIN_ROUNDS,
        "the memory history": options.memory_history is not None and history is None,
        "trying settings": options.verify and trials,
    }
    return [what for what, lacks in lacking.items() if lacks]


def _no_time(evidence: LoopEvidence) -> bool:
    return evidence.ablation_reason == NO_TIME and evidence.observed.main_loader is not None


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
