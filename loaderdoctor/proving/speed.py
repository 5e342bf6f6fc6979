"""Times of runs in turns -> how many times as fast, and when that is told well enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from loaderdoctor.estimate import Estimate, mean, t95
from loaderdoctor.instrument.wire.channel import CheckedRun
from loaderdoctor.units import NS_PER_MS

# A promise is kept where it lies in the measured interval, or within this of the measured ratio: by
# as much two runs of one script differ on shared machines.
TOLERANCE = 0.15
# An interval that reaches beyond this times the ratio says nothing: two turns have such ones.
MAX_RATIO_KNOWN = 3.0
# Where every run of one form takes this many times as long as any of the other, whatever the
# interval says, the change did it: of three turns that differ by 40 % and gain nothing, one proof
# in 70,000 (tests/proving/test_looks.py plays it). With a gain of 20 times the runs of one form may
# differ by half, as a busy machine has them, and an interval of three turns hold anything.
SURELY = 2.0
MIN_SURE_TURNS = 3
# Turns go on until the ratio is told from 1, or is within the tolerance of it. Who looks more than
# once is misled more often: with the interval of one look, 12 % of changes that do nothing would be
# told to do something. By so much an interval of as many looks is wider, so that 95 % hold what
# they should (tests/proving/test_looks.py plays it, with noise of 3 to 40 %).
WIDENING = {1: 1.0, 2: 1.3, 3: 1.4}
# From fewer turns their spread is known too roughly to tell what more of them would show.
MIN_PROJECTED = 6


def step_ms(run: CheckedRun) -> float | None:
    """Mean time of the timed steps, epoch boundaries included; None: none was timed."""
    n = len(run.step_ns) - 1
    return (run.step_ns[-1] - run.step_ns[0]) / n / NS_PER_MS if n > 0 else None


def looks(n_turns: int, max_turns: int) -> tuple[int, ...]:
    """After how many turns the ratio is looked at; the last one ends it, decided or not."""
    last = max(n_turns, max_turns)
    return tuple(dict.fromkeys((n_turns, min(2 * n_turns, last), last)))


def ratio(turns: Sequence[tuple[CheckedRun, CheckedRun]], *, n_looks: int = 1) -> Estimate | None:
    """Before / after of (original, changed) runs; None where a run has too few steps to time.

    Its interval is of the turns' log ratios: what a machine does slowly it does to both.
    """
    times = [(step_ms(a), step_ms(b)) for a, b in turns]
    logs = [math.log(a / b) for a, b in times if a is not None and b is not None]
    return _ratio_of(logs, n_looks) if logs and len(logs) == len(turns) else None


def _ratio_of(logs: Sequence[float], n_looks: int) -> Estimate:
    found = mean(logs)
    margin = WIDENING[n_looks] * found.margin if found.bounded else math.inf
    return Estimate(
        value=math.exp(found.value),
        low=math.exp(found.value - margin),
        high=math.exp(found.value + margin),
        n=found.n,
    )


def surely(turns: Sequence[tuple[CheckedRun, CheckedRun]]) -> float | None:
    """How many times as fast it is at the least (below 1: at the most), of any two runs.

    None where the forms are not that far apart, or turns are too few to tell.
    """
    times = [(step_ms(a), step_ms(b)) for a, b in turns]
    before, after = [a for a, _ in times if a], [b for _, b in times if b]
    if min(len(before), len(after)) < MIN_SURE_TURNS:
        return None
    least, most = min(before) / max(after), max(before) / min(after)
    if least >= SURELY:
        return least
    return most if most <= 1 / SURELY else None


def is_known(speed_up: Estimate) -> bool:
    """Whether its interval says anything."""
    return speed_up.high <= MAX_RATIO_KNOWN * speed_up.value


def decided(speed_up: Estimate) -> bool:
    """Whether it is told from 1, or known to lie within the tolerance of it."""
    alike = speed_up.low >= 1 - TOLERANCE and speed_up.high <= 1 + TOLERANCE
    return alike or (is_known(speed_up) and (speed_up.low > 1.0 or speed_up.high < 1.0))


def may_decide(speed_up: Estimate, n_turns: int) -> bool:
    """Whether as many turns in all would decide it, if it and the turns' spread stay as they are.

    Its interval, the widening for looks within it, shrinks by their number and by Student's t.
    True of fewer than MIN_PROJECTED turns.
    """
    n = speed_up.n
    if n < MIN_PROJECTED:
        return True
    shrunk = math.sqrt(n / n_turns) * t95(n_turns - 1) / t95(n - 1)
    value, low, high = math.log(speed_up.value), math.log(speed_up.low), math.log(speed_up.high)
    low, high = value - shrunk * (value - low), value + shrunk * (high - value)
    return decided(replace(speed_up, low=math.exp(low), high=math.exp(high)))
