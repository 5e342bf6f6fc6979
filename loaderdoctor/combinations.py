"""Which settings go together: what torch accepts, and what means anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product

from loaderdoctor.settings import AXES_BY_NAME, FROM_ONE, Settings, Value


def _background(settings: Settings) -> bool:
    return settings.background not in (None, "off")


def _moves(settings: Settings) -> bool:
    return bool(settings.side_stream) or settings.background == "device"


def _active(settings: Settings) -> set[str]:
    return {n for n, value in settings.changed().items() if not AXES_BY_NAME[n].is_idle(value)}


_MADE_BY_LOADER = {
    "resident",
    "portion",
    "cache",
    "batched",
    "storage",
    "augment",
    "fields",
    "uint8",
    "device_decode",
}
# Why settings mean nothing together, and where that is so; the first that holds is told.
_RULES: tuple[tuple[str, Callable[[Settings], object]], ...] = (
    (
        "resident leaves nothing for workers or a background thread to do",
        lambda s: s.resident and (s.num_workers or _background(s)),
    ),
    (
        "a background thread takes batches as workers send them: buffers are not used again there",
        lambda s: s.reuse_buffers and _background(s),
    ),
    (
        "threads take the place of workers, so num_workers must be 0 with them",
        lambda s: s.threads and s.num_workers,
    ),
    (
        "threads read ahead already: a background thread has nothing to do",
        lambda s: s.threads and _background(s),
    ),
    ("resident leaves nothing for threads to do", lambda s: s.resident and s.threads),
    (
        "resident copies nothing, so pinning, non_blocking and side_stream mean nothing",
        lambda s: s.resident and (s.side_stream or s.pin_memory or s.non_blocking),
    ),
    (
        "side_stream and background=device both move the batch; use one",
        lambda s: s.side_stream and s.background == "device",
    ),
    (
        "portion must be more than 0 and at most 1",
        lambda s: s.portion is not None and not 0 < s.portion <= 1,
    ),
    (
        "synthetic batches are ready: nothing is left for the loader to do",
        lambda s: (
            s.synthetic
            and (_active(s) & _MADE_BY_LOADER or s.num_workers or s.threads or _background(s))
        ),
    ),
    (
        "device_decode makes the batch on the device: background=device can't move it there",
        lambda s: s.device_decode and s.background == "device",
    ),
    (
        "fields leaves copying to the loop: side_stream and background=device can't do it",
        lambda s: "fields" in _active(s) and _moves(s),
    ),
)
# An axis, those that mean nothing next to it, and why.
_EXCLUDED = (
    (
        "resident",
        {"cache", "batched", "fields", "uint8"},
        "resident batches are on the device already",
    ),
    ("packed", {"resident", "synthetic"}, "their batches are ready"),
    ("reuse_buffers", {"packed", "fields"}, "a buffer holds a batch as it was collated"),
    (
        "spdl",
        {
            "threads",
            "reuse_buffers",
            "persistent_workers",
            "keep_iterator",
            "worker_cpus",
            "worker_gc",
            "synthetic",
            "resident",
        },
        "SPDL starts its own workers for each epoch",
    ),
    ("packed", {"fields", "uint8"}, "packed batches are unpacked on the device"),
    (
        "device_decode",
        {
            "resident",
            "cache",
            "batched",
            "augment",
            "fields",
            "uint8",
            "packed",
            "reuse_buffers",
            "side_stream",
        },
        "files are decoded as they are handed to the loop",
    ),
    ("cache", {"storage"}, "cached samples are not read from storage"),
    ("batched", {"fields"}, "a batch that is indexed as a whole has all of its inputs"),
    ("fields", {"uint8", "batch_size"}, "fields takes the other inputs from the loop's own"),
)


def invalid_reason(settings: Settings, *, has_accelerator: bool) -> str | None:
    """Why this combination can't run or means nothing here; None where it is valid.

    `settings` must be complete as far as `num_workers` goes: it decides the worker-only axes.
    """
    for name, value in settings.changed().items():
        axis = AXES_BY_NAME[name]
        idle = value is False or axis.is_idle(value)
        if axis.needs_workers and not settings.num_workers and not idle and name != "in_order":
            return f"{name} needs num_workers > 0"
        if axis.needs_accelerator and not has_accelerator and not idle:
            return f"{name} needs an accelerator"
        if name in FROM_ONE and isinstance(value, int) and value < 1:
            return f"{name} must be at least 1"
    if settings.background == "device" and not has_accelerator:
        return "background=device needs an accelerator"
    for reason, holds in _RULES:
        if holds(settings):
            return reason
    active = _active(settings)
    for one, others, why in _EXCLUDED:
        if one in active and others & active:
            return f"{why}, so {one} and {min(others & active)} together mean nothing"
    return None


def combinations(
    values: Mapping[str, tuple[Value, ...]], *, has_accelerator: bool
) -> Iterator[Settings]:
    """Every valid combination of the given values per axis, each once, in the order given."""
    seen: set[Settings] = set()
    for chosen in product(*values.values()):
        raw = dict(zip(values, chosen, strict=True))
        if not raw.get("num_workers"):
            # At 0 workers these axes mean nothing: fold such rows into one.
            raw = {k: v for k, v in raw.items() if not AXES_BY_NAME[k].needs_workers}
        settings = Settings(**raw)  # type: ignore[arg-type]
        if settings in seen or invalid_reason(settings, has_accelerator=has_accelerator):
            continue
        seen.add(settings)
        yield settings
