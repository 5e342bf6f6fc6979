"""The best estimate of the shares from all evidence, and the Facts of a whole run.

Also of workers that only just keep up: how little it takes until the loop waits for them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Literal

from loaderdoctor.attribution.ablation import computing_new_shapes
from loaderdoctor.attribution.claims import claimed, denied
from loaderdoctor.attribution.cpu import (
    allow_for_contention,
    host_low_share,
    waits_without_neighbours,
    without_neighbours,
)
from loaderdoctor.attribution.identity import without_profiler
from loaderdoctor.attribution.verdict import few_steps_low
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import EdgeFacts, LoopLineFacts, WorkerFacts, WorkerMemoryFacts
from loaderdoctor.facts.loop import AblationFacts, MachineFacts, StepFacts, WallFacts
from loaderdoctor.facts.step import Hidden, Shares
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.instrument.wire.records import Environment

# Busy for this part of their time: a step a tenth shorter, and they fall behind. Steps and batches
# vary by some percent, so that even now a slow one is waited for at times.
EDGE_BUSY_SHARE = 0.9
# A wait of this part of the step is long; receiving a batch takes less.
LONG_WAIT_SHARE = 0.1


def best_shares(
    trace: TraceFacts | None, step: StepFacts | None, ablation: AblationFacts | None
) -> Shares | None:
    """Shares of the plain step.

    With ablation: `input` and `copy` are what the experiment says; `compute` and `communication`
    are device-busy milliseconds a step from the profiled window (kernels are not slowed by
    profiling, the host is) over the plain wall; `host` is what is left. Without an accelerator
    the rest is split as in the trace. Negatives are clamped to 0 and the rest rescaled. Without
    ablation, the trace's own shares, but that on a machine without an accelerator the time that
    plain windows spent on getting batches replaces the profiled one, the start of epochs included:
    there every wait is exposed. With an accelerator it is the most that `input` can be: a profiled
    window that happened to be starved says nothing of a loop that does not wait.
    An ablation whose input has no interval decides nothing.
    """
    if ablation is not None and (ablation.input_ms is None or not ablation.input_ms.bounded):
        ablation = None
    if trace is None or trace.device_unseen:
        return _without_trace(step, ablation)
    if ablation is not None:
        return _with_ablation(trace, ablation, own_ms_per_step(step))
    if not trace.has_accelerator and step is not None and step.input_ms is not None:
        wall = step.wall_ms.value
        share = min(1.0, step.input_ms / wall)
        own_share = own_ms_per_step(step) / wall
        return _split_like_trace(trace.shares, input_share=share, own_share=own_share)
    return _at_most_waited(trace.shares, step)


def _at_most_waited(shares: Shares, step: StepFacts | None) -> Shares:
    """A trace's shares with no more `input` than plain windows spent on getting batches."""
    if step is None or step.input_ms is None or step.wall_ms.value <= 0:
        return shares
    limit = step.input_ms / step.wall_ms.value
    if (shares.input or 0.0) <= limit:
        return shares
    return _split_like_trace(shares, input_share=limit, own_share=0.0)


def own_ms_per_step(step: StepFacts | None) -> float:
    """What the loop does itself where an epoch begins, spread over an epoch's steps.

    Work of its first step, say. What comes after the last one (validation, a checkpoint) is no
    step's.
    """
    if step is None or step.boundary_ms is None or step.loader_boundary_ms is None:
        return 0.0
    own_ms = max(0.0, step.boundary_ms - step.loader_boundary_ms)
    return own_ms / step.steps_per_epoch if step.steps_per_epoch else 0.0


def _with_ablation(trace: TraceFacts, ablation: AblationFacts, own_ms: float) -> Shares:
    wall = ablation.plain_ms.value
    assert ablation.input_ms is not None
    input_share = max(0.0, ablation.input_ms.value / wall)
    if not trace.has_accelerator:
        share = min(1.0, input_share)
        return _split_like_trace(trace.shares, input_share=share, own_share=own_ms / wall)
    copy_share = (
        max(0.0, ablation.copy_ms.value / wall)
        if ablation.copy_ms is not None and ablation.copy_ms.bounded
        else (trace.shares.copy or 0.0) * min(1.0, trace.wall_ms / wall)
    )
    communication = (trace.kernels.communication_ms or 0.0) / wall
    compute = max(0.0, trace.kernels.busy_ms / wall - communication)
    parts = {
        "compute": compute,
        "communication": communication,
        "copy": copy_share,
        "input": input_share,
    }
    total = sum(parts.values())
    host = max(0.0, 1.0 - total)
    scale = 1.0 / max(1.0, total)
    return Shares(**{k: v * scale for k, v in parts.items()}, host=host, other=0.0)


