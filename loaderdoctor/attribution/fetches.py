"""When the training thread is getting a batch: the spans torch records, and what it leaves out.

torch.profiler records `enumerate(DataLoader)#….__next__` and nothing else of a loader's life.
What lies outside is inferred from how `torch/utils/data/dataloader.py` works (read in torch 2.6
to 2.14):

- `_BaseDataLoaderIter.__init__` draws the base seed on the calling thread:
  `aten::empty`, `aten::random_`, `aten::item`, in that order, outside `__next__`. Worker
  processes are started after it, before the constructor returns. So *creation* lasts from that
  seed to the first `__next__`, or to the first other work the thread does.
- An exhausted `__next__` has a span like any other. The same thread then fetches again with no
  work of the step in between, because no batch came out of it.
- With persistent workers the next epoch is `_reset`: no base seed. It waits for each worker's
  acknowledgement and primes the queues, so the whole silence between the exhausted `__next__`
  and the next one is the loader's. A shuffling sampler shows its own seed and `randperm` there.
- An iterator dropped before its end shuts its workers down in `__del__`, wherever the last
  reference goes: right after the fetch (`next(iter(loader))`), or where a `for` loop is left,
  before the next creation. The silence there, beyond what the same place costs around other
  fetches, is the loader's. Without workers there is nothing to shut down.

Traces with Python stacks, and our own instrument, name these spans: then nothing is inferred.

Fooled by: the user's own Python without any event in exactly those silences (once an epoch), and
by code that draws a seed exactly as torch does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from loaderdoctor.attribution.trace_rows import Index, Mask, Rows, flags_of
from loaderdoctor.intervals import EMPTY, Intervals
from loaderdoctor.trace.columns import I64, Category

FetchKind = Literal["single-process", "multi-process", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetches:
    """What the trace says about getting batches (ns, trace clock)."""

    getting: Intervals  # the training thread is getting a batch, in any way
    recorded: bool  # whether any sign of a loader is in the trace
    exact: bool  # whether the training thread's own fetches or waits are
    kind: FetchKind | None
    delivered_ns: I64  # end of each fetch that gave the training thread a batch, in order
    created_ns: I64  # when each iterator creation began
    exhausted_ns: I64  # end of each fetch that ended an epoch
    startup_ns: I64  # creation to the end of the first fetch, one per creation that has one
    startup_at_ns: I64  # when those creations began


def fetches_of(rows: Rows) -> Fetches:
    """Everything the trace says, or lets us infer, about getting batches."""
    spans, flags = rows.spans, rows.flags
    on_thread = rows.on_training_thread()
    all_fetches = np.flatnonzero(rows.fetches)
    own = _own_fetches(rows)
    starts, ends = spans.start_ns[own], spans.end_ns[own]
    named = on_thread & (
        rows.named(flags.own_create, Category.USER_ANNOTATION)
        | rows.named(flags.own_shutdown, Category.USER_ANNOTATION)
        | rows.named(flags.own_wait, Category.USER_ANNOTATION)
        | rows.named(flags.loader_frame, Category.PYTHON)
    )
    getting = Intervals.of(starts, ends).union(rows.intervals(named))

    worked = _worked_between(rows, own)
    seeds = _seeds(rows)
    exhausted = _exhausted(rows, starts, ends, worked, seeds.creation_ns)
    delivered = ends[~exhausted]
    exact = named & (flags.own_create[spans.name] | (spans.category == Category.PYTHON))
    if exact.any():
        created = _created_exactly(rows, exact)
    else:
        created = seeds.creation_ns
        getting = (
            getting.union(_creations(rows, seeds.all_ns, starts))
            .union(_resets(starts, ends, exhausted, seeds.creation_ns))
            .union(_teardowns(rows, own, exhausted, created, worked))
        )
    waits = rows.named(flags.own_wait, Category.USER_ANNOTATION) & on_thread
    if own.size == 0 and not waits.any():
        getting = getting.union(waits_for_producers(rows))
        delivered = batches_made(rows)
    elif own.size == 0:
        delivered = np.sort(spans.end_ns[rows.outermost(waits)])  # as of fetches

    first = np.searchsorted(starts, created)
    has_first = first < starts.size
    return Fetches(
        getting=getting,
        recorded=bool(all_fetches.size or len(getting)),
        exact=bool(own.size or waits.any()),
        kind=_kind(rows, all_fetches),
        delivered_ns=delivered,
        created_ns=created,
        exhausted_ns=ends[exhausted],
        startup_ns=ends[first[has_first]] - created[has_first],
        startup_at_ns=created[has_first],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Everything the training thread does under a name, by start; the steps' own marks left out."""

    starts: I64
    reach: I64  # latest end so far

    def next_start(self, at_ns: I64) -> I64:
        """Start of the first event at or after each instant; the instant itself if none."""
        if self.starts.size == 0:
            return at_ns
        index = np.searchsorted(self.starts, at_ns, side="left")
        known = index < self.starts.size
        return np.where(known, self.starts[np.minimum(index, self.starts.size - 1)], at_ns)

    def previous_end(self, at_ns: I64) -> I64:
        """Latest end of what began before each instant, at most the instant itself."""
        if self.starts.size == 0:
            return at_ns
        index = np.searchsorted(self.starts, at_ns, side="left") - 1
        ended = np.minimum(self.reach[np.maximum(index, 0)], at_ns)
        return np.where(index >= 0, ended, at_ns)


