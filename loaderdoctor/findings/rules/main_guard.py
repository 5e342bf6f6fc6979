"""A script that workers would run again: what stands between its loop and any worker."""

from __future__ import annotations

from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import spawned_by
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.starved import loader_in_main_process


def main_guard_missing(facts: Facts) -> Finding | None:
    """The loop makes its batches itself, and the script has no main guard for workers to start.

    Decides on: how this process starts its workers, the statement of the script that trains, and
    what `loader-in-main-process` decides on.
    Abstains: workers are forked, the script was not read, or workers would gain nothing.
    Fooled by: a script that trains in a module it imports, with a guard of its own making.
    """
    loader, method = facts.main_loader, spawned_by(facts)
    if loader is None or method is None or loader.safety.guard_missing is None:
        return None
    waits = loader_in_main_process(facts)
    if waits is None:
        return None
    return Finding(
        kind=Kind.MAIN_GUARD_MISSING,
        severity=waits.severity,
        share=waits.share,
        loader=waits.loader,
        summary=(
            f"Workers are started by {method} here, which imports the script again in each of "
            'them, and what it runs is under no `if __name__ == "__main__":`. With num_workers '
            "above 0 it would end in a RuntimeError (bootstrapping phase); without, the loop makes "
            "its batches itself."
        ),
        evidence={"start_method": method, "num_workers": 0},
    )
