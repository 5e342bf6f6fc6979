"""What went on around a recorded run in some seconds: CPUs, pressure, reads, memory, GPU.

Rates and shares are of the time since the look before. None: the system does not tell.
"""

from __future__ import annotations

import msgspec


class GpuLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of those that the run uses, as NVML tells it."""

    index: int
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    temperature_c: int | None = None
    busy_share: float | None = None
    slowed_by: tuple[str, ...] = ()  # "power cap", "heat", …; idle and settings are no such reason


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look."""

    at_s: float  # seconds since the epoch
    end_ns: int  # CLOCK_MONOTONIC
    took_s: float  # since the look before
    n_cpus: float | None = None  # that the run may use
    own_cpus: float | None = None  # kept busy by the run's processes
    other_cpus: float | None = None  # by others, of those that the run may use
    throttled_share: float | None = None  # of the quota's periods
    cpu_pressure: float | None = None  # share of the time in which some process waited (PSI)
    io_pressure: float | None = None
    memory_pressure: float | None = None
    read_bytes_per_s: float | None = None  # from block devices, by the run's processes
    received_bytes_per_s: float | None = None  # by the machine's network interfaces, but loopback
    workers_bytes: int | None = None  # PSS of the processes below the training ones
    run_bytes: int | None = None  # of all of the run
    # Without files and shared memory, known at every look: what workers have grown by since they
    # were first seen, and that with all of the other processes.
    workers_grown_bytes: int | None = None
    run_private_bytes: int | None = None
    available_bytes: int | None = None
    shm_free_bytes: int | None = None
    swap_used_bytes: int | None = None
    gpus: tuple[GpuLook, ...] = ()


class GpuLimitRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What held the training GPU's clock down within a window, by NVML's own counters."""

    wall_ns: int  # between the two readings
    power_ns: int | None = None  # at its power limit
    thermal_ns: int | None = None  # too hot
    board_ns: int | None = None  # the board's supply, or the hardware's own brake
    sm_mhz: int | None = None  # at the window's end
    max_sm_mhz: int | None = None
    temperature_c: int | None = None
    limit_w: float | None = None  # in force
    max_limit_w: float | None = None  # the most that may be set
    default_limit_w: float | None = None  # the factory's
