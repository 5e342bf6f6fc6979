"""`next(loader)` in a run that is recorded to its end, while a step holds nothing but a step.

What `Loop.fetch` does then, in one function: between two batches the loop's own work drives our
code out of the CPU's caches, and each further function entered costs there what ten cost in a loop
that does nothing else. Wherever anything else may have happened, `Loop.fetch` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch  # imported by the script long before

if TYPE_CHECKING:
    from loaderdoctor.instrument.session import Session
    from loaderdoctor.instrument.session.feed import Feed


def quick_next(
    session: Session,
    fetch: Callable[[Feed, Any], Any],
    ran_out: Callable[[Feed, int], None],
) -> Callable[[Feed, Any], Any]:
    """What hands the next batch of a pass of the step's loader, for the window open now.

    Call it only for a pass of whose batches none was or is to be substituted. `fetch` takes over
    where more than a step is to be seen to, `ran_out` tells of an epoch's end, as in `Loop`.
    """
    definition, window = session.definition, session.window
    assert definition is not None
    clock, thread, with_grad = definition.clock, definition.thread, definition.with_grad
    marks, fetches = window.marks, window.fetches
    assert marks is not None
    assert fetches is not None
    passes, wall, index = clock.passes, session.wall, clock.index
    torchs, grad_enabled = session.originals.fetch, torch.is_grad_enabled
    now_ns = perf_counter_ns

    def quick(feed: Feed, own: Any) -> Any:
        start = now_ns()
        if (
            marks.left <= 0
            or start >= marks.due_ns
            or wall.eventful
            or get_ident() != thread
            or not session.live
            or (with_grad and not grad_enabled())
        ):
            if not session.live:
                feed.quick = None
            return fetch(feed, own)
        marks.left -= 1
        marks.at.append(start)
        session.n_steps += 1
        wall.began_ns = start
        handed = feed.handed
        try:
            batch = torchs(own) if handed is None else handed.next_batch(own)
        except StopIteration:
            ran_out(feed, start)
            raise
        feed.n_drawn += 1
        feed.n_seen = passes.n_seen = feed.n_seen + 1
        clock.n_fetches += 1
        fetches.append((index, start, now_ns(), thread, 0))
        return batch

    return quick
