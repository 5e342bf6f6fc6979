"""What stands in the way of judging a run: full CPUs, other programs, a machine not steady."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.loop import AblationFacts, StepFacts
from loaderdoctor.facts.whole import Facts

# The loop and its workers use this much of the CPUs: what else runs then takes from them. Not
# lower, since nothing keeps all CPUs busy all the time but a loop that is short of them.
FULL_SHARE = 0.85
# Other programs that use this much of the usable CPUs make steps longer that use all of them: on
# two CPUs 15 % cost nothing measurable, 25 % cost 8-16 %, 50 % cost 60-90 % (and a loop of one
# thread nothing): `benchmarks/contention.py --alone`.
BUSY_SHARE = 0.20


def allow_for_contention(
    ablation: AblationFacts | None, step: StepFacts | None, usable_cpus: float | None
) -> AblationFacts | None:
    """Widens the interval of `input` down to what is the loop's own, where its CPUs are full.

    Workers that just keep up are late as soon as anything else runs: this program's command, its
    recording, another user. A loop fed just in time by 14 workers on 16 cores read 15 % input in
    our run and 5 % without us (docs/accuracy.md). With the CPUs to itself the step takes at least
    the CPU time that loop and workers spend on it over the CPUs there are, and at least what it
    takes without input; so the loader costs at least the difference, and at least what mapping its
    batches takes. What is above may be the other load's doing. No correction: how much of it is,
    nothing here measures.
    """
    if ablation is None or ablation.input_ms is None or ablation.no_input_ms is None:
        return ablation
    if step is None or step.worker_cpu_cores is None or not usable_cpus:
        return ablation
    used_share = (step.worker_cpu_cores + (step.main_cpu_cores or 0.0)) / usable_cpus
    # Without workers nothing runs next to the loop that could be late.
    if used_share < FULL_SHARE or step.worker_cpu_cores <= 0.0:
        return ablation
    found: Estimate = ablation.input_ms
    floor_ms = min(1.0, used_share) * ablation.plain_ms.value
    mapping_ms = ablation.pages.mapping_ms if ablation.pages is not None else 0.0
    least_ms = max(mapping_ms, floor_ms - ablation.no_input_ms.value)
    if least_ms >= found.low:
        return ablation
    return replace(
        ablation,
        input_ms=replace(found, low=least_ms),
        contended_ms=max(0.0, found.value - least_ms),
    )


def core_contention(ablation: AblationFacts) -> str:
    """The warning that belongs to a widened interval."""
    assert ablation.input_ms is not None
    return (
        "The loop and its workers keep the CPUs full, so whatever else runs, this program "
        f"included, makes batches late: of the {ablation.input_ms.value:.1f} ms a step that "
        f"waiting for the loader costs here, up to {ablation.contended_ms or 0.0:.1f} ms may be "
        "its doing (core contention). The interval allows for that."
    )


def machine_notes(facts: Facts) -> tuple[tuple[str, str], ...]:
    """(kind, text) of each warning about what a run shared its CPUs with."""
    found: list[tuple[str, str]] = []
    if facts.ablation is not None and facts.ablation.contended_ms:
        found.append(("core-contention", core_contention(facts.ablation)))
    if (busy := _busy_machine(facts)) is not None:
        found.append(("busy-machine", busy))
    if (unsteady := _unsteady(facts)) is not None:
        found.append(("not-steady", unsteady))
    return tuple(found)


def _busy_machine(facts: Facts) -> str | None:
    cpu = facts.step.cpu if facts.step is not None else None
    machine = facts.machine
    if cpu is None or cpu.other_cores is None or machine is None or machine.usable_cpus <= 0:
        return None
    share = cpu.other_cores / machine.usable_cpus
    if share < BUSY_SHARE:
        return None
    return (
        f"Other programs used {cpu.other_cores:.1f} of the {machine.usable_cpus:g} usable CPUs "
        f"({100 * share:.0f} %) while the loop was timed without the profiler. Times are those of "
        "the loop with that load next to it: alone it may be faster, and another setting best. "
        "Close the other programs and measure again; if they are there in training too, the "
        "figures hold."
    )


def _unsteady(facts: Facts) -> str | None:
    if not facts.unsteady or facts.profiler_overhead is None:
        return None
    windows = facts.step.windows_ms if facts.step is not None else ()
    spread = (
        f" Windows without it took from {min(windows):.1f} to {max(windows):.1f} ms a step."
        if len(windows) > 1
        else ""
    )
    return (
        f"With the profiler on, steps took {facts.profiler_overhead:.2f}x as long as without, "
        f"though recording only slows: the machine or the loop was not steady between windows."
        f"{spread} What rests on the trace is of another speed than the times, so the verdict "
        "counts as uncertain unless the interval alone bears it. Measure again with nothing else "
        "running, and longer (--budget)."
    )
