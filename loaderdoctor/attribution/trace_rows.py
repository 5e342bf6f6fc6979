"""A trace's rows with what every later stage needs: who launched what, and which thread trains.

And what the names in it mean: each distinct name is read once, rows by table look-up. Spellings of
CUDA (CUPTI), ROCm (roctracer, rocprofiler) and XPU (Level Zero) are known; CUDA's were checked on
real traces, the others follow their profilers' sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.intervals import Intervals
from loaderdoctor.trace.columns import ABSENT, DEVICE_CATEGORIES, I64, Category, Spans, Trace

Mask = NDArray[np.bool_]
Index = NDArray[np.intp]
Flags = NDArray[np.bool_]

STEP_PREFIX = "ProfilerStep#"
FETCH_PREFIX = "enumerate(DataLoader)#"
OPTIMIZER_PREFIX = "Optimizer."
# Spans of our own instrument: what torch gives no span to.
OWN_CREATE = "loaderdoctor: create iterator"
OWN_SHUTDOWN = "loaderdoctor: shut down workers"
OWN_WAIT = "loaderdoctor: wait for batch"

# RCCL runs some collectives as MSCCL's (`mscclKernel_Sum_half_Simple_false`).
_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|msccl|oneccl", re.IGNORECASE)
_COMMUNICATION = re.compile(r"^(gloo:|mpi:|ucc:|nccl:|xccl:|c10d::)")
_H2D = re.compile(r"htod|h2d|mtod|m2d|host_?to_?device", re.IGNORECASE)
_D2H = re.compile(r"dtoh|d2h|dtom|d2m|device_?to_?host", re.IGNORECASE)
_D2D = re.compile(r"dtod|d2d|device_?to_?device", re.IGNORECASE)
_PINNED = re.compile(r"\(pinned ?->|h2d", re.IGNORECASE)
_PAGEABLE = re.compile(r"\(pageable ?->|m2d", re.IGNORECASE)
_LAUNCH = re.compile(r"LaunchKernel|KernelLaunch|GraphLaunch|LaunchCooperative", re.IGNORECASE)
_SYNC = re.compile(r"(Stream|Device|Event|Ctx|Context|Queue|List|Host)Synchronize", re.IGNORECASE)
# Calls of threads that pin or move batches.
_BATCH_CALL = re.compile(r"HostAlloc|HostMalloc|HostRegister|PointerGetAttribute|Memcpy", re.I)
# Frames of torch's own DataLoader, in traces with Python stacks: the exact extent of what is
# otherwise inferred. `__del__` shuts down the workers of a dropped iterator.
_LOADER_FRAME = re.compile(
    r"torch[/\\]utils[/\\]data[/\\]dataloader\.py\(\d+\): "
    r"(__iter__|__next__|__del__|_get_iterator|_shutdown_workers)$"
)

# The ops torch runs between `iter(loader)` and the first `__next__`: the iterator's base seed
# (`torch.empty(()).random_().item()` in `_BaseDataLoaderIter.__init__`), and, when workers are
# primed there, the sampler: RandomSampler draws a seed and `randperm(n).tolist()`, the weighted
# one `multinomial`. No training step consists of these alone.
LOADER_OPS = frozenset(
    "aten::" + op
    for op in (
        "empty",
        "random_",
        "item",
        "_local_scalar_dense",
        "randperm",
        "randint",
        "multinomial",
        "resolve_conj",
        "resolve_neg",
    )
)


@dataclass(frozen=True, kw_only=True)  # no slots: what several stages ask for is kept
class Rows:
    """Columns of a trace (ns, trace clock) with joins. Masks and indices refer to `spans`."""

    spans: Spans
    names: tuple[str, ...]
    flags: NameFlags
    of_category: tuple[Index, ...]  # rows of each Category, by its number
    device_rows: Index  # kernels, copies, memsets, by start
    launched_by: I64  # for each device row: its launching runtime row, or ABSENT
    training_thread: int  # index into Trace.threads; ABSENT where no host thread is recorded
    producer_threads: tuple[int, ...]  # host threads that make batches next to the training thread

    def named(self, flag: NDArray[np.bool_], *categories: Category) -> Mask:
        """Rows of these categories whose name carries the flag."""
        mask = np.zeros(len(self.spans), np.bool_)
        for category in categories:
            if flag[self.names_of_category[category]].any():
                rows = self.of_category[category]
                mask[rows] = flag[self.spans.name[rows]]
        return mask

    def intervals(self, rows: Mask | Index) -> Intervals:
        """When any of these rows runs."""
        return Intervals.of(self.spans.start_ns[rows], self.spans.end_ns[rows])

    def outermost(self, rows: Mask | Index) -> Index:
        """Those of these rows of one thread, in the trace's order, that lie in no other."""
        index: Index = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, np.intp)
        return index[outermost(self.spans.start_ns[index], self.spans.end_ns[index])]

    def on_training_thread(self) -> Mask:
        """Host rows of the training thread."""
        return np.asarray(self.spans.thread == self.training_thread)

    def by_producers(self) -> Mask:
        """Host rows of threads that make batches."""
        if not self.producer_threads:
            return np.zeros(len(self.spans), np.bool_)
        return np.isin(self.spans.thread, np.asarray(self.producer_threads, np.int32))

    # Not to be changed by who asks for them; a trace's reader takes no annotation for an op.

    @cached_property
    def fetches(self) -> Mask:
        """Spans of `__next__`."""
        return self.named(self.flags.fetch, Category.USER_ANNOTATION)

    @cached_property
    def optimizing(self) -> Mask:
        """An optimizer's spans."""
        return self.named(self.flags.optimizer, Category.USER_ANNOTATION)

    @cached_property
    def events(self) -> Mask:
        """Ops, runtime calls and an optimizer's spans."""
        ops = np.isin(self.spans.category, (Category.CPU_OP, Category.RUNTIME))
        return np.asarray(ops | self.optimizing)

    @cached_property
    def step_work(self) -> Mask:
        """Host rows that only a step's own work makes.

        Launches, optimizer spans, and the outermost ops, autograd's too, that are none of the
        loader's (whose own ops call others). Not what producers do next to the loop.
        """
        spans, flags = self.spans, self.flags
        work = self.named(flags.launch, Category.RUNTIME)
        work |= self.optimizing
        ops = self.of_category[Category.CPU_OP]
        thread = spans.thread[ops]
        not_loader = ~flags.loader_op
        for number in np.flatnonzero(np.bincount(thread)).tolist():
            if number not in self.producer_threads:
                mine = self.outermost(ops[thread == number])
                work[mine] = not_loader[spans.name[mine]]
        if self.producer_threads:
            work &= ~self.by_producers()
        return work

    @cached_property
    def names_of_category(self) -> tuple[Index, ...]:
        """Numbers of the names that occur in each Category, by its number."""
        return tuple(
            np.flatnonzero(np.bincount(self.spans.name[rows])) for rows in self.of_category
        )