def _split_like_trace(trace: Shares, *, input_share: float, own_share: float) -> Shares:
    """`input` as given; the other shares keep the proportions they have in the trace.

    `own_share` is the loop's own work between epochs, host work that a short trace seldom shows.
    """
    own_share = min(own_share, 1.0 - input_share)
    rest = {k: v for k, v in trace.as_dict().items() if k != "input" and v is not None}
    total = sum(rest.values())
    if total <= 0.0:
        rest, total = {"host": 1.0}, 1.0
    scaled = {k: v / total * (1.0 - input_share - own_share) for k, v in rest.items()}
    return Shares(
        compute=scaled.get("compute", 0.0),
        communication=scaled.get("communication"),
        copy=scaled.get("copy"),
        input=input_share,
        host=scaled.get("host", 0.0) + own_share,
        other=scaled.get("other", 0.0),
    )


def _without_trace(step: StepFacts | None, ablation: AblationFacts | None) -> Shares | None:
    """No trace: only the loader's part is known, and only as far as something measured it."""
    if ablation is not None and ablation.input_ms is not None:
        wall = ablation.plain_ms.value
        input_share = min(1.0, max(0.0, ablation.input_ms.value / wall))
        copy = max(0.0, ablation.copy_ms.value / wall) if ablation.copy_ms is not None else None
        rest = 1.0 - input_share - (copy or 0.0)
        if rest < 0.0:
            scale = 1.0 / (input_share + (copy or 0.0))
            input_share, copy, rest = input_share * scale, (copy or 0.0) * scale, 0.0
    elif step is not None and step.input_ms is not None and step.clock == "host":
        input_share, copy = min(1.0, step.input_ms / step.wall_ms.value), None
        rest = 1.0 - input_share
    else:
        return None
    # What is left is compute and host together, which nothing here tells apart.
    return Shares(
        compute=None, communication=None, copy=copy, input=input_share, host=None, other=rest
    )


def lower_bounds(
    ablation: AblationFacts | None, step: StepFacts | None = None
) -> dict[str, float] | None:
    """Lower 95 % bounds of the input and copy shares.

    Without ablation what is the loader's of the waits in any case, where other programs had the
    CPUs; else None. Of waits behind which an accelerator computes nothing is known to be exposed.
    """
    if ablation is None or ablation.input_ms is None or not ablation.input_ms.bounded:
        if step is None or step.input_low_ms is None or step.wall_ms.value <= 0:
            return None
        if step.clock != "host":
            return None
        return {"input": step.input_low_ms / step.wall_ms.value}
    wall = ablation.plain_ms.value
    low = {"input": ablation.input_ms.low / wall}
    if ablation.copy_ms is not None and ablation.copy_ms.bounded:
        low["copy"] = ablation.copy_ms.low / wall
    return low


def _with_host(
    low: dict[str, float] | None,
    shares: Shares | None,
    step: StepFacts | None,
    trace: TraceFacts | None,
    loop_lines: LoopLineFacts | None,
    usable_cpus: float | None,
    ablation: AblationFacts | None,
) -> dict[str, float] | None:
    """With the host's, where other programs have the CPUs that the loop computes on.

    And where the loop was seen to wait for more than is claimed: what is left out of that is in the
    host's share, unless stack samples show the loop's own work there.
    """
    if trace is None or trace.has_accelerator or shares is None or shares.host is None:
        return low
    own_low = loop_lines.own_low_share if loop_lines is not None else 0.0
    host_low = host_low_share(shares.host, step, own_low, usable_cpus, ablation)
    if unclaimed := unclaimed_wait_share(ablation):
        left = max(0.0, own_low, shares.host - unclaimed)
        host_low = left if host_low is None else min(host_low, left)
    return low if host_low is None else {**(low or {}), "host": host_low}


def unclaimed_wait_share(ablation: AblationFacts | None) -> float:
    """What the loop waited for certain, beyond what is claimed of its loader, of the step.

    Only where the rounds do not deny it: by more than twice their margin they do.
    """
    if ablation is None or ablation.input_ms is None or not ablation.input_ms.bounded:
        return 0.0
    seen, difference = ablation.mechanisms, (ablation.raw or ablation).input_ms
    if seen is None or not seen.exposed or seen.wait_ms is None or not seen.wait_ms.bounded:
        return 0.0
    if difference is None or denied(difference, seen.wait_ms):
        return 0.0
    wall_ms = ablation.plain_ms.value
    left_out = seen.wait_ms.low - ablation.input_ms.value
    return max(0.0, left_out) / wall_ms if wall_ms > 0.0 else 0.0


def machine_facts(environment: Environment) -> MachineFacts:
    """What the measuring process found around it."""
    return MachineFacts(**{x.name: getattr(environment, x.name) for x in fields(MachineFacts)})


