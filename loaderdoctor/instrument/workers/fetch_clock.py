"""Times a DataLoader's fetcher from the inside without putting a frame on the user's stack.

torch's fetcher does `[dataset[i] for i in indices]` and then `self.collate_fn(data)`. Two things
are therefore enough. The list of indices is handed over as a list that notes the time whenever it
is asked for the next index: those are the samples. And reading `collate_fn` off the fetcher notes
the time: there the samples end and collating begins. The dataset, the collate function, what
they see, and the text of any traceback stay exactly as they are.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch.utils.data import Subset
from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data.dataloader import _DatasetKind

from loaderdoctor.instrument.wire.record_file import BATCH, Outcome
from loaderdoctor.instrument.workers.user_code import EVERY_N_SAMPLES, TransformProbe

CLOCK_KEY: Final = "_loaderdoctor_clock"

# One batch in 127 at least, a prime: with a period that an epoch's batches are a multiple of, the
# same few samples would be timed again and again. At one in 512, the 20 us batches of an epoch
# behind a cold one were timed too rarely for a short run to tell that the first had been slow.
MAX_BATCHES_SKIPPED: Final = 126
# A fetcher's first samples are all timed, however short: 26 µs at most. Each epoch begins a new one
# (persistent workers aside), so of small batches in the dataset's order nothing but the same first
# four samples was seen again, and no epoch after a cold one could be told from it.
FIRST_SAMPLES: Final = 32

# What recording the making of batches may cost, as shares of the time they take.
#
# What can be done now and then is done so often that it takes these shares. With what every batch
# pays (hooks and a record: 6 µs one after another, 40 where a batch has left caches cold) they make
# 0.9 % of batches of 7 ms (docs/accuracy.md). Costs are CPU time on two virtual CPUs.
# `benchmarks/worker_overhead.py --parts` shows what recording costs without each part.

# Noting one sample costs 0.4 µs, on a busy machine 0.8 µs. Where samples are so short that this
# would exceed the share, only one batch in so many has its samples timed.
STAMP_NS: Final = 800
MAX_STAMP_SHARE: Final = 0.001

# Four readings of CPU clocks a batch are system calls: 8 µs in a virtual machine, 20 where a batch
# of 7 ms has left caches cold. Where they would exceed the share, they are read in one batch of so
# many, and the others get the same CPU time for each of their nanoseconds.
CPU_READS_NS: Final = 20_000
MAX_CPU_READ_SHARE: Final = 0.0005

# A stack sample costs its own thread 200 to 280 µs of CPU (half of it to sleep and wake, in a
# virtual machine) and the watched one, for handing over and for its caches, 143 µs in the median of
# a wide range (quartiles -118 and 705): it is taken to cost as much as the sampling. The interval
# grows until both take no more than the share.
BOTH_OVER_OWN: Final = 2
MAX_SAMPLING_SHARE: Final = 0.002


class _TimedIndices(list[Any]):
    """The indices of one batch; iterating notes the time before each and after the last."""

    stamps: array[int]
    probe: TransformProbe | None

    def __iter__(self) -> Iterator[Any]:
        note, now, probe = self.stamps.append, time.perf_counter_ns, self.probe
        if probe is None:
            for index in list.__iter__(self):
                note(now())
                yield index
        else:
            until_next = probe.samples_until_next
            for index in list.__iter__(self):
                if until_next:
                    until_next -= 1
                    note(now())
                    yield index
                    continue
                until_next = EVERY_N_SAMPLES - 1
                probe.arm()
                try:
                    note(now())
                    yield index
                finally:
                    probe.disarm()
            probe.samples_until_next = until_next
        note(now())

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(list.__iter__(self)),))


class FetchClock:
    """The times of the batch that one fetcher is making, in the thread that makes it.

    After `begin`: `begin_ns`, then `collate_ns` (0 until samples are done), `stamps` (n + 1
    instants for n samples, empty where samples can't be told apart or are not timed this time),
    `indices` (empty where they are no integers) and `n_samples`.
    """

    __slots__ = (
        "_batched",
        "_batches_to_skip",
        "_n_first",
        "_per_sample",
        "begin_ns",
        "collate_ns",
        "in_batch",
        "indices",
        "n_samples",
        "probe",
        "stamps",
    )

    def __init__(self, fetcher: Any) -> None:
        self._batched = bool(fetcher.auto_collation)
        self._per_sample = _fetches_one_by_one(fetcher)
        self._batches_to_skip = 0
        self._n_first = FIRST_SAMPLES  # still to be timed
        self.probe = TransformProbe.of(fetcher.dataset)
        self.begin_ns = 0
        self.collate_ns = 0
        self.in_batch = False
        self.stamps: array[int] = array("q")
        self.indices: array[int] = array("q")
        self.n_samples = 0

    def begin(self, index: Any) -> Any:
        """A batch begins; returns the indices to hand to the fetcher in place of `index`."""
        self.in_batch = True
        self.collate_ns = 0
        self.stamps = array("q")
        self.indices = array("q")
        if type(index) is not list:
            # Batch samplers may give tuples or arrays; without batches these are a sample's key.
            self.n_samples = len(index) if self._batched and hasattr(index, "__len__") else 1
        else:
            self.n_samples = len(index)
            if self._per_sample and not self._batches_to_skip:
                # Not integers: an IterableDataset's `None`s, or keys of the user's own.
                try:  # noqa: SIM105  # contextlib.suppress costs half a microsecond a batch
                    self.indices = array("q", index)
                except (TypeError, OverflowError):
                    pass
                timed = _TimedIndices(index)
                timed.stamps = self.stamps
                timed.probe = self.probe
                self.begin_ns = time.perf_counter_ns()
                return timed
        self._batches_to_skip = max(0, self._batches_to_skip - 1)
        if self.probe is not None:
            self._probe_whole_batch(self.probe)
        self.begin_ns = time.perf_counter_ns()
        return index

    def end(self) -> None:
        self.in_batch = False
        if self.probe is not None:
            self.probe.disarm()
        if len(self.stamps) > 1:
            sample_ns = max(1.0, (self.stamps[-1] - self.stamps[0]) / (len(self.stamps) - 1))
            one_in = math.ceil(STAMP_NS / (sample_ns * MAX_STAMP_SHARE))
            self._n_first -= len(self.stamps) - 1
            if self._n_first <= 0:
                self._batches_to_skip = min(one_in - 1, MAX_BATCHES_SKIPPED)

    def _probe_whole_batch(self, probe: TransformProbe) -> None:
        """Where samples can't be told apart, one batch in eight is probed as a whole."""
        if probe.samples_until_next:
            probe.samples_until_next -= 1
        else:
            probe.samples_until_next = EVERY_N_SAMPLES - 1
            probe.arm()


def pack_batch(
    serial: int,
    epoch: int,
    idx: int,
    worker: int,
    outcome: Outcome,
    wait_ns: int,
    begin_ns: int,
    end_ns: int,
    thread_cpu_ns: int,
    process_cpu_ns: int,
    clock: FetchClock | None,
) -> bytes:
    """The payload of a BATCH record."""
    collate_ns = n_samples = n_stamps = n_indices = 0
    if clock is not None:
        collate_ns, n_samples = clock.collate_ns, clock.n_samples
        n_stamps, n_indices = len(clock.stamps), len(clock.indices)
    head = BATCH.pack(
        serial,
        epoch,
        idx,
        worker,
        outcome,
        n_samples,
        wait_ns,
        begin_ns,
        collate_ns,
        end_ns,
        thread_cpu_ns,
        process_cpu_ns,
        n_stamps,
        n_indices,
    )
    if clock is None:
        return head
    return head + clock.stamps.tobytes() + clock.indices.tobytes()


def _fetches_one_by_one(fetcher: Any) -> bool:
    """Whether torch's own code iterates the indices, making one sample for each."""
    if not fetcher.auto_collation:
        return False
    if type(fetcher) is torch_fetch._IterableDatasetFetcher:
        return True
    if type(fetcher) is not torch_fetch._MapDatasetFetcher:
        return False
    dataset = fetcher.dataset
    if not (hasattr(dataset, "__getitems__") and dataset.__getitems__):
        return True
    # Subset's own __getitems__ goes index by index unless what it wraps has one, too.
    return (
        isinstance(dataset, Subset)
        and type(dataset).__getitems__ is Subset.__getitems__
        and not callable(getattr(dataset.dataset, "__getitems__", None))
    )


class _CollateAccess:
    """Data descriptor on the fetcher class: reading `collate_fn` notes that samples are done."""

    def __get__(self, fetcher: Any, owner: type | None = None) -> Any:
        if fetcher is None:
            return self
        state = fetcher.__dict__
        clock = state.get(CLOCK_KEY)
        if clock is not None:
            clock.collate_ns = time.perf_counter_ns()
        try:
            return state["collate_fn"]
        except KeyError:
            raise AttributeError("collate_fn") from None

    def __set__(self, fetcher: Any, value: Any) -> None:
        fetcher.__dict__["collate_fn"] = value

    def __delete__(self, fetcher: Any) -> None:
        fetcher.__dict__.pop("collate_fn", None)


_KIND: Any = _DatasetKind  # Any: both get attributes their stubs don't know
_BASE: Any = torch_fetch._BaseDatasetFetcher


class _FetcherHooks:
    """What is patched in this process, so that it can be undone."""

    def __init__(self) -> None:
        self.on_create: Callable[[FetchClock, object], None] | None = None
        self.active = False
        self._depth = 0
        self._original: Any = None
        self._patched: Any = None

    def install(self, on_create: Callable[[FetchClock, object], None] | None) -> None:
        self.on_create = on_create
        self._depth = 0
        self.active = True
        if _DatasetKind.__dict__["create_fetcher"] is not self._patched:
            self._original = _DatasetKind.__dict__["create_fetcher"]
            self._patched = staticmethod(self._creating(_DatasetKind.create_fetcher))
            _KIND.create_fetcher = self._patched
        _BASE.collate_fn = _CollateAccess()

    def remove(self) -> None:
        self.active = False
        if self._patched is not None and _DatasetKind.__dict__["create_fetcher"] is self._patched:
            _KIND.create_fetcher = self._original
            self._original = self._patched = None
        if isinstance(torch_fetch._BaseDatasetFetcher.__dict__.get("collate_fn"), _CollateAccess):
            del _BASE.collate_fn

    def _creating(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return create(*args, **kwargs)
            self._depth += 1
            try:
                fetcher = create(*args, **kwargs)
            finally:
                self._depth -= 1
            try:
                clock = FetchClock(fetcher)
            except Exception:  # a dataset or fetcher of the user's own making: go without
                return fetcher
            fetcher.__dict__[CLOCK_KEY] = clock
            # A fetcher made while another is being made belongs to a loader inside a dataset.
            if self.on_create is not None and self._depth == 0:
                self.on_create(clock, fetcher.dataset)
            return fetcher

        return create_fetcher


_hooks = _FetcherHooks()
install_clocks = _hooks.install
remove_clocks = _hooks.remove
