"""Loops of known cost, drawn at random, for `audit.py`; and what follows from their delays.

`audited(seed, index, …)` draws one of many kinds: what its loader costs, with how many workers,
how long it computes, whether shapes are new, passes that train nothing, validation, several
loaders, work of the loop's own at five places, a busy neighbour. `compute_bound(seed, index, …)`
draws one whose loader is far from mattering. The same seed and index are the same loop.
`constructed_ms` says how long a step takes by the delays alone, wherever they say it all.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

# Where the loop does work of its own; the last one once an epoch.
PLACES = ("fetch_to", "to_forward", "forward_backward", "after_step", "between_epochs")
THEMES = (
    "compute", "input", "input_workers", "edge", "host", "outside", "startup", "several", "plan",
    "mixed",
)  # fmt: skip
GPU_THEMES = ("copy", "copy_pinned")
LONG_EPOCH = 20_000  # steps: none ends while it is measured
# time.sleep() returns late by about this much, on both machines that this was made on.
SLEEP_LATE_MS = 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLoop:
    """One loop. Times are milliseconds of a quiet CPU; what they come to is measured."""

    name: str
    device: Literal["cpu", "cuda"]
    compute_ms: float
    sleeping_kernel: bool = False  # computing is of a known time: the device sleeps, or a CPU waits
    # Computing on a CPU is of a known time as well: multiplications until so much CPU time is over.
    # A fixed number of them took 10 % more or less from one process to the next on an idle machine.
    timed_products: bool = False
    batch: int = 8
    batch_ms: float = 0.0  # of making one batch, in each loader
    burns: bool = False  # it takes CPU time (else it waits, as for a disk)
    workers: int = 0
    persistent: bool = False
    n_loaders: int = 1
    megabytes: int = 0  # of a batch; 0: next to nothing
    pinned: bool = False
    shapes: Literal["fixed", "new", "plan"] = "fixed"
    plan_ms: float = 0.0  # computing takes longer by this where a shape is new
    epoch_steps: int = LONG_EPOCH
    host_ms: dict[str, float] = field(default_factory=dict)  # by place
    host_burns: bool = True
    validates_every: int = 0  # steps; 0: never
    validation_batches: int = 0
    validation_batch_ms: float = 0.0
    saving_ms: float = 0.0  # after each validation
    skips: Literal["", "statistics", "resume"] = ""
    skipped_batches: int = 0
    busy: bool = False  # another process burns one of its CPUs

    @property
    def period(self) -> int:
        """Steps after which all begins again: what is timed is a multiple of it."""
        return self.epoch_steps if self.epoch_steps < LONG_EPOCH else max(1, self.validates_every)

    @property
    def between_ms(self) -> float:
        """Of work between epochs, for each step."""
        return self.host_ms.get("between_epochs", 0.0) / self.epoch_steps

    @property
    def within_host_ms(self) -> float:
        """Of the loop's own work within a step."""
        return sum(ms for place, ms in self.host_ms.items() if place != "between_epochs")

    @property
    def outside_ms(self) -> float:
        """Of validation and saving, for each step."""
        if not self.validates_every:
            return 0.0
        took = self.validation_batches * self.validation_batch_ms + self.saving_ms
        return took / self.validates_every

    @property
    def outside(self) -> bool:
        """Whether anything is done outside the steps."""
        return bool(self.validates_every or self.host_ms.get("between_epochs"))

    def only_waiting(self) -> AuditLoop:
        """The same with all work done by waiting: for a machine that others keep busy."""
        waits = {"sleeping_kernel": True, "burns": False, "host_burns": False, "busy": False}
        return replace(self, **waits, timed_products=False)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def audited(seed: int, index: int, *, device: str, cpus: int) -> AuditLoop:
    """Loop `index` of an audit: its theme says what should matter most, the rest is drawn."""
    rng = random.Random(f"audit:{seed}:{index}")
    on_gpu = device == "cuda" and index % 2 == 1
    themes = THEMES if not on_gpu else (*GPU_THEMES, *THEMES)
    theme = themes[(index // 2 if device == "cuda" else index) % len(themes)]
    compute = rng.uniform(10, 40) if on_gpu else rng.uniform(20, 60)
    most = max(1, min(3, cpus - 1))
    made: dict[str, Any] = {
        "compute_ms": compute,
        "batch": rng.choice((4, 8, 16)),
        "batch_ms": rng.uniform(0.02, 0.1) * compute,
        "burns": rng.random() < 0.5,
        "workers": rng.randint(0, most),
        "persistent": rng.random() < 0.5,
        "shapes": rng.choice(("fixed", "fixed", "new")),
        "busy": rng.random() < 0.25,
        "host_burns": rng.random() < 0.7,
        "host_ms": {},
    }
    if on_gpu:
        made["sleeping_kernel"] = rng.random() < 0.5
    place = rng.choice(PLACES[:4])
    if theme == "input":
        made |= {"workers": 0, "batch_ms": rng.uniform(0.5, 4) * compute}
    elif theme == "input_workers":
        workers = made["workers"] = rng.randint(1, most)
        made |= {"batch_ms": rng.uniform(1.4, 4) * compute * workers, "burns": False}
    elif theme == "edge":  # workers that just keep up, or just do not
        workers = made["workers"] = rng.randint(1, most)
        made |= {"batch_ms": rng.uniform(0.8, 1.1) * compute * workers, "burns": False}
    elif theme == "host":
        made["host_ms"] = {place: rng.uniform(0.5, 2) * compute}
    elif theme == "outside":
        made |= _validation(rng, compute, rng.uniform(0.5, 3))
    elif theme == "startup":  # epochs so short that beginning one shows
        made |= {"epoch_steps": rng.choice((4, 6, 10)), "persistent": False, "shapes": "fixed"}
        made |= {"workers": most, "compute_ms": rng.uniform(8, 16), "batch_ms": 1.0}
    elif theme == "several":
        made |= {"n_loaders": rng.choice((2, 3)), "workers": rng.choice((0, 1))}
        made["batch_ms"] = rng.uniform(0.2, 1.5) * compute
    elif theme == "plan":
        made |= {"shapes": "plan", "plan_ms": rng.uniform(0.5, 2) * compute}
    elif theme == "mixed":
        made |= {"workers": 0, "batch_ms": rng.uniform(0.3, 0.8) * compute}
        made["host_ms"] = {place: rng.uniform(0.3, 0.8) * compute}
        made |= _validation(rng, compute, rng.uniform(0.2, 0.6))
    elif theme in GPU_THEMES:
        made |= {"megabytes": rng.choice((64, 128)), "compute_ms": rng.uniform(6, 14)}
        pinned = theme == "copy_pinned"  # by the pin-memory thread, which only workers have
        made |= {"pinned": pinned, "workers": most if pinned else 0, "batch_ms": 0.0}
        made["shapes"] = "fixed"
    made["timed_products"] = not on_gpu
    if theme in ("input", "input_workers", "host", "compute") and rng.random() < 0.35:
        made |= _skip(rng, made)
    if theme in ("input", "compute", "plan") and rng.random() < 0.35:
        made["host_ms"] = {place: rng.uniform(0.05, 0.3) * compute}
    if theme in ("input", "compute", "host") and rng.random() < 0.25:
        made |= {"epoch_steps": rng.choice((20, 40)), "persistent": True, "shapes": "fixed"}
        made["host_ms"] = made["host_ms"] | {"between_epochs": rng.uniform(1, 8) * compute}
    return AuditLoop(
        name=f"{index:02d}_{theme}", device="cuda" if on_gpu else "cpu", **_rounded(made)
    )


def compute_bound(seed: int, index: int, *, device: str, cpus: int) -> AuditLoop:
    """Loop `index` of the false alarms: what its loader does takes a tenth of the step at most.

    Without workers a hundredth: there the step waits for all of it. Every second one has a busy
    neighbour; with `device` cuda, two of four are the GPU's.
    """
    rng = random.Random(f"false-alarms:{seed}:{index}")
    on_gpu = device == "cuda" and index % 4 >= 2
    compute = rng.uniform(20, 50) if on_gpu else rng.uniform(80, 160)
    workers = rng.randint(0, max(1, cpus - 1))
    made: dict[str, Any] = {
        "compute_ms": compute,
        "batch": rng.choice((4, 8, 16)),
        "batch_ms": compute * (rng.uniform(0.02, 0.1) if workers else rng.uniform(0.001, 0.01)),
        "burns": rng.random() < 0.5,
        "workers": workers,
        "persistent": True,
        "shapes": rng.choice(("fixed", "fixed", "new", "plan")),
        "busy": index % 2 == 1,
    }
    if made["shapes"] == "plan":
        made["plan_ms"] = rng.uniform(0.3, 1) * compute
    elif rng.random() < 0.3:
        made |= {"epoch_steps": rng.choice((20, 40)), "shapes": "fixed"}
    elif rng.random() < 0.2:
        made |= {"skips": rng.choice(("statistics", "resume"))}
        made["skipped_batches"] = int(1500 / max(3.0, made["batch_ms"]))
    if on_gpu:
        made["sleeping_kernel"] = rng.random() < 0.5
    if rng.random() < 0.3:
        made["host_ms"] = {rng.choice(PLACES[:4]): rng.uniform(0.01, 0.05) * compute}
    return AuditLoop(
        name=f"{index:03d}_{'gpu' if on_gpu else 'cpu'}_{'busy' if made['busy'] else 'quiet'}",
        device="cuda" if on_gpu else "cpu",
        **_rounded(made),
    )


def _validation(rng: random.Random, compute: float, times: float) -> dict[str, Any]:
    """Validation, and sometimes saving, that takes `times` the computing of the steps between."""
    every, n = rng.choice((4, 5, 8, 16)), rng.choice((2, 4))
    total = times * compute * every
    saving = rng.choice((0.0, 0.3)) * total
    return {
        "validates_every": every,
        "validation_batches": n,
        "validation_batch_ms": (total - saving) / n,
        "saving_ms": saving,
    }


def _skip(rng: random.Random, made: dict[str, Any]) -> dict[str, Any]:
    """A pass that trains nothing, of about four seconds, before training."""
    each = max(made["batch_ms"] / max(1, made["workers"]), 1.0)
    return {
        "skips": rng.choice(("statistics", "resume")),
        "skipped_batches": max(8, int(4000 / each)),
    }


def _rounded(made: dict[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: short(one) for name, one in value.items()}
        return round(value, 2) if isinstance(value, float) else value

    return {name: short(value) for name, value in made.items()}


def told(loop: AuditLoop) -> str:
    """The loop in a few words."""
    how = "burns" if loop.burns else "waits"
    words = [
        f"{loop.device}, computes {loop.compute_ms:.0f} ms",
        f"a batch {how} {loop.batch_ms:.1f} ms, {loop.workers} workers",
    ]
    words += [f"{loop.n_loaders} loaders"] * (loop.n_loaders > 1)
    words += [f"{loop.megabytes} MB{', pinned' if loop.pinned else ''}"] * bool(loop.megabytes)
    words += [f"{loop.shapes} shapes"] * (loop.shapes != "fixed")
    words += [f"{loop.plan_ms:.0f} ms for a new one"] * (loop.shapes == "plan")
    words += [f"epochs of {loop.epoch_steps}"] * (loop.epoch_steps < LONG_EPOCH)
    words += [f"{place} {ms:.0f} ms" for place, ms in loop.host_ms.items()]
    if loop.validates_every:
        took = loop.validation_batches * loop.validation_batch_ms + loop.saving_ms
        words.append(f"validates {took:.0f} ms each {loop.validates_every}")
    words += [f"{loop.skips} first"] * bool(loop.skips)
    words += ["neighbour"] * loop.busy
    return "; ".join(words)


def constructed_ms(loop: AuditLoop, rest_ms: float, outside_ms: float = 0.0) -> float | None:
    """Wall time of a step by the delays alone: `rest_ms` within each, `outside_ms` each period.

    None where more than delays matters: other processes or too many workers for the CPUs, batches
    that take time to receive, workers that start in each epoch.
    """
    restarts = loop.workers > 0 and loop.epoch_steps < LONG_EPOCH and not loop.persistent
    if loop.busy or loop.megabytes or restarts or (loop.burns and loop.workers):
        return None
    each = loop.batch_ms + (0.0 if loop.burns else loop.batch * SLEEP_LATE_MS)
    if loop.workers == 0:
        return rest_ms + loop.n_loaders * each + outside_ms / loop.period
    return pipeline_ms(each, loop.workers, rest_ms, period=loop.period, outside_ms=outside_ms)


def pipeline_ms(
    batch_ms: float,
    workers: int,
    rest_ms: float,
    *,
    period: int = 1,
    outside_ms: float = 0.0,
    prefetch: int = 2,
) -> float:
    """Steady wall time of a step fed by workers in order, as DataLoader's queue works.

    Batch j is asked for when batch j - workers * prefetch is received, and made by the worker that
    made batch j - workers, after it.
    """
    depth = workers * prefetch
    made: list[float] = []
    received: list[float] = []
    now = 0.0
    began, warm, n = 0.0, 20 * period * max(1, depth), 40 * period * max(1, depth)
    for j in range(warm + n):
        if j == warm:
            began = now
        asked = received[j - depth] if j >= depth else 0.0
        made.append(max(asked, made[j - workers] if j >= workers else 0.0) + batch_ms)
        now = max(now, made[j])
        received.append(now)
        now += rest_ms + (outside_ms if (j + 1) % period == 0 else 0.0)
    return (now - began) / n
