"""Which part of making and delivering a batch is the slow one: order, sampler, collate, format."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Prediction
from loaderdoctor.findings.capacity import stall_cost
from loaderdoctor.findings.exposure import Cost, input_cost, loader_id
from loaderdoctor.findings.input_parts import making_cost
from loaderdoctor.findings.line_names import (
    at,
    conversion,
    hottest,
    line_evidence,
    seen,
    seen_enough,
)
from loaderdoctor.instrument.wire.records import StoreRecord

# Collating is a copy of the batch; where it is most of a batch's cost, samples are not to blame.
MIN_COLLATE_PART = 0.5
# From here default_collate is copying rather than calls: 64 MB took it 54 ms (H200 machine, one
# worker), the calls of stacking 16 to 256 samples take under a millisecond.
LARGE_BATCH_BYTES = 8 * 2**20
# Lines are sampled: under a third of the samples, converting is not what the batch costs.
MIN_FORMAT_LINE_SHARE = 0.33


def head_of_line_stall(facts: Facts) -> Finding | None:
    """Ready batches wait behind an earlier slow one, because they are delivered in order.

    Decides on: the time per step that later batches were ready while the loop waited for an
    earlier one, within the exposed input time.
    Abstains: fewer than two workers, order not kept (in_order=False), or not recorded.
    Fooled by: a pool too small by itself, where any order leaves a wait (see too-few-workers).
    """
    workers, cost, stall = facts.workers, input_cost(facts), stall_cost(facts)
    if workers is None or cost is None or stall is None:
        return None
    spread = _sample_spread(facts)
    varied = ""
    if spread is not None:
        varied = (
            f" A sample takes {fmt.ms(spread[0])} at the median, {fmt.ms(spread[1])} at the 99th"
        )
        varied += " percentile."
    return Finding(
        kind=Kind.HEAD_OF_LINE_STALL,
        severity=stall.severity,
        share=stall.share,
        loader=loader_id(facts),
        summary=(
            f"For {stall.of_step} the loop waits for a slow batch while later ones are ready."
            f"{varied}"
        ),
        predictions=(
            Prediction(
                sentence="in_order=False hands them out as they come, if the order is free.",
                setting="in_order",
                value=False,
                advised=True,
            ),
        ),
        evidence={
            "head_of_line_ms_per_step": workers.head_of_line_ms,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
            "num_workers": workers.n_workers,
            "median_sample_ms": spread[0] if spread is not None else None,
            "p99_sample_ms": spread[1] if spread is not None else None,
        },
        advice="Use in_order=False where the order of batches is free, or spread slow samples.",
    )


def sampler_bound(facts: Facts) -> Finding | None:
    """The sampler, which always runs in the training process, is what the loop waits for.

    Decides on: sampler time per batch, within the exposed input time.
    Abstains: sampler time not recorded.
    Fooled by: a sampler that waits for another rank: that is communication.
    """
    workers, cost, loader = facts.workers, input_cost(facts), facts.main_loader
    if workers is None or cost is None or not workers.sampler_ms:
        return None
    part = cost.part(workers.sampler_ms)
    if part.share < MODERATE_SHARE:
        return None
    name = loader.sampler if loader is not None and loader.sampler else "The sampler"
    return Finding(
        kind=Kind.SAMPLER_BOUND,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"{name} takes {fmt.ms(workers.sampler_ms)} per batch in the training process, "
            f"{part.of_step}; workers can't take that over. Compute the indices ahead, in one "
            "vectorised call per epoch."
        ),
        evidence={
            "sampler_ms_per_batch": workers.sampler_ms,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
            "sampler": loader.sampler if loader is not None else None,
        },
        advice="Compute all indices of an epoch at once (torch.randperm; weighted ones: "
        "torch.multinomial) and yield from them.",
    )


def collate_bound(facts: Facts) -> Finding | None:
    """Turning samples into a batch costs more than the samples themselves.

    Decides on: collate time / batch time where batches are made, and the exposed input time that
    making batches explains.
    Abstains: collate time not recorded, or the pool keeps up with the step.
    Fooled by: a dataset that returns views of one big tensor, where the copy into the batch is the
    first time the data is touched.
    """
    workers, cost, loader = facts.workers, making_cost(facts), facts.main_loader
    if workers is None or cost is None or not workers.collate_ms or workers.batch_ms <= 0:
        return None
    share_of_batch = min(1.0, workers.collate_ms / workers.batch_ms)
    if share_of_batch < MIN_COLLATE_PART:
        return None
    part = cost.part(cost.ms * share_of_batch)
    if part.share < MODERATE_SHARE:
        return None
    name = loader.collate if loader is not None and loader.collate else "Collating"
    n_bytes = sum(t.n_bytes for t in loader.batch) if loader is not None else 0
    library = loader.collate_library if loader is not None else None
    advice = _collating_advice(name, library, n_bytes)
    place = "in the workers" if workers.n_workers else "in the training loop"
    return Finding(
        kind=Kind.COLLATE_BOUND,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"{name} takes {fmt.ms(workers.collate_ms)} of the {fmt.ms(workers.batch_ms)} a batch "
            f"costs {place}, {fmt.share(share_of_batch)} of it, while the loop waits "
            f"{cost.of_step}."
        ),
        evidence={
            "collate_ms": workers.collate_ms,
            "batch_ms": workers.batch_ms,
            "collate_share_of_batch": share_of_batch,
            "batch_bytes": n_bytes or None,
            "num_workers": workers.n_workers,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
            "collate": loader.collate if loader is not None else None,
            "collate_library": library,
            **line_evidence(hottest(facts, "collate")),
        },
        advice=advice,
    )


def _collating_advice(name: str, library: str | None, n_bytes: int) -> str:
    """By whose code it is: of a library's own, only what it is given and how often can change."""
    if name == "default_collate" or library == "torch":
        if n_bytes < LARGE_BATCH_BYTES:
            return "It stacks samples one by one: let the dataset hand out whole batches."
        return (
            f"It copies {fmt.n_bytes(n_bytes)} a batch, sample by sample. Hand over fewer bytes "
            "(float16 or uint8, widened behind the copy), or take whole batches out of one array."
        )
    if library is not None:
        return (
            f"It is code of {library}: give it samples that are ready (same type, no field that "
            "the model does not use), or collate once and keep the batches where samples do not "
            "change."
        )
    return (
        "Move per-sample work (tokenising, padding to a fixed length) out of collate_fn and do it "
        "once, ahead of training."
    )


