"""`loaderdoctor diagnose SCRIPT`: the user's own script, measured, explained, and tried better.

Comes in: a script or module with its arguments. Goes out: a run folder with the report and the
traces; the report on stdout, warnings on stderr. The script's own output, traceback and exit code
are its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from loaderdoctor import format as fmt
from loaderdoctor.attribution import Attributed, attribute, facts_of
from loaderdoctor.attribution.loop_stacks import loop_line_facts
from loaderdoctor.commands.launch import (
    Launch,
    follow,
    launch_everywhere,
    option_words,
    several_machines,
    target_of,
)
from loaderdoctor.commands.output import (
    STDOUT,
    ShareRule,
    Stages,
    check_target,
    deliver,
    exit_code,
    share_rules,
)
from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.budget import DiagnosisOptions, follow_seconds
from loaderdoctor.diagnosis.gather import NAME as SNAPSHOT
from loaderdoctor.errors import RunError
from loaderdoctor.facts.loop import OutsideFacts, WallFacts
from loaderdoctor.instrument.command.endings import built_only
from loaderdoctor.instrument.command.launch_config import LaunchOptions, Target
from loaderdoctor.instrument.command.launched_run import TrainingBeganError
from loaderdoctor.instrument.command.repeated_run import RepeatedRun
from loaderdoctor.instrument.command.script_run import NoDataLoaderError
from loaderdoctor.instrument.system.processes import Signals, exit_code_of, held
from loaderdoctor.instrument.wire.measured import PauseRecord
from loaderdoctor.instrument.wire.protocol import (
    FromRun,
    NoDataLoader,
    ProfilerSchedule,
    Progress,
)
from loaderdoctor.report import RunFolder
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.trace import read_trace

# How long a script may take to its first warm steps: imports, data preparation, compilation.
START_TIMEOUT_S = 1800.0

NOT_VALID = (
    "loaderdoctor: this run's training is not valid: it is stopped after measuring, and a loop "
    "over a DataLoader gets other batches than its own for a while. {ends} Files it saves may be "
    "overwritten. (`loaderdoctor run` measures less and changes nothing.)\n"
)
ONCE = "--once keeps it to one run; without it the script is run again for that."
RUNS_AGAIN = "Where it ends before enough was measured, it is run again (--once: a single run)."
RUNS_ONCE = "Where it ends before enough was measured, it is not run again (--once)."


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    script: str
    args: tuple[str, ...] = ()
    as_module: bool = False
    budget_s: float = 45.0
    no_ablation: bool = False
    no_verify: bool = False
    trial_limit_s: float | None = None
    once: bool = False
    fail_on: tuple[str, ...] = ()
    profiler: ProfilerSchedule = field(default_factory=ProfilerSchedule)
    memory_history: bool = False
    json_target: str | None = None
    verbose: bool = False
    output: Path | None = None
    torchrun: tuple[str, ...] = ()  # options of torch's launcher; with them it starts the ranks


def diagnose(options: DiagnoseOptions) -> int:
    """Run, measure, report. Returns the exit code; raises LoaderdoctorError."""
    rules = share_rules(options.fail_on)
    check_target("--json", options.json_target)
    target = target_of(options.script, options.args, as_module=options.as_module)
    target.check()
    if several_machines(options.torchrun):
        return launch_everywhere(options.torchrun, _words(options))
    launch = Launch.find(options.torchrun)
    if launch.follows:
        return follow(_launch_options(options))
    with Signals():
        began = time.time()
        folder = RunFolder.create(target.label, output=options.output, at=began)
        try:
            call = _Call(
                options=options,
                target=target,
                launch=launch,
                rules=rules,
                folder=folder,
                began=began,
            )
            with closing(call.stages):
                return _diagnose(call)
        finally:
            folder.discard_if_empty()  # the script ended before there was anything to tell


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of this command that has passed its checks."""

    options: DiagnoseOptions
    target: Target
    launch: Launch
    rules: tuple[ShareRule, ...]  # of --fail-on
    folder: RunFolder
    began: float  # seconds since the epoch
    stages: Stages = field(default_factory=Stages)

    def show(self, report: Report, *, written: bool = True) -> None:
        """Print the report, and its JSON where asked for."""
        self.stages.close()  # the answer is the last thing on the screen
        folder = self.folder.path if written else None
        options = self.options
        deliver(report, json_target=options.json_target, folder=folder, verbose=options.verbose)


