"""`loaderdoctor report RUN`: the report of a run folder, and how a recorded run gets one.

A recorded run has the same findings as a diagnosis where there is evidence for them, also where it
was killed, from what it had left in its folder. What the whole run adds to its first window is a
verdict, and what tuning proved. Nothing in a folder changes by looking at it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click
import msgspec

from loaderdoctor.advice.writing import written
from loaderdoctor.commands.output import STDOUT, check_target, deliver, exit_code, share_rules
from loaderdoctor.commands.run import ListenOptions, unjudged
from loaderdoctor.commands.run.run_files import RECORDED, Loop, Recorded, read_recorded
from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.diagnosis.budget import DiagnosisOptions
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.instrument.command.endings import nothing_measured, raise_if_broken
from loaderdoctor.instrument.command.launched_run import MeasuredAlready, ScriptRunLike
from loaderdoctor.instrument.command.rank_connection import RecordedRun
from loaderdoctor.instrument.wire.measured import TuningRecord
from loaderdoctor.instrument.wire.protocol import Ended, Note, Observed, WindowDone
from loaderdoctor.proving.record import kept_proofs
from loaderdoctor.report import NAME_A_RUN, RunFolder, read_report
from loaderdoctor.report.model import Recommendation, Report
from loaderdoctor.report.run_model import Run
from loaderdoctor.report.words.run import DRAWS, judged, settings_to_write
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.answers import recommendations
from loaderdoctor.tryout.comparing import in_new_processes
from loaderdoctor.tryout.windows import sizes


def report(
    run: Path,
    *,
    fail_on: Sequence[str] = (),
    json_target: str | None = None,
    verbose: bool = False,
) -> int:
    """Show a run folder's report. Raises UsageError where it holds no run of ours."""
    rules = share_rules(fail_on)
    check_target("--json", json_target)
    found = _report_in(run)
    deliver(found, json_target=json_target, folder=run, verbose=verbose)
    for proven in kept_proofs(run) if json_target != STDOUT else ():
        click.echo(f"Proven: {proven.sentence}")
    return exit_code(found, rules)


def _report_in(folder: Path) -> Report:
    if (folder / "report.json").is_file():
        return read_report(folder)
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a folder. {NAME_A_RUN}")
    try:
        recorded, row = read_recorded(folder)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{folder}: damaged ({error}).") from error
    if recorded is None or not recorded.loops:
        raise UsageError(
            f"{folder}: no run folder of ours, or one whose loop was not warm yet: there is "
            "nothing to report."
        )
    return report_of(_Left(recorded), row, folder)[0]


@dataclass(slots=True)
class _Left(MeasuredAlready):
    """A run of which only its files are left."""

    recorded: Recorded
    ended: Ended | None = None
    _first: Loop = field(init=False)

    def __post_init__(self) -> None:
        self._first = min(self.recorded.loops, key=lambda loop: loop.rank)

    @property
    def label(self) -> str:
        return self.recorded.label

    @property
    def observed(self) -> Observed:
        return self._first.observed

    @property
    def windows(self) -> tuple[WindowDone, ...]:
        return self._first.windows

    @property
    def notes(self) -> tuple[Note, ...]:
        return self._first.notes


# What the windows of a run are sized by: nothing depends on it but the sizes that are never used.
BUDGET_S = 45.0
TUNED = frozenset(
    {
        "num_workers",
        "prefetch_factor",
        "persistent_workers",
        "pin_memory",
        "in_order",
        "start_method",
    }
)


