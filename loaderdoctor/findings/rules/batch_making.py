"""Which part of making batches is the slow one: starting workers, sampler, collate, format."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind, Prediction
from loaderdoctor.findings.capacity import all_batches_ms
from loaderdoctor.findings.exposure import (
    Cost,
    input_cost,
    loader_id,
    num_workers,
    pool_size,
    started_anew,
)
from loaderdoctor.findings.input_parts import (
    boundary_of_loader_ms,
    making_cost,
    startup_ms_per_step,
)
from loaderdoctor.findings.line_names import (
    at,
    conversion,
    hottest,
    line_evidence,
    seen,
    seen_enough,
)
from loaderdoctor.instrument.wire.records import StoreRecord

# An epoch of one or two steps may rightly need an iterator every other step; from one in two
# steps on, a longer epoch means that the loop drops its iterator.
MIN_CREATIONS_PER_STEP = 0.5
# In a trace, start-up is inferred from gaps: it must also be the better part of the input time
# before it is named as its cause.
MIN_PART_OF_INPUT = 0.5


def iterator_recreated(facts: Facts) -> Finding | None:
    """The loop builds a new iterator for (nearly) every step and drops it after a batch.

    Decides on: iterators that one loader of the step made per step, the length of its epoch, and
    exposed input time. Several loaders read side by side make one each per epoch, which is right.
    Abstains: creations not recorded, or an epoch is one or two steps long by its own length.
    Fooled by: a trace that begins and ends within two steps, where one epoch boundary looks like
    a habit; at least 4 steps are asked for.
    """
    cost, counts = input_cost(facts), _creations(facts)
    if cost is None or counts is None:
        return None
    n_created, n_steps = counts
    if n_steps < 4 or n_created / n_steps < MIN_CREATIONS_PER_STEP:
        return None
    most = facts.step.most_iterators_of if facts.step is not None else None
    loader = next((x for x in facts.feeding if x.id == most), facts.main_loader)
    if loader is not None and loader.steps_per_epoch is not None and loader.steps_per_epoch <= 2:
        return None
    n = loader.settings.num_workers if loader is not None else num_workers(facts)
    paid = f", and {fmt.count(n, 'worker')} are started for it" if n else ""
    return Finding(
        kind=Kind.ITERATOR_RECREATED,
        severity=cost.severity,
        share=cost.share,
        loader=loader.id if loader is not None else None,
        summary=(
            f"The loop makes a new iterator {n_created} times in {n_steps} steps "
            f"(next(iter(loader))){paid}: {cost.of_step}. Make the iterator once per epoch and "
            "call next() on it."
        ),
        evidence={
            "n_iterators_created": n_created,
            "n_steps": n_steps,
            "num_workers": n,
            **cost.as_input,
        },
        advice="Loop with `for batch in loader:`, or keep `batches = iter(loader)` outside it.",
    )


def worker_startup_each_epoch(facts: Facts) -> Finding | None:
    """Workers start again each epoch, and epochs are short enough for that to matter.

    Decides on: the cost of one epoch boundary, of all loaders that feed the step, spread over the
    steps of an epoch; in a trace alone, the start-ups inside it, where they are most of its input
    time.
    Abstains: no loader of the step has workers that end with the epoch, or no boundary measured.
    Fooled by: a trace that holds one boundary of a much longer epoch: its share is of the trace's
    own steps, and the evidence says how many.
    """
    if facts.feeding and not started_anew(facts):
        return None
    if num_workers(facts) == 0 and not pool_size(facts):
        return None
    if facts.step is not None:
        return _startup_of_run(facts)
    return _startup_of_trace(facts)


def _startup_of_run(facts: Facts) -> Finding | None:
    again = started_anew(facts)
    n = sum(x.settings.num_workers or 0 for x in again) or num_workers(facts)
    step, per_step = facts.step, startup_ms_per_step(facts)
    cost, boundary_ms = input_cost(facts), boundary_of_loader_ms(facts)
    if step is None or boundary_ms is None or per_step is None or not n or cost is None:
        return None
    explained = cost.part(per_step)
    if explained.share < MODERATE_SHARE:
        return None
    of = f" of {len(again)} loaders" if len(again) > 1 else ""
    anew = any(x.id in step.rebuilt for x in again)
    built = " The loader is built again for each, in the loop over the epochs." if anew else ""
    if step.changed is not None:
        built += f" The loop changes {step.changed} of the dataset: workers kept would miss that."
    without = _without_workers(facts, cost, explained)
    kept = _kept(cost.step_ms - explained.ms, anew=anew)
    return Finding(
        kind=Kind.WORKER_STARTUP_EACH_EPOCH,
        severity=explained.severity,
        share=explained.share,
        loader=again[0].id if again else loader_id(facts),
        summary=(
            f"{fmt.count(n, 'worker')}{of} {fmt.verb(n, 'start')} again for each epoch of "
            f"{step.steps_per_epoch} steps, and until the first batch "
            f"{fmt.seconds(boundary_ms / 1000)} go by: {fmt.share(explained.share)} of the "
            f"run.{built}"
        ),
        predictions=(
            *([kept] if step.changed is None else []),
            *([without] if without else []),
        ),
        evidence={
            "boundary_ms": boundary_ms,
            "startup_s_per_epoch": boundary_ms / 1000,
            "steps_per_epoch": step.steps_per_epoch,
            "startup_ms_per_step": per_step,
            "step_ms": cost.step_ms,
            "num_workers": n,
            "loader_built_each_epoch": anew or None,
            "loaders": ", ".join(x.id for x in again) if len(again) > 1 else None,
        },
    )


def _startup_of_trace(facts: Facts) -> Finding | None:
    trace, cost = facts.trace, input_cost(facts)
    if trace is None or cost is None or not trace.fetching.startup_ms or trace.n_steps < 1:
        return None
    if trace.fetching.kind not in ("multi-process", "mixed"):
        return None
    n_starts = len(trace.fetching.startup_ms)
    if (
        trace.n_steps >= 4
        and trace.fetching.n_iterators_created / trace.n_steps >= MIN_CREATIONS_PER_STEP
    ):
        return None  # the iterator is dropped each step: that is the cause, not the epoch
    explained = cost.part(trace.fetching.all_boundaries_ms / trace.n_steps)
    if explained.share < MODERATE_SHARE or explained.ms < MIN_PART_OF_INPUT * cost.ms:
        return None
    mean_ms = trace.fetching.all_boundaries_ms / n_starts
    return Finding(
        kind=Kind.WORKER_STARTUP_EACH_EPOCH,
        severity=explained.severity,
        share=explained.share,
        summary=(
            f"Workers start again {n_starts} times in {trace.n_steps} steps, {fmt.ms(mean_ms)} "
            f"until the first batch each time: {explained.of_step}."
        ),
        predictions=(_kept(None),),
        evidence={
            "n_startups": n_starts,
            "n_steps": trace.n_steps,
            "startup_ms": mean_ms,
            "startup_ms_per_step": explained.ms,
            **cost.as_input,
        },
        advice="Pass persistent_workers=True to the DataLoader.",
    )


def _kept(step_ms: float | None, *, anew: bool = False) -> Prediction:
    """That workers kept between epochs save their start; the step then expected, where known.

    `anew`: the loader itself must be kept for that.
    """
    brings = f", which would bring the step to {fmt.ms(step_ms)}" if step_ms is not None else ""
    return Prediction(
        sentence=f"persistent_workers=True {'of a loader built once ' if anew else ''}keeps them "
        f"between epochs{brings}.",
        setting="persistent_workers",
        value=True,
        step_ms=step_ms,
        advised=True,
    )


def _without_workers(facts: Facts, cost: Cost, startup: Cost) -> Prediction | None:
    """That a loop which makes its batches itself starts nothing, where they are that cheap."""
    made_ms = all_batches_ms(facts, at_best=True)
    if made_ms is None or made_ms >= startup.ms:
        return None
    step_ms = cost.step_ms - cost.ms + made_ms
    return Prediction(
        sentence=f"num_workers=0 starts none: making the batches in the loop takes "
        f"{fmt.ms(made_ms)} of a step or more, which would bring it to {fmt.ms(step_ms)} at best.",
        setting="num_workers",
        which="fewer",
        value=0,
        step_ms=step_ms,
    )


def _creations(facts: Facts) -> tuple[int, int] | None:
    if facts.step is not None:
        return facts.step.n_iterators_created, facts.step.n_steps
    if facts.trace is not None and facts.trace.fetching.recorded:
        return facts.trace.fetching.n_iterators_created, facts.trace.n_steps
    return None


# Collating is a copy of the batch; where it is most of a batch's cost, samples are not to blame.
MIN_COLLATE_PART = 0.5
# From here default_collate is copying rather than calls: 64 MB took it 54 ms (H200 machine, one
# worker), the calls of stacking 16 to 256 samples take under a millisecond.
LARGE_BATCH_BYTES = 8 * 2**20
# Lines are sampled: under a third of the samples, converting is not what the batch costs.
MIN_FORMAT_LINE_SHARE = 0.33


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
            **cost.as_input,
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
            **cost.as_input,
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
