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
from typing import Any, Literal

from rich.console import Console

from loaderdoctor.attribution.judge import judge_run
from loaderdoctor.commands.output import STDOUT, check_json_target, console_stream, deliver
from loaderdoctor.commands.pictures import extras_of_sweep
from loaderdoctor.commands.sweep_plan import (
    SweepOptions,
    Target,
    budget_s,
    measuring,
    preset_of,
    resolve,
    search_from,
    trials,
)
from loaderdoctor.errors import RunError
from loaderdoctor.facts import Facts
from loaderdoctor.findings.rules import find as find_findings
from loaderdoctor.instrument.bench import Bench, BenchOptions
from loaderdoctor.instrument.bench import Target as Script
from loaderdoctor.instrument.protocol import Observed
from loaderdoctor.instrument.signals import Signals, exit_code_of, held
from loaderdoctor.report.build import build_report
from loaderdoctor.report.console import console_text
from loaderdoctor.report.files import RunFolder
from loaderdoctor.report.html.page import write_html
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.report.model import Trial as TrialRow
from loaderdoctor.report.plots import write_plots
from loaderdoctor.report.scalars import write_scalars
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import samples
from loaderdoctor.sweep.advise import recommendations, verdict_of_sweep, withheld
from loaderdoctor.sweep.evidence import Evidence
from loaderdoctor.sweep.fresh import FreshBench, OpenFresh
from loaderdoctor.sweep.grid import default_trials
from loaderdoctor.sweep.live import LiveSweep
from loaderdoctor.sweep.method import sweep_method
from loaderdoctor.sweep.outcome import Options, Outcome, Progress
from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.model import Preset
from loaderdoctor.sweep.presets.rows import (
    ceilings,
    claim_rows,
    claims_sentence,
    preset_rows,
    shortened_row,
)
from loaderdoctor.sweep.rounds import Sweep
from loaderdoctor.sweep.rows import best_row, trial_rows, warning_rows
from loaderdoctor.sweep.trials import Visit

# How long a script may take to its first warm steps: imports, data preparation, compilation.
START_TIMEOUT_S = 600.0
# Of a process of a trial's own script, at least and as a part of the budget.
PROCESS_START_S = 60.0
PROCESS_START_SHARE = 0.2
# The report on disk is renewed at most this often while the sweep runs.
PARTIAL_EVERY_S = 5.0
# Our own search within a preset.
SEARCH_S = 60.0
NO_PLOTS = "no plots: pip install 'loaderdoctor[plots]' draws them into the run folder"
SCRIPT_OUTPUT = "script.txt"  # in the run folder

NOT_VALID = (
    "This run's training is not valid: trials feed the loop batches out of turn, and files the "
    "script saves may be overwritten."
)


Before = tuple[samples.Description, dict[int, list[Visit]]]  # what an interrupted sweep measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call of this command."""

    options: SweepOptions
    target: Target
    folder: RunFolder
    before: Before | None = None


class ScriptFailedError(RunError):
    """The script ended by itself before anything could be measured; its exit code is passed on."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def sweep(options: SweepOptions) -> int:
    """Run one sweep and report it. Returns the exit code; raises LoaderdoctorError."""
    before: Before | None = None
    if options.resume is not None:
        before = samples.read(options.resume)
        options = options.resumed(before[0].options)
    target = resolve(options)
    check_json_target(options.json_target)
    began = time.time()
    if options.resume is not None:
        folder = RunFolder(options.resume.resolve())
    else:
        name = target.name if (preset := preset_of(options)) is None else preset.name
        folder = RunFolder.create(name, output=options.output, at=began)
    errors = Console(stderr=True)
    errors.print(NOT_VALID, style="yellow", highlight=False)
    run = Run(options=options, target=target, folder=folder, before=before)
    with Signals(), ExitStack() as held_back:
        with raw_traces(folder) as trace_dir, LiveSweep(errors) as live:
            partial, outcome = _measure(run, trace_dir, live)
            # Some seconds, and then there is a whole report of what was measured.
            came = held_back.enter_context(held())
            live.say("reading the traces")
            partial.evidence.conclude(folder, trace_dir / "workers")
            report = report_of(partial.evidence, run)
            extras = extras_of_sweep(report, partial.evidence)
        text = console_text(report, folder=folder.path)
        try:
            partial.save()
            folder.write_report(report, text)
            write_scalars(report, folder.tensorboard, console_text=text, at=began)
            write_html(report, folder, extras)
            if not write_plots(report, folder):
                errors.print(NO_PLOTS, style="dim", highlight=False)
        except RunError:
            # A full disk: what was measured is shown, though it can't be kept.
            deliver(report, json_target=options.json_target, folder=None)
            raise
        deliver(report, json_target=options.json_target, folder=folder.path)
    interrupt = outcome.interrupt or next(iter(came), None)
    return exit_code_of(interrupt) if interrupt is not None else 0


@contextmanager
def raw_traces(folder: RunFolder) -> Iterator[Path]:
    """Where the measuring process writes its traces; gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix=".traces-", dir=folder.path) as name:
        yield Path(name)


