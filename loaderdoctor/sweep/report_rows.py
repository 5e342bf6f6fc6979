"""A sweep's results as the report holds them: trials, the best, warnings. Converts only."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from types import MappingProxyType
from typing import Protocol

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.attribution.step import usable, waited_ms, waits_ms, window_times
from loaderdoctor.estimate import ByRound, Estimate, interval
from loaderdoctor.facts.loop import UNLIKE_SHARE
from loaderdoctor.facts.step import Shares
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.report.build import shares_of
from loaderdoctor.report.model import Best, ReportWarning
from loaderdoctor.report.model import Trial as TrialRow
from loaderdoctor.report.words.first_screen import SLOW_START
from loaderdoctor.settings import Settings
from loaderdoctor.tryout import ALLOWANCE_SHARE, Measurement, Outcome
from loaderdoctor.tryout.ablating import memory_anew, waited_more_ms
from loaderdoctor.tryout.answers import trial_row
from loaderdoctor.tryout.ranking import Ranking
from loaderdoctor.tryout.results import Result

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
    """The trial that is recommended, else the fastest, and those that can't be told from it."""
    if ranking.best is None:
        return None
    chosen = ranking.best if ranking.recommended is None else ranking.recommended
    alike = {ranking.best, *ranking.tied_with}
    if chosen not in alike:  # it is slower by next to nothing, and surely so
        return Best(trial=chosen)
    return Best(trial=chosen, tied_with=tuple(sorted(alike - {chosen})))


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


# Whether trial 0, which trials are compared with, costs what the loop itself does; else why not.
#
# Trial 0 is a loader of ours with the loop's own settings. The loop as it is was timed before the
# trials and after them, so each of these windows has one of trial 0 next to it in time: only such
# neighbours are compared, or the pace of the loop's first steps would count as the cost of opening
# its loader again. Recipe mnist on two CPUs: 25 ms of CPU a step until the first validation, 21
# from then on, re-opened or not.

REOPENED = "baseline-unlike-loop"


def pace_warning(outcome: Outcome, ranking: Ranking) -> ReportWarning | None:
    """What the reader must know of the loop's own pace; None where trial 0 stands for it."""
    plain = [window for window in outcome.plain if usable(window)]
    measurements = [v for v in outcome.trials[0].measurements if v.group == outcome.plain_group]
    own = ranking.results[0].within_ms if ranking.results else None
    if not plain or not measurements or own is None or ranking.noise is None:
        return None
    pairs = [(plain[0], _after(plain[0], measurements))]
    if len(plain) > 1:
        pairs.append((plain[-1], _before(plain[-1], measurements)))
    loop = [(i, window_times(window).within) for i, (window, _) in enumerate(pairs)]
    again = [(i, measurement.times.within) for i, (_, measurement) in enumerate(pairs)]
    more = ranking.noise.difference(loop, again)
    if more is not None and _matters(more, fmean(x.value for _, x in again)):
        where = _where(pairs, more)
        return ReportWarning(
            kind=REOPENED,
            text=f"the running loop took {_each(loop)} ms a step before and after the sweep, its "
            f"loader opened again with the same settings {_each(again)} next to it{where}: trials "
            "compare with the latter",
        )
    first = ranking.noise.difference([(0, loop[0][1])], ranking.results[0].by_round)
    # Other programs may have had the CPU in the last window, as in the first.
    later_ms = loop[-1][1].value - (waited_ms(plain[-1]) or 0.0)
    settled = len(pairs) > 1 and later_ms <= (1 + UNLIKE_SHARE) * own.value
    if first is None or first.value < 0 or not settled or not _matters(first, own.value):
        return None
    if first.value - waited_more_ms(plain[0], plain[-1]) <= UNLIKE_SHARE * own.value:
        return None  # other programs had the CPU then: no pace of the loop's
    why = memory_anew(plain[0], [plain[-1], *(measurement.window for measurement in measurements)])
    return ReportWarning(
        kind=SLOW_START,
        text=f"the running loop took {fmt.number(loop[0][1].value)} ms a step before the sweep, "
        f"and with its loader opened again {fmt.number(again[0][1].value)} next to that and "
        f"{fmt.number(own.value)} in the rounds, which trials compare with: the loop's first steps "
        f"were slower, whoever made their batches{why}",
    )


