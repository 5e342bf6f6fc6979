"""What every measuring command does with its report: show it, write it, judge it for CI."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from loaderdoctor import format as fmt
from loaderdoctor.errors import EXIT_THRESHOLD, UsageError
from loaderdoctor.report.console.page import render_report
from loaderdoctor.report.files import encode_report, write_bytes
from loaderdoctor.report.model import Report
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    from loaderdoctor.diagnosis.run import Diagnosis
    from loaderdoctor.report.files import RunFolder
    from loaderdoctor.report.model import Report


STDOUT = "-"
_RULE = re.compile(
    r"^\s*(input|copy|communication|compute|host|outside)\s*(>=|>|<=|<)\s*([0-9.]+)\s*%\s*$"
)


@dataclass(frozen=True, slots=True)
class ShareRule:
    """A `--fail-on` rule: a share and a limit, 0…1."""

    share: str
    comparison: str
    limit: float
    text: str

    def holds(self, report: Report) -> bool:
        """Whether the report's share breaks the rule; a share that was not recorded does not."""
        value = share_of(report, self.share)
        if value is None:
            return False
        return {
            ">": value > self.limit,
            ">=": value >= self.limit,
            "<": value < self.limit,
            "<=": value <= self.limit,
        }[self.comparison]


def share_rules(texts: Sequence[str]) -> tuple[ShareRule, ...]:
    """Parse `--fail-on` rules before anything runs. Raises UsageError with the form expected."""
    rules = []
    for text in texts:
        match = _RULE.match(text)
        if match is None or float(match[3]) > 100.0:
            raise UsageError(
                f"--fail-on {text!r}: write a share, a comparison and a percentage, for example "
                "'input>20%'. Shares: input, copy, communication, compute, host, "
                "outside (of all the time)."
            )
        rules.append(ShareRule(match[1], match[2], float(match[3]) / 100.0, text.strip()))
    return tuple(rules)


def exit_code(report: Report, rules: Sequence[ShareRule]) -> int:
    """3 where a rule holds (said on stderr), else 0; what was not recorded is said too."""
    for rule in rules:
        if share_of(report, rule.share) is None:
            sys.stderr.write(
                f"loaderdoctor: --fail-on {rule.text}: {rule.share} was not recorded, so this was "
                "not judged\n"
            )
    broken = [rule for rule in rules if rule.holds(report)]
    for rule in broken:
        value = fmt.share(share_of(report, rule.share))
        sys.stderr.write(f"loaderdoctor: --fail-on {rule.text}: {rule.share} is {value}\n")
    return EXIT_THRESHOLD if broken else 0


def console_stream(json_target: str | None) -> TextIO:
    """Where the report for people goes: stdout, unless the JSON is there."""
    return sys.stderr if json_target == STDOUT else sys.stdout


def check_json_target(json_target: str | None) -> None:
    """Fail before the long part where FILE can't be written. Raises UsageError."""
    if json_target in (None, STDOUT):
        return
    target = Path(str(json_target))
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UsageError(f"--json {target}: not a file in an existing folder.")


def deliver(
    report: Report, *, json_target: str | None, folder: Path | None, verbose: bool = False
) -> None:
    """Print the report, whole with `verbose`; write the JSON where asked.

    Raises RunError where FILE can't be written.
    """
    Console(file=console_stream(json_target), markup=False).print(
        render_report(report, folder=folder, brief=not verbose)
    )
    if json_target == STDOUT:
        sys.stdout.buffer.write(encode_report(report))
        sys.stdout.flush()
    elif json_target is not None:
        # A link to the folder is the user's own; one in the file's place is replaced.
        target = Path(json_target)
        write_bytes(target.parent.resolve() / target.name, encode_report(report))


def share_of(report: Report, name: str) -> float | None:
    """One share of the report, 0…1; None where it was not recorded."""
    if name == "outside":
        return report.wall.outside_share if report.wall is not None else None
    if report.run is not None and report.run.input_share is not None and name == "input":
        return report.run.input_share  # of all of it, not of the window that findings rest on
    if report.shares is None:
        return None
    value: float | None = getattr(report.shares, name)
    return value


# Everything a diagnosis leaves on disk, in one run folder.


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
    extras = extras_of_diagnosis(report, diagnosis.shown, diagnosis.analysis, diagnosis.advised)
    write_html(report, folder, extras)