def _measure(run: Run, trace_dir: Path, live: LiveSweep) -> tuple[_Partial, Outcome]:
    """The part with the measuring process."""
    options, target = run.options, run.target
    stdout: Literal["inherit", "stderr"] | Path = "inherit"
    if options.json_target == STDOUT:
        stdout = "stderr"
    if live.is_drawn and console_stream(options.json_target).isatty():
        # What the script prints would tear the table; its errors still come through.
        stdout = run.folder.path / SCRIPT_OUTPUT
        live.say(f"what the script prints goes to {stdout}")

    @contextmanager
    def open_process(script: Script | None) -> Iterator[Bench]:
        # A trial of many may not take as long to start as the loop itself.
        part_s = max(PROCESS_START_S, PROCESS_START_SHARE * budget_s(options))
        start_s = START_TIMEOUT_S if script is None else min(START_TIMEOUT_S, part_s)
        with Bench(script or target.script, trace_dir, BenchOptions(stdout=stdout)) as bench:
            _wait_warm(bench, start_s)
            yield bench

    with ExitStack() as benches:

        def open_bench() -> Bench:
            return benches.enter_context(open_process(None))

        live.say(f"waiting for the first steps of {target.name}")
        bench = open_bench()
        observed = bench.observed
        assert observed is not None
        searched, why_not = _search(run, observed, open_process, live)
        planned = trials(options, target, observed, searched=searched, why_not_searched=why_not)
        if run.before is not None:
            samples.restore(planned, *run.before)
        measured = measuring(options, trace_dir)
        n_visited = sum(trial.alive for trial in planned)
        live.say(f"{n_visited} trials, about {measured.budget_s:.0f} s of measuring")
        evidence = Evidence(observed=observed, notes=bench.notes, seed=options.seed)
        partial = _Partial(run, live, evidence)
        evidence.sweep = Sweep(
            bench,
            observed,
            planned,
            measured,
            withheld=evidence.withheld([trial.settings for trial in planned]),
            on_progress=partial,
            # A script of the user's is not run a second time unasked.
            reopen=open_bench if target.recipe is not None else None,
            ablate=None if options.no_ablation else evidence.ablate,
            fresh=FreshBench(open_process),
        )
        outcome = evidence.sweep.run()
    if not any(trial.visits for trial in outcome.trials):
        if outcome.interrupt is not None:
            raise outcome.interrupt
        raise RunError(f"{target.name}: nothing was measured ({outcome.ended_reason}).")
    return partial, outcome


def _wait_warm(bench: Bench, start_s: float) -> None:
    """Wait for the loop. Raises RunError; the exit code of a script that failed passes on."""
    try:
        bench.wait_observed(start_s)
    except RunError as error:
        if bench.ended is not None and bench.ended.exit_code:
            raise ScriptFailedError(str(error), bench.ended.exit_code) from error
        raise


def _search(
    run: Run, observed: Observed, open_process: OpenFresh, live: LiveSweep
) -> tuple[Settings | None, str | None]:
    """What our own search recommends for the rows that ask for it, and why there is nothing."""
    script = search_from(run.options, run.target, observed)
    if script is None:
        return None, None
    live.say("searching the settings that some rows want")
    try:
        with open_process(script) as bench:
            seen = bench.observed
            assert seen is not None
            choices = default_trials(seen, run.target.axes)
            race = Sweep(
                bench,
                seen,
                choices,
                Options(budget_s=SEARCH_S, seed=run.options.seed, search="auto"),
                withheld=Evidence(observed=seen).withheld(choices),
                on_progress=live.show,
            )
            race.run()
            ranking = race.ranking()
    except RunError as error:
        return None, f"our own search failed: {error}"
    found = ranking.recommended
    return (ranking.results[found].settings if found is not None else Settings()), None