def facts_of_run(
    *,
    command: Literal["diagnose", "sweep"],
    step: StepFacts | None,
    trace: TraceFacts | None,
    ablation: AblationFacts | None,
    workers: WorkerFacts | None,
    other_workers: tuple[WorkerFacts, ...] = (),
    observed: Observed,
    loop_lines: LoopLineFacts | None = None,
    wall: WallFacts | None = None,
    worker_memory: WorkerMemoryFacts | None = None,
) -> Facts:
    """Everything known about one run, with the best shares and the profiler's overhead."""
    environment = observed.environment
    usable_cpus = environment.usable_cpus if environment is not None else None
    n_here = max(1, environment.n_local_ranks or 1) if environment is not None else 1
    cpus_per_rank = usable_cpus / n_here if usable_cpus is not None else None
    ablation = allow_for_contention(ablation, step, cpus_per_rank)
    ablation = without_neighbours(ablation, step, workers, usable_cpus)
    ablation = claimed(ablation, trace, observed.transfers)
    step = waits_without_neighbours(step, usable_cpus)
    shares = best_shares(trace, step, ablation)
    if step is not None:
        shares = computing_new_shapes(shares, step, ablation)
    return Facts(
        command=command,
        shares=shares,
        shares_low=_with_host(
            lower_bounds(ablation, step), shares, step, trace, loop_lines, usable_cpus, ablation
        ),
        hidden=_hidden(trace, step, ablation),
        step=step,
        trace=trace,
        loaders=tuple(sorted(observed.loaders, key=lambda x: (x.role != "train", x.beside))),
        transfers=observed.transfers,
        workers=workers,
        other_workers=other_workers,
        ablation=ablation,
        edge=edge_facts(step, workers, ablation),
        machine=machine_facts(environment) if environment is not None else None,
        profiler_overhead=(
            trace.wall_ms / step.within_epoch_ms.value
            if trace is not None and step is not None and step.within_epoch_ms.value > 0
            else None
        ),
        compute=observed.compute,
        loop_lines=loop_lines,
        trains=observed.trains,
        calls_model=observed.calls_model,
        before_training=observed.before_training,
        script=observed.script,
        wall=wall,
        worker_memory=worker_memory,
        subnormals=observed.subnormals,
    )


def facts_of_trace(trace: TraceFacts) -> Facts:
    """The facts of `analyze`: one trace and nothing else."""
    return Facts(
        command="analyze",
        shares=trace.shares,
        shares_low=few_steps_low(trace, without_profiler(trace)) or None,
        hidden=trace.hidden,
        step=None,
        trace=trace,
        loaders=(),
        transfers=(),
        workers=None,
        ablation=None,
        machine=None,
        profiler_overhead=None,
        trains=trace.trains,
        calls_model=None if trace.trains else True,
    )


def _hidden(
    trace: TraceFacts | None, step: StepFacts | None, ablation: AblationFacts | None
) -> Hidden | None:
    """Raw wait of the plain windows less what the ablation says it costs; copies from the trace.

    None of a wait is hidden where nothing runs meanwhile: noise would be called so.
    """
    hidden = trace.hidden if trace is not None else None
    if step is None or step.raw_wait_ms is None or ablation is None or ablation.input_ms is None:
        return hidden
    input_ms = max(0.0, step.raw_wait_ms - max(0.0, ablation.input_ms.value))
    if ablation.mechanisms is not None and ablation.mechanisms.exposed:
        input_ms = 0.0
    return replace(hidden or Hidden(input_ms=None, copy_ms=None), input_ms=input_ms)


def edge_facts(
    step: StepFacts | None, workers: WorkerFacts | None, ablation: AblationFacts | None
) -> EdgeFacts | None:
    """None where the workers have time to spare, or that was not recorded.

    Busy is what does not wait for an index; where that was not recorded, a batch over what the
    workers that make any have for it: a step without its loader.
    """
    rest = ablation.no_input_ms if ablation is not None else None
    if step is None or workers is None or rest is None or rest.value <= 0.0:
        return None
    n = workers.n_workers - workers.n_idle_workers
    if n < 1 or not workers.n_batches:
        return None
    supply_ms = workers.batch_ms / n
    idle = workers.idle_share
    busy_share = min(1.0, supply_ms / rest.value) if idle is None else 1.0 - idle
    if busy_share < EDGE_BUSY_SHARE:
        return None
    long = [ms for ms in step.waits_ms if ms > LONG_WAIT_SHARE * step.wall_ms.value]
    return EdgeFacts(
        n_workers=n,
        busy_share=busy_share,
        supply_ms=supply_ms,
        rest_ms=rest.value,
        n_waits=len(step.waits_ms),
        n_long_waits=len(long),
        longest_wait_ms=max(long, default=None),
    )
