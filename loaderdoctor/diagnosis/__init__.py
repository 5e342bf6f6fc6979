"""One diagnosis over a script run: evidence within a budget, trials of what may help, the report.

Of a script's process (`commands.diagnose`) or of this one (`api`); what was learned is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from loaderdoctor.attribution.cpu import machine_notes
from loaderdoctor.diagnosis.analysis import Analysis, GroupAnalysis, analyse, analyse_group
from loaderdoctor.diagnosis.budget import (
    Allowance,
    DiagnosisOptions,
    ended_by_itself,
    ended_early,
    lacks,
    lacks_rounds,
    loose_lead,
    not_compared,
    not_measured,
    open_beyond,
    report_seconds,
    unsettled,
)
from loaderdoctor.diagnosis.gather import (
    Advised,
    Gatherer,
    MemoryHistory,
    history_row,
    kept_back_s,
    record,
    trace_advised,
)
from loaderdoctor.diagnosis.prescribe import not_advised_rows, prescribed_rows, trial_rows
from loaderdoctor.diagnosis.tuned import told_in_findings, told_in_rows
from loaderdoctor.diagnosis.verify import Verification, Verifier, loop_trials
from loaderdoctor.errors import RunError
from loaderdoctor.findings import Finding
from loaderdoctor.findings.exposure import loader_is_open
from loaderdoctor.instrument.command.launched_run import ScriptRunLike, TrainingBeganError
from loaderdoctor.instrument.command.rank_group import RankGroup
from loaderdoctor.instrument.command.repeated_run import RepeatedRun
from loaderdoctor.instrument.wire.measured import TuningRecord
from loaderdoctor.instrument.wire.protocol import BATCHES_REPLAYED, Observed
from loaderdoctor.report.build import Judged, RunNotes, Tried, build_report, rank_rows
from loaderdoctor.report.model import Recommendation, Report, ReportWarning
from loaderdoctor.report.words.first_screen import SLOW_START
from loaderdoctor.report.words.method import of_first_epoch
from loaderdoctor.tryout.ablating import MAX_LONGER_ROUNDS, MAX_ROUNDS, LoopEvidence, slow_start
from loaderdoctor.tryout.answers import answered
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.windows import MIN_ROUNDS, sizes
from loaderdoctor.units import NS_PER_S

NOT_ALL_TRIED = "Not every candidate was tried often enough to tell: --budget allows more."


class Diagnosis:
    """One measured run, from the first warm steps on."""

    def __init__(
        self,
        script_run: ScriptRunLike,
        *,
        target: str,
        raw: Path,
        options: DiagnosisOptions,
        on_stage: Callable[[str, float], None] | None = None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_stage` is told what begins and how many seconds of the budget are left.

        `say` is told what everyone must know: that it takes longer than the budget.
        """
        self._clock = clock
        self._script_run, self._target, self._raw, self._options = script_run, target, raw, options
        self.evidence: LoopEvidence | None = None  # of several ranks, the lowest's
        self.group: GroupAnalysis | None = None
        self.analysis: Analysis | None = None
        self.verification: Verification | None = None
        self.advised: Advised | None = None  # the winner of the trials, traced
        self.history: MemoryHistory | None = None  # None: not asked for, or not reached
        self.tuned: TuningRecord | None = None  # what the run itself tried of its loader
        self.problems: list[str] = []
        self._on_stage, self._say = on_stage or (lambda *_: None), say or (lambda _: None)
        self._verifier: Verifier | None = None
        self._allowed: Allowance | None = None  # to what is measured, on the clock
        self._end_s = 0.0  # of it
        self._beyond = False  # whether rounds went on up to the second cap
        self.interrupted = False

    def start_over(self, why: TrainingBeganError) -> None:
        """Forget what was measured: it is of a pass before training, or of another loader's."""
        self.evidence = self.group = self.analysis = self.verification = self.history = None
        self._verifier, self._beyond = None, False
        if not why.followed:
            self._allowed = None  # what is before training has no steps, and is none of the budget
        elif self._allowed is not None:
            self._say(self._allowed.begins_anew(str(why), self._clock()))

    def measure(self, observed: Observed) -> None:
        """Measure within the budget, from the steps. Raises RunError, TrainingBeganError."""
        options, script_run = self._options, self._script_run
        first_step_s = self._clock() - sum(observed.step_ns) / NS_PER_S
        seconds = Allowance(begun_s=first_step_s, budget_s=options.budget_s, before=self._allowed)
        self._allowed = seconds
        self._end_s, until = seconds.end_s, seconds.until_s
        self.evidence = LoopEvidence(
            observed=observed, sizes=sizes(observed, budget_s=options.budget_s)
        )
        gatherer = Gatherer(
            script_run,
            self.evidence,
            trace_path=self._raw / "baseline.json",
            profiler=options.profiler,
            on_stage=self._tell,
            clock=self._clock,
        )
        now = self._clock()
        gatherer.gather(
            until=seconds.rounds_until_s(now) if options.verify else until,
            first_until=until,
            finer_until=seconds.finer_until_s(now) if options.verify else until,
            open_until=lambda: self._open_until_s(seconds),
            beyond_until=lambda: self._beyond_until_s(seconds),
            may_defer=options.verify,
            ablate=options.ablate,
            with_copy=self._with_copy,
        )
        until = seconds.most_until_s if self._beyond else until
        if options.memory_history is not None and script_run.ended is None:
            self._tell("recording the memory history")
            self.history = record(gatherer, script_run.measure, options.memory_history)
        if options.verify and script_run.ended is None:
            self._verify(gatherer, until)
        if options.ablate and script_run.ended is None:
            # Behind a profile on an accelerator rounds would overstate what they find (see gather).
            if gatherer.deferred or (observed.device is None and self.evidence.rounds):
                most = MAX_ROUNDS if gatherer.deferred else MIN_ROUNDS
                gatherer.ablate(until=until, with_copy=self._with_copy, most=most)
                self.analysis = self._analyse(self.evidence)
                if options.verify and self.verification is None and script_run.ended is None:
                    self._verify(gatherer, until)  # what one round left open may be clear now
            self._measure_longer(gatherer, seconds)
            self._measure_beyond(gatherer, seconds)
        self._measure_first_advice(seconds)
        if self._ranks is None and not self._replayed:
            self.advised = trace_advised(
                script_run, self.verification, self._raw, options.profiler, until - self._clock()
            )
        if isinstance(script_run, RepeatedRun):
            script_run.no_more()
        if options.patient and script_run.ended is None:
            gatherer.await_training()

    def _open_until_s(self, seconds: Allowance) -> float:
        """Until when rounds of open shares may take: now, where there are settings to try."""
        assert self.evidence is not None
        tries = self._options.verify and self._analyse(self.evidence).worth_trying
        return self._clock() if tries else seconds.open_until_s(self._clock())

    @property
    def _with_copy(self) -> bool:
        observed = self._script_run.observed
        return observed is not None and observed.device is not None and bool(observed.transfers)

    @property
    def left_s(self) -> float:
        """Seconds left of the budget."""
        return max(0.0, self._end_s - self._clock())

    @property
    def report_s(self) -> float:
        """What reading the trace and writing the report will take, about."""
        profiled = self.shown.profiled if self.shown is not None else None
        return report_seconds(profiled.trace_path if profiled is not None else None)

    def _measure_longer(self, gatherer: Gatherer, seconds: Allowance) -> None:
        """Spend what is left on a verdict that the noise leaves open.

        Where it had no settings to try, they are tried as soon as it turned out to cost something:
        time is kept for that. Not behind a profile on an accelerator: those are of a slower loop.
        """
        evidence, script_run = gatherer.evidence, self._script_run
        slowed = evidence.observed.device is not None and evidence.profiled is not None
        if slowed or script_run.ended is not None or not evidence.rounds:
            return
        known = self.analysis or self._analyse(evidence)  # settings that were tried change neither
        for last in (False, True):
            if not loader_is_open(known.severity, known.facts) or script_run.ended is not None:
                return
            untried = self._options.verify and self.verification is None
            keeps = untried and not last
            until = seconds.longer_until_s(self._clock()) if keeps else seconds.until_s
            gatherer.ablate(until=until, with_copy=self._with_copy, most=MAX_LONGER_ROUNDS)
            if not untried or script_run.ended is not None:
                return
            self._verify(gatherer, seconds.until_s)
            known = self.analysis or known

    def _beyond_until_s(self, seconds: Allowance) -> float | None:
        """Until when rounds may go on that are too few to tell anything; None where they are not.

        The second cap; on an accelerator, where profile and trials follow, half of the way.
        """
        assert self.evidence is not None
        known = self.analysis or self._analyse(self.evidence)
        self._beyond = lacks_rounds(known.severity, known.facts, self.evidence) and self._goes_on(
            seconds, open_beyond(seconds.budget_s, seconds.most_budget_s)
        )
        if not self._beyond:
            return None
        on_device = self.evidence.observed.device is not None
        return seconds.beyond_until_s(self._clock()) if on_device else seconds.most_until_s

    def _measure_beyond(self, gatherer: Gatherer, seconds: Allowance) -> None:
        """Such rounds, where a profile does not forbid them; then settings, if none were tried."""
        evidence = gatherer.evidence
        if evidence.observed.device is not None:
            return
        until = self._beyond_until_s(seconds)
        if until is None:
            return
        gatherer.ablate(until=until, with_copy=self._with_copy, most=MAX_ROUNDS)
        self.analysis = self._analyse(evidence)
        if self._options.verify and self.verification is None and self._script_run.ended is None:
            self._verify(gatherer, until)

    def _measure_first_advice(self, seconds: Allowance) -> None:
        """Where it is still a prediction, or one window told it, go on up to the second cap."""
        verifier, script_run = self._verifier, self._script_run
        if verifier is None or self.analysis is None:
            return
        undecided = bool(verifier.undecided)
        lack = lacks(self.analysis, self.verification, undecided=undecided)
        if lack is None:
            return
        if not self._goes_on(seconds, lack.told(seconds.budget_s, seconds.most_budget_s)):
            return
        again = lack.again
        if again is None:
            self._tell("trying settings for longer")
            self.verification = verifier.go_on(seconds.most_until_s - self._clock())
            again = loose_lead(self.verification)
        if again is not None and script_run.ended is None:
            self._tell("measuring the first advice again")
            self.verification = verifier.confirm(again, seconds.most_until_s - self._clock())

    def _goes_on(self, seconds: Allowance, why: str) -> bool:
        """Whether the script still runs, for up to the second cap, which is told then."""
        if isinstance(self._script_run, RepeatedRun):
            self._script_run.extend(seconds.most_budget_s)  # may be started again for it
        if self._script_run.ended is not None:
            return False
        self._end_s = seconds.most_s
        self._say(why)
        return True

    def _tell(self, what: str) -> None:
        self._on_stage(what, self.left_s)

    def _verify(self, gatherer: Gatherer, until: float) -> None:
        evidence = gatherer.evidence
        self.analysis = self._analyse(evidence)
        prescription = self.analysis.prescription
        if not self.analysis.worth_trying:
            return
        self._tell("trying settings")
        picture_s = kept_back_s(self._options.budget_s) if self._ranks is None else 0.0
        verifier = self._verifier = Verifier(
            evidence,
            Equipment(
                script_run=self._script_run,
                on_progress=lambda progress: self._tell("trying settings"),
                clock=self._clock,
            ),
            left_s=until - self._clock() - picture_s,
            trial_limit_s=self._options.trial_limit_s,
        )
        self.verification = verifier.verify(
            [c.settings for c in prescription.live_settings],
            rest_ms=self.analysis.rest_ms,
            in_code=[c.settings for c in prescription.live_code],
            code_first=prescription.code_promises_more(self.analysis.facts.step_ms),
        )

    def report(self) -> Report:
        """The report of what was measured. Raises RunError where that is nothing."""
        if self.evidence is None:
            raise RunError(f"{self._target}: interrupted before its loop was warm.")
        self.evidence.add_loaders(self._script_run.ended)
        # Again, even after verification: ended windows and notes may have come since.
        analysis = self.analysis = self._analyse(self.evidence)
        group, verified = self.group, self._verified
        tried = Tried(
            trials=trial_rows(analysis.facts, verified),
            recommendations=self._rows(analysis) if not self._replayed else (),
            not_advised=not_advised_rows(analysis.prescription, verified),
        )
        report = build_report(
            analysis.facts,
            target=self._target,
            judged=Judged(
                bound=analysis.bound,
                severity=analysis.severity,
                findings=self._answered(analysis, tried),
                unsettled=unsettled(
                    analysis,
                    self.evidence,
                    self._script_run,
                    budget_s=self._options.budget_s,
                    beyond=self._beyond,
                    ablates=self._options.ablate,
                    interrupted=self.interrupted,
                ),
            ),
            tried=tried,
            notes=RunNotes(
                environment=self.shown.observed.environment if self.shown is not None else None,
                warnings=self._warnings(analysis),
                ranks=rank_rows(group.ranks, self.evidence.observed.definition, group.steps)
                if group is not None
                else (),
                memory_history=history_row(self.history),
            ),
        )
        return of_first_epoch(report) if self._replayed else report

    def _rows(self, analysis: Analysis) -> tuple[Recommendation, ...]:
        rows = prescribed_rows(analysis.facts, analysis.prescription, self._verified)
        return rows if self.tuned is None else told_in_rows(rows, self.tuned)

    def _answered(self, analysis: Analysis, tried: Tried) -> tuple[Finding, ...]:
        findings, facts = analysis.findings, analysis.facts
        if self.tuned is not None:
            return told_in_findings(findings, facts, self.tuned, tried.not_advised)
        return answered(findings, facts, tried.trials, not_advised=tried.not_advised)

    @property
    def shown(self) -> LoopEvidence | None:
        """The evidence that the report's top level is of."""
        return self.group.evidence if self.group is not None else self.evidence

    def _analyse(self, evidence: LoopEvidence) -> Analysis:
        verified = self._verified
        tried = loop_trials(verified.tried if verified is not None else ())
        if (ranks := self._ranks) is not None:
            self.group = analyse_group(evidence, ranks.measured, tried)
            return self.group.analysis
        return analyse(evidence, self._raw / "workers", tried=tried)

    @property
    def _ranks(self) -> RankGroup | None:
        run = self._script_run
        if isinstance(run, RepeatedRun):
            return run.ranks
        return run if isinstance(run, RankGroup) else None

    @property
    def _replayed(self) -> bool:
        """Whether the loop ceased to fetch: no setting of a loader changes what is left of it."""
        return any(note.kind == BATCHES_REPLAYED for note in self._script_run.notes)

    @property
    def _verified(self) -> Verification | None:
        """What was tried; nothing where windows before and after replaying can't be told apart."""
        return self.verification if not self._replayed else None

    def _warnings(self, analysis: Analysis) -> tuple[ReportWarning, ...]:
        said = dict.fromkeys(
            [
                *((note.kind, note.text) for note in self._script_run.notes),
                *(("evidence-missing", text) for text in (*analysis.problems, *self.problems)),
            ]
        )
        said |= dict.fromkeys(machine_notes(analysis.facts))
        if self.shown is not None and (slow := slow_start(self.shown)) is not None:
            said[(SLOW_START, slow)] = None
        if self.history is not None and self.history.reason is not None:
            said[("memory-history", self.history.reason)] = None
        done = self.verification is not None and self.verification.complete
        untried = not done and (self.analysis is None or self.analysis.worth_trying)
        missing = not_measured(self._options, self.evidence, history=self.history, trials=untried)
        reason = self.evidence.profiled_reason if self.evidence is not None else None
        if reason is not None:
            text = f"There is no profiler trace: {reason}"
            said[("no-trace", text if text.endswith(".") else f"{text}.")] = None
        if (lacking := not_compared(self.evidence)) is not None:
            said[("not-compared", lacking)] = None
        if self.interrupted:
            said[("interrupted", "Interrupted: this is what had been measured by then.")] = None
        elif missing and ended_by_itself(self._script_run):
            said[("script-ended-early", ended_early(missing, self._script_run))] = None
        elif self.verification is not None and not self.verification.complete:
            said[("not-all-tried", NOT_ALL_TRIED)] = None
        return tuple(ReportWarning(kind=kind, text=text) for kind, text in said)
