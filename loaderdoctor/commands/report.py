"""`loaderdoctor report RUN`: the report of a run folder, whose run may be under way or killed.

Comes in: a run folder. Goes out: the report on stdout; nothing in the folder changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from loaderdoctor.commands.output import check_json_target, deliver, exit_code, share_rules
from loaderdoctor.commands.run.report import report_of
from loaderdoctor.commands.run.run_files import Loop, Recorded, read_recorded
from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.command.launched_run import OnEvent
from loaderdoctor.instrument.wire.protocol import (
    Ended,
    Note,
    Observed,
    WindowDone,
    WindowRequest,
)
from loaderdoctor.proving.record import kept_proofs
from loaderdoctor.report.files import NAME_A_RUN, read_report
from loaderdoctor.report.model import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What the command line says."""

    run: Path
    fail_on: tuple[str, ...] = ()
    json_target: str | None = None
    verbose: bool = False


def report(options: ReportOptions) -> int:
    """Show it. Raises UsageError where the folder holds no run of ours."""
    rules = share_rules(options.fail_on)
    check_json_target(options.json_target)
    found = _report_in(options.run)
    deliver(found, json_target=options.json_target, folder=options.run, verbose=options.verbose)
    for proven in kept_proofs(options.run) if options.json_target != "-" else ():
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
class _Left:
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

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        return []

    def stop(self, to_end: bool = True) -> None:
        return None
