"""What report.json holds of the run besides its steps: all of its time, and who used the CPUs."""

from __future__ import annotations

from typing import Literal

import msgspec


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What the run pays for outside its training steps, of one kind and place."""

    what: Literal["validation", "saving", "other"]
    site: str | None
    ms_per_step: float | None  # spread over the training steps; None: too few seen to know
    seconds: float  # each
    n: int  # seen
    every_steps: float | None
    at_epoch_end: bool = False
    in_steps: bool = False  # the step's own time holds it
    wait_share: float | None = None  # of a pass, getting its batches
    n_batches: float | None = None
    with_grad: bool = False


class Wall(msgspec.Struct, frozen=True, kw_only=True):
    """All of the run's time, spread over its training steps; milliseconds a step."""

    total_ms: float
    step_ms: float  # as in Step.wall_ms
    outside_ms: float
    outside_share: float  # of total_ms
    n_steps: int  # that were watched
    outside: tuple[Outside, ...]  # the largest first


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """Who used the CPUs while plain windows were timed; CPU time / wall time, on average."""

    usable: float | None
    training: float | None  # the training process
    workers: float | None
    others: float | None  # other programs, of the usable ones; null: this system does not tell
    waiting_threads: float | None  # of the training process: ready to run and no CPU free
    throttled_share: float | None  # of a quota's periods; null: there is no quota
