"""What was measured, as messages carry it: records of one window, and sums of a recorded run.

Of a window: fetches, CPUs, memory, copies, stack samples of the loop. Of a recorded run, every few
seconds since the last time (a *beat*): its steps, what went on around it (CPUs, pressure, reads,
memory, GPUs), and what setting its loader brought. All `_ns` are CLOCK_MONOTONIC or durations; a
beat's rates and shares are of the time since the look before. What was not recorded, or the system
does not tell, is None, never 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import Literal

import msgspec

from loaderdoctor.settings import Settings

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
    n_outside: int = 0  # between epochs, or in pauses between steps
    n_outside_backward: int = 0  # of those in pauses, in a backward pass


class PauseRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What lies between some steps of a loop without a DataLoader: rollouts, the next data."""

    n: int  # seen
    seconds: float  # of one, beyond the usual step that ends it
    every_steps: float | None  # from one to the next, on average; None: seen once
    usual_ms: float  # the other steps, mean


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


# Of a run that is recorded to its end.


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
    # From the fetch that found the epoch over to the next epoch's first, or from one that got an
    # error to the next.
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
    n_died: int = 0  # without saying so: killed, or crashed
    n_batches: int = 0
    make_ns: int = 0
    cpu_ns: int = 0  # of the thread that makes them
    idle_ns: int = 0  # waiting for an index
    pids: tuple[int, ...] = ()


class Dry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The accelerator in sampled steps: how long it had nothing to do while the loop fetched."""

    n_sampled: int = 0
    dry_ns: int = 0
    # Steps whose copies to it were seen, and how long these held up the step's own stream.
    n_copied: int = 0
    copy_ns: int = 0


class QueueFill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Batches that stood ready at the beat, of all that workers were asked for."""

    n_ready: int = 0
    n_asked: int = 0


class GpuLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of those that the run uses, as NVML tells it."""

    index: int
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    temperature_c: int | None = None
    busy_share: float | None = None
    slowed_by: tuple[str, ...] = ()  # "power cap", "heat", …; idle and settings are no such reason


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look."""

    at_s: float  # seconds since the epoch
    end_ns: int  # CLOCK_MONOTONIC
    took_s: float  # since the look before
    n_cpus: float | None = None  # that the run may use
    own_cpus: float | None = None  # kept busy by the run's processes
    other_cpus: float | None = None  # by others, of those that the run may use
    throttled_share: float | None = None  # of the quota's periods
    cpu_pressure: float | None = None  # share of the time in which some process waited (PSI)
    io_pressure: float | None = None
    memory_pressure: float | None = None
    read_bytes_per_s: float | None = None  # from block devices, by the run's processes
    received_bytes_per_s: float | None = None  # by the machine's network interfaces, but loopback
    workers_bytes: int | None = None  # PSS of the processes below the training ones
    run_bytes: int | None = None  # of all of the run
    # Without files and shared memory, known at every look: what workers have grown by since they
    # were first seen, and that with all of the other processes.
    workers_grown_bytes: int | None = None
    run_private_bytes: int | None = None
    available_bytes: int | None = None
    shm_free_bytes: int | None = None
    swap_used_bytes: int | None = None
    gpus: tuple[GpuLook, ...] = ()


class TriedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One setting. Milliseconds are means of its windows' steps."""

    settings: Settings  # complete
    verdict: str  # tuning.candidates.Verdict
    at_step: int
    step_ms: float | None = None
    against_ms: float | None = None  # the best before it
    reason: str = ""


class TuningRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """So far. `not_tuned`: why nothing is tried at all; all else says nothing then."""

    loader: str  # LoaderRecord.id; empty where none was chosen
    exact: bool
    not_tuned: str | None = None
    own: Settings = Settings()  # complete
    chosen: Settings | None = None  # None: the loader's own settings serve
    chosen_at_step: int | None = None  # of the loop
    proven: bool = False
    own_ms: tuple[float, float, float] | None = None  # mean and interval; None: too few windows
    chosen_ms: tuple[float, float, float] | None = None
    n_steps: int = 0  # since tuning began
    lost_steps: float = 0.0
    saved_s: float = 0.0
    draws: bool = False  # samples are made with other random draws than untuned
    tried: tuple[TriedRecord, ...] = ()


# Durations are counted in bins of equal ratio: a distribution over weeks in constant memory, of
# which a quantile is known to 9 %, whatever it is. Adding two is adding their counts.
PER_OCTAVE = 8
N_BINS = 45 * PER_OCTAVE  # 2**45 ns: nine hours


class LogBins:
    """One distribution that grows."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * N_BINS

    def add(self, counts: Mapping[int, int]) -> None:
        """Add what `stretch.counted` told. Raises IndexError for a bin that does not exist."""
        for bin_, n in counts.items():
            self.counts[bin_] += n

    @property
    def n(self) -> int:
        return sum(self.counts)

    def quantile_ns(self, q: float) -> float | None:
        """The duration that a share `q` (0…1) of them stays below, within 9 %; None without any."""
        n = self.n
        if not n:
            return None
        bin_ = bisect_left(list(accumulate(self.counts)), max(1.0, q * n))
        return float(2.0 ** ((bin_ + 0.5) / PER_OCTAVE))
