"""What is recorded within one window: fetches, CPUs, memory, copies, stack samples of the loop."""

from __future__ import annotations

from typing import Literal

import msgspec

# Where in the step a sample fell, told from the frames on the stack: getting a batch, the model's
# own call, autograd, an optimizer (schedulers, gradient scaling and clipping with it), collectives;
# `own`: none of these; `outside`: own, between two epochs or in a step that fetches from another
# loader.
Stage = Literal["fetch", "forward", "backward", "optimizer", "communication", "own", "outside"]


class FramePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the user's code."""

    file: str
    line: int
    function: str
    code: str | None = None  # the source line, stripped


class StackPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Samples with the same user's frames on the stack, in the same call below them."""

    stage: Stage
    frames: tuple[FramePlace, ...]  # of the user's own code, outermost first
    n: int
    module: str | None = None  # of the outermost library function below them: "pandas.core.frame"
    function: str | None = None  # that function: "DataFrame.iloc"
    # What the innermost line calls just then, as its source has it: "loss.item", "frame.iloc[]".
    call: str | None = None
    operator: bool = (
        False  # an operator of torch, or one of + - * [] on something that is no number
    )


class StackRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All samples of a window. Those of places too rare to be kept are in `n` alone."""

    n: int  # within steps, waiting for batches included
    places: tuple[StackPlace, ...] = ()
    n_outside: int = 0  # between epochs


class GpuLimitRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What held the training GPU's clock down within a window, by NVML's own counters."""

    wall_ns: int  # between the two readings
    power_ns: int | None = None  # at its power limit
    thermal_ns: int | None = None  # too hot
    board_ns: int | None = None  # the board's supply, or the hardware's own brake
    sm_mhz: int | None = None  # at the window's end
    max_sm_mhz: int | None = None
    temperature_c: int | None = None
    limit_w: float | None = None  # in force
    max_limit_w: float | None = None  # the most that may be set
    default_limit_w: float | None = None  # the factory's


class FetchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """One fetch in a window: which of Observed.loaders, when `__next__` began and ended."""

    loader: int
    start_ns: int
    end_ns: int
    thread: int  # native thread id
    cpu_ns: int | None = None  # CPU time of that thread in it
    queued_ns: int | None = None  # of it, the thread stood ready and no CPU was free


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
    thread_ns: int | None = None  # CPU time of the thread that trains
    # Of all other threads that hold the interpreter at times: CPU time, and ready without a CPU.
    python_ns: int | None = None
    python_waited_ns: int | None = None


class PoolMemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What each worker process has to itself: pages that no other process has."""

    by_pid: tuple[tuple[int, int], ...]  # (pid, bytes), at least one

    @property
    def n(self) -> int:
        return len(self.by_pid)

    @property
    def unique_bytes(self) -> int:
        return sum(n for _, n in self.by_pid)

    @property
    def largest_bytes(self) -> int:
        return max(n for _, n in self.by_pid)


class PageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Mapping and letting go the memory of a batch that workers made: medians, CPU time (ns)."""

    n_batches: int  # of those thrown away between windows, or recorded there
    n_bytes: int
    n_faults: int  # minor page faults of the first read
    touch_ns: int  # a byte of each page: the first read less the second
    release_ns: int  # dropping the last reference


class CompileRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Code that torch.compile made within a window."""

    n: int  # pieces of it
    ns: int  # how long that took
    reason: str | None = None  # what did not fit before: "tensor 'x' size mismatch at index 0. …"
    function: str | None = None  # of the user's that was compiled anew: "forward (model.py:12)"


class CollectionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Python's garbage collector did within a window, by generation: 2 is a full one."""

    n: tuple[int, ...]
    ns: tuple[int, ...]
    full_ns: tuple[int, ...] = ()  # full ones one by one, the first few hundred
    asked_ns: int = 0  # of full ones, those that a line of code asked for: gc.collect()
    site: str | None = None  # the line that asked for most of it: "train.py:57"
    code: str | None = None
    library: str | None = None  # the package whose line that is; None: the user's own


class ReadyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Batches that the loader made ahead of a window, each handed out once in it."""

    n_batches: int
    n_new: int = 0  # of them, those whose shape the loop had not been given before, as far as seen


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the loop's own transfers where they are answered."""

    n_hits: int = 0  # answered
    n_misses: int = 0  # let through


class SnapshotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """torch's memory history of a window, as saved."""

    path: str
    n_entries: int  # events of the history in it
