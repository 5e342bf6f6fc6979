"""The loop as windows without the profiler measured it: its step, its ablation, its machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.host import MoreReaders
from loaderdoctor.instrument.wire.records import Allocator

# A pace counts as another from this much on: several times the noise of window means (about 2 %).
UNLIKE_SHARE = 0.15
# The training thread takes this part of the faults that reading a whole batch takes, or another
# thread reads it. `benchmarks/page_faults.py`, batches of 64 MiB: 1025 a step where the loop reads
# them (a fault maps 16 pages), 2 where it never does.
MIN_MAPPED_PART = 0.5
Limit = Literal["power", "heat", "board"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """Who used the CPUs during plain windows, besides the run itself, and who waited for one."""

    other_cores: float | None  # usable CPUs that other programs kept busy on average
    waiting_threads: float | None  # of the training process, ready with no CPU free, on average
    train_wait_share: float | None  # of the time of the thread that trains
    throttled_share: float | None  # periods in which a quota held the run back; None: no quota


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionFacts:
    """Python's garbage collector in plain windows; while it works, the loop stands still."""

    n: int  # collections of all generations
    n_full: int
    n_steps: int
    ms_per_step: float
    low_ms_per_step: float  # lower bound: pauses as rare as these come together by chance
    full_ms_per_step: float  # of it
    asked_ms_per_step: float  # of it, full ones that a line of code asks for: gc.collect()
    longest_ms: float | None  # of full ones; None: there was none
    n_longer_than_step: int  # full ones that took longer than the median step
    site: str | None = None  # the line that asks for most of it: "train.py:57"
    code: str | None = None
    library: str | None = None  # the package whose line that is
    n_epoch_ends: int = 0  # in these windows


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFacts:
    """Code that torch.compile made in plain windows, long after the loop was warm."""

    n: int  # pieces of it
    n_steps: int
    ms_per_step: float
    reason: str | None  # what did not fit before, in torch's words
    function: str | None  # of the user's, "forward (model.py:12)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The step in plain windows: the figures that rank and judge."""

    definition: str
    wall_ms: Estimate  # within_epoch + boundary / steps_per_epoch
    within_epoch_ms: Estimate
    boundary_ms: float | None  # one epoch boundary
    steps_per_epoch: int | None
    n_steps: int
    raw_wait_ms: float | None  # in __next__ per step, plain windows
    waits_ms: tuple[float, ...]
    samples_per_step: float | None
    clock: Literal["device", "host"]
    n_iterators_created: int  # in these windows, of the loader of the step that made most
    worker_cpu_cores: float | None  # worker CPU time / wall
    main_cpu_cores: float | None
    # Of torch's allocator in the first window (recorded to its end, a run's peaks up to then).
    gpu_peak_allocated_bytes: int | None = None
    gpu_peak_reserved_bytes: int | None = None
    # Of `boundary_ms`, what is the loader's: its iterator, workers' start and end, the first batch.
    # The rest is the loop's own work between epochs. None: not told apart.
    loader_boundary_ms: float | None = None
    # Getting batches, a step: waits and the loader's boundary. Without what other programs made the
    # thread wait for a CPU meanwhile, once that is told apart (`attribution.cpu`).
    input_ms: float | None = None
    queued_ms: float | None = None  # of it, the thread stood ready and no CPU was free
    input_low_ms: float | None = None  # so much of it is the loader's at least; None: all of it
    neighbours_ms: float | None = None  # what was taken out of it
    windows_ms: tuple[float, ...] = ()  # mean step within the epoch, of each window in order
    most_iterators_of: str | None = None  # that loader: LoaderRecord.id
    rebuilt: frozenset[str] = frozenset()  # loaders of the step that are built anew for each epoch
    changed: str | None = None  # what of their datasets the loop changes between passes
    cpu: CpuFacts | None = None
    compiling: CompileFacts | None = None  # None: nothing was compiled
    collecting: CollectionFacts | None = None  # None: no garbage collection was recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class NewShapeFacts:
    """Batches made ahead of windows, as new as the loader's own, and the same batches again."""

    new_part: float  # of them, those whose shape the loop had not been given before, 0…1
    # A step with them less one with the same again, paired by round, and what part of a step with
    # them that is: the loop's pace differs more from window to window. None: not measured.
    cost_ms: Estimate | None
    cost_share: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideFacts:
    """What the run pays for outside its training steps, of one kind and place."""

    # "training": steps on another loader than the one whose steps were measured; "gradients": a
    # pass with backward passes and no optimizer's step.
    what: Literal["training", "gradients", "validation", "saving", "other"]
    site: str | None  # LoaderRecord.id of the pass's loader; where saving is called
    seconds: float  # one pass, one save, or the rest behind one step
    n: int  # seen
    every_steps: float | None  # training steps from one to the next; None: seen too rarely to know
    at_epoch_end: bool = False
    in_steps: bool = False  # every step holds some: the step's own time has it already
    wait_share: float | None = None  # of a pass, getting its batches
    n_batches: float | None = None  # in a pass
    with_grad: bool = False  # gradients were enabled although nothing was trained

    @property
    def ms_per_step(self) -> float | None:
        """Spread over the training steps; None where its period is not known."""
        return self.seconds * 1000 / self.every_steps if self.every_steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WallFacts:
    """All of the run's time, spread over its training steps."""

    step_ms: float  # StepFacts.wall_ms: within the epoch, and the loader's boundaries
    outside: tuple[OutsideFacts, ...]  # the largest first; those of unknown period last
    n_steps: int  # that were watched
    # Passes of the same run that train on other loaders: in none of the sums here.
    elsewhere: tuple[OutsideFacts, ...] = ()

    @property
    def outside_ms(self) -> float:
        """Outside the steps, a training step, as far as it is known."""
        return sum(part.ms_per_step or 0.0 for part in self.outside)

    @property
    def total_ms(self) -> float:
        """All of the time, a training step."""
        return self.step_ms + sum(p.ms_per_step or 0.0 for p in self.outside if not p.in_steps)

    @property
    def elsewhere_ms(self) -> float:
        """Training on other loaders, a step on this one, as far as it is known."""
        return sum(p.ms_per_step or 0.0 for p in self.elsewhere if not p.in_steps)

    @property
    def elsewhere_wait_ms(self) -> float:
        """Of it, getting batches."""
        return sum(
            (p.ms_per_step or 0.0) * (p.wait_share or 0.0) for p in self.elsewhere if not p.in_steps
        )

    @property
    def seen_again(self) -> WallFacts:
        """Without training elsewhere that was seen once: how often that comes is not known."""
        return replace(self, elsewhere=tuple(p for p in self.elsewhere if p.n > 1))

    def waits_share(self, input_share: float) -> float:
        """Getting batches here, where it is `input_share` of a step, and elsewhere, of it all."""
        waits_ms = input_share * self.step_ms + self.elsewhere_wait_ms
        return waits_ms / (self.total_ms + self.elsewhere_ms)

    @property
    def own_ms(self) -> float:
        """The steps alone."""
        return self.total_ms - self.outside_ms

    @property
    def outside_share(self) -> float:
        """Of all the time, 0…1."""
        return self.outside_ms / self.total_ms if self.total_ms > 0 else 0.0

    @property
    def low_share(self) -> float:
        """Of it, what was seen more than once."""
        seen = sum(p.ms_per_step or 0.0 for p in self.outside if p.n > 1)
        return seen / self.total_ms if self.total_ms > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """Memory of batches that workers hand over: mapped by page faults, freed when dropped."""

    batch_bytes: int
    faults_per_batch: int  # minor faults of a batch's first read
    touch_ms: float  # a batch's first read of each page, beyond what reading it again takes
    release_ms: float  # dropping a batch
    # Minor faults of the thread that trains, a step: median of rounds, and of the differences to
    # steps with ready batches.
    faults_per_step: float
    extra_faults_per_step: float

    @property
    def part(self) -> float:
        """How much of each batch the training thread is the first to read, 0…1."""
        if self.faults_per_batch <= 0:
            return 0.0
        return min(1.0, max(0.0, self.extra_faults_per_step / self.faults_per_batch))

    @property
    def mapping_ms(self) -> float:
        """What a step pays to map its batch and to free it; 0 where another thread reads it."""
        if self.part < MIN_MAPPED_PART:
            return 0.0
        return self.part * (self.touch_ms + self.release_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """By what a loader was seen to hold the step up, milliseconds a step: the most each can carry.

    Made by `attribution.mechanisms`, which holds the definitions. None: not recorded.
    """

    wait_ms: Estimate | None  # getting batches, plain windows; `boundary_ms` included
    boundary_ms: float = 0.0  # the loader's part of an epoch's boundary, spread over its steps
    got_ms: Estimate | None = None  # of it, CPU time of the thread: receiving, or making, a batch
    queued_ms: Estimate | None = None  # of it, the thread stood ready and no CPU was free
    unqueued_ms: Estimate | None = None  # the wait without that
    parted: bool = False  # `wait_ms` is without what other programs kept a CPU from
    # Every wait is the step's: no accelerator, and the training thread itself gets the batches.
    exposed: bool
    # Plain less ready windows, round by round: noise has either sign.
    run_queue_ms: Estimate | None  # threads of the training process ready, and no CPU free
    cpu_ms: Estimate | None  # CPU time of the training thread outside getting batches
    interpreter_ms: Estimate | None  # what other threads of the process may have held it for
    mapping_ms: float = 0.0  # mapping the memory of batches and letting it go
    # CPU time of the loader: its workers, fetches, other threads. It takes no more from the loop.
    work_ms: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationFacts:
    """Plain against substituted batches, same process, interleaved; milliseconds a step.

    Signed differences as measured, until `attribution.claims` has bounded them by what was seen to
    carry them: then 0…step, and `raw` is the ablation as measured.
    """

    plain_ms: Estimate
    no_input_ms: Estimate | None
    no_copy_ms: Estimate | None
    input_ms: Estimate | None  # plain - no_input, paired by round
    copy_ms: Estimate | None  # no_input - no_copy
    n_rounds: int
    reason: str | None = None  # why a part is missing
    by_loader_ms: tuple[tuple[str, Estimate], ...] = ()  # each loader alone, where several
    # Of input_ms, what other processes may account for, since the CPUs were full; else None.
    contended_ms: float | None = None
    main_cpu_ms: float | None = None  # of the training process, a step with ready batches
    pages: PageFacts | None = None  # None: no batch was thrown away, or faults are not counted
    # Minor faults of the thread that trains, a step with ready batches; None: not counted.
    synthetic_faults_per_step: float | None = None
    shed_faults_per_step: float | None = None  # of the first window, and gone since; None: not so
    mechanisms: Mechanisms | None = None  # None: not looked for
    # Of the waits for batches, what other programs kept a CPU from; None: nothing, or not told.
    neighbours_ms: float | None = None
    raw: AblationFacts | None = None
    new_shapes: NewShapeFacts | None = None  # None: batches are alike, and were repeated

    def share(self, part: str) -> Estimate | None:
        """What input or copy takes of the step; None where that has no interval, as other parts."""
        of_step = {"input": self.input_ms, "copy": self.copy_ms}.get(part)
        if of_step is None or not of_step.bounded or self.plain_ms.value <= 0:
            return None
        return of_step.scaled(1.0 / self.plain_ms.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTrial:
    """The loop with another number of intra-op threads, measured next to plain windows."""

    n_threads: int
    step_ms: Estimate
    gain_ms: Estimate  # plain - this, paired by round
    decided: bool  # enough was seen to say that it helps, or that it was not shown to


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTrial:
    """The loop with another number of workers, measured next to plain windows."""

    num_workers: int
    own_ms: float  # a step of the loop as it is in the same rounds
    step_ms: Estimate
    gain_ms: Estimate  # plain - this, paired by round
    spans_ns: tuple[tuple[int, int], ...] = ()  # begin and end of its windows
    readers: MoreReaders | None = None  # None: workers' records do not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTrials:
    """What trials said of the loop that findings rest on; empty: not tried, or not yet."""

    threads: tuple[ThreadTrial, ...] = ()
    pools: tuple[PoolTrial, ...] = ()


NO_TRIALS = LoopTrials()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What the machine offers."""

    usable_cpus: float
    memory_available_bytes: int | None
    shm_free_bytes: int | None
    open_files_limit: int | None
    device_name: str | None
    device_memory_bytes: int | None
    n_threads: int | None  # intra-op threads of the training process
    swap_used_bytes: int | None = None
    start_method: str | None = None  # of worker processes, where a loader names none
    cudnn_benchmark: bool | None = None
    tf32: bool | None = None
    allocator: Allocator | None = None
    fault_us: float | None = None  # CPU time of a page fault of anonymous memory
    n_local_ranks: int | None = None  # ranks of the job on this machine; None: one

    @property
    def ranks_here(self) -> int:
        """Processes that train next to one another, this one included."""
        return max(1, self.n_local_ranks or 1)

    @property
    def cpus_per_rank(self) -> float:
        """Each rank's part of the usable CPUs: what one rank is advised, all of them do."""
        return self.usable_cpus / self.ranks_here

    @property
    def memory_per_rank(self) -> int | None:
        """Each rank's part of the memory available; None where that is not known."""
        available = self.memory_available_bytes
        return available // self.ranks_here if available is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """One whole epoch, from its first batch to the last worker's end."""

    batches: tuple[int, ...]  # that each worker made, by worker
    ended_s: tuple[float, ...]  # when each had no more, from the epoch's begin
    epoch_s: float
    n_epochs: int = 1  # seen whole; this is the one with the median loss

    @property
    def lost_share(self) -> float:
        """Of the workers' time, what was idle because their data had come to its end.

        With batches dealt out evenly the epoch would be shorter by as much, where it waits for the
        workers.
        """
        idle = sum(self.epoch_s - at_s for at_s in self.ended_s)
        return idle / (len(self.ended_s) * self.epoch_s)

    def left_at(self, share: float) -> int:
        """Workers that still had data after this share of the epoch."""
        return sum(at_s >= share * self.epoch_s for at_s in self.ended_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitFacts:
    """The limit that held longest. Shares of the windows' time, 0…1."""

    limit: Limit
    share: float
    sm_mhz: float  # median of what was seen at the ends of windows
    max_sm_mhz: float
    temperature_c: float | None
    limit_w: float | None
    max_limit_w: float | None
    default_limit_w: float | None = None  # as it left the factory

    @property
    def slowed_share(self) -> float:
        """What a kernel bound by the clock would take less of its time at the highest clock."""
        return max(0.0, 1.0 - self.sm_mhz / self.max_sm_mhz)

    @property
    def limit_lowered(self) -> bool:
        """Whether the power limit is below the factory's; False where that is not known.

        The most that may be set says nothing of it: many boards may be set above their default.
        """
        if self.limit_w is None or self.default_limit_w is None:
            return False
        return self.limit_w < 0.98 * self.default_limit_w
