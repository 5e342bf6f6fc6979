"""Work on the CPU: batches made in workers or in the loop's own process, and the loop's own work.

The latter: of a trace's exposed host time, told from launching and from waiting; and by line, as
stack samples of windows without the profiler saw it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from loaderdoctor.estimate import Estimate, binomial_interval
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.facts.trace import HostHotspot, TraceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The innermost Python function of stack samples: the line's own, or what it had called."""

    file: str
    function: str
    n_stack_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineHotspot:
    """A line of the user's code inside dataset, collate or sampler, and how often it was seen."""

    file: str
    line: int
    function: str
    code: str | None
    n_stack_samples: int
    of_stack_samples: int  # in the same phase, at all lines, those left out here too
    # Stacks are sampled where the interpreter is let go, which collating does more than most
    # datasets: so each phase counts for its measured time, and stack samples only say how that is
    # spread.
    phase: Literal["fetch", "collate", "sampler"] = "fetch"
    phase_share: float = 1.0  # of the time that all phases of a batch take
    leaves: tuple[Leaf, ...] = ()  # those most seen first

    @property
    def share(self) -> float:
        """Of making a batch; an estimate, whose noise `share_ci` tells."""
        return self.phase_share * self.n_stack_samples / self.of_stack_samples

    @property
    def share_ci(self) -> tuple[float, float]:
        """95 % interval of the share."""
        low, high = binomial_interval(self.n_stack_samples, self.of_stack_samples)
        return self.phase_share * low, self.phase_share * high


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFacts:
    """What workers read for a batch, by the system's count; not what sockets or mappings bring."""

    bytes_per_batch: float
    calls_per_batch: float
    disk_share: float  # of these bytes, what the page cache did not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """A pool of workers as readers: how many read at once, and what each batch waited."""

    busy: float  # workers that were making a batch, by the mean
    wait_ms: Estimate  # of making a batch, for something else than a CPU
    batches_per_s: float  # of all of them together


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreReaders:
    """What few readers got, in plain windows, and what more of them got in a trial."""

    few: Readers
    many: Readers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What happened where one loader's batches are made: in workers, or in the loop's own process.

    Nothing of other loaders is in it, even of those over the same dataset object.
    """

    n_workers: int
    n_batches: int
    batch_ms: float  # fetch + collate, mean over whole worker cycles
    fetch_ms: float  # samples only
    collate_ms: float | None
    sampler_ms: float | None  # per batch, in the main process
    cpu_share: float | None  # CPU time / wall time while making a batch
    sample_ms_quantiles: tuple[float, ...] | None  # 0, 5, 25, 50, 75, 95, 99, 100 %
    n_samples: int
    queue_put_ms: float | None
    idle_share: float | None  # waiting for an index, of the workers' lives in the window
    n_idle_workers: int  # made no batch while others did
    n_threads: int | None  # intra-op and BLAS threads a worker would use
    cores: tuple[tuple[int, ...], ...]  # CPU affinity of each worker
    head_of_line_ms: float | None  # per step: ready batches waited behind an earlier one
    pin_ms: float | None  # pin-memory thread, per batch
    pin_busy_share: float | None
    transforms: tuple[tuple[str, float], ...]  # each transform of a Compose: ms per sample
    lines: tuple[LineHotspot, ...]
    first_touch_ratio: float | None  # sample time in the first epoch / later ones
    first_touch_ms: float | None = None  # a sample touched for the first time
    # Of a worker's life, ready to run and no CPU free: it waits for a CPU, not for storage.
    run_wait_share: float | None = None
    loader: str | None = None  # LoaderRecord.id; None: the records do not say
    # In the loop's `__next__`, per batch, once it was ready: receiving, unpickling, mapping it, and
    # asking for the next. None: no workers, or their deliveries were not recorded.
    receive_ms: float | None = None
    # As `idle_share`, of the worker that was idle least; None: as there, or not told apart.
    least_idle_share: float | None = None
    # Of the loop's waits, the part in which the batch it waits for was being made; None: as there.
    unready_share: float | None = None
    reads: ReadFacts | None = None  # None: no workers, or the system does not count
    # Of making a batch, Python's garbage collector in the worker; how many full ones a batch.
    collecting_ms: float | None = None  # None: no workers, or not recorded
    full_collections: float | None = None

    @property
    def all_idle_share(self) -> float | None:
        """What every one of them was idle at least: the loop waits for the busiest."""
        return self.idle_share if self.least_idle_share is None else self.least_idle_share

    @property
    def most_queued_share(self) -> float | None:
        """Of making a batch, no CPU was free, if it was never so while the worker was idle."""
        if self.run_wait_share is None or self.cpu_share is None or self.idle_share is None:
            return self.run_wait_share
        making = max(1.0 - self.idle_share, self.run_wait_share)
        queued = self.run_wait_share / making if making > 0 else 0.0
        return min(queued, max(0.0, 1.0 - self.cpu_share))

    @property
    def waiting_share(self) -> float | None:
        """Of making a batch, waiting for something else than a CPU: storage, a network, a lock."""
        if self.cpu_share is None:
            return None
        return max(0.0, 1.0 - self.cpu_share - (self.run_wait_share or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeFacts:
    """A pool of workers without time to spare, whether the loop already waits for it or not."""

    n_workers: int  # that make batches
    busy_share: float
    supply_ms: float  # time between batches of the pool, by the mean
    rest_ms: float  # the step without its loader: what there is for a batch
    n_waits: int
    n_long_waits: int
    longest_wait_ms: float | None  # None: there was no long one


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthFacts:
    """Workers that lived through several windows; means per worker."""

    n_workers: int
    first_bytes: float
    last_bytes: float
    n_samples: float  # that one made between these two looks
    took_s: float
    late_part: float  # of the growth, what came in the later half of these samples: 0.5 if steady
    # Containers of the dataset that became longer in a worker: path, entries at first and last.
    grown: tuple[tuple[str, int, int], ...] = ()
    # By how much more malloc held free in a worker at last, as the worker told it; None: not told.
    heap_freed_bytes: float | None = None

    @property
    def grew_bytes(self) -> float:
        """Between the first and the last look."""
        return self.last_bytes - self.first_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemoryFacts:
    """Pages that no other process has, of the loop's own workers."""

    n_workers: int  # at the last look
    worker_bytes: int  # the most that one of them was seen to have
    growth: GrowthFacts | None = None  # None: none lived long enough to tell


