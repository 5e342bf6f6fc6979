"""The report of a recorded run: the same findings as a diagnosis where there is evidence for them.

Also of a run that was killed, from what it had left in its folder.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from loaderdoctor.commands.output import deliver, exit_code, share_rules, write_run
from loaderdoctor.commands.run.listen_options import ListenOptions, unjudged
from loaderdoctor.commands.run.run_files import RECORDED
from loaderdoctor.commands.run.whole_run import with_whole_run
from loaderdoctor.diagnosis.run import Diagnosis, DiagnosisOptions
from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.endings import nothing_measured, raise_if_broken
from loaderdoctor.instrument.command.launched_run import ScriptRunLike
from loaderdoctor.instrument.command.recorded_run import RecordedRun
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone
from loaderdoctor.report.files import RunFolder
from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import Run
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.windows import sizes

# What the windows of a run are sized by: nothing depends on it but the sizes that are never used.
BUDGET_S = 45.0


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