def _matters(difference: Estimate, of_ms: float) -> bool:
    """Whether it is beyond the noise and large; never by the estimate alone."""
    beyond = difference.bounded and not difference.low <= 0.0 <= difference.high
    return beyond and abs(difference.value) > UNLIKE_SHARE * of_ms


def _after(window: WindowDone, measurements: list[Measurement]) -> Measurement:
    """The measurement that came next (one of them where the clock is not known)."""
    later = [v for v in measurements if v.window.start_ns >= window.start_ns]
    return min(later or measurements[:1], key=lambda v: v.window.start_ns)


def _before(window: WindowDone, measurements: list[Measurement]) -> Measurement:
    earlier = [v for v in measurements if v.window.start_ns <= window.start_ns]
    return max(reversed(earlier or measurements[-1:]), key=lambda v: v.window.start_ns)


def _where(pairs: list[tuple[WindowDone, Measurement]], more: Estimate) -> str:
    """Whether the difference lies in getting batches; "" where waits were not recorded."""
    waits = [(_wait_ms(window), _wait_ms(measurement.window)) for window, measurement in pairs]
    known = [a - b for a, b in waits if a is not None and b is not None]
    if not known:
        return ""
    if abs(fmean(known)) >= abs(more.value) / 2 and fmean(known) * more.value > 0:
        return f" ({fmt.number(abs(fmean(known)))} ms of the difference in getting batches)"
    return " (the difference is in the loop's own work, not in getting batches)"


def _wait_ms(window: WindowDone) -> float | None:
    loaders = frozenset(fetch.loader for fetch in window.fetches)
    waits = waits_ms(window, loaders)
    return sum(waits) / window.n_steps if waits else None


def _each(values: ByRound) -> str:
    return " and ".join(fmt.number(x.value) for _, x in values)


# How a sweep's figures were measured, in sentences for the report.

_ENDINGS = {
    "separated": "the leader was separated from the rest",
    "nothing-better": "nothing could still beat the loop's own settings by what matters",
    "spent": "its allowance of steps, or its time, was spent",
}


class HowAsked(Protocol):
    """Of the command's options, what changes how trials are measured."""

    @property
    def loader_only(self) -> bool: ...
    @property
    def isolate(self) -> bool: ...
    @property
    def search(self) -> str: ...
    @property
    def engine(self) -> str: ...


def sweep_method(asked: HowAsked, outcome: Outcome) -> tuple[str, ...]:
    """One sentence for each thing to know."""
    if asked.loader_only:
        return (
            "The loop stands still while a new loader over the same data is drained as fast as it "
            "delivers; the model alone runs in the loop on batches that are ready.",
        )
    found = [_rounds(asked, outcome)]
    found.append(
        "Trials are compared within rounds; two are tied where the 95 % interval of their "
        "difference, widened for the number of trials, holds 0."
    )
    if asked.engine == "ray":
        found.append(
            "Each group of trials had its own machine, and the loop's own settings with it: a "
            "trial counts as its ratio to those in the same round, times their mean over all nodes."
        )
    if any(trial.of("confirm") for trial in outcome.trials):
        found.append(
            "The candidate's gain is measured again next to the loop's own settings after it was "
            "chosen."
        )
    if any(trial.place == "process" and trial.measurements for trial in outcome.trials):
        found.append(
            "Trials in their own processes start the script again for each measurement; start-up "
            "is its first iterator's."
        )
    return tuple(found)


def _rounds(asked: HowAsked, outcome: Outcome) -> str:
    n_rounds = outcome.n_ranked_rounds
    where = "its own process" if asked.isolate else "a new loader over the same data"
    if asked.search == "auto":
        n_steps = outcome.n_timed_steps
        grid = outcome.grid_steps or 0
        share = f", {n_steps / grid:.0%} of the grid's" if grid else ""
        ended = _ENDINGS.get(outcome.elimination or "spent", "it was cut short")
        return (
            f"Each trial is {where}; successive elimination in {n_rounds} rounds dropped clear "
            f"losers and ended because {ended}. It took "
            f"{n_steps:,} steps{share} (about {ALLOWANCE_SHARE:.0%} are allowed)."
        )
    return (
        f"Each trial is {where} in the running loop; after a first measurement that only sizes the "
        f"windows, {n_rounds} shuffled rounds rank them. Batches until the queues are steady are "
        "not counted."
        if not asked.isolate
        else f"Each measurement of a trial is {where}; {n_rounds} shuffled rounds rank them after "
        "a first one."
    )