# Host time per launch that the profiled ones of `traces/` take (55-112 µs a kernel, H100): host
# work inside ops and between two of them is launching up to this.
LAUNCH_ALLOWANCE_US = 120.0
# Python between two ops takes microseconds; half a millisecond in one place is work.
MIN_HOTSPOT_MS = 0.5

# Between two ops lie tens of microseconds of Python where they are launched one after another, up
# to some hundred where a module's own code is long: ten times that in one place, once a step or
# twice, is no launching. In traces of an H100 and an H200 a loop with such work is silent for
# 6.7 ms once a step; loops without for 0.63 ms at most (0.02 to 0.39 where each step has one), but
# for the autograd thread's wait of up to 1.63 ms, which ends at the optimizer and does not count.
MIN_SILENCE_MS = 1.0
MAX_SILENCES_PER_STEP = 2.0
# Silences of this length occur where a loop only launches (up to 0.39 ms where each step has one):
# beyond it they need not be the profiler's, nor launching.
LONGER_SILENCE_MS = 0.3

# Silences that come once a step; `aten::ones_like` begins the backward pass, whose ops run on
# autograd's own thread.
_BACKWARD = ("backward", "Python between aten::ones_like and ", "autograd::")
# Between two of its nodes nothing of the loop's own runs; silence is a wait for the GIL or a CPU.
_WITHIN_BACKWARD = re.compile(r"Python between autograd::.* and autograd::")
_ONCE_A_STEP = re.compile(r"the fetch|\.step\b|\.zero_grad\b|outside any op")
_WAITING = ("cuda", "hip", "ProfilerStep", "Optimizer.")
# What a place of the loop does, told from what it calls.
What = Literal[
    "item",
    "to-host",
    "sync",
    "save",
    "print",
    "tracking",
    "metrics",
    "plot",
    "table",
    "deepcopy",
    "sleep",
    "files",
    "network",
    "process",
    "collect",
    "image",
    "text",
    "numpy",
    "library",
    "elements",
]

# With an accelerator these wait for what it has yet to compute.
WAITS: tuple[What, ...] = ("item", "to-host", "sync")


