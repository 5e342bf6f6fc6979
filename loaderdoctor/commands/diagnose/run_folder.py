"""Everything a diagnosis leaves on disk, in one run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    from loaderdoctor.diagnosis.run import Diagnosis
    from loaderdoctor.report.files import RunFolder
    from loaderdoctor.report.model import Report


def write_run(folder: RunFolder, diagnosis: Diagnosis, report: Report, *, at: float) -> None:
    """Report, page, traces and scalars of a run that began at `at` (seconds since the epoch)."""
    # Imported only now: TensorBoard's and Jinja's packages, a quarter of all that `diagnose` loads,
    # would keep the script from starting.
    from loaderdoctor.commands.page_extras import extras_of_diagnosis
    from loaderdoctor.report.console.page import console_text
    from loaderdoctor.report.html.page import write_html
    from loaderdoctor.report.traces.scalars import write_scalars

    text = console_text(report, folder=folder.path)
    folder.write_report(report, text)
    diagnosis.write_traces(folder, at_ns=int(at * NS_PER_S))
    write_scalars(report, folder.tensorboard, console_text=text, at=at)
    write_html(report, folder, extras_of_diagnosis(report, diagnosis.shown, diagnosis.analysis))