# What only runs where there is an accelerator, by name: its libraries' operators, attention that
# the CPU has under another name, compiled kernels, collectives. Of Metal torch records no work.
_ON_DEVICE = re.compile(
    r"^(aten::(_?cudnn_(?!is_)|_?miopen_|_?mps_|_?(efficient|flash|cudnn)_attention_|_?pin_memory"
    r"|record_stream|convolution(_backward)?_overrideable)|(nccl|rccl|xccl):|triton_)"
)


def device_unseen(trace: Trace, rows: Rows, *, recorded_here: bool) -> bool:
    """Whether the loop has an accelerator, as far as is known, of whose work nothing was recorded.

    Known by calls that launch or copy, or operators that only one runs. Of what others recorded
    (not `recorded_here`) it counts as well where the machine has one and no call of it is there.
    """
    if trace.has_accelerator:
        return False
    calls = rows.names_of_category[Category.RUNTIME]
    ops = (rows.names[n] for n in rows.names_of_category[Category.CPU_OP].tolist())
    if (rows.flags.launch | rows.flags.batch_call)[calls].any() or any(map(_ON_DEVICE.match, ops)):
        return True
    return bool(trace.devices) and not calls.size and not recorded_here


def kernels_unseen(rows: Rows) -> bool:
    """Whether kernels were launched, and what else ran on the device was recorded without them.

    Copies alone look like an accelerator that idles: nothing of the step can be told by them.
    """
    if rows.of_category[Category.KERNEL].size or not rows.device_rows.size:
        return False
    return bool(rows.flags.launch[rows.names_of_category[Category.RUNTIME]].any())


