"""Where the seconds of a diagnosis go: until when each part of it may take, on one clock.

The budget is a cap, not a plan: what can no longer change the answer is not measured. The best
change is tried before a clear verdict is made finer; and where the first advice would still be a
prediction when the budget is used up, or too few rounds tell what the loader costs, a second cap
serves to measure it. What is open by then is said, with why, and what would settle it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from loaderdoctor import format as fmt
from loaderdoctor.diagnosis.analysis import Analysis
from loaderdoctor.diagnosis.gather import MemoryHistory
from loaderdoctor.diagnosis.prescribe import leading, prescribed_rows
from loaderdoctor.diagnosis.verify import Verification
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.facts.step import MODERATE_MIN_LOW_SHARE, VerdictSeverity
from loaderdoctor.findings.exposure import is_open, loader_is_open
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.command.repeated_run import RepeatedRun
from loaderdoctor.instrument.wire.protocol import ProfilerSchedule
from loaderdoctor.setting_words import capitalised
from loaderdoctor.tryout.ablating import MAX_LONGER_ROUNDS, NO_TIME, LoopEvidence
from loaderdoctor.tryout.comparing import Compared
from loaderdoctor.tryout.competition import is_loose
from loaderdoctor.tryout.windows import MIN_ROUNDS

# Kept back from the budget for stopping the script, reading the trace and writing the report.
RESERVE_S = 6.0
RESERVE_SHARE = 0.25  # of the budget, where that is less
# Of what is left for experiments, this part goes to ablation first; trying settings gets the rest
# and whatever ablation did not need.
ABLATION_SHARE = 0.5
# Of it what goes to rounds that only make a clear verdict finer: two rounds of steps of 20 ms take
# that long, of slower ones they come when settings were tried.
FINER_SHARE = 0.25
# Of what is left before the profile, for shares that are open where no setting is worth trying by
# then: torchvision's loop of 35 ms a step had one round, ± 10 ms, and ended with a third of the
# budget unspent. The rest is for the profile.
OPEN_SHARE = 0.7
# Of what is left behind the trials, for a verdict that is uncertain and had no settings to try.
LONGER_SHARE = 0.5
# Trying the first advice may go on until so many times the budget. Steps of 300 ms need it: one
# pair of windows with workers that fall short takes them 10 to 15 s.
SECOND_CAP = 2.0
# Within this part of the budget training is followed to another loader.
FOLLOW_SHARE = 2 / 3
# The report with its charts, and what a trace adds: read, written twice, compressed (13 MB of JSON
# took 1.7 s more CPU time than `analyze` alone on one of two cores).
REPORT_S = 2.0
REPORT_BYTES_PER_S = 8e6
_LET_IT_RUN = "Let it run longer (more epochs, more data) to have that too."
# What the waits of a loop leave out of what its loader costs.
IN_WORKERS = "what its workers take of the CPUs that the loop needs too"
IN_LOOP = "what the rest of the step loses to the memory and the caches that making batches takes"
FOLLOWED = (
    "{0}, after {1} s: what was measured so far does not count, and it is measured anew, until "
    "{2:g} s at most."
)
PREDICTED = "the first advice is still a prediction after {0}: it is tried for longer, until {1}."
LOOSE = (
    "what the first advice brings is known to ± {2} only after {0}: it is measured again, until "
    "{1}."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisOptions:
    """What may be done to the loop, and for how long."""

    budget_s: float
    ablate: bool = True
    verify: bool = True
    profile: bool = True  # False: no profiled window is wanted, and none is missed
    patient: bool = True  # of a loop that does not train: wait whether it begins to
    trial_limit_s: float | None = None  # a trial that takes longer hangs; None: as planned
    profiler: ProfilerSchedule = field(default_factory=ProfilerSchedule)
    memory_history: Path | None = None  # where torch's memory snapshot goes; None: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The budget of one diagnosis, counted from its first step."""

    begun_s: float
    budget_s: float
    # Of what was measured before training went on with another loader: its second cap stays.
    before: Allowance | None = None

    @property
    def _reserve_s(self) -> float:
        return min(RESERVE_S, RESERVE_SHARE * self.budget_s)

    @property
    def end_s(self) -> float:
        """When the report is to be there."""
        return min(self.begun_s + self.budget_s, self.most_s)

    @property
    def until_s(self) -> float:
        """When measuring is to end."""
        return self.end_s - self._reserve_s

    @property
    def most_s(self) -> float:
        """When the report is to be there, where the first advice has to be measured for longer."""
        return self.begun_s + self.most_budget_s if self.before is None else self.before.most_s

    @property
    def most_until_s(self) -> float:
        """When that measuring is to end."""
        return self.most_s - self._reserve_s

    @property
    def most_budget_s(self) -> float:
        """The second cap."""
        return SECOND_CAP * self.budget_s

    def rounds_until_s(self, now_s: float) -> float:
        """When rounds that begin now and have settings tried behind them are to end."""
        return self._part_s(now_s, ABLATION_SHARE)

    def finer_until_s(self, now_s: float) -> float:
        """Likewise of those whose verdict is clear already."""
        return self._part_s(now_s, FINER_SHARE)

    def open_until_s(self, now_s: float) -> float:
        """When rounds before a profile are to end, where no settings follow."""
        return self._part_s(now_s, OPEN_SHARE)

    def longer_until_s(self, now_s: float) -> float:
        """When longer rounds of an uncertain verdict are to end, where settings may follow."""
        return self._part_s(now_s, LONGER_SHARE)

    def beyond_until_s(self, now_s: float) -> float:
        """When rounds beyond the budget are to end, where profile and trials follow."""
        return now_s + (self.most_until_s - now_s) * LONGER_SHARE

    def _part_s(self, now_s: float, share: float) -> float:
        return now_s + (self.until_s - now_s) * share

    def begins_anew(self, why: str, now_s: float) -> str:
        """That all is measured anew, in a sentence."""
        spent_s = now_s - (self.most_s - self.most_budget_s)
        return FOLLOWED.format(why, round(spent_s), self.most_budget_s)


