"""What the whole run adds to the report of its first window: a verdict, and what tuning proved."""

from __future__ import annotations

import msgspec

from loaderdoctor.advice.writing import written
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.whole import Facts
from loaderdoctor.instrument.wire.tuning import TuningRecord
from loaderdoctor.report.model import Recommendation, Report
from loaderdoctor.report.run_model import Run
from loaderdoctor.report.words.run import judged
from loaderdoctor.report.words.tuning import DRAWS, to_write
from loaderdoctor.tryout.recommending import recommendations

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
    settings = to_write(tuning.own, tuning.chosen)
    first = next(iter(settings.changed()), None)
    code = written(facts, settings)  # of all: they are arguments of one call
    caution = DRAWS if tuning.draws else None
    return tuple(
        recommendations(
            settings,
            own=tuning.own.as_dict(),
            written=lambda name: code,
            caution=lambda name, value: caution if name == first else None,  # said once
            summary=None,
            measured=_estimate(tuning.chosen_ms),
            own_step_ms=tuning.own_ms[0] if tuning.own_ms is not None else None,
        )
    )


def _estimate(known: tuple[float, float, float] | None) -> Estimate | None:
    return None if known is None else Estimate(value=known[0], low=known[1], high=known[2], n=2)
