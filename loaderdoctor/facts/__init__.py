"""What is known of a run, as values: made by attribution, read by findings, advice and report.

`Facts` holds all of it; beside it, what the loop does now as settings, and what settings mean
beside those.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from loaderdoctor.facts.host import EdgeFacts, LoopLineFacts, WorkerFacts, WorkerMemoryFacts
from loaderdoctor.facts.loop import (
    AblationFacts,
    GpuLimitFacts,
    MachineFacts,
    PoolTrial,
    ShardFacts,
    StepFacts,
    ThreadTrial,
    WallFacts,
)
from loaderdoctor.facts.step import Hidden, Shares
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.instrument.wire.records import (
    ComputeRecord,
    LoaderRecord,
    PassRecord,
    ScriptRecord,
    SubnormalRecord,
    TransferRecord,
    main_loader,
)
from loaderdoctor.settings import AXES, DEFAULT_PREFETCH_FACTOR, Settings, StartMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One rank of a job, from its trace, next to the others. Milliseconds a step."""

    rank: int
    host: str | None
    source: str  # its trace
    n_steps: int
    wall_ms: float
    own_ms: float  # wall_ms without what it waits for peers
    shares: Shares  # of own_ms
    peer_wait_ms: float | None  # in collectives that a later rank had not come to; None: unknown

    def part_ms(self, name: str) -> float | None:
        """One share in milliseconds a step; None where it was not recorded."""
        share: float | None = getattr(self.shares, name)
        return None if share is None else share * self.own_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One rank's step in plain windows."""

    rank: int
    host: str
    step: StepFacts | None


# Recording ops only slows, and the noise of two windows is some percent on a steady machine. Of the
# reports kept on two shared CPUs while this was made, about one in twenty was below.
UNSTEADY_OVERHEAD = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything known about one run. From a trace alone only `trace` is there."""

    command: Literal["diagnose", "sweep", "analyze"]
    shares: Shares | None  # the best estimate
    # Lower bounds: of input and copy from ablation; of host on CPUs that others have too.
    shares_low: dict[str, float] | None
    hidden: Hidden | None
    step: StepFacts | None
    trace: TraceFacts | None
    loaders: tuple[LoaderRecord, ...]  # loaders of the training step first
    transfers: tuple[TransferRecord, ...]
    workers: WorkerFacts | None  # of the loader that feeds the step
    ablation: AblationFacts | None
    machine: MachineFacts | None
    profiler_overhead: float | None  # profiled / plain step time
    compute: ComputeRecord | None = None  # how the loop was seen to compute
    ranks: tuple[RankFacts, ...] = ()  # of a job of several; the other facts are the slowest's
    other_workers: tuple[WorkerFacts, ...] = ()  # of the other loaders seen, validation mostly
    edge: EdgeFacts | None = None  # None: the workers have time to spare, or it is not known
    thread_trials: tuple[ThreadTrial, ...] = ()  # empty: not tried, or not yet
    pool_trials: tuple[PoolTrial, ...] = ()
    loop_lines: LoopLineFacts | None = None  # None: the loop's stack was not sampled
    trains: bool = True  # False: no backward pass and no optimizer step was seen
    calls_model: bool | None = None  # of a loop that does not train; None: not seen
    before_training: tuple[PassRecord, ...] = ()
    wall: WallFacts | None = None  # None: only steps were recorded
    script: ScriptRecord | None = None  # None: not started by us
    subnormals: SubnormalRecord | None = None  # None: none, an accelerator, or not looked for
    gpu_limits: GpuLimitFacts | None = None  # None: no NVIDIA GPU, or NVML not installed
    shards: ShardFacts | None = None  # None: no stream, or no epoch of it was seen whole
    worker_memory: WorkerMemoryFacts | None = None  # None: no workers, or not recorded

    @property
    def has_steps(self) -> bool:
        """Whether any figure is one of a step: not of a trace that marks none."""
        return self.step is not None or self.trace is None or self.trace.step_clock != "window"

    @property
    def step_ms(self) -> float | None:
        """The step's wall time: plain windows, else the trace."""
        if self.step is not None:
            return self.step.wall_ms.value
        return self.trace.wall_ms if self.trace is not None else None

    @property
    def unsteady(self) -> bool:
        """Whether steps were clearly shorter with the profiler on, which slows: pace changed."""
        return self.profiler_overhead is not None and self.profiler_overhead < UNSTEADY_OVERHEAD

    @property
    def main_loader(self) -> LoaderRecord | None:
        """The loader that feeds the step, if one was seen."""
        return main_loader(self.loaders)

    @property
    def feeding(self) -> tuple[LoaderRecord, ...]:
        """Every loader that feeds the step: of `zip(images, labels)` both."""
        return tuple(x for x in self.loaders if x.role == "train")

    @property
    def only_reads(self) -> bool:
        """Whether no training was seen, and no model either: nothing that waits for batches."""
        return not self.trains and not self.calls_model

    @property
    def host_of_others(self) -> float:
        """Of the host's share what may be waiting for a CPU that other programs have, 0…1."""
        host, low = self.share("host"), (self.shares_low or {}).get("host")
        if self.command == "analyze" or host is None or low is None:
            return 0.0
        return max(0.0, host - low)

    def share(self, name: str) -> float | None:
        """One share of the best estimate, 0…1; None where there is none."""
        return self.shares.as_dict()[name] if self.shares is not None else None


