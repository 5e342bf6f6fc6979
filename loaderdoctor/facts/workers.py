"""What happened where batches are made, in workers or in the loop's own process; their memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loaderdoctor.estimate import Estimate, binomial_interval


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