def _diagnose(call: _Call) -> int:
    call.stages.warn(NOT_VALID.format(ends=RUNS_ONCE if call.options.once else RUNS_AGAIN))
    with tempfile.TemporaryDirectory(prefix=".raw-", dir=call.folder.path) as raw:
        run = _Run(call, Path(raw))
        try:
            run.measure()
        except NoDataLoaderError as error:
            if error.seen.trace_path is None:
                raise
            return _without_dataloader(call, run, error.seen)
        except RunError as error:
            if run.diagnosis.evidence is None:
                if run.ended_code:
                    sys.stderr.write(f"loaderdoctor: {error}\n")
                    return run.ended_code
                raise
            run.diagnosis.problems.append(str(error))
        from loaderdoctor.commands.run_folder import write_run

        # Some seconds, and then there is a whole report of what was measured.
        with held() as came:
            run.stages("reading the trace, writing the report", run.diagnosis.report_s)
            report = run.diagnosis.report()
            try:
                write_run(call.folder, run.diagnosis, report, at=call.began)
            except Exception:
                # A full disk, or a fault of ours: what was measured is shown all the same.
                call.show(report, written=False)
                raise
            call.show(report)
    interrupt = run.interrupt or next(iter(came), None)
    if interrupt is not None:
        return exit_code_of(interrupt)
    return run.ended_code or exit_code(report, call.rules)


def _without_dataloader(call: _Call, run: _Run, seen: NoDataLoader) -> int:
    """The script trains without a DataLoader: what its profiled steps tell."""
    from loaderdoctor.commands.run_folder import write_into

    run.stages("reading the trace, writing the report")
    assert seen.trace_path is not None
    report, attributed = report_without_dataloader(seen, call.target.label)
    write_into(call.folder, Path(seen.trace_path), attributed, report, at=call.began)
    call.show(report)
    return run.ended_code or exit_code(report, call.rules)


class _Run:
    """One measured run of a script, from start to stop."""

    def __init__(self, call: _Call, raw: Path) -> None:
        self._options, self._target, self._raw = call.options, call.target, raw
        self.stages = call.stages
        self._script_run = RepeatedRun(
            start=lambda patient: call.launch.script_run(
                call.target, raw, replace(_launch_options(call.options), patient=patient)
            ),
            say=lambda text: self.stages.warn(f"loaderdoctor: {text}\n"),
            budget_s=call.options.budget_s,
            never=ONCE if call.options.once else call.launch.once,
            takes_ranks=True,
        )
        self.diagnosis = self._diagnosis()
        self.interrupt: KeyboardInterrupt | None = None

    @property
    def ended_code(self) -> int:
        """Of the script itself, where it ended without being stopped."""
        return self._script_run.exit_code

    def measure(self) -> None:
        """Start the script, gather evidence within the budget, stop it. Raises RunError."""
        try:
            self._measure()
        except KeyboardInterrupt as interrupt:
            if self.diagnosis.evidence is None:
                raise
            self.interrupt, self.diagnosis.interrupted = interrupt, True

    def _measure(self) -> None:
        with self._script_run as script_run:
            self.stages("starting the script, for as long as its loop takes to be warm")
            try:
                self._measure_loop(script_run)
            except NoDataLoaderError:
                script_run.stop()
                raise
            self.stages("stopping it", self.diagnosis.left_s)
            script_run.stop()

    def _measure_loop(self, script_run: RepeatedRun) -> None:
        """The loop, once it is warm; and again where training only then begins, or changes."""
        observed = script_run.wait_observed(START_TIMEOUT_S, self._tell_of_waiting)
        self.diagnosis = self._diagnosis()  # it may be another run than the one that was started
        while True:
            try:
                self.diagnosis.measure(observed)
                return
            except TrainingBeganError as why:
                self.stages(f"{why}: what was measured so far does not count")
                self.diagnosis.start_over(why)
            observed = script_run.wait_observed(START_TIMEOUT_S, self._tell_of_waiting)

    def _tell_of_waiting(self, message: FromRun) -> None:
        if isinstance(message, Progress):
            self.stages(message.text)

    def _diagnosis(self) -> Diagnosis:
        options = self._options
        return Diagnosis(
            self._script_run,
            target=self._target.label,
            raw=self._raw,
            on_stage=lambda what, left_s: self.stages(what, left_s),
            say=lambda text: self.stages.warn(f"loaderdoctor: {text}\n"),
            clock=self._script_run.measuring_clock,
            options=DiagnosisOptions(
                budget_s=options.budget_s,
                ablate=not options.no_ablation,
                verify=not options.no_verify,
                patient=self._script_run.patient,
                trial_limit_s=options.trial_limit_s,
                profiler=options.profiler,
                memory_history=self._raw.parent / SNAPSHOT if options.memory_history else None,
            ),
        )


