"""`loaderdoctor compare RUN_A RUN_B`: what changed, with the noise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loaderdoctor.errors import EXIT_THRESHOLD, EXIT_USAGE
from loaderdoctor.report.comparison import compare as compared
from loaderdoctor.report.comparison import render_comparison
from loaderdoctor.report.files import read_report


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Two run folders (or their report.json), the older first."""

    before: Path
    after: Path
    fail_on_regression: bool = False


def compare(options: CompareOptions) -> int:
    """Print the comparison; the exit code.

    With `fail_on_regression`: 3 where B is slower, 2 where nothing can be said.
    """
    found = compared(read_report(options.before), read_report(options.after))
    Console(markup=False).print(render_comparison(found, (options.before.name, options.after.name)))
    if not options.fail_on_regression:
        return 0
    if found.change == "unknown":
        return EXIT_USAGE
    return EXIT_THRESHOLD if found.change == "slower" else 0