def without_device_work(trace: Trace) -> Trace:
    """The trace as it would be had nothing been recorded of the device."""
    device = np.isin(trace.spans.category, np.asarray(DEVICE_CATEGORIES, np.int8))
    return replace(trace, spans=trace.spans.where(~device), kernel_shapes=None)


def rows_of(trace: Trace) -> Rows:
    """Join device rows to the calls that launched them and tell the threads apart."""
    spans, flags = trace.spans, name_flags(trace)
    of_category = tuple(np.flatnonzero(spans.category == number) for number in Category)
    device_rows = np.sort(np.concatenate([of_category[number] for number in DEVICE_CATEGORIES]))
    training = _training_thread(spans, flags, of_category)
    return Rows(
        spans=spans,
        names=trace.names,
        flags=flags,
        of_category=of_category,
        device_rows=device_rows,
        launched_by=_launching_rows(spans, device_rows),
        training_thread=training,
        producer_threads=_producer_threads(spans, flags, of_category, training),
    )


def outermost(start_ns: I64, end_ns: I64) -> Mask:
    """Which spans of one thread lie in no other (of equals, the first)."""
    if start_ns.size == 0:
        return np.zeros(0, np.bool_)
    step = np.diff(start_ns)
    if (step > 0).all():
        return _beyond_all_before(start_ns, end_ns)
    # Equal starts: the longer one is the outer one. What is in order already stays in its place.
    order = np.arange(start_ns.size)
    if (step >= 0).all():
        tied = np.zeros(start_ns.size, np.bool_)
        tied[1:] = tied_before = step == 0
        tied[:-1] |= tied_before
        moved = np.flatnonzero(tied)
    else:
        moved = order
    order[moved] = moved[np.lexsort((-end_ns[moved], start_ns[moved]))]
    outer = np.empty(order.size, np.bool_)
    outer[order] = _beyond_all_before(start_ns[order], end_ns[order])
    return outer


def _beyond_all_before(start_ns: I64, end_ns: I64) -> Mask:
    reach = np.maximum.accumulate(end_ns)
    return np.concatenate(([True], start_ns[1:] >= reach[:-1]))


def _launching_rows(spans: Spans, device_rows: Index) -> I64:
    """The runtime row with the same correlation id; one graph launch starts many kernels."""
    calls = np.flatnonzero((spans.category == Category.RUNTIME) & (spans.correlation != ABSENT))
    if calls.size == 0 or device_rows.size == 0:
        return np.full(device_rows.size, ABSENT, np.int64)
    calls = calls[np.argsort(spans.correlation[calls], kind="stable")]
    known = spans.correlation[calls]
    wanted = spans.correlation[device_rows]
    at = np.minimum(np.searchsorted(known, wanted), calls.size - 1)
    return np.where((known[at] == wanted) & (wanted != ABSENT), calls[at], ABSENT)


def _training_thread(spans: Spans, flags: NameFlags, of_category: tuple[Index, ...]) -> int:
    """The thread that carries the step marks, else optimizer steps, else most annotations and ops.

    Autograd's threads run more ops than the thread that trains, but annotations (ProfilerStep,
    Optimizer, fetches) are opened by Python code only. Threads that fetch for another one don't
    train, though of inference they may hold all annotations.
    """
    annotated = of_category[Category.USER_ANNOTATION]
    ops = of_category[Category.CPU_OP]
    for flag in (flags.step, flags.optimizer):
        chosen = annotated[flag[spans.name[annotated]]]
        if chosen.size:
            return _busiest(spans, chosen)
    fetches = annotated[flags.fetch[spans.name[annotated]]]
    fetching_only = _only_fetching(spans, flags, of_category, fetches)
    for chosen in (fetches, annotated, ops, of_category[Category.RUNTIME]):
        chosen = chosen[~np.isin(spans.thread[chosen], fetching_only)]
        if chosen.size:
            return _busiest(spans, chosen)
    return ABSENT


def _busiest(spans: Spans, rows: Index) -> int:
    return int(np.bincount(spans.thread[rows]).argmax())