def follow_seconds(budget_s: float) -> float:
    """So long after the first step training may be followed to another loader.

    Most of the budget is then left for it, before the second cap.
    """
    return FOLLOW_SHARE * budget_s


def report_seconds(trace: str | None) -> float:
    """What reading this trace, None where there is none, and writing the report take, about."""
    path = Path(trace) if trace else None
    n_bytes = path.stat().st_size if path is not None and path.is_file() else 0
    return REPORT_S + n_bytes / REPORT_BYTES_PER_S


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
    budget = "twice the budget" if beyond else f"the budget of {budget_s:g} s"
    if evidence.observed.device is not None and evidence.profiled is not None:
        # None follows the profile there (see gather).
        budget = f"what rounds may take of {budget}"
    more_s = (4 if beyond else 2) * budget_s
    return f"{capitalised(budget)} was used up: --budget {more_s:g} measures longer."


def lacks_rounds(severity: VerdictSeverity, facts: Facts, evidence: LoopEvidence) -> bool:
    """Whether it is open what the loader costs because there were too few rounds, or none.

    A public script of 425 ms a step had none in 25 s and was called healthy by its waits, 1 %;
    ready batches save it 10 %, which its workers' CPU time took.
    """
    if len(evidence.rounds) >= MIN_ROUNDS:
        return False
    if evidence.rounds:  # whatever the verdict is of
        return loader_is_open(severity, facts)
    return _no_time(evidence) and severity in ("none", "uncertain")


def open_beyond(budget_s: float, most_s: float) -> str:
    """Why it takes longer than `budget_s`, in a sentence; `most_s` is the second cap."""
    return (
        f"{budget_s:g} s do not suffice to tell what the loader costs: it is measured for longer, "
        f"until {most_s:g} s at most."
    )


def not_compared(evidence: LoopEvidence | None) -> str | None:
    """What a verdict of the loop's waits alone leaves out; None where rounds were measured."""
    if evidence is None or evidence.rounds or not _no_time(evidence):
        return None
    loader = evidence.observed.main_loader
    in_loop = loader is not None and loader.settings.num_workers == 0
    unknown = IN_LOOP if in_loop else IN_WORKERS
    return (
        "The loop was not compared with batches already in memory: there was no time for it. What "
        f"is said of the loader is what the loop waits for it; {unknown} is not known. A larger "
        "--budget measures it."
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


def ended_early(missing: list[str], script_run: ScriptRunLike) -> str:
    """What there was no time for before the script's end, and why it was not run again."""
    wanted = " and ".join(missing)
    return f"The script ended before there was time for {wanted}. {not_again(script_run)}"


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
    if not rows:
        return None
    if rows[0].measured_step_ms is None:  # be it code that no trial measures: others may help
        return Lacks(again=None) if undecided else None
    if rows[0].to is None:
        return None  # code that helps stays apart, and is not what leads
    lead = loose_lead(verification)
    return Lacks(again=lead) if lead is not None else None


def loose_lead(verification: Verification | None) -> Compared | None:
    """What leads of all that was tried, where its own step is not known well enough to be told."""
    lead = leading(verification)
    return lead if lead is not None and is_loose(lead) else None
