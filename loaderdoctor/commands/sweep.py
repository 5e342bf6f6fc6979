"""`loaderdoctor sweep`: settings tried in one running loop, ranked by plain step time.

Comes in: a recipe or a script. Goes out: a run folder with the report, the traces of the trials
and what TensorBoard shows of them; the report on stdout, progress and warnings on stderr.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from loaderdoctor.attribution.judge import judge_run
from loaderdoctor.commands.output import STDOUT, check_json_target, console_stream, deliver
from loaderdoctor.commands.pictures import extras_of_sweep
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.findings.rules import find as find_findings
from loaderdoctor.instrument.bench import Bench, BenchOptions
from loaderdoctor.instrument.bench import Target as Script
from loaderdoctor.instrument.protocol import Observed
from loaderdoctor.recipes import find
from loaderdoctor.report.build import build_report
from loaderdoctor.report.console import console_text
from loaderdoctor.report.files import RunFolder
from loaderdoctor.report.html.extras import HtmlExtras
from loaderdoctor.report.html.page import write_html
from loaderdoctor.report.model import Report
from loaderdoctor.report.scalars import write_scalars
from loaderdoctor.settings import AXES_BY_NAME, Settings
from loaderdoctor.sweep.advise import recommendations, verdict_of_sweep, withheld
from loaderdoctor.sweep.evidence import Evidence
from loaderdoctor.sweep.grid import asked_trials, default_trials, parse_grid
from loaderdoctor.sweep.live import LiveSweep
from loaderdoctor.sweep.outcome import Options, Progress
from loaderdoctor.sweep.rounds import Sweep
from loaderdoctor.sweep.rows import best_row, trial_rows, warning_rows

# How long a script may take to its first warm steps: imports, data preparation, compilation.
START_TIMEOUT_S = 600.0
# The report on disk is renewed at most this often while the sweep runs.
PARTIAL_EVERY_S = 5.0
EXIT_INTERRUPTED = 130
SCRIPT_OUTPUT = "script.txt"  # in the run folder

NOT_VALID = (
    "This run's training is not valid: trials feed the loop batches out of turn, and files the "
    "script saves may be overwritten."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What the command line says. `None`: as the loop and the machine ask."""

    target: tuple[str, ...] = ()  # SCRIPT [ARGS]…; with `recipe` arguments for its script
    recipe: str | None = None  # a name, or a folder with a recipe.json
    as_module: bool = False
    grid: tuple[str, ...] = ()  # AXIS=VALUES
    rounds: int | None = None
    seed: int = 0
    budget_s: float = 120.0
    no_ablation: bool = False
    wait: int | None = None
    warmup: int | None = None
    active: int | None = None
    repeat: int = 1
    with_stack: bool = False
    profile_memory: bool = False
    json_target: str | None = None  # a file, or "-" for stdout
    output: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The loop to sweep over."""

    name: str  # as the report names it
    script: Script
    axes: tuple[str, ...]  # what a sweep without a grid may vary


class ScriptFailedError(RunError):
    """The script ended by itself before anything could be measured; its exit code is passed on."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def sweep(options: SweepOptions) -> int:
    """Run one sweep and report it. Returns the exit code; raises LoaderdoctorError."""
    target = resolve(options)
    parse_grid(options.grid)  # a wrong word fails here, not after the script's start
    check_json_target(options.json_target)
    began = time.time()
    folder = RunFolder.create(target.name, output=options.output, at=began)
    errors = Console(stderr=True)
    errors.print(NOT_VALID, style="yellow", highlight=False)
    with raw_traces(folder) as trace_dir, LiveSweep(errors) as live:
        report, extras, interrupted = _measure(options, target, folder, trace_dir, live)
    text = console_text(report, folder=folder.path)
    folder.write_report(report, text)
    write_scalars(report, folder.tensorboard, console_text=text, at=began)
    write_html(report, folder, extras)
    deliver(report, json_target=options.json_target, folder=folder.path)
    return EXIT_INTERRUPTED if interrupted else 0


def resolve(options: SweepOptions) -> Target:
    """The script to run. Raises UsageError that says what is missing."""
    if options.recipe is not None:
        recipe = find(options.recipe).check()
        script = Script(script=str(recipe.script), args=(*recipe.args, *options.target))
        return Target(name=recipe.name, script=script, axes=recipe.sweeps)
    if not options.target:
        raise UsageError("nothing to sweep: give --recipe NAME or SCRIPT [ARGS].")
    name, *args = options.target
    if options.as_module:
        script = Script(module=name, args=tuple(args))
    else:
        script = Script(script=name, args=tuple(args))
    script.check()
    return Target(name=script.label, script=script, axes=tuple(AXES_BY_NAME))