def work_between(trace: TraceFacts | None) -> tuple[float, HostHotspot | None]:
    """Exposed host work that is not launching, ms a step of the trace, and its largest place.

    A silence that comes once a step, or an annotation of the user's, counts as it is. A frame of
    the user's code and an op hold launches too: they count beyond what launching takes. Up to
    `freeing_ms` of it may be freeing batches.
    """
    if trace is None or trace.wall_ms <= 0:
        return 0.0, None
    smallest_ms = max(MIN_HOTSPOT_MS, MODERATE_SHARE * trace.wall_ms)
    named = trace.host.hotspots
    hotspots = [x for x in named if x.ms_per_step >= smallest_ms and not _is_waiting(x)]
    sure = [x for x in hotspots if not _holds_launches(x)]
    mixed = [x for x in hotspots if _holds_launches(x)]
    launching_ms = trace.kernels.n_calls_per_step * LAUNCH_ALLOWANCE_US / 1000
    beyond_ms = sum(x.ms_per_step for x in mixed) - launching_ms
    if beyond_ms < smallest_ms:
        mixed, beyond_ms = [], 0.0
    largest = max([*sure, *mixed], key=lambda x: x.ms_per_step, default=None)
    return sum(x.ms_per_step for x in sure) + beyond_ms, largest


# Reading a batch's memory for the first time takes so much of what freeing it takes, at most: of an
# H100 and an H200 0.03 to 0.09 ms a MB, by what copies took beside what ready batches' take in
# separate runs, and 0.18 to 0.24 (`traces/`).
MAPPING_PART_MOST = 0.45


def batch_memory_ms(trace: TraceFacts) -> tuple[float, float]:
    """What new memory of batches may cost a step, at most: freed (exposed), and first read.

    The first read lies within the copies from pageable memory, of which it is no more than half.
    """
    pageable_ms = sum(c.busy_ms_per_step for c in trace.copies if c.source == "pageable")
    mapped_ms = MAPPING_PART_MOST * trace.host.all_freeing_ms
    return trace.host.freeing_ms, min(mapped_ms, pageable_ms / 2)


def longer_silences_ms(trace: TraceFacts) -> float:
    """Exposed host time, ms a step, that may be none of launching: all but ops one after another.

    Frames and annotations of the user's, and silences longer than any between two launches.
    """
    total = 0.0
    for x in trace.host.hotspots:
        n = x.n_per_step
        among_ops = "::" in x.name or x.name.startswith(_WAITING)
        if x.file is not None or not among_ops or (n and x.ms_per_step / n >= LONGER_SILENCE_MS):
            total += 0.0 if _is_waiting(x) else x.ms_per_step
    return total


def _is_waiting(hotspot: HostHotspot) -> bool:
    if hotspot.file is not None:
        return False
    return hotspot.name.startswith((*_BACKWARD, *_WAITING)) or bool(
        _WITHIN_BACKWARD.match(hotspot.name)
    )


def _holds_launches(hotspot: HostHotspot) -> bool:
    if hotspot.file is not None:
        return True
    if "::" not in hotspot.name:
        return False
    if "Python" in hotspot.name and _ONCE_A_STEP.search(hotspot.name):
        return False
    return not _long_silence(hotspot)


def _long_silence(hotspot: HostHotspot) -> bool:
    """Whether it comes no more than once a step or two, and each time as long as many launches."""
    n = hotspot.n_per_step
    if n is None or n <= 0 or n > MAX_SILENCES_PER_STEP:
        return False
    return hotspot.ms_per_step / n >= MIN_SILENCE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """A line of the user's code."""

    file: str
    line: int
    function: str
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlace:
    """Samples of the loop's own work that have a line, a function or a library in common."""

    named: Literal["line", "function", "library"]  # what they have in common
    at: CodeLine  # the line of it that most of them are at
    called_from: CodeLine  # the line of the loop that leads there, most often; may be the same
    what: What
    calls: str | None  # what most of them call: "copy.deepcopy", "frame.iloc[]"
    library: str | None  # the package it is of
    n_samples: int
    of_samples: int  # all within steps, waiting for batches included
    low_share: float  # lower 95 % bound of n_samples / of_samples
    # In operators of torch that the same function of the loop's calls: element by element, where
    # the function is mostly such calls.
    n_operators: int = 0
    between: tuple[str, str] | None = None  # what of the step lies before and behind it

    @property
    def share(self) -> float:
        """Of the step, 0…1; hidden behind the accelerator or not."""
        return self.n_samples / self.of_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLineFacts:
    """Where the training thread was, in samples; shares are of those within steps."""

    n_samples: int
    own_share: float  # the loop's own work: neither fetching, nor the model, nor torch's operators
    own_low_share: float  # its lower 95 % bound
    waiting_share: float  # reading values that the accelerator has yet to compute
    operator_share: float  # torch's operators that the loop itself calls: loss, preprocessing
    places: tuple[LoopPlace, ...]  # of own work, costliest first
    waits: tuple[LoopPlace, ...] = ()  # of such reading
    outside: tuple[LoopPlace, ...] = ()  # of what runs between epochs; shares are of all of that
    outside_share: float = 0.0  # of all samples, within steps and between epochs
