"""`loaderdoctor diagnose SCRIPT`: the user's own script, measured, explained, and tried better.

Comes in: a script or module with its arguments. Goes out: a run folder with the report and the
traces; the report on stdout, warnings on stderr. The script's own output, traceback and exit code
are its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.commands.launch import Launch, follow, launch_everywhere, several_machines
from loaderdoctor.commands.output import (
    STDOUT,
    check_json_target,
    deliver,
    exit_code,
    share_rules,
)
from loaderdoctor.commands.pictures import extras_of_diagnosis
from loaderdoctor.diagnosis.analysis import Analysis, analyse, overlay
from loaderdoctor.diagnosis.gather import Evidence, Gatherer, ProfileOptions
from loaderdoctor.diagnosis.plan import sizes
from loaderdoctor.diagnosis.prescribe import recommendations, trial_rows, withheld_rows
from loaderdoctor.diagnosis.ranks import GroupAnalysis, analyse_group
from loaderdoctor.diagnosis.verify import Verification, Verifier
from loaderdoctor.errors import LoaderdoctorError, RunError
from loaderdoctor.estimate import Estimate
from loaderdoctor.instrument.bench import BenchOptions, Target
from loaderdoctor.instrument.group_bench import GroupBench
from loaderdoctor.instrument.protocol import Note
from loaderdoctor.report.build import build_report
from loaderdoctor.report.captures import write_capture
from loaderdoctor.report.console import console_text
from loaderdoctor.report.files import RunFolder
from loaderdoctor.report.html.page import write_html
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.report.ranks import rank_rows
from loaderdoctor.report.scalars import write_scalars
from loaderdoctor.report.tensorboard import BASELINE

# How long a script may take to its first warm steps: imports, data preparation, compilation.
START_TIMEOUT_S = 1800.0
# Kept back from the budget for stopping the script, reading the trace and writing the report.
RESERVE_S = 6.0
RESERVE_SHARE = 0.25  # of the budget, where that is less
# Of what is left for experiments, this part goes to ablation first; trying settings gets the rest
# and whatever ablation did not need.
ABLATION_SHARE = 0.5
EXIT_INTERRUPTED = 130

NOT_VALID = (
    "loaderdoctor: this run's training is not valid: for some windows the loop gets other batches "
    "than its own, and it is stopped after measuring. Files it saves may be overwritten. "
    "(--run-to-end measures less and changes nothing.)\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """What the command line says."""

    script: str
    args: tuple[str, ...] = ()
    as_module: bool = False
    budget_s: float = 45.0
    no_ablation: bool = False
    no_verify: bool = False
    run_to_end: bool = False
    fail_on: tuple[str, ...] = ()
    wait: int | None = None
    warmup: int | None = None
    active: int | None = None
    repeat: int = 1
    with_stack: bool = False
    profile_memory: bool = False
    json_target: str | None = None
    output: Path | None = None
    torchrun: tuple[str, ...] = ()  # options of torch's launcher; with them it starts the ranks


def diagnose(options: DiagnoseOptions) -> int:
    """Run, measure, report. Returns the exit code; raises LoaderdoctorError."""
    rules = share_rules(options.fail_on)
    check_json_target(options.json_target)
    target = Target(
        script=None if options.as_module else options.script,
        module=options.script if options.as_module else None,
        args=options.args,
    )
    target.check()
    if several_machines(options.torchrun):
        return launch_everywhere(options.torchrun, _words(options))
    launch = Launch.find(options.torchrun)
    if launch.follows:
        return follow(_bench_options(options))
    began = time.time()
    folder = RunFolder.create(target.label, output=options.output, at=began)
    if not options.run_to_end:
        sys.stderr.write(NOT_VALID)
        sys.stderr.flush()
    with tempfile.TemporaryDirectory(prefix=".raw-", dir=folder.path) as raw:
        run = _Run(options, target, Path(raw), launch)
        try:
            run.measure()
        except RunError as error:
            ended = run.ended_code
            if run.evidence is None:
                if ended:
                    sys.stderr.write(f"loaderdoctor: {error}\n")
                    return ended
                raise
            run.problems.append(str(error))
        report = run.report()
        text = console_text(report, folder=folder.path)
        folder.write_report(report, text)
        run.write_traces(folder, at_ns=int(began * 1e9))
        write_scalars(report, folder.tensorboard, console_text=text, at=began)
        write_html(report, folder, extras_of_diagnosis(report, run.shown, run.analysis))
    deliver(report, json_target=options.json_target, folder=folder.path)
    if run.interrupted:
        return EXIT_INTERRUPTED
    return run.ended_code or exit_code(report, rules)


class _Run:
    """One measured run, from start to stop; what it has learned so far is always reportable."""

    def __init__(self, options: DiagnoseOptions, target: Target, raw: Path, launch: Launch) -> None:
        self._options, self._target, self._raw = options, target, raw
        self._bench = launch.bench(target, raw, _bench_options(options))
        self.evidence: Evidence | None = None  # of several ranks, the lowest's
        self.group: GroupAnalysis | None = None
        self.analysis: Analysis | None = None
        self.verification: Verification | None = None
        self.notes: Sequence[Note] = ()
        self.problems: list[str] = []
        self.interrupted = False
        self.ended_code = 0  # of the script itself, where it ended without being stopped

    def measure(self) -> None:
        """Start the script, gather evidence within the budget, stop it."""
        options, bench = self._options, self._bench
        self.notes = bench.notes
        try:
            with bench:
                observed = bench.wait_observed(START_TIMEOUT_S)
                first_step_s = time.monotonic() - sum(observed.step_ns) / 1e9
                reserve_s = min(RESERVE_S, RESERVE_SHARE * options.budget_s)
                until = first_step_s + options.budget_s - reserve_s
                self.evidence = Evidence(
                    observed=observed, sizes=sizes(observed, budget_s=options.budget_s)
                )
                self._gather(until)
                bench.stop(to_end=options.run_to_end)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            if bench.ended is not None and bench.ended.how in ("script-failed", "script-ended"):
                self.ended_code = bench.ended.exit_code

    def _gather(self, until: float) -> None:
        options, bench = self._options, self._bench
        assert self.evidence is not None
        gatherer = Gatherer(
            bench,
            self.evidence,
            trace_path=self._raw / "baseline.json",
            profile=ProfileOptions(
                with_stack=options.with_stack,
                profile_memory=options.profile_memory,
                n_active=options.active,
                n_warmup=_sum(options.wait, options.warmup),
            ),
        )
        observed = self.evidence.observed
        now = time.monotonic()
        part = 1.0 if options.no_verify else ABLATION_SHARE
        gatherer.gather(
            until=now + (until - now) * part,
            ablate=not (options.no_ablation or options.run_to_end),
            with_copy=observed.device is not None and bool(observed.transfers),
        )
        if options.run_to_end:
            return
        if options.no_verify or bench.ended is not None:
            return
        self.analysis = self._analyse(self.evidence)
        live = [c.settings for c in self.analysis.prescription.candidates if c.live]
        if not live:
            return
        verifier = Verifier(
            gatherer,
            bench.measure,
            until=until,
            clock=time.monotonic,
            has_accelerator=self.evidence.observed.device is not None,
        )
        self.verification = verifier.verify(live, rest_ms=_rest_ms(self.analysis))

    def report(self) -> Report:
        """The report of what was measured. Raises RunError where that is nothing."""
        if self.evidence is None:
            raise RunError(f"{self._target.label}: interrupted before its loop was warm.")
        # Again, even after verification: ended windows and notes may have come since.
        analysis = self.analysis = self._analyse(self.evidence)
        group = self.group
        return build_report(
            facts=analysis.facts,
            target=self._target.label,
            bound=analysis.bound,
            severity=analysis.severity,
            findings=analysis.findings,
            recommendations=recommendations(
                analysis.facts, analysis.prescription, self.verification
            ),
            withheld=withheld_rows(analysis.prescription),
            trials=trial_rows(analysis.facts, self.verification),
            warnings=self._warnings(analysis),
            environment=self.shown.observed.environment if self.shown is not None else None,
            ranks=rank_rows(group.ranks, self.evidence.observed.definition, group.steps)
            if group is not None
            else (),
        )

    @property
    def shown(self) -> Evidence | None:
        """The evidence that the report's top level is of."""
        return self.group.evidence if self.group is not None else self.evidence

    def _analyse(self, evidence: Evidence) -> Analysis:
        if isinstance(self._bench, GroupBench):
            self.group = analyse_group(evidence, self._bench.measured)
            return self.group.analysis
        return analyse(evidence, self._raw / "workers")

    def _warnings(self, analysis: Analysis) -> tuple[ReportWarning, ...]:
        said = dict.fromkeys(
            [
                *((note.kind, note.text) for note in self.notes),
                *(("evidence-missing", text) for text in (*analysis.problems, *self.problems)),
            ]
        )
        if self.interrupted:
            said[("interrupted", "Interrupted: this is what had been measured by then.")] = None
        if self.verification is not None and not self.verification.complete:
            text = (
                "The budget ended before every candidate setting was tried; --budget allows more."
            )
            said[("not-all-tried", text)] = None
        return tuple(ReportWarning(kind=kind, text=text) for kind, text in said)

    def write_traces(self, folder: RunFolder, *, at_ns: int) -> None:
        """Both files of the profiled window; a trace that can't be read became a warning."""
        if self.shown is None or self.analysis is None or self.analysis.attributed is None:
            return
        profiled = self.shown.profiled
        assert profiled is not None
        assert profiled.trace_path is not None
        try:
            added = overlay(self.analysis, profiled)
            write_capture(folder, BASELINE, Path(profiled.trace_path), at_ns=at_ns, overlay=added)
        except LoaderdoctorError as error:
            sys.stderr.write(f"loaderdoctor: the traces were not written: {error}\n")


