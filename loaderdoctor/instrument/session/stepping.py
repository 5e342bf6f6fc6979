"""Counting the steps of a window in which nothing else happens at their boundaries.

The driver is a generator below three others; waking it in each step of a plain window costs more
than the rest of the hooks. So most steps are counted here, and it is woken where it has to act.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loaderdoctor.instrument.session.step_clock import StepClock

if TYPE_CHECKING:
    from loaderdoctor.instrument.session.session import Session


def counter(session: Session, clock: StepClock, n_steps: int) -> Callable[[int], bool] | None:
    """Counts a step at its boundary (CLOCK_MONOTONIC, ns); False: nothing done, wake the driver.

    None for a rank of a group, which may have to wait for its peers after any step.
    """
    if session.group:
        return None

    def count(now: int) -> bool:
        # The window's last step, and every 50 ms: a look at the connection and at the time limit.
        if now >= session.next_poll or clock.n_steps + 1 >= n_steps:
            return False
        clock.mark(now, edge=session.at_edge)
        return True

    return count
