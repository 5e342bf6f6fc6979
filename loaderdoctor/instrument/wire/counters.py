"""What a window counted beside its times, as the command gets it: CPUs, and pages of batches."""

from __future__ import annotations

import msgspec


class CpuRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who used the CPUs in a window, and who waited for one; None = not told by the system."""

    wall_ns: int  # between the two readings: the window, and a little more
    main_ns: int  # CPU time of the training process
    workers_ns: int | None = None  # of its children
    tree_ns: int | None = None  # of the whole run: this command, all ranks, all workers
    busy_ns: int | None = None  # of all programs, on the `n_cpus` CPUs this process may use
    n_cpus: int | None = None
    # Of the group with the tightest quota: CPU time of all its processes, and its periods.
    group_ns: int | None = None
    n_periods: int | None = None
    n_throttled: int | None = None
    # Ready to run and no CPU free: all threads of the training process together, and the one
    # that trains.
    waited_ns: int | None = None
    thread_waited_ns: int | None = None
    thread_faults: int | None = None  # minor page faults of the thread that trains


class PageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Mapping and letting go the memory of a batch that workers made: medians, CPU time (ns)."""

    n_batches: int  # of those thrown away between windows
    n_bytes: int
    n_faults: int  # minor page faults of the first read
    touch_ns: int  # a byte of each page: the first read less the second
    release_ns: int  # dropping the last reference
