"""What went before training, and what a loop is that does not train."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.report.model import PassBeforeTraining, Report

# What is not worth a line: a single batch to look at, a check of two.
MIN_SHOWN_S = 1.0


def before_training_sentence(report: Report) -> str | None:
    """`Before training began: 25.4 s in 8 passes over train.py:22 …`; None where it was short."""
    shown = [one for one in report.before_training if (one.took_s or 0.0) >= MIN_SHOWN_S]
    if not shown:
        return None
    when = "Before training began" if report.trains else "Before that"
    return f"{when}: {'; '.join(map(_words, shown))}."


def _words(one: PassBeforeTraining) -> str:
    batches = fmt.count(one.n_batches, "batch", "batches")
    took = f"{fmt.seconds(one.took_s)} in"
    if one.skips:
        return f"{took} {batches} of {one.loader} that were thrown away ({one.site})"
    passes = "a pass" if one.n_passes == 1 else f"{one.n_passes:,} passes"
    model = ", with a model" if one.calls_model else ""
    return f"{took} {passes} over {one.loader} ({one.site}; {batches}{model})"
