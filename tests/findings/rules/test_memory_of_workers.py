"""Workers whose memory will not stay what it is: copies by reading told apart from what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import GrowthFacts, WorkerMemoryFacts
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.memory import worker_memory_grows, workers_copy_dataset
from loaderdoctor.instrument.wire.records import ContainerRecord
from tests.findings.builders import healthy, loader, machine
from tests.findings.case import Case, check_fires, check_silent

MIB, GIB = 2**20, 2**30


def container(n_bytes: int = GIB, **more: Any) -> ContainerRecord:
    fields = {"path": "samples", "kind": "list", "n": 7_000_000, "entry": "tuple of str, int"}
    return ContainerRecord(**{**fields, "n_bytes": n_bytes, "n_objects": 3, **more})


def held(*found: ContainerRecord, free: int | None = 8 * GIB, n: int = 4, **more: Any) -> Facts:
    settings = {"num_workers": n, **more.pop("settings", {})}
    record = loader(settings=settings, containers=found, **more)
    return replace(
        healthy(),
        loaders=(record,),
        machine=machine(memory_available_bytes=free, start_method="fork"),
    )


COPIED = Case(
    rule=workers_copy_dataset,
    ill=held(container()),
    share=None,
    severity=Severity.LOW,
    evidence={"num_workers": 4, "container": "samples", "copied_bytes": 4 * GIB},
    says=(
        "Each of 4 workers",
        "1.00 GiB each",
        "samples, a list of 7,000,000 (tuple of str, int)",
        "4.00 GiB in all",
        "numpy.array([s[0] for s in samples])",
    ),
    silent={
        "arrays alone": held(),
        "little beside what is free": held(container(20 * MIB)),
        "no workers": held(container(), n=0),
        "spawned workers have a copy from the start": held(
            container(), settings={"start_method": "spawn"}
        ),
    },
    missing={
        "what is free is not known": held(container(), free=None),
        "no loader": replace(held(container()), loaders=()),
        "no machine": replace(held(container()), machine=None),
    },
)


def test_workers_copy_dataset() -> None:
    check_fires(COPIED)
    check_silent(COPIED)


def test_copies_that_will_not_fit_are_grave_and_what_was_seen_is_said() -> None:
    facts = held(container(), free=3 * GIB)
    seen = WorkerMemoryFacts(n_workers=4, worker_bytes=120 * MIB)
    finding = workers_copy_dataset(replace(facts, worker_memory=seen))
    assert finding is not None
    assert finding.severity is Severity.HIGH
    assert "up to 120 MiB so far" in finding.summary
    assert "only 3.00 GiB are free: the run would swap, or be killed" in finding.summary


def test_what_workers_have_copied_already_is_not_asked_for_again() -> None:
    """Free memory was read with it in place."""
    facts = held(container(), free=3 * GIB)
    seen = WorkerMemoryFacts(n_workers=4, worker_bytes=GIB)
    finding = workers_copy_dataset(replace(facts, worker_memory=seen))
    assert finding is not None
    assert finding.severity is Severity.LOW


def grows(
    grew: float = 400 * MIB,
    *found: ContainerRecord,
    late: float = 0.5,
    n_samples: float = 4000.0,
    grown: tuple[tuple[str, int, int], ...] = (("kept", 0, 4000),),
    freed: float | None = 0.0,
    **more: Any,
) -> Facts:
    growth = GrowthFacts(
        n_workers=4,
        first_bytes=50.0 * MIB,
        last_bytes=50.0 * MIB + grew,
        n_samples=n_samples,
        took_s=10.0,
        late_part=late,
        grown=grown,
        heap_freed_bytes=freed,
    )
    facts = held(*found, **{"n_samples": 1_000_000, **more})
    memory = WorkerMemoryFacts(n_workers=4, worker_bytes=int(growth.last_bytes), growth=growth)
    return replace(facts, worker_memory=memory)


# Reading 4,000 entries of three objects copies 47 MiB at most, a page for each.
GROWS = Case(
    rule=worker_memory_grows,
    ill=grows(),
    share=None,
    severity=Severity.HIGH,  # 98 GiB an epoch
    evidence={"container": "kept", "grew_bytes": 400.0 * MIB, "samples": 4000.0},
    says=("Each of 4 workers grew by 400 MiB", "kept of the dataset grew from 0 to 4,000", "cache"),
    silent={
        "what reading copies": grows(45 * MIB, container()),
        "more of what reading copies": grows(400 * MIB, container(), n_samples=40_000.0),
        "it came at first": grows(late=0.05),
        "little": grows(20 * MIB),
        # Samples of 256 KiB in a worker that keeps none: malloc holds as much as it grew.
        "malloc holds it": grows(130 * MIB, grown=(), freed=130.0 * MIB),
        "malloc held half of it when last asked": grows(130 * MIB, grown=(), freed=65.0 * MIB),
        "none": grows(-5 * MIB),
    },
    missing={
        "no growth seen": replace(
            grows(), worker_memory=WorkerMemoryFacts(n_workers=4, worker_bytes=MIB)
        ),
        "no memory recorded": replace(grows(), worker_memory=None),
        "no loader": replace(grows(), loaders=()),
    },
)


def test_worker_memory_grows() -> None:
    check_fires(GROWS)
    check_silent(GROWS)


def test_growth_without_a_container_is_a_leak_and_a_stream_is_judged_by_the_hour() -> None:
    finding = worker_memory_grows(grows(grown=(), n_samples=4000.0, kind="iterable"))
    assert finding is not None
    assert "No container among the dataset's attributes grew" in finding.summary
    assert "what a sample leaves behind" in (finding.advice or "")
    stream = grows()
    record = loader(settings={"num_workers": 4}, kind="iterable", n_samples=None)
    finding = worker_memory_grows(replace(stream, loaders=(record,)))
    assert finding is not None
    assert "an hour in all workers" in finding.summary


def test_growth_that_an_allocator_may_hold_kills_nothing() -> None:
    finding = worker_memory_grows(grows(grown=(), freed=None))
    assert finding is not None
    assert finding.severity is Severity.LOW
    finding = worker_memory_grows(grows(grown=(), freed=20.0 * MIB))
    assert finding is not None
    assert finding.severity is Severity.HIGH  # 360 of 400 MiB are in use
