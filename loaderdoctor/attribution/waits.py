"""Waiting for a thread that makes batches next to the training thread.

The training thread then sits in a queue's `get`: a silence without any event. torch.profiler
records Python threads it did not start on only through CUPTI, so of a background loader the trace
shows at best its runtime calls (pinned allocations, copies); its `__next__` spans appear where all
threads are profiled. A silence is a wait where the batch is seen to be finished within it:

- with fetch spans: one fetch was under way when the silence began, and it was done before the
  silence ended. A thread with a full queue pauses between fetches, so a loader that keeps up
  doesn't look like this; or, where the loop then does its own silent work, the thread pauses until
  that is over and the loop takes a batch;
- without: the making thread's last call within the silence.

What follows within the silence is the training thread's own (host).
"""

from __future__ import annotations

import numpy as np

from loaderdoctor.attribution.rows import Rows, named_events
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import I64, Category

# A thread that was waited for begins its next fetch at once, 0.06-0.11 ms after the batch, and so
# before the loop's next event, 0.2-0.8 ms after it (queue of one, torch 2.14, two cores). The other
# way round were 3 of 28 waits, with the loop's next event 0.2-0.3 ms after the batch. A thread
# whose queue was full begins it only after the loop's silence, however long that lasts.
MAX_UNFOLLOWED_NS = 500_000


def waits_for_producers(rows: Rows) -> Intervals:
    """Silences of the training thread up to the moment its batch was finished elsewhere."""
    if not rows.producer_threads:
        return EMPTY
    events = named_events(rows)
    silent_from = events.reach[:-1]
    silent_to = events.starts[1:]
    real = silent_to > silent_from
    silent_from, silent_to = silent_from[real], silent_to[real]
    if silent_from.size == 0:
        return EMPTY

    spans = rows.spans
    fetches = rows.named(rows.flags.fetch, Category.USER_ANNOTATION, Category.CPU_OP)
    if fetches.any():
        started, finished, following = _productions(rows)
        # The first batch finished after the silence began, if its making had begun before.
        at = np.searchsorted(finished, silent_from, side="right")
        known = at < finished.size
        at = np.minimum(at, finished.size - 1)
        waited = known & (started[at] <= silent_from) & (finished[at] <= silent_to)
        went_on = following[at] < silent_to
        waited &= went_on | (silent_to - finished[at] <= MAX_UNFOLLOWED_NS)
        return Intervals.of(silent_from[waited], finished[at][waited])

    calls = np.sort(spans.end_ns[rows.by_producers() & (spans.category == Category.RUNTIME)])
    at = np.searchsorted(calls, silent_to, side="right") - 1
    until = calls[np.maximum(at, 0)]
    waited = (at >= 0) & (until > silent_from)
    return Intervals.of(silent_from[waited], until[waited])


def batches_made(rows: Rows) -> I64:
    """When each batch that other threads make was finished; needs fetch spans."""
    return _productions(rows)[1]


def _productions(rows: Rows) -> tuple[I64, I64, I64]:
    """When each batch's making began and ended on its thread, and the next began; sorted by end.

    It ends with the thread's last event before its next fetch: a thread may also copy the batch.
    After a thread's last fetch nothing is known: that counts as going on at once.
    """
    spans = rows.spans
    fetches = rows.named(rows.flags.fetch, Category.USER_ANNOTATION, Category.CPU_OP)
    started: list[I64] = []
    finished: list[I64] = []
    following: list[I64] = []
    for thread in rows.producer_threads:
        mine = spans.thread == thread
        begins = spans.start_ns[mine & fetches]
        if begins.size == 0:
            continue
        starts, reach = spans.start_ns[mine], np.maximum.accumulate(spans.end_ns[mine])
        last_row = np.append(np.searchsorted(starts, begins[1:], side="left"), starts.size) - 1
        started.append(begins)
        finished.append(reach[last_row])
        following.append(np.append(begins[1:], reach[-1]))
    if not started:
        none = np.zeros(0, np.int64)
        return none, none, none
    begin, end, after = (np.concatenate(parts) for parts in (started, finished, following))
    order = np.argsort(end, kind="stable")
    return begin[order], end[order], after[order]