def report_of(evidence: Evidence, run: Run) -> Report:
    """The report of what has been measured so far; the top level describes the loop as it is."""
    assert evidence.sweep is not None
    outcome, ranking = evidence.sweep.outcome, evidence.sweep.ranking()
    facts = evidence.facts(ranking)
    bound, severity = judge_run(facts)
    paths = {index: traced.path for index, traced in evidence.traces.items()}
    rows = trial_rows(ranking, evidence.trial_shares(ranking, facts), paths)
    preset = preset_of(run.options)
    summary = None if ranking.recommended is not None else verdict_of_sweep(ranking)
    claims: tuple[dict[str, Any], ...] = ()
    shortened: tuple[ReportWarning, ...] = ()
    if preset is not None:
        rows, claims, summary = of_preset(preset, evidence, facts, rows, summary)
        shortened = shortened_row(preset)
    return build_report(
        facts=facts,
        target=run.target.name,
        bound=bound,
        severity=severity,
        findings=find_findings(facts),
        recommendations=recommendations(ranking, evidence.observed, facts),
        # A preset's table gives the reasons itself.
        withheld=withheld(ranking) if preset is None else (),
        trials=rows,
        best=best_row(ranking),
        claims=claims,
        warnings=(*warning_rows(outcome, ranking), *shortened, *evidence.warnings()),
        environment=evidence.observed.environment,
        method=sweep_method(run.options, outcome),
        summary=summary,
    )


def of_preset(
    preset: Preset,
    evidence: Evidence,
    facts: Facts,
    rows: tuple[TrialRow, ...],
    summary: str | None,
) -> tuple[tuple[TrialRow, ...], tuple[dict[str, Any], ...], str | None]:
    """(rows as published, claims, the sentence that leads the report)."""
    assert evidence.sweep is not None
    planned, ranking = evidence.sweep.outcome.trials, evidence.sweep.ranking()
    cores = {
        index: traced.tensor_core_share
        for index, traced in evidence.traces.items()
        if traced.tensor_core_share is not None
    }
    rows = preset_rows(
        preset,
        rows,
        planned,
        ranking.results,
        has_accelerator=evidence.observed.device is not None,
        tensor_cores=cores,
    )
    figures = Figures(
        trials=planned,
        ranking=ranking,
        ablation=facts.ablation,
        busy={i: row.gpu_busy_share for i, row in enumerate(rows) if row.gpu_busy_share},
    )
    claims = claim_rows(preset, figures)
    told = summary if ranking.recommended is not None else claims_sentence(preset, claims)
    return rows, claims, ceilings(preset, rows) or told or summary


class _Partial:
    """Shows progress, and renews report and samples on disk: a crash leaves what was measured."""

    def __init__(self, run: Run, live: LiveSweep, evidence: Evidence) -> None:
        self._run, self._live, self.evidence = run, live, evidence
        self._began = self._written = time.monotonic()
        self._full = False

    def __call__(self, progress: Progress) -> None:
        self._live.show(progress)
        now = time.monotonic()
        if now - self._written < PARTIAL_EVERY_S or progress.phase == "plain":
            return
        self._written = now
        folder = self._run.folder
        try:
            self.save()
            report = report_of(self.evidence, self._run)
            folder.write_report(report, console_text(report, folder=folder.path))
        except RunError as error:  # a full disk is no reason to stop measuring; there may be room
            if not self._full:
                self._live.say(f"{error} Going on; the report comes on the terminal.")
            self._full = True

    def save(self) -> None:
        """The raw samples so far."""
        assert self.evidence.sweep is not None
        before = self._run.before
        samples.write(
            self._run.folder.path,
            self.evidence.sweep.outcome.trials,
            options=self._run.options.saved(),
            spent_s=time.monotonic() - self._began + (before[0].spent_s if before else 0.0),
        )