AS_IS = Settings()


class Surroundings(Protocol):
    """What of the measuring process decides settings that its loop leaves open."""

    @property
    def n_threads(self) -> int | None: ...
    @property
    def start_method(self) -> str | None: ...
    @property
    def cudnn_benchmark(self) -> bool | None: ...
    @property
    def tf32(self) -> bool | None: ...


def own_settings(observed: Observed) -> Settings:
    """What the loop does now, complete: torch's defaults filled in, transfers as seen."""
    return _of(observed.main_loader, observed.transfers, observed.environment, observed.compute)


def own_settings_known(facts: Facts) -> Settings:
    """Likewise, as far as facts tell: of a loop whose loader was not seen nothing of loaders."""
    full = _of(facts.main_loader, facts.transfers, facts.machine, facts.compute)
    if facts.main_loader is not None:
        return full
    return Settings(
        non_blocking=full.non_blocking if facts.transfers else None,
        num_threads=full.num_threads,
    )


def _of(
    loader: LoaderRecord | None,
    transfers: Sequence[TransferRecord],
    surroundings: Surroundings | None,
    compute: ComputeRecord | None,
) -> Settings:
    """The start method stands there at 0 workers too: it is what workers would be started by."""
    base = loader.settings if loader is not None else AS_IS
    replicated = compute is not None and compute.n_replicas is not None
    known = Settings(
        non_blocking=bool(transfers) and all(x.non_blocking for x in transfers),
        batch_size=loader.batch_size if loader is not None else None,
        cudnn_benchmark=surroundings.cudnn_benchmark if surroundings is not None else None,
        tf32=surroundings.tf32 if surroundings is not None else None,
        ddp="data_parallel" if replicated else None,
        num_threads=surroundings.n_threads if surroundings is not None else None,
    )
    method = base.start_method
    if method is None and surroundings is not None:
        method = _start_method(surroundings.start_method)
    return replace(meaning(known.over(base), AS_IS), start_method=method)


@functools.lru_cache(maxsize=4096)  # asked anew for each trial after each round
def meaning(settings: Settings, own: Settings) -> Settings:
    """`settings` over the loop's own, with defaults written out: equal ones mean the same.

    The start method is left out where there are no workers to start.
    """
    full = settings.over(own)
    workers = full.num_workers or 0
    return Settings(
        num_workers=workers,
        prefetch_factor=(full.prefetch_factor or DEFAULT_PREFETCH_FACTOR) if workers else None,
        persistent_workers=bool(full.persistent_workers) and workers > 0,
        pin_memory=bool(full.pin_memory),
        in_order=full.in_order is not False or not workers,
        start_method=full.start_method if workers else None,
        worker_cpus=full.worker_cpus if workers and full.worker_cpus != "inherited" else None,
        worker_gc=full.worker_gc if workers and full.worker_gc != "automatic" else None,
        background=full.background or "off",
        reuse_buffers=bool(full.reuse_buffers) and workers > 0,
        threads=full.threads,
        spdl=bool(full.spdl) and workers > 0,
        non_blocking=bool(full.non_blocking),
        side_stream=bool(full.side_stream),
        resident=bool(full.resident),
        packed=bool(full.packed),
        **{
            axis.name: None if value is None or axis.is_idle(value) else value
            for axis in AXES
            if axis.where in ("dataset", "model", "script") or axis.name == "batch_size"
            for value in (full.as_dict()[axis.name],)
        },  # type: ignore[arg-type]
    )


def n_changes(settings: Settings, own: Settings) -> int:
    """How many axes mean something else than in the loop's own settings."""
    full, before = meaning(settings, own).as_dict(), meaning(AS_IS, own).as_dict()
    return sum(full[name] != before[name] for name in full)


def _start_method(name: str | None) -> StartMethod | None:
    """The environment's start method as an axis value; None for one torch does not offer."""
    return name if name in ("fork", "spawn", "forkserver") else None  # type: ignore[return-value]
