"""Facts of runs whose loader costs something, for the rules about getting batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import PageFacts
from tests.findings.builders import loader, step, with_exposed, workers

NO_WORKERS = (loader(settings={"num_workers": 0}),)
BY_ITSELF = workers(n_workers=0, batch_ms=7.0, fetch_ms=6.5, collate_ms=0.5, cores=())

# A pool that makes a batch of 40 ms in 4 workers: one each 10 ms, the rest of the step takes 4 ms.
SHORT = workers(batch_ms=40.0, fetch_ms=39.0, idle_share=0.0)
STARVED = with_exposed(
    input_=0.6, workers=SHORT, step=step(worker_cpu_cores=3.8, main_cpu_cores=0.8)
)
SLEEPING = replace(SHORT, cpu_share=0.08)
FULL_CPU = step(worker_cpu_cores=6.5, main_cpu_cores=1.0)
LOW = "no exposed input"

# Something costs 2.1 ms a step, and the loop waits 0.2 ms of it.
UNSEEN = with_exposed(input_=0.21, step=step(raw_wait_ms=0.2))

# Of it 1.5 ms go to batches of 4 MB, which this thread reads first.
PAGES = PageFacts(
    batch_bytes=4_000_000,
    faults_per_batch=62,
    touch_ms=0.6,
    release_ms=0.9,
    faults_per_step=67.0,
    extra_faults_per_step=62.0,
)


def with_pages(facts: Facts = UNSEEN, **changes: Any) -> Facts:
    """The run with such batches; `workers` replaces those, the rest changes the pages."""
    assert facts.ablation is not None
    pool = changes.pop("workers", facts.workers)
    pages = replace(PAGES, **changes)
    return replace(facts, workers=pool, ablation=replace(facts.ablation, pages=pages))
