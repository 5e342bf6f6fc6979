"""What the loop does now, as settings; and what settings mean beside those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from loaderdoctor.facts.whole import Facts
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.instrument.wire.records import ComputeRecord, LoaderRecord, TransferRecord
from loaderdoctor.settings import AXES, DEFAULT_PREFETCH_FACTOR, Settings, StartMethod

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
