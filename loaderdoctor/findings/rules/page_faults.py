"""Batches in memory that the training process has never seen: the loop maps it page by page."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.advice.proposal import has_accelerator
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import loader_id, num_workers
from loaderdoctor.findings.model import Finding, Kind, Prediction
from loaderdoctor.findings.rules.capacity import mapping_cost


def batch_page_faults(facts: Facts) -> Finding | None:
    """The loop maps each batch's shared memory page by page and frees it: work that no wait shows.

    Decides on: minor page faults of the training thread, a step, with real batches against ready
    ones, times the CPU time that mapping and dropping a batch was measured to take; at most what
    the loader costs by ablation beyond the loop's wait.
    Abstains: no workers, no ablation, faults not counted (outside Linux), no batch was thrown away
    to be measured, or another thread is the first to read them.
    Fooled by: batches that something else keeps alive, which are freed elsewhere; a loop that
    writes into its batches, whose faults are more and smaller than those of reading.
    """
    part = mapping_cost(facts)
    ablation = facts.ablation
    pages = ablation.pages if ablation is not None else None
    if part is None or pages is None or ablation is None or ablation.input_ms is None:
        return None
    wait_ms = facts.step.raw_wait_ms if facts.step is not None else None
    return Finding(
        kind=Kind.BATCH_PAGE_FAULTS,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"The loop waits only {fmt.ms(wait_ms)} for its loader, yet each batch of "
            f"{fmt.n_bytes(pages.batch_bytes)} comes in shared memory new to this process: reading "
            f"it first takes {pages.faults_per_batch:,} page faults ({fmt.ms(pages.touch_ms)}), "
            f"dropping it {fmt.ms(pages.release_ms)}, together {part.of_step}, on the training "
            "thread."
        ),
        predictions=_predictions(facts, part.ms),
        evidence={
            "batch_bytes": pages.batch_bytes,
            "page_faults_per_step": pages.faults_per_step,
            "extra_page_faults_per_step": pages.extra_faults_per_step,
            "page_faults_per_batch": pages.faults_per_batch,
            "touch_ms_per_batch": pages.touch_ms,
            "release_ms_per_batch": pages.release_ms,
            "input_ms_per_step": ablation.input_ms.value,
            "raw_wait_ms_per_step": wait_ms,
            "num_workers": num_workers(facts),
            "step_ms": part.step_ms,
        },
        advice="Hand over fewer bytes (half as wide a type halves the faults and the freeing), or "
        "let the workers write into shared tensors that are used again.",
    )


def _predictions(facts: Facts, mapped_ms: float) -> tuple[Prediction, ...]:
    made = []
    loader = facts.main_loader
    if has_accelerator(facts) and loader is not None and not loader.settings.pin_memory:
        made.append(
            Prediction(
                sentence="pin_memory=True would leave that to the pin-memory thread.",
                setting="pin_memory",
                value=True,
            )
        )
    # Its samples at least the loop would then have to make; collating into memory that is mapped
    # already takes far less than the workers take for it.
    if facts.workers is not None and facts.workers.fetch_ms < mapped_ms:
        made.append(
            Prediction(
                sentence="With num_workers=0 the loop would make its batches in memory that it "
                "has mapped already.",
                setting="num_workers",
                value=0,
            )
        )
    return tuple(made)