def _words(options: DiagnoseOptions) -> tuple[str, ...]:
    """The options as the command line takes them, but for the launcher's."""
    profiler = options.profiler
    flags = (
        (options.as_module, "-m"),
        (options.no_ablation, "--no-ablation"),
        (options.no_verify, "--no-verify"),
        (options.once, "--once"),
        (profiler.with_stack, "--with-stack"),
        (profiler.profile_memory, "--profile-memory"),
        (options.memory_history, "--memory-history"),
        (options.verbose, "--verbose"),
    )
    values = (
        (options.budget_s, "--budget"),
        (profiler.repeat, "--repeat"),
        (profiler.wait, "--wait"),
        (profiler.warmup, "--warmup"),
        (profiler.active, "--active"),
        (options.json_target, "--json"),
        (options.output, "--output"),
        (options.trial_limit_s, "--trial-limit"),
        *((rule, "--fail-on") for rule in options.fail_on),
    )
    return (*option_words(flags, values), options.script, *options.args)


def _launch_options(options: DiagnoseOptions) -> LaunchOptions:
    return LaunchOptions(
        stdout="stderr" if options.json_target == STDOUT else "inherit",
        follow_s=follow_seconds(options.budget_s),
    )


# Recording makes steps longer, not shorter: from here on the others hold what was not recorded.
MUCH_LONGER = 1.5
MIN_COMPARED = 8  # of fewer one that starts slowly makes most of the mean


def report_without_dataloader(seen: NoDataLoader, target: str) -> tuple[Report, Attributed]:
    """The report of the profiled steps, as `analyze` makes it of their trace.

    The profiler can't tell the loop's own making of batches from its other work, so `input` is not
    recorded; where the step goes otherwise, it can. Raises TraceError where they can't be read.
    """
    # Most scripts have a loader, and theirs are to start at once.
    from loaderdoctor.commands.analyze import report_of_facts

    assert seen.trace_path is not None
    attributed = attribute(read_trace(Path(seen.trace_path)))
    steps = (
        f"a step here is one backward pass at {seen.site}, since one step of the optimizer holds "
        "too many of them to profile"
        if seen.of_passes
        else f"the steps are those of the optimizer at {seen.site}"
    )
    between = ", with what lies between some of them" if seen.pauses is not None else ""
    text = (
        f"No torch DataLoader was iterated: {steps}, and the loop makes its batches itself. What "
        "that costs is part of host (where it runs torch's operators on a CPU that also trains, of "
        "compute), and no settings were tried: batches made in a torch DataLoader could be "
        f"measured, prefetched and tuned.{built_only(seen)} Without the profiler, {seen.n_steps} "
        f"of these steps took {fmt.step_ms(seen.step_ms)} each{between}; everything else here is "
        "from the profiled steps."
    )
    facts = facts_of(attributed)
    warnings = (ReportWarning(kind="no-loader", text=text), *_unlike(seen, facts.wall_ms))
    lines = loop_line_facts(
        [seen.stacks] if seen.stacks is not None else [], has_accelerator=facts.has_accelerator
    )
    report = report_of_facts(
        target,
        facts,
        warnings,
        loop_lines=lines,
        wall=_with_pauses(seen.pauses, seen.n_steps),
        command="diagnose",
    )
    what = "backward pass at" if seen.of_passes else "step of"
    step = structs.replace(report.step, definition=f"one {what} {seen.site}")
    report = structs.replace(report, step=step)
    if seen.reason is not None and report.verdict.bound == "unknown":
        summary = f"No verdict: only {fmt.count(step.count, 'step')} could be profiled, since "
        summary = f"{summary}{seen.reason}. Shorten the step (less data, a shorter sequence)."
        report = structs.replace(report, verdict=structs.replace(report.verdict, summary=summary))
    return report, attributed


def _with_pauses(pauses: PauseRecord | None, n_steps: int) -> WallFacts | None:
    """All of the loop's time, where it pauses between some of its steps."""
    if pauses is None:
        return None
    work = OutsideFacts(
        what="other",
        site=None,
        seconds=pauses.seconds,
        n=pauses.n,
        every_steps=pauses.every_steps,
    )
    return WallFacts(step_ms=pauses.usual_ms, outside=(work,), n_steps=n_steps)


def _unlike(seen: NoDataLoader, profiled_ms: float) -> tuple[ReportWarning, ...]:
    """That steps without the profiler took longer, where nothing tells what lies between them."""
    known = seen.pauses is not None and seen.pauses.every_steps is not None
    if known or seen.n_steps < MIN_COMPARED or seen.step_ms <= MUCH_LONGER * profiled_ms:
        return ()
    text = (
        f"{fmt.count(seen.n_steps, 'step')} without the profiler took {fmt.step_ms(seen.step_ms)} "
        f"each, the profiled ones {fmt.step_ms(profiled_ms)}: what lies between some of the others "
        "(rollouts, validation, the next part of the data) is in no figure here."
    )
    return (ReportWarning(kind="not-steady", text=text),)
