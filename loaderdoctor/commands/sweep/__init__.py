"""`loaderdoctor sweep`: settings tried in one running loop, ranked by plain step time.

Comes in: a recipe or a script. Goes out: a run folder with the report, the traces of the trials
and what TensorBoard shows of them; the report on stdout, progress and warnings on stderr.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from loaderdoctor.attribution.cpu import machine_notes
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.commands.output import STDOUT, check_target, console_stream, deliver
from loaderdoctor.commands.sweep.measure import SCRIPT_OUTPUT, Asked, Before, measure
from loaderdoctor.commands.sweep.plan import SweepOptions, Target, preset_of, resolve
from loaderdoctor.errors import RunError
from loaderdoctor.facts import Facts
from loaderdoctor.findings.rules import find as find_findings
from loaderdoctor.instrument.system.processes import Signals, exit_code_of, held
from loaderdoctor.report import RunFolder
from loaderdoctor.report.build import Judged, RunNotes, Tried, build_report
from loaderdoctor.report.console import console_text
from loaderdoctor.report.model import Report, ReportWarning
from loaderdoctor.report.model import Trial as TrialRow
from loaderdoctor.report.words.summary import cost_sentence
from loaderdoctor.sweep import LiveSweep, timings_file
from loaderdoctor.sweep.advise import not_advised, recommended_rows, verdict_of_sweep
from loaderdoctor.sweep.evidence import SweepEvidence
from loaderdoctor.sweep.presets.model import Figures, Preset
from loaderdoctor.sweep.presets.published import (
    ceilings,
    claim_rows,
    claims_sentence,
    preset_rows,
    shortened_row,
)
from loaderdoctor.sweep.report_rows import best_row, sweep_method, trial_rows, warning_rows
from loaderdoctor.tryout import Progress
from loaderdoctor.tryout.answers import answered

# The report on disk is renewed at most this often while the sweep runs.
PARTIAL_EVERY_S = 5.0
RAW_TRACES = ".traces-"

NOT_VALID = (
    "This run's training is not valid: trials feed the loop batches out of turn, and files the "
    "script saves may be overwritten."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    options: SweepOptions
    target: Target
    folder: RunFolder
    before: Before | None = None


def _here(run: Run, trace_dir: Path, live: LiveSweep, partial: Partial) -> SweepEvidence:
    """In one running loop on this machine."""
    asked = Asked(
        options=run.options,
        target=run.target,
        before=run.before,
        stdout=script_output(run, live),
    )
    return measure(asked, trace_dir, say=live.say, show=live.show, watch=partial.watch)


def _on_cluster(run: Run, trace_dir: Path, live: LiveSweep, partial: Partial) -> SweepEvidence:
    """In groups on the machines of a Ray cluster, one loop on each."""
    from loaderdoctor.commands.sweep.cluster import measure_on_cluster

    return measure_on_cluster(
        run.options, run.target, trace_dir, say=live.say, watch=partial.watch, before=run.before
    )


# Where trials are measured; each is told where traces go and whom to tell on the way.
ENGINES = {"local": _here, "ray": _on_cluster}


def sweep(options: SweepOptions) -> int:
    """Run one sweep and report it. Returns the exit code; raises LoaderdoctorError."""
    before: Before | None = None
    if options.resume is not None:
        before = timings_file.read(options.resume)
        options = options.resumed(before[0].options, on_cluster=before[0].on_cluster)
    target = resolve(options)
    check_target("--json", options.json_target)
    began = time.time()
    if options.resume is not None:
        folder = RunFolder(options.resume.resolve())
    else:
        name = target.name if (preset := preset_of(options)) is None else preset.name
        folder = RunFolder.create(name, output=options.output, at=began)
    try:
        return _sweep_into(Run(options=options, target=target, folder=folder, before=before), began)
    finally:
        folder.discard_if_empty()  # the script ended before there was anything to tell


def _sweep_into(run: Run, began: float) -> int:
    options, folder = run.options, run.folder
    errors = Console(stderr=True, markup=False)
    errors.print(NOT_VALID, style="yellow", highlight=False)
    with Signals(), ExitStack() as held_back:
        with raw_traces(folder) as trace_dir, LiveSweep(errors) as live:
            partial = Partial(run, live)
            evidence = ENGINES[options.engine](run, trace_dir, live, partial)
            # Some seconds, and then there is a whole report of what was measured.
            came = held_back.enter_context(held())
            live.say("reading the traces")
            evidence.conclude(folder, trace_dir / "workers")
            report = report_of(evidence, run)
            from loaderdoctor.commands.run_folder import extras_of_sweep

            extras = extras_of_sweep(report, evidence)
        text = console_text(report, folder=folder.path)
        try:
            partial.save()
            folder.write_report(report, text)
            from loaderdoctor.report.charts.draw import write_plots
            from loaderdoctor.report.html import write_html
            from loaderdoctor.report.traces.scalars import write_scalars

            write_scalars(report, folder.tensorboard, console_text=text, at=began)
            write_html(report, folder, extras)
            write_plots(report, folder)
        except Exception:
            # A full disk, or a fault of ours: what was measured is shown all the same.
            deliver(report, json_target=options.json_target, folder=None, verbose=options.verbose)
            raise
        deliver(
            report, json_target=options.json_target, folder=folder.path, verbose=options.verbose
        )
    interrupt = evidence.outcome.interrupt or next(iter(came), None)
    return exit_code_of(interrupt) if interrupt is not None else 0


@contextmanager
def raw_traces(folder: RunFolder) -> Iterator[Path]:
    """Where the measuring process writes its traces; gone when the block ends."""
    # A command that was killed left its own in the folder that is resumed.
    for left in folder.path.glob(f"{RAW_TRACES}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=RAW_TRACES, dir=folder.path) as name:
        yield Path(name)


def script_output(run: Run, live: LiveSweep) -> Literal["inherit", "stderr"] | Path:
    if live.is_drawn and console_stream(run.options.json_target).isatty():
        # What the script prints would tear the table; its errors still come through.
        path = run.folder.path / SCRIPT_OUTPUT
        live.say(f"what the script prints goes to {path}")
        return path
    return "stderr" if run.options.json_target == STDOUT else "inherit"


def report_of(evidence: SweepEvidence, run: Run) -> Report:
    """The report of what has been measured so far; the top level describes the loop as it is."""
    assert evidence.sweep is not None
    outcome, ranking = evidence.outcome, evidence.sweep.ranking()
    facts = evidence.facts(ranking)
    bound, severity = judge_run(facts)
    paths = {index: traced.path for index, traced in evidence.traces.items()}
    rows = trial_rows(ranking, evidence.trial_shares(ranking, facts), paths, evidence.where)
    preset = preset_of(run.options)
    summary = None
    if ranking.recommended is None:
        cost = cost_sentence(bound, severity, facts)
        summary = f"{cost} {verdict_of_sweep(ranking)}".strip()
    claims: tuple[dict[str, Any], ...] = ()
    shortened: tuple[ReportWarning, ...] = ()
    if preset is not None:
        rows, claims, summary = of_preset(preset, evidence, facts, rows, summary)
        shortened = shortened_row(preset)
    tried = Tried(
        trials=rows,
        best=best_row(ranking),
        recommendations=recommended_rows(ranking, evidence.observed, facts),
        # A preset's table gives the reasons itself.
        not_advised=not_advised(ranking) if preset is None else (),
        claims=claims,
        cluster=evidence.cluster,
    )
    findings = answered(find_findings(facts), facts, rows, not_advised=tried.not_advised)
    return build_report(
        facts,
        target=run.target.name,
        judged=Judged(bound=bound, severity=severity, findings=findings, summary=summary),
        tried=tried,
        notes=RunNotes(
            environment=evidence.observed.environment,
            warnings=(
                *warning_rows(outcome, ranking),
                *shortened,
                *evidence.warnings(),
                *(ReportWarning(kind=kind, text=text) for kind, text in machine_notes(facts)),
            ),
            method=sweep_method(run.options, outcome),
        ),
    )


def of_preset(
    preset: Preset,
    evidence: SweepEvidence,
    facts: Facts,
    rows: tuple[TrialRow, ...],
    summary: str | None,
) -> tuple[tuple[TrialRow, ...], tuple[dict[str, Any], ...], str | None]:
    """(rows as published, claims, the sentence that leads the report)."""
    assert evidence.sweep is not None
    planned, ranking = evidence.outcome.trials, evidence.sweep.ranking()
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
        kinds={i: kind for i, (_, kind) in evidence.where.items() if i},
    )
    claims = claim_rows(preset, figures)
    told = summary if ranking.recommended is not None else claims_sentence(preset, claims)
    return rows, claims, ceilings(preset, rows) or told or summary


class Partial:
    """Shows progress, and renews report and samples on disk: a crash leaves what was measured."""

    def __init__(self, run: Run, live: LiveSweep) -> None:
        self._run, self._live = run, live
        self._evidence: SweepEvidence | None = None
        self._began = self._written = time.monotonic()
        self._full = False

    def watch(self, evidence: SweepEvidence) -> Partial:
        """To be told the progress of this evidence."""
        self._evidence = evidence
        return self

    def __call__(self, progress: Progress) -> None:
        self._live.show(progress)
        now = time.monotonic()
        if now - self._written < PARTIAL_EVERY_S or progress.phase == "plain":
            return
        self._written = now
        folder = self._run.folder
        assert self._evidence is not None
        try:
            self.save()
            report = report_of(self._evidence, self._run)
            folder.write_report(report, console_text(report, folder=folder.path))
        except RunError as error:  # a full disk does not end the measuring; there may be room
            if not self._full:
                self._live.say(f"{error} Going on; the report comes on the terminal.")
            self._full = True

    def save(self) -> None:
        assert self._evidence is not None
        before = self._run.before
        timings_file.write(
            self._run.folder.path,
            self._evidence.recorded,
            options=self._run.options.saved(),
            spent_s=time.monotonic() - self._began + (before[0].spent_s if before else 0.0),
            groups=self._evidence.groups,
        )
