"""What an experiment can't tell on full CPUs: the loader's own cost from that of its company."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import AblationFacts, StepFacts

# The loop and its workers use this much of the CPUs: what else runs then takes from them. Not
# lower, since nothing keeps all CPUs busy all the time but a loop that is short of them.
FULL_SHARE = 0.85


def allow_for_contention(
    ablation: AblationFacts | None, step: StepFacts | None, usable_cpus: float | None
) -> AblationFacts | None:
    """Widens the interval of `input` down to what is the loop's own, where its CPUs are full.

    Workers that just keep up are late as soon as anything else runs: this program's command, its
    recording, another user. A loop fed just in time by 14 workers on 16 cores read 15 % input in
    our run and 5 % without us (docs/accuracy.md). With the CPUs to itself the step takes at least
    the CPU time that loop and workers spend on it over the CPUs there are, and at least what it
    takes without input; so the loader costs at least the difference. What is above may be its
    company's. No correction: how much of it is, nothing here measures.
    """
    if ablation is None or ablation.input_ms is None or ablation.no_input_ms is None:
        return ablation
    if step is None or step.worker_cpu_cores is None or not usable_cpus:
        return ablation
    used_share = (step.worker_cpu_cores + (step.main_cpu_cores or 0.0)) / usable_cpus
    # Without workers nothing runs beside the loop that could be late.
    if used_share < FULL_SHARE or step.worker_cpu_cores <= 0.0:
        return ablation
    found: Estimate = ablation.input_ms
    floor_ms = min(1.0, used_share) * ablation.plain_ms.value
    least_ms = max(0.0, floor_ms - ablation.no_input_ms.value)
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
