"""What a trial may be said to gain beside other programs: no more than ready batches would.

A neighbour rests in one round and runs in another, and a trial of few rounds may have met the first
more often than the loop as it is. A loop of 65 ms a step beside twelve busy processes read 3.0x for
a worker, where batches that lie ready bring 1.3x.
"""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.attribution.cpu import others_cores
from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.whole import Facts
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.comparing import Compared

# They change how batches come and nothing of what the loop does with them.
_OF_LOADER = frozenset(
    {
        "num_workers",
        "prefetch_factor",
        "persistent_workers",
        "in_order",
        "start_method",
        "worker_cpus",
        "background",
        "reuse_buffers",
        "threads",
        "spdl",
        "keep_iterator",
        "cache",
        "batched",
        "storage",
    }
)


def within_reach(tried: Compared | None, facts: Facts) -> tuple[Estimate | None, float | None]:
    """The step with it, no shorter than an instant loader may make it; None where all failed.

    And what its windows took (ms), where that was shorter.

    The bound is the upper end of what the loader costs, at the pace that the loop had in the
    trial's rounds. It holds where other programs have the CPUs too, and for settings of the loader
    alone: with CPUs to itself a trial is the surer of both.
    """
    if tried is None or tried.step is None:
        return None, None
    step, least_ms = tried.step, _least_ms(tried.settings, tried.own_ms, facts)
    if least_ms is None or step.value >= least_ms:
        return step, None
    bounded = replace(step, value=least_ms, low=least_ms, high=max(least_ms, step.high))
    return bounded, step.value


def _least_ms(settings: Settings, own_ms: float | None, facts: Facts) -> float | None:
    ablation, machine = facts.ablation, facts.machine
    cost = ablation.input_ms if ablation is not None else None
    if ablation is None or cost is None or not cost.bounded or machine is None or not own_ms:
        return None
    changed = settings.changed()
    if not _OF_LOADER.issuperset(changed) or changed.get("background") == "device":
        return None
    if others_cores(facts.step, machine.usable_cpus) is None:
        return None
    return own_ms * max(0.0, 1.0 - cost.high / ablation.plain_ms.value)