def dataset_format_bound(facts: Facts) -> Finding | None:
    """Most of a batch goes into converting each sample's format: PIL, lists, text, table rows.

    Decides on: stack samples of lines that convert one recognised format (text, pandas rows, h5py,
    Arrow, a round trip of arrays through PIL, Python lists), told by the library function they fell
    on or the line's text, and the exposed input time that making batches explains.
    Abstains: too few stack samples, or the pool keeps up with the step.
    Fooled by: a conversion written in a helper with another name, or by a library not known here.
    """
    workers, cost, loader = facts.workers, making_cost(facts), facts.main_loader
    if workers is None or cost is None or not workers.lines:
        return None
    found = conversion(workers.lines, loader)
    if found is None or not seen_enough(found.hotspots):
        return None
    share = sum(x.share for x in found.hotspots)
    part: Cost = cost.part(cost.ms * share)
    if share < MIN_FORMAT_LINE_SHARE or part.share < MODERATE_SHARE:
        return None
    worst, form = found.hotspots[0], found.format
    code = f" `{worst.code}`" if worst.code and at(worst) else ""
    most = f"; most of it{at(worst).removeprefix(',')}{code}" if at(worst) else ""
    return Finding(
        kind=Kind.DATASET_FORMAT_BOUND,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"{seen(*found.hotspots)} of making a batch is {form.what}{_from(found.store)}{most}. "
            f"The loop waits {cost.of_step}."
        ),
        evidence={
            "format": form.name,
            "conversion_share_of_batch": share,
            "stored_in": found.store.path if found.store is not None else None,
            "input_ms_per_step": cost.ms,
            "step_ms": cost.step_ms,
            **line_evidence(worst),
        },
        advice=form.instead,
    )


def _from(store: StoreRecord | None) -> str:
    """What the samples are stored in: ` (data: uint8, 28 x 28 each)`."""
    if store is None:
        return ""
    each = " x ".join(str(n) for n in store.shape[1:])
    words = [x for x in (store.dtype, f"{each} each" if each else "", store.entry) if x]
    return f" ({store.path}: {', '.join(words)})" if words else f" ({store.path})"


def _sample_spread(facts: Facts) -> tuple[float, float] | None:
    """Median and 99th percentile of the sample time, ms."""
    quantiles = facts.workers.sample_ms_quantiles if facts.workers is not None else None
    return (quantiles[3], quantiles[6]) if quantiles is not None and len(quantiles) == 8 else None