def report_run(options: ListenOptions, run: RecordedRun, row: Run | None) -> int:
    """Show and write the report of a run that is over; the command's exit code."""
    try:
        report, diagnosis = report_of(run, row, options.folder)
    except RunError as error:
        if options.shown:
            sys.stderr.write(f"loaderdoctor: {error}\n")
        else:
            run.say(str(error))
        return unjudged(options)
    from loaderdoctor.commands.run_folder import write_run

    write_run(RunFolder(options.folder), diagnosis, report, at=options.began_s)
    if not options.shown:
        shutil.rmtree(options.folder / RECORDED, ignore_errors=True)
        return 0
    deliver(
        report,
        json_target=options.json_target,
        folder=options.folder,
        verbose=options.verbose,
    )
    shutil.rmtree(options.folder / RECORDED, ignore_errors=True)
    return exit_code(report, share_rules(options.fail_on))


class Reportable(ScriptRunLike, Protocol):
    """A run that has measured its windows by itself."""

    @property
    def label(self) -> str:
        """The script."""

    @property
    def windows(self) -> Sequence[WindowDone]:
        """Of the loop that was observed."""


def report_of(run: Reportable, row: Run | None, folder: Path) -> tuple[Report, Diagnosis]:
    """The report, and what it was made of. Raises RunError where the loop never got warm."""
    observed = run.observed
    if observed is None:
        if run.ended is None:
            raise RunError(f"{run.label}: the script never called.")
        raise_if_broken(run.notes, run.label)
        raise nothing_measured(run.ended, run.label)
    diagnosis = Diagnosis(
        run,
        target=run.label,
        raw=folder / RECORDED,
        options=DiagnosisOptions(budget_s=BUDGET_S, ablate=False, verify=False, profile=False),
    )
    diagnosis.evidence = evidence_of(observed, run.windows)
    diagnosis.tuned = row.tuning if row is not None else None
    report = diagnosis.report()
    facts = diagnosis.analysis.facts if diagnosis.analysis is not None else None
    return with_whole_run(report, row, facts), diagnosis


def evidence_of(observed: Observed, windows: Iterable[WindowDone]) -> LoopEvidence:
    """What a diagnosis would have gathered, of the windows that the run itself measured."""
    done = list(windows)
    return LoopEvidence(
        observed=observed,
        sizes=sizes(observed, budget_s=BUDGET_S),
        plain=[w for w in done if w.mode == "plain"],
        profiled=next((w for w in done if w.mode == "profiled" and w.trace_path), None),
    )


def with_whole_run(report: Report, run: Run | None, facts: Facts | None) -> Report:
    """The report of a run; `facts` are those of the first window, None where there were none."""
    report = msgspec.structs.replace(report, command="run", run=run)
    if run is None:
        return report
    tuned = run.tuning is not None and run.tuning.chosen is not None
    verdict = judged(run)
    if verdict is not None and (tuned or report.verdict.bound == "unknown"):
        report = msgspec.structs.replace(report, verdict=verdict)
    if run.tuning is None or not tuned or facts is None:
        return report
    # What the first window had predicted of these settings, the run has measured since.
    others = [row for row in report.recommendations if row.setting not in TUNED]
    rows = (*_tuned(facts, run.tuning), *others)
    return msgspec.structs.replace(report, recommendations=rows)


def _tuned(facts: Facts, tuning: TuningRecord) -> tuple[Recommendation, ...]:
    """The lines that make the next run begin as this one went on."""
    assert tuning.chosen is not None
    settings = settings_to_write(tuning.own, tuning.chosen)
    first = next(iter(settings.changed()), None)
    code = written(facts, settings)  # of all: they are arguments of one call
    caution = DRAWS if tuning.draws else None
    own, chosen = _estimate(tuning.own_ms), _estimate(tuning.chosen_ms)
    return tuple(
        recommendations(
            settings,
            own=tuning.own.as_dict(),
            written=lambda name: code,
            caution=lambda name, value: caution if name == first else None,  # said once
            summary=None,
            measured=chosen,
            own_step_ms=(own_ms := own.value if own is not None else None),
            speed_up=in_new_processes(own_ms, chosen, first=own),
        )
    )


def _estimate(known: tuple[float, float, float] | None) -> Estimate | None:
    return None if known is None else Estimate(value=known[0], low=known[1], high=known[2], n=2)
