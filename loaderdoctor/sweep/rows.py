"""A sweep's results as the report holds them: trials, the best, warnings. Converts only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from loaderdoctor.estimate import Estimate, interval
from loaderdoctor.facts.shares import Shares
from loaderdoctor.report.build import shares_of
from loaderdoctor.report.model import Best, ReportWarning
from loaderdoctor.report.model import Trial as TrialRow
from loaderdoctor.settings import Settings
from loaderdoctor.sweep.own_pace import pace_warning
from loaderdoctor.tryout.outcome import Outcome
from loaderdoctor.tryout.ranking import Ranking, Result
from loaderdoctor.tryout.rows import trial_row

# A baseline that changed by more than this from the first to the last round is told: it is
# several times the noise of window means (about 2 %), and pairing by round removes only its mean.
DRIFT = 0.10
# Window means of one setting spread by about 2 % on a quiet machine; from this on, gains of a tenth
# can't be seen in a few rounds.
NOISY = 0.10

# Behind the settings of a trial that changes numerics or training.
MARK = "(numerics)"


def trial_rows(
    ranking: Ranking,
    shares: Mapping[int, Shares],
    traces: Mapping[int, str],
    where: Mapping[int, tuple[str, str]] = MappingProxyType({}),
) -> tuple[TrialRow, ...]:
    """One row a trial. `shares`, `traces` (as the report names them) and `where` are by index.

    `where` is (node, kind of hardware) in a cluster's sweep.
    """
    several = len({kind for _, kind in where.values()}) > 1
    rows = []
    for result in ranking.results:
        row = _row(result, shares.get(result.index), traces.get(result.index))
        if (at := where.get(result.index)) is not None:
            label = f"{row.label} [hardware {at[1]}]" if several and result.index else row.label
            row = msgspec.structs.replace(row, node=at[0], hardware=at[1], label=label)
        confirmed = result.index == ranking.candidate and ranking.confirmed
        gain = ranking.gain_ms if confirmed else ranking.round_gain(result.index)
        if result.index and gain is not None:
            row = msgspec.structs.replace(
                row, gain_ms=gain.value, gain_ms_ci=interval(gain), gain_confirmed=confirmed
            )
        rows.append(row)
    return tuple(rows)


def best_row(ranking: Ranking) -> Best | None:
    """The fastest trial and those that can't be told from it."""
    if ranking.best is None:
        return None
    return Best(trial=ranking.best, tied_with=ranking.tied_with)


def warning_rows(outcome: Outcome, ranking: Ranking) -> tuple[ReportWarning, ...]:
    """What the reader must know about how the sweep went."""
    rows = [ReportWarning(kind=kind, text=text) for kind, text in outcome.notes]
    if outcome.ended != "done":
        rows.append(ReportWarning(kind=f"sweep-{outcome.ended}", text=outcome.ended_reason or ""))
    if ranking.spread is not None and ranking.spread > NOISY:
        rows.append(
            ReportWarning(
                kind="noisy-machine",
                text=f"windows of one and the same setting differ by {ranking.spread:.0%} here "
                "(2 % is usual): something else is using this machine, or the loop itself is "
                "uneven. Small gains can't be seen; run the sweep again when it is quiet",
            )
        )
    if ranking.drift is not None and abs(ranking.drift - 1) > DRIFT:
        word = "slower" if ranking.drift > 1 else "faster"
        change = abs(ranking.drift - 1)
        rows.append(
            ReportWarning(
                kind="drift",
                text=f"the loop's own settings became {change:.0%} {word} during the sweep; trials "
                "are compared within rounds, which removes most of it",
            )
        )
    if any(result.settings.numerics for result in ranking.results):
        rows.append(
            ReportWarning(
                kind="changes-numerics",
                text=f"trials marked {MARK} change what is computed or how the model trains: their "
                "time says nothing of whether it still learns as well",
            )
        )
    if (pace := pace_warning(outcome, ranking)) is not None:
        rows.append(pace)
    return tuple(rows)


def _row(result: Result, shares: Shares | None, trace: str | None) -> TrialRow:
    scaled = result.on_cluster or result.settings.batch_size is not None
    row = trial_row(
        result.settings,
        step=result.wall_ms,
        samples_per_s=result.samples_per_s,
        status=result.status,
        reason=result.reason,
        resources=result.resources,
        window_ms=result.window_ms,
        shares=shares_of(shares),
    )
    return msgspec.structs.replace(
        row,
        label=marked_label(result.settings),
        cost_ms=_value(result.cost_ms) if scaled else None,
        within_epoch_ms=_value(result.within_ms),
        epoch_s=result.epoch_s,
        trace=trace,
    )


def marked_label(settings: Settings) -> str:
    """The settings as a row of a table names them, marked where they change numerics."""
    return f"{settings.label()} {MARK}" if settings.numerics else settings.label()


def _value(estimate: Estimate | None) -> float | None:
    return estimate.value if estimate is not None else None
