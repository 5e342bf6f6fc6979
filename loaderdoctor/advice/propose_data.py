"""Candidates that change what the dataset does, tried in the running loop beside the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loaderdoctor import format as fmt
from loaderdoctor.advice.plan import Candidate, CodeAdvice, NotAdvised
from loaderdoctor.advice.proposal import proposal
from loaderdoctor.advice.routes import fits_in_memory, random_transforms
from loaderdoctor.advice.safety import dataset_bytes, start_method
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import rest_ms
from loaderdoctor.findings.exposure import num_workers
from loaderdoctor.findings.input_parts import making_cost
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings

# Findings that a cheaper sample answers.
MAKING = (
    Kind.LOADER_IN_MAIN_PROCESS,
    Kind.TOO_FEW_WORKERS,
    Kind.CPU_SATURATED_WORKERS,
    Kind.STORAGE_BOUND_WORKERS,
    Kind.DATASET_FORMAT_BOUND,
    Kind.MANY_SMALL_FILES,
    Kind.COLD_STORAGE,
    Kind.GIL_CONTENTION,
)


def in_code(
    facts: Facts, loader: LoaderRecord, found: Mapping[Kind, Finding], ways: tuple[CodeAdvice, ...]
) -> list[Candidate]:
    """The routes that an axis can try: samples kept in memory, batches scaled as a whole."""
    kinds = tuple(kind for kind in MAKING if kind in found)
    step_ms = facts.step_ms
    if not kinds or step_ms is None:
        return []
    made = []
    for way in ways:
        if way.axis is None or way.bound_ms is None:
            continue
        if way.axis == "cache" and why_not_cached(facts, loader) is not None:
            continue
        candidate = proposal(
            loader,
            facts,
            kinds,
            {way.axis: True},
            max(rest_ms(facts) or 0.0, step_ms - way.bound_ms),
            f"the step less the {fmt.ms(way.bound_ms)} that this part of a batch costs it",
            way.caution,
        )
        if candidate is not None:
            made.append(replace(candidate, in_code=True))
    return made


def not_advised_in_code(
    facts: Facts, loader: LoaderRecord, found: Mapping[Kind, Finding]
) -> tuple[NotAdvised, ...]:
    """Why samples kept in memory are not tried, where they would answer a finding."""
    if loader.kind != "map" or making_cost(facts) is None:
        return ()
    if not any(kind in found for kind in MAKING):
        return ()
    reason = why_not_cached(facts, loader)
    if reason is None:
        return ()
    return (NotAdvised(setting="cache", settings=Settings(cache=True), reason=reason),)


def why_not_cached(facts: Facts, loader: LoaderRecord) -> str | None:
    """What speaks against keeping all samples; None where nothing known does."""
    drawn = random_transforms(facts)
    if drawn:
        return (
            f"{', '.join(drawn)} must be drawn anew in each epoch: kept with the samples, the "
            "augmentation would be the same in all of them, which changes training."
        )
    fits, held = fits_in_memory(facts), dataset_bytes(facts)
    if fits is None or held is None:
        return "how many bytes all samples take is not known."
    if not fits:
        available = facts.machine.memory_available_bytes if facts.machine is not None else 0
        free = fmt.n_bytes(available or 0)
        return f"all samples take about {fmt.n_bytes(held)}, and {free} are available."
    if num_workers(facts) and start_method(facts, loader.settings) in ("spawn", "forkserver"):
        return "workers that are not forked would each hold all samples."
    return None