@contextmanager
def raw_traces(folder: RunFolder) -> Iterator[Path]:
    """Where the measuring process writes its traces; gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix=".traces-", dir=folder.path) as name:
        yield Path(name)


def _measure(
    options: SweepOptions, target: Target, folder: RunFolder, trace_dir: Path, live: LiveSweep
) -> tuple[Report, HtmlExtras, bool]:
    """(report, its pictures, whether the user interrupted): the part with the measuring process."""
    stdout: Literal["inherit", "stderr"] | Path = "inherit"
    if options.json_target == STDOUT:
        stdout = "stderr"
    if live.is_drawn and console_stream(options.json_target).isatty():
        # What the script prints would tear the table; its errors still come through.
        stdout = folder.path / SCRIPT_OUTPUT
        live.say(f"what the script prints goes to {stdout}")
    with ExitStack() as benches:

        def open_bench() -> Bench:
            bench = Bench(target.script, trace_dir, BenchOptions(stdout=stdout))
            benches.enter_context(bench)
            try:
                bench.wait_observed(START_TIMEOUT_S)
            except RunError as error:
                if bench.ended is not None and bench.ended.exit_code:
                    raise ScriptFailedError(str(error), bench.ended.exit_code) from error
                raise
            return bench

        live.say(f"waiting for the first steps of {target.name}")
        bench = open_bench()
        observed = bench.observed
        assert observed is not None
        trials = _trials(options, target, observed)
        live.say(f"{len(trials)} trials, about {options.budget_s:.0f} s of measuring")
        evidence = Evidence(observed=observed, notes=bench.notes, seed=options.seed)
        evidence.sweep = Sweep(
            bench,
            observed,
            trials,
            _options(options, trace_dir),
            withheld=evidence.withheld(trials),
            on_progress=_Partial(folder, live, target, evidence),
            # A script of the user's is not run a second time unasked.
            reopen=open_bench if options.recipe is not None else None,
            ablate=None if options.no_ablation else evidence.ablate,
        )
        outcome = evidence.sweep.run()
    if not any(trial.visits for trial in outcome.trials):
        raise RunError(f"{target.name}: nothing was measured ({outcome.ended_reason}).")
    live.say("reading the traces")
    evidence.conclude(folder, trace_dir / "workers")
    report = report_of(evidence, target)
    return report, extras_of_sweep(report, evidence), outcome.ended == "interrupted"


def report_of(evidence: Evidence, target: Target) -> Report:
    """The report of what has been measured so far; the top level describes the loop as it is."""
    assert evidence.sweep is not None
    outcome, ranking = evidence.sweep.outcome, evidence.sweep.ranking()
    facts = evidence.facts(ranking)
    bound, severity = judge_run(facts)
    paths = {index: traced.path for index, traced in evidence.traces.items()}
    return build_report(
        facts=facts,
        target=target.name,
        bound=bound,
        severity=severity,
        findings=find_findings(facts),
        recommendations=recommendations(ranking, evidence.observed, facts),
        withheld=withheld(ranking),
        trials=trial_rows(ranking, evidence.trial_shares(ranking, facts), paths),
        best=best_row(ranking),
        warnings=(*warning_rows(outcome, ranking), *evidence.warnings()),
        environment=evidence.observed.environment,
        method=method(evidence),
        summary=None if ranking.recommended else verdict_of_sweep(ranking),
    )


def method(evidence: Evidence) -> tuple[str, ...]:
    """How the trials were measured."""
    assert evidence.sweep is not None
    outcome = evidence.sweep.outcome
    return (
        f"Each trial is a new loader over the same data in the running loop; after a first visit "
        f"that only sizes the windows, {outcome.n_ranked_rounds} shuffled rounds rank them. "
        "Batches until the queues are steady are not counted.",
        "Trials are compared within rounds; two are tied where the 95 % interval of their "
        "difference, widened for the number of trials, holds 0.",
        "The candidate's gain is measured again beside the loop's own settings after it was "
        "chosen.",
    )


class _Partial:
    """Shows progress, and renews the report on disk so that a crash leaves what was measured."""

    def __init__(
        self, folder: RunFolder, live: LiveSweep, target: Target, evidence: Evidence
    ) -> None:
        self._folder, self._live = folder, live
        self._target, self._evidence = target, evidence
        self._written = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        self._live.show(progress)
        now = time.monotonic()
        if now - self._written < PARTIAL_EVERY_S or progress.phase == "plain":
            return
        self._written = now
        report = report_of(self._evidence, self._target)
        self._folder.write_report(report, console_text(report, folder=self._folder.path))


def _trials(options: SweepOptions, target: Target, observed: Observed) -> tuple[Settings, ...]:
    if options.grid:
        return asked_trials(options.grid, observed)
    return default_trials(observed, target.axes)


def _options(options: SweepOptions, trace_dir: Path) -> Options:
    warmup = None
    if options.wait is not None or options.warmup is not None:
        warmup = (options.wait or 0) + (options.warmup or 0)
    return Options(
        budget_s=options.budget_s,
        seed=options.seed,
        n_rounds=options.rounds,
        trace_dir=trace_dir,
        n_active=options.active,
        n_warmup=warmup,
        n_repeat=options.repeat,
        with_stack=options.with_stack,
        profile_memory=options.profile_memory,
    )
