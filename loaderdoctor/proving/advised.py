"""Changes that a report lists, by their numbers: files, command line, what they promise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loaderdoctor.errors import UsageError
from loaderdoctor.proving.edits import FileEdit, Hunk, file_edits, hunks
from loaderdoctor.proving.judge import Promise
from loaderdoctor.report.model import Report
from loaderdoctor.report.run_model import Script
from loaderdoctor.report.words.changes import Change, changes_of
from loaderdoctor.secrets import MASK

_ENVIRONMENT = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """What to write, and how to start the script then."""

    changes: tuple[Change, ...]
    edits: tuple[FileEdit, ...]
    command: str | None  # for a shell; None: as it was started
    promise: Promise | None  # None: not known, or of several changes together
    expected: str | None = None  # what the advice says of what is trained; None: it stays the same

    @property
    def titles(self) -> str:
        """The changes as the report calls them."""
        return "; ".join(change.title() for change in self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A command line, as far as the script sees it."""

    args: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def script_of(report: Report) -> Script:
    """How the report's script was run. Raises UsageError where it is not known."""
    if report.script is None:
        raise UsageError(
            f"The report of {report.target} does not say which files it read: only `diagnose` and "
            "`sweep` of a script do, from this version on. Run it again."
        )
    return report.script


def advised(
    report: Report, numbers: Sequence[int], *, as_it_ran: Mapping[Path, bytes] | None = None
) -> Advised:
    """The changes of these numbers, as "What to change" counts them; without any, the first.

    `as_it_ran`: files that advice was written into since, as they were before.

    Raises UsageError for a number that is not there, a change that names no line of the script, and
    files that are no longer as they were.
    """
    script = script_of(report)
    listed = [change for change in changes_of(report.recommendations) if not change.is_idea]
    if not listed:
        raise UsageError("This report advises no change that can be written.")
    wanted = tuple(dict.fromkeys(numbers)) or (1,)
    for number in wanted:
        if not 1 <= number <= len(listed):
            raise UsageError(f"There is no change {number}: the report lists 1 to {len(listed)}.")
    chosen = tuple(listed[number - 1] for number in wanted)
    written = [_hunks_of(change) for change in chosen]
    commands = {row.command for change in chosen for row in change.rows if row.command}
    for change, found in zip(chosen, written, strict=True):
        if not found and not any(row.command for row in change.rows):
            raise UsageError(
                f"{change.title()}: the report knows no line of yours for it, or it belongs to an "
                f"installed package. Write it by hand.{_others(listed)}"
            )
    if len(commands) > 1:
        raise UsageError("These changes set options of the script apart: apply one at a time.")
    return Advised(
        changes=chosen,
        edits=file_edits(
            [hunk for found in written for hunk in found], script.sources, as_it_ran or {}
        ),
        command=next(iter(commands), None),
        promise=_promise(chosen[0], report) if len(chosen) == 1 else None,
        expected="; ".join(dict.fromkeys(x.trains for x in chosen if x.trains)) or None,
    )


def words_of(script: Script, command: str | None) -> Words:
    """What to start the script with. Raises UsageError where an argument was not kept."""
    if command is None:
        words = Words(args=script.args)
    else:
        split = shlex.split(command)
        environment = {}
        while split and (match := _ENVIRONMENT.match(split[0])):
            environment[match["name"]] = match["value"]
            split.pop(0)
        n_before = 3 if script.module is not None else 2  # `python -m pkg.train`, `python train.py`
        # As long as it ran when it was measured: what the user is told to type ends sooner.
        added = script.args[: script.n_added_args]
        words = Words(args=(*added, *split[n_before:]), environment=environment)
    if any(MASK in arg for arg in words.args):
        raise UsageError(
            "The script had arguments that look like secrets, which no report keeps: run both "
            "forms by hand, with `loaderdoctor prove --changed`."
        )
    return words


def _others(listed: Sequence[Change]) -> str:
    """Which of the report's changes can be written, where any can."""
    can = [
        str(number)
        for number, change in enumerate(listed, 1)
        if _hunks_of(change) or any(row.command for row in change.rows)
    ]
    if not can:
        return ""
    return f" Of this report's changes, {', '.join(can)} can be written."


def _hunks_of(change: Change) -> list[Hunk]:
    codes = dict.fromkeys(row.code for row in change.rows if row.code)
    return [hunk for code in codes for hunk in hunks(code)]


def _promise(change: Change, report: Report) -> Promise | None:
    now_ms, predicted_ms = report.step.wall_ms, change.first.predicted_step_ms
    times = change.times_as_fast(now_ms)
    if times is not None:
        if (in_new_runs := change.first.speed_up_ci) is not None:
            return Promise(times=times, low=in_new_runs[0], high=in_new_runs[1])
        own_ms, between = change.own_ms(now_ms), change.first.measured_ci_ms  # of older reports
        if own_ms is None or between is None or between[0] <= 0.0:
            return Promise(times=times)
        return Promise(times=times, low=own_ms / between[1], high=own_ms / between[0])
    if not change.predicted_only or not now_ms or not predicted_ms:
        return None
    return Promise(times=now_ms / predicted_ms, at_best=change.is_bound)