def named_events(rows: Rows) -> Events:
    """Ops, runtime calls, fetches and optimizer spans of the training thread."""
    spans = rows.spans
    mask = rows.on_training_thread() & (rows.events | rows.fetches)
    return Events(
        starts=spans.start_ns[mask],
        reach=np.maximum.accumulate(spans.end_ns[mask]),
    )


def silence_at(rows: Rows, at_ns: I64) -> Intervals:
    """The training thread's silence around each instant: from the event before to the one after."""
    events = named_events(rows)
    return Intervals.of(events.previous_end(at_ns), events.next_start(at_ns))


def turns(rows: Rows) -> I64:
    """Starts of the fetches that begin a turn of the loop, each parted by work from the one before.

    Exhausted fetches, and several loaders fetched together, belong to one turn.
    """
    own = _own_fetches(rows)
    if own.size == 0:
        return np.zeros(0, np.int64)
    worked = _worked_between(rows, own)
    first = np.concatenate(([True], worked))
    return rows.spans.start_ns[own][first]


def _own_fetches(rows: Rows) -> Index:
    """The training thread's fetches; of nested ones (a loader inside a loader) the outer."""
    return rows.outermost(rows.fetches & rows.on_training_thread())


def _worked_between(rows: Rows, fetches: Index) -> Mask:
    """Whether work of the step was done or queued between each fetch and the next (n - 1)."""
    spans = rows.spans
    work = spans.start_ns[rows.step_work]
    starts, ends = spans.start_ns[fetches], spans.end_ns[fetches]
    return np.searchsorted(work, starts[1:]) > np.searchsorted(work, ends[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seeds:
    """Seed draws of the training thread outside fetches: the signature of iterators."""

    all_ns: I64  # starts of all of them: base seeds and samplers' seeds
    creation_ns: I64  # starts of base seeds: a new iterator


def _seeds(rows: Rows) -> _Seeds:
    """Find `aten::empty`, `aten::random_`, `aten::item` in a row among the thread's outermost ops.

    A seed followed at once by `aten::randperm` is a sampler's: part of a creation only where a
    base seed came before it, else of persistent workers' `_reset`.
    """
    spans = rows.spans
    none = np.zeros(0, np.int64)
    ops = np.flatnonzero((spans.category == Category.CPU_OP) & rows.on_training_thread())
    if ops.size < 3 or "aten::random_" not in rows.names:
        return _Seeds(all_ns=none, creation_ns=none)
    ops = rows.outermost(ops)
    ops = ops[~rows.intervals(_own_fetches(rows)).contains(spans.start_ns[ops])]
    ids = {name: i for i, name in enumerate(rows.names)}
    name = np.append(spans.name[ops], [-1, -1, -1])
    is_seed = (
        (name[:-3] == ids.get("aten::empty", -2))
        & (name[1:-2] == ids["aten::random_"])
        & (name[2:-1] == ids.get("aten::item", -2))
    )
    of_sampler = is_seed & (name[3:] == ids.get("aten::randperm", -2))
    at = spans.start_ns[ops]
    return _Seeds(all_ns=at[is_seed], creation_ns=at[is_seed & ~of_sampler])


def _exhausted(rows: Rows, starts: I64, ends: I64, worked: Mask, creation_ns: I64) -> Mask:
    """Which fetches gave no batch: the thread fetches again with no work of the step between.

    Certain where an iterator is created in between. Otherwise several loaders may be fetched
    together (`zip`): only fetches beyond the usual number per turn count then, the first of a
    turn, as an epoch's end precedes the batch.
    """
    exhausted = np.zeros(starts.size, np.bool_)
    if starts.size < 2:
        return exhausted
    created = np.searchsorted(creation_ns, starts[1:]) > np.searchsorted(creation_ns, ends[:-1])
    exhausted[:-1] = ~worked & created
    turn = np.concatenate(([0], np.cumsum(worked)))
    per_turn = np.bincount(turn[~exhausted])
    usual = int(np.bincount(per_turn).argmax())
    for surplus in np.flatnonzero(per_turn > usual):
        of_turn = np.flatnonzero((turn == surplus) & ~exhausted)
        exhausted[of_turn[: per_turn[surplus] - usual]] = True
    return exhausted


def _creations(rows: Rows, seed_ns: I64, fetch_starts: I64) -> Intervals:
    """From each seed to the next fetch, or to other work of the training thread before it."""
    if seed_ns.size == 0:
        return EMPTY
    spans = rows.spans
    work = spans.start_ns[rows.step_work & rows.on_training_thread()]
    end = np.minimum(_next_after(seed_ns, fetch_starts), _next_after(seed_ns, work))
    known = end < _NEVER
    return Intervals.of(seed_ns[known], end[known])


_NEVER = np.iinfo(np.int64).max


def _next_after(at_ns: I64, starts: I64) -> I64:
    """The first of the sorted `starts` after each instant; a huge number where there is none."""
    index = np.searchsorted(starts, at_ns, side="right")
    return np.append(starts, _NEVER)[index]


def _resets(starts: I64, ends: I64, exhausted: Mask, creation_ns: I64) -> Intervals:
    """Silences after exhausted fetches that end in no creation: persistent workers' `_reset`."""
    at = np.flatnonzero(exhausted[:-1])
    created = np.searchsorted(creation_ns, starts[at + 1]) > np.searchsorted(creation_ns, ends[at])
    at = at[~created]
    return Intervals.of(ends[at], starts[at + 1])


def _teardowns(
    rows: Rows, own: Index, exhausted: Mask, creation_ns: I64, worked: Mask
) -> Intervals:
    """Silences in which dropped iterators shut their workers down.

    Of each iterator with workers that was not exhausted before the next creation: the silence
    after its last fetch and the one before that creation, as far as they exceed the median of the
    same silence around other fetches.
    """
    spans = rows.spans
    starts, ends = spans.start_ns[own], spans.end_ns[own]
    if starts.size == 0 or creation_ns.size == 0:
        return EMPTY
    last = np.searchsorted(starts, creation_ns) - 1
    closing = creation_ns[last >= 0]
    last = last[last >= 0]
    alive = ~exhausted[last] & rows.flags.fetch_multi[spans.name[own[last]]]
    last, closing = last[alive], closing[alive]
    if last.size == 0:
        return EMPTY
    if last.size == starts.size - 1:
        # Each fetch was its iterator's only one; so, no doubt, was the trace's last.
        last = np.append(last, starts.size - 1)
    events = named_events(rows)

    after = events.next_start(ends) - ends
    # The trace's last fetch is no measure: whether its iterator was dropped is unknown.
    others = np.setdiff1d(np.flatnonzero(worked), last)
    usual = int(np.median(after[others])) if others.size else 0
    dropped_after_fetch = Intervals.of(ends[last], ends[last] + after[last] - usual)

    before = starts - events.previous_end(starts)
    follows_creation = np.searchsorted(starts, creation_ns)
    others = np.setdiff1d(np.flatnonzero(worked) + 1, follows_creation)
    if others.size == 0:
        return dropped_after_fetch
    silent_from = np.minimum(events.previous_end(closing) + int(np.median(before[others])), closing)
    return dropped_after_fetch.union(Intervals.of(silent_from, closing))


def _created_exactly(rows: Rows, exact: Mask) -> I64:
    """Starts of creations that the trace names: our annotation, else torch's `_get_iterator`."""
    spans = rows.spans
    own = exact & rows.flags.own_create[spans.name]
    if own.any():
        return spans.start_ns[own]
    building = flags_of(rows.names, lambda name: "_get_iterator" in name)
    return spans.start_ns[exact & building[spans.name]]


def _kind(rows: Rows, fetches: Index) -> FetchKind | None:
    """In worker processes or in the loop's own, by the iterator's class in the span's name."""
    if fetches.size == 0:
        return None
    multi = rows.flags.fetch_multi[rows.spans.name[fetches]]
    if multi.all():
        return "multi-process"
    return "mixed" if multi.any() else "single-process"


# Waiting for a thread that makes batches next to the training thread.
#
# The training thread then sits in a queue's `get`: a silence without any event. torch.profiler
# records Python threads it did not start on only through CUPTI, so of a background loader the trace
# shows at best its runtime calls (pinned allocations, copies); its `__next__` spans appear where
# all threads are profiled. A silence is a wait where the batch is seen to be finished within it:
#
# - with fetch spans: one fetch was under way when the silence began, and it was done before the
# silence ended. A thread with a full queue pauses between fetches, so a loader that keeps up
# doesn't look like this; or, where the loop then does its own silent work, the thread pauses until
# that is over and the loop takes a batch;
# - without: the making thread's last call within the silence.
#
# What follows within the silence is the training thread's own (host).

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
    # Where only the training thread's own spans were recorded, calls are what is left.
    if rows.fetches.any() and batches_made(rows).size:
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
    started: list[I64] = []
    finished: list[I64] = []
    following: list[I64] = []
    for thread in rows.producer_threads:
        mine = spans.thread == thread
        begins = spans.start_ns[mine & rows.fetches]
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
