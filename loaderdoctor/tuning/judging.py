"""Whether a trial is kept, dropped, or goes on, by its windows beside the best's."""

from __future__ import annotations

from loaderdoctor.tuning.outcome import Verdict
from loaderdoctor.tuning.step_windows import MIN_BOUNDARIES, Served, gained, saves_boundaries

# Shorter by less is not worth a change of settings, and would take long to prove.
MIN_GAIN_SHARE = 0.02
MIN_WINDOWS = 2
MAX_WINDOWS = 10
# Margins are widened by this: a trial is looked at after each of its windows, and is one of many.
# Of 60 simulated trainings of 3,000 steps that nothing can help, 4 kept a setting for a while, and
# none was proven against the loop's own (`tests/tuning/test_tuner.py` has eight of them).
WIDENING = 2.0
# A single window this much longer is no noise: the setting goes at once.
HOPELESS = 1.5


def judged(before: Served, now: Served, *, keeps_workers: bool) -> Verdict | None:
    """What a trial comes to that has another window; None: it goes on.

    `keeps_workers`: all that it changes is that workers are kept. Raises ValueError where one of
    both has no window.
    """
    mean, was = now.step_ms(), before.step_ms(MAX_WINDOWS)
    if mean is None or was is None:
        raise ValueError("no windows")
    if keeps_workers and saves_boundaries(now, before):
        return "kept"
    if mean.value > HOPELESS * was.value:
        return "slower"
    if len(now.windows) < MIN_WINDOWS:
        return None
    shorter = gained(before, now, MAX_WINDOWS)
    gain, margin = shorter.value, WIDENING * shorter.margin
    if gain - margin > 0 and gain >= MIN_GAIN_SHARE * was.value:
        return "kept"
    shown = len(now.boundaries_ms) >= MIN_BOUNDARIES
    if keeps_workers and not shown and gain + margin > 0:
        return None  # what it saves shows at epochs' beginnings only
    if gain + margin < MIN_GAIN_SHARE * was.value:
        return "slower"
    return "not-separable" if len(now.windows) >= MAX_WINDOWS else None
