"""What a report says against itself: time in no share, names that it left out."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.whole import Facts
from loaderdoctor.report import model

# DESIGN: more than 2 % of the step in no share is a defect of ours, and the report says so.
MAX_OTHER_SHARE = 0.02


def warnings_of(facts: Facts) -> tuple[model.ReportWarning, ...]:
    """Those that follow from the facts of a run or a trace alone."""
    return (*_unexplained(facts), *_ranges_left_out(facts))


def _unexplained(facts: Facts) -> tuple[model.ReportWarning, ...]:
    other = facts.share("other")
    trace = facts.trace
    if other is not None and trace is not None and trace.shared_gpu:
        other -= trace.kernels.held_up_ms / trace.wall_ms  # another process had it
    if other is None or other <= MAX_OTHER_SHARE:
        return ()
    if facts.share("compute") is None and facts.share("host") is None:
        return ()  # no trace: the rest was not recorded, which the shares say themselves
    return (
        model.ReportWarning(
            kind="unexplained-time",
            text=f"{fmt.share(other)} of the step is in no share. That is a defect of "
            "loaderdoctor: please report it with the trace.",
        ),
    )


def _ranges_left_out(facts: Facts) -> tuple[model.ReportWarning, ...]:
    n = facts.trace.n_ranges_left_out if facts.trace is not None else 0
    if not n:
        return ()
    text = (
        f"{fmt.count(n, 'more name')} of record_function ranges are not listed. Give ranges names "
        "that do not change from step to step."
    )
    return (model.ReportWarning(kind="ranges-left-out", text=text),)
