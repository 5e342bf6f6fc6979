"""What a recorded run tells every few seconds: sums of the steps since the last time.

All `_ns` are CLOCK_MONOTONIC or durations. What was not recorded is None, never 0.
"""

from __future__ import annotations

import msgspec


class Block(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A fixed number of steps in a row, at which nothing but a step happened."""

    step: int  # the loop's number of the last of them
    end_ns: int
    n: int
    total_ns: int
    median_ns: int
    longest_ns: int
    wait_ns: int | None  # in `__next__` of the step's loaders; None: fetched on another thread


class Stall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step that took several times as long as its neighbours."""

    step: int
    at_ns: int  # its end
    took_ns: int
    wait_ns: int | None = None
    gc_ns: int = 0  # of it, in garbage collections


class Sums(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the time of a stretch went, by what the loop did. Sums of durations and counts."""

    n_steps: int = 0
    steps_ns: int = 0
    wait_ns: int | None = 0  # of `steps_ns`, in `__next__`; None: not seen
    # Steps that hold the start of an epoch: iterator made, workers started, first batch.
    n_starts: int = 0
    starts_ns: int = 0
    starts_wait_ns: int = 0
    # From the fetch that found the epoch over to the next epoch's first.
    n_gaps: int = 0
    gaps_ns: int = 0
    # Steps beside which the loop read other loaders or saved something.
    n_besides: int = 0
    besides_ns: int = 0


class Collections(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Garbage collections of the training process."""

    n: int = 0
    total_ns: int = 0
    longest_ns: int = 0


class WorkersBeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """DataLoader workers since the last beat, all of them together."""

    n_alive: int = 0
    n_started: int = 0
    n_ended: int = 0
    n_died: int = 0  # without saying so: killed, or crashed
    n_batches: int = 0
    make_ns: int = 0
    cpu_ns: int = 0  # of the thread that makes them
    idle_ns: int = 0  # waiting for an index
    longest_ns: int = 0
    pids: tuple[int, ...] = ()


class Dry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The accelerator in sampled steps: how long it had nothing to do while the loop fetched."""

    n_sampled: int = 0
    dry_ns: int = 0
    # Steps whose copies to it were seen, and how long these held up the step's own stream.
    n_copied: int = 0
    copy_ns: int = 0


class QueueFill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Batches that were ready when the loop was looked at, against those asked for ahead."""

    n_looks: int = 0
    n_ready: int = 0
    n_asked: int = 0