def _only_fetching(
    spans: Spans, flags: NameFlags, of_category: tuple[Index, ...], fetches: Index
) -> list[int]:
    """Threads that fetch, do no work and are not waited for: others work while they fetch.

    Work is launching kernels; where nothing is launched, running ops outside fetches. None begins,
    on whatever thread, while the thread that trains gets its batch.
    """
    calls = of_category[Category.RUNTIME]
    work = calls[flags.launch[spans.name[calls]]]
    work = work if work.size else of_category[Category.CPU_OP]
    found = []
    for thread in np.unique(spans.thread[fetches]).tolist():
        own = fetches[spans.thread[fetches] == thread]
        within = Intervals.of(spans.start_ns[own], spans.end_ns[own]).contains(spans.start_ns[work])
        by_itself = spans.thread[work] == thread
        if (within & ~by_itself).any() and not (by_itself & ~within).any():
            found.append(thread)
    return found


def _producer_threads(
    spans: Spans, flags: NameFlags, of_category: tuple[Index, ...], training: int
) -> tuple[int, ...]:
    """Host threads next to the training thread that make or move batches.

    A thread that fetches; or one that pins memory or copies, launches no kernel and runs no op: the
    pin-memory thread, or a background loader that moves its batches. Threads that launch kernels
    are autograd's or DataParallel's replicas; NCCL's watchdog only queries events.
    """

    def threads(category: Category, flag: NDArray[np.bool_] | None = None) -> set[int]:
        rows = of_category[category]
        if flag is not None:
            rows = rows[flag[spans.name[rows]]]
        return set(np.flatnonzero(np.bincount(spans.thread[rows])).tolist())

    calling = threads(Category.RUNTIME, flags.batch_call)
    working = threads(Category.RUNTIME, flags.launch) | threads(Category.CPU_OP)
    fetching = threads(Category.USER_ANNOTATION, flags.fetch)
    return tuple(sorted(((calling - working) | fetching) - {training}))


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFlags:
    """One boolean per distinct name; index with `spans.name`. Categories do not matter."""

    step: Flags
    fetch: Flags
    fetch_multi: Flags  # by worker processes
    optimizer: Flags  # Optimizer.step, zero_grad
    optimizer_step: Flags
    own_create: Flags
    own_shutdown: Flags
    own_wait: Flags
    loader_frame: Flags
    loader_op: Flags
    collective_kernel: Flags
    communication: Flags  # gloo, c10d spans on the host
    h2d: Flags
    d2h: Flags
    d2d: Flags
    pinned: Flags
    pageable: Flags
    launch: Flags
    sync: Flags
    batch_call: Flags


def flags_of(names: tuple[str, ...], says: Callable[[str], object]) -> Flags:
    """Of each name what is said of it."""
    return np.fromiter((bool(says(name)) for name in names), np.bool_, len(names))


def name_flags(trace: Trace) -> NameFlags:
    """Read every distinct name of the trace once."""

    def table(says: Callable[[str], object]) -> Flags:
        return flags_of(trace.names, says)

    def starts(prefix: str) -> Flags:
        return table(lambda n: n.startswith(prefix))

    fetch = starts(FETCH_PREFIX)
    return NameFlags(
        step=starts(STEP_PREFIX),
        fetch=fetch,
        fetch_multi=fetch & table(lambda n: "MultiProcessing" in n),
        optimizer=starts(OPTIMIZER_PREFIX),
        optimizer_step=starts(OPTIMIZER_PREFIX + "step"),
        own_create=starts(OWN_CREATE),
        own_shutdown=starts(OWN_SHUTDOWN),
        own_wait=starts(OWN_WAIT),
        loader_frame=table(_LOADER_FRAME.search),
        loader_op=table(LOADER_OPS.__contains__),
        collective_kernel=table(_COLLECTIVE_KERNEL.search),
        communication=table(_COMMUNICATION.match),
        h2d=table(_H2D.search),
        d2h=table(_D2H.search),
        d2d=table(_D2D.search),
        pinned=table(_PINNED.search),
        pageable=table(_PAGEABLE.search),
        launch=table(_LAUNCH.search),
        sync=table(_SYNC.search),
        batch_call=table(_BATCH_CALL.search),
    )