def _words(options: DiagnoseOptions) -> tuple[str, ...]:
    """The options as the command line takes them, but for the launcher's."""
    words = ["--budget", str(options.budget_s), "--repeat", str(options.repeat)]
    for flag, name in (
        (options.as_module, "-m"),
        (options.no_ablation, "--no-ablation"),
        (options.no_verify, "--no-verify"),
        (options.run_to_end, "--run-to-end"),
        (options.with_stack, "--with-stack"),
        (options.profile_memory, "--profile-memory"),
    ):
        words += [name] if flag else []
    for value, name in (
        (options.wait, "--wait"),
        (options.warmup, "--warmup"),
        (options.active, "--active"),
        (options.json_target, "--json"),
        (options.output, "--output"),
        *((rule, "--fail-on") for rule in options.fail_on),
    ):
        words += [name, str(value)] if value is not None else []
    return (*words, options.script, *options.args)


def _bench_options(options: DiagnoseOptions) -> BenchOptions:
    return BenchOptions(stdout="stderr" if options.json_target == STDOUT else "inherit")


def _rest_ms(analysis: Analysis) -> float | None:
    """What no loader setting can go below: the step without input, and without copies if known."""
    ablation = analysis.facts.ablation
    if ablation is None:
        return None
    rest: Estimate | None = ablation.no_copy_ms or ablation.no_input_ms
    return rest.value if rest is not None else None


def _sum(*counts: int | None) -> int | None:
    known = [n for n in counts if n is not None]
    return sum(known) if known else None
