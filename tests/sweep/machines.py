"""Simulated machines whose speeds are known, and groups of trials measured on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loaderdoctor.cluster import Hardware
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.groups import Group, GroupedSweep, Measured, local_trials, split
from loaderdoctor.tryout import Options, Row, Trial
from loaderdoctor.tryout.measuring import Equipment
from tests.tryout.simulator import SimulatedRun, Truth, observed

MACHINE = Hardware(
    host="one",
    machine="1",
    cpu="EPYC",
    usable_cpus=8.0,
    memory_bytes=32 << 30,
    gpus=(),
    torch="2.14.1",
    version="0",
)
OWN_MS = 10.0
# Workers -> step time on a machine of speed 1.
STEP_MS = {1: 9.0, 2: 6.0, 3: 8.0, 4: 7.0, 5: 6.8, 6: 9.5}
PLANNED = [
    Trial(index=i, settings=Settings() if not i else Settings(num_workers=i, prefetch_factor=2))
    for i in range(7)
]


def machine(name: str, **changes: object) -> Hardware:
    return replace(MACHINE, host=name, machine=name, **changes)  # type: ignore[arg-type]


def node(
    group: Group, *, factor: float, seed: int = 0, noise: float = 0.02, budget_s: float = 40.0
) -> tuple[Measured, SimulatedRun]:
    """Measure a group on a machine that takes `factor` as long as the usual one."""

    def truth(settings: Settings) -> Truth:
        return Truth(step_ms=factor * STEP_MS[settings.num_workers or 1])

    script_run = SimulatedRun(truth, Truth(step_ms=factor * OWN_MS), seed=seed, noise=noise)
    seen = observed(step_ms=factor * OWN_MS, usable_cpus=8.0)
    sweep = Sweep(
        seen,
        local_trials(PLANNED, group),
        Options(budget_s=budget_s, seed=seed, part=group.part),
        Equipment(script_run=script_run, clock=script_run.clock),
    )
    outcome = sweep.run()
    made = Measured(observed=seen, notes=(), outcome=outcome, ablated=None, files={})
    return made, script_run


def grouped(
    machines: Sequence[tuple[Hardware, float]], groups: Sequence[Group], *, seed: int = 0
) -> GroupedSweep:
    """Each group measured on the machine of its place in the list."""
    sweep = GroupedSweep(observed(step_ms=OWN_MS, usable_cpus=8.0), PLANNED)
    for group, (hardware, factor) in zip(groups, machines, strict=True):
        sweep.add(group)
        made, _ = node(group, factor=factor, seed=seed + group.index)
        sweep.done(group.index, hardware, made)
    return sweep


THREE = split(PLANNED, 3)


def preset_rows(*lots: int) -> list[Trial]:
    """Trial 0 and a preset's rows, so many of each group."""
    rows = [Row(name=f"row {j}", group=f"group {i}") for i, n in enumerate(lots) for j in range(n)]
    settings = Settings(num_workers=2)
    first = Trial(index=0, settings=Settings())
    return [first, *(Trial(index=i, settings=settings, row=row) for i, row in enumerate(rows, 1))]
