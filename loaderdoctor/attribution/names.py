"""What the names in a trace mean: each distinct name is read once, rows by table look-up.

Spellings of CUDA (CUPTI), ROCm (roctracer, rocprofiler) and XPU (Level Zero) are known; CUDA's
were checked on real traces, the others follow their profilers' sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.trace.columns import Trace

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


def name_flags(trace: Trace) -> NameFlags:
    """Read every distinct name of the trace once."""

    def table(says: Callable[[str], object]) -> Flags:
        return np.fromiter((bool(says(n)) for n in trace.names), np.bool_, len(trace.names))

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
