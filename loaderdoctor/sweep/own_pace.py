"""Whether trial 0, which trials are compared with, costs what the loop itself does; else why not.

Trial 0 is a loader of ours with the loop's own settings. The loop as it is was timed before the
trials and after them, so each of these windows has one of trial 0 next to it in time: only such
neighbours are compared, or the pace of the loop's first steps would count as the cost of opening
its loader again. Recipe mnist on two CPUs: 25 ms of CPU a step until the first validation, 21 from
then on, re-opened or not.
"""

from __future__ import annotations

from statistics import fmean

from loaderdoctor import format as fmt
from loaderdoctor.attribution.step import usable, waited_ms, waits_ms, window_times
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import UNLIKE_SHARE
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.report.model import ReportWarning
from loaderdoctor.report.words.first_screen import SLOW_START
from loaderdoctor.tryout.outcome import Outcome
from loaderdoctor.tryout.ranking import Ranking
from loaderdoctor.tryout.slow_start import memory_anew, waited_more_ms
from loaderdoctor.tryout.trials import Measurement

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
    loop = [(i, window_times(window).within_ms) for i, (window, _) in enumerate(pairs)]
    again = [(i, measurement.times.within_ms) for i, (_, measurement) in enumerate(pairs)]
    more = ranking.noise.difference(loop, again)
    if more is not None and _matters(more, fmean(ms for _, ms in again)):
        where = _where(pairs, more)
        return ReportWarning(
            kind=REOPENED,
            text=f"the running loop took {_each(loop)} ms a step before and after the sweep, its "
            f"loader opened again with the same settings {_each(again)} beside it{where}: trials "
            "compare with the latter",
        )
    first = ranking.noise.difference([(0, loop[0][1])], ranking.results[0].by_round_ms)
    # Other programs may have had the CPU in the last window, as in the first.
    later_ms = loop[-1][1] - (waited_ms(plain[-1]) or 0.0)
    settled = len(pairs) > 1 and later_ms <= (1 + UNLIKE_SHARE) * own.value
    if first is None or first.value < 0 or not settled or not _matters(first, own.value):
        return None
    if first.value - waited_more_ms(plain[0], plain[-1]) <= UNLIKE_SHARE * own.value:
        return None  # other programs had the CPU then: no pace of the loop's
    why = memory_anew(plain[0], [plain[-1], *(measurement.window for measurement in measurements)])
    return ReportWarning(
        kind=SLOW_START,
        text=f"the running loop took {fmt.number(loop[0][1])} ms a step before the sweep, and with "
        f"its loader opened again {fmt.number(again[0][1])} next to that and "
        f"{fmt.number(own.value)} in the rounds, which trials compare with: the loop's first steps "
        f"were slower, whoever made their batches{why}",
    )


def _matters(difference: Estimate, of_ms: float) -> bool:
    """Whether it is beyond the noise and large; never by the estimate alone."""
    beyond = difference.bounded and not difference.low <= 0.0 <= difference.high
    return beyond and abs(difference.value) > UNLIKE_SHARE * of_ms


def _after(window: WindowDone, measurements: list[Measurement]) -> Measurement:
    """The visit that came next (one of them where the clock is not known)."""
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


def _each(values: list[tuple[int, float]]) -> str:
    return " and ".join(fmt.number(ms) for _, ms in values)
