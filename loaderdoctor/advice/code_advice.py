"""Findings that no setting answers -> the code to change, with an example and the most it gains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from loaderdoctor.advice import dataset_snippets, loop_snippets, loop_work_snippets
from loaderdoctor.advice.candidates import CodeAdvice, PredictedFrom
from loaderdoctor.advice.worked import from_array
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import by_ablation, reachable_ms
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.batch_making import LARGE_BATCH_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to change in the code for one kind of finding."""

    title: str
    example: str
    caution: str | None = None


CHANGES: Mapping[Kind, Change] = {
    Kind.OVERHEAD_BOUND_LOADER: Change(
        title="Slice whole batches out of memory instead of fetching sample by sample",
        example=dataset_snippets.SLICING,
    ),
    Kind.WIDE_DTYPE_COPY: Change(
        title="Send uint8 and normalise on the device",
        example=dataset_snippets.UINT8,
        caution="Only where the images were 8-bit before the dataset made floats of them.",
    ),
    Kind.ITERATOR_RECREATED: Change(
        title="Make the iterator once per epoch", example=loop_snippets.ITERATOR
    ),
    Kind.THREAD_OVERSUBSCRIPTION: Change(
        title="Give every worker one library thread", example=loop_snippets.WORKER_THREADS
    ),
    Kind.IDLE_WORKERS: Change(
        title="Split the stream between the workers",
        example=dataset_snippets.SHARDS,
        caution="Needs at least as many shards as workers.",
    ),
    Kind.SAMPLER_BOUND: Change(
        title="Compute the indices of an epoch in one call",
        example=dataset_snippets.SAMPLER,
        caution="The example draws a plain shuffle. Keep what your sampler draws, or training "
        "changes: torch.multinomial(weights, n, replacement=True) for weighted draws.",
    ),
    Kind.COLLATE_BOUND: Change(
        title="Do per-sample work once, ahead of training", example=dataset_snippets.COLLATE
    ),
    Kind.WORKERS_SHARE_A_CORE: Change(
        title="Give the workers all CPUs again", example=loop_snippets.AFFINITY
    ),
    Kind.PIN_INEFFECTIVE: Change(
        title="Teach the batch class to pin itself", example=loop_snippets.PIN_METHOD
    ),
    Kind.BATCH_PAGE_FAULTS: Change(
        title="Let the workers write into shared tensors that are used again",
        example=loop_snippets.SHARED_BUFFERS,
        caution="With fork as the start method only. A batch is overwritten once the loop has "
        "taken two more: keep no reference to it.",
    ),
    Kind.MANY_SMALL_COPIES: Change(
        title="Copy one packed tensor instead of many small ones", example=loop_snippets.PACKED
    ),
    Kind.SYNC_EVERY_STEP: Change(
        title="Keep the loss on the device, read it rarely", example=loop_snippets.NO_SYNC
    ),
    Kind.LAUNCH_BOUND: Change(
        title="Launch less: CUDA graphs, fused optimizers, a bigger batch",
        example=loop_snippets.LAUNCHES,
        caution="A bigger batch changes training: warm the learning rate up.",
    ),
    Kind.WORK_BETWEEN_STEPS: Change(
        title="Move the loop's own work into the workers, or do it rarely",
        example=dataset_snippets.BETWEEN_STEPS,
    ),
    Kind.CPU_SATURATED_WORKERS: Change(
        title="Move transforms from the workers to the device",
        example=dataset_snippets.ON_DEVICE,
        caution="A crop or flip drawn for a batch is the same for all its images.",
    ),
    Kind.MANY_SMALL_FILES: Change(
        title="Pack the samples into a few large files", example=dataset_snippets.PACK_FILES
    ),
    Kind.COLD_STORAGE: Change(
        title="Bring the data to fast storage before training",
        example=dataset_snippets.WARM_COPY,
        caution="Memory that holds the data is not there for the page cache.",
    ),
    Kind.DATA_PARALLEL: Change(
        title="Train with a process for each GPU",
        example=loop_snippets.DISTRIBUTED,
        caution="Batch norms then see each GPU's own batch, as they do under DataParallel.",
    ),
    Kind.TF32_OFF: Change(
        title="Let float32 matrix products use TF32",
        example=loop_snippets.TF32,
        caution="Changes numerics: inputs are rounded to 10 bits of mantissa.",
    ),
    Kind.GRAD_NOT_SET_TO_NONE: Change(
        title="Drop gradients instead of filling them with zeros",
        example=loop_snippets.ZERO_GRAD,
        caution="Code that reads .grad before the backward pass finds None.",
    ),
    Kind.CUDNN_BENCHMARK_OFF: Change(
        title="Let cuDNN time its algorithms",
        example=loop_snippets.AUTOTUNER,
        caution="Changes numerics a little, and slows down where shapes vary.",
    ),
    Kind.BIAS_BEFORE_BATCHNORM: Change(
        title="Leave the bias out before a batch norm",
        example=loop_snippets.NO_BIAS,
        caution="Checkpoints with those biases then need strict=False to load.",
    ),
}

# By the format that was recognised (`Format.name`).
FORMAT_CHANGES: Mapping[str, Change] = {
    "text": Change(
        title="Parse the text once and store arrays",
        example=dataset_snippets.PARSED,
    ),
    "pandas-rows": Change(
        title="Make arrays of the frame's columns once",
        example=dataset_snippets.COLUMNS,
    ),
    "h5py": Change(
        title="Read whole batches from the HDF5 file",
        example=dataset_snippets.H5PY,
        caution="Open the file in the worker, at its first batch: forked workers can't share it.",
    ),
    "arrow": Change(
        title="Take arrays from the Arrow columns once",
        example=dataset_snippets.ARROW,
    ),
    "pil-round-trip": Change(
        title="Make batches straight from the array, without PIL between",
        example=dataset_snippets.FROM_ARRAY,
        caution="Random transforms that need PIL images stay as they are: "
        "torchvision.transforms.v2 does most of them on tensors.",
    ),
    "python-lists": Change(
        title="Store arrays instead of Python lists",
        example=dataset_snippets.FORMAT,
    ),
}
# Of work between steps that stack samples named, by what it does (`facts.loop_lines.What`).
_RARELY = Change(title="Do it every n steps", example=loop_work_snippets.RARELY)
_AHEAD = Change(
    title="Let the loader's workers do it, ahead of the loop", example=loop_work_snippets.AHEAD
)
WORK_CHANGES: Mapping[str, Change] = {
    "item": Change(
        title="Keep sums on the device, read them rarely", example=loop_work_snippets.ON_DEVICE
    ),
    "to-host": Change(
        title="Compute on the device, copy only the result", example=loop_work_snippets.ON_DEVICE
    ),
    "metrics": Change(
        title="Compute metrics on whole tensors, or rarely", example=loop_work_snippets.ON_DEVICE
    ),
    "table": Change(
        title="Make arrays of the table's columns once", example=loop_work_snippets.COLUMNS
    ),
    "deepcopy": Change(
        title="Copy only when something is to be kept", example=loop_work_snippets.KEPT_COPY
    ),
    "save": Change(title="Save rarely, in the background", example=loop_work_snippets.SAVE),
    "plot": Change(title="Keep the values, draw once an epoch", example=loop_work_snippets.PLOT),
    "elements": Change(
        title="Work on whole batches in place of single elements",
        example=loop_work_snippets.VECTORISED,
    ),
    **dict.fromkeys(("print", "tracking", "files", "network", "process"), _RARELY),
    **dict.fromkeys(("image", "text", "numpy", "library"), _AHEAD),
}
# By what lies outside the steps.
OUTSIDE_CHANGES: Mapping[str, Change] = {
    "validation": Change(
        title="Validate less often, and faster",
        example=loop_snippets.VALIDATION,
        caution="Fewer validations find the best checkpoint, or that training went wrong, later.",
    ),
    "saving": Change(
        title="Save less often, or while training goes on",
        example=loop_work_snippets.SAVE,
        caution="The copy needs host memory for all that is saved.",
    ),
}
KEPT_BATCHES = Change(
    title="Collate once, and keep the batches",
    example=dataset_snippets.KEPT_BATCHES,
    caution="The same samples stay together in every epoch, random transforms are drawn once, and "
    "memory holds all batches.",
)
FEWER_BYTES = Change(
    title="Hand over half the bytes, and widen them behind the copy",
    example=dataset_snippets.FEWER_BYTES,
    caution="float16 keeps three digits, up to 65,504; uint8 loses nothing of 8-bit data.",
)


def _change(finding: Finding, facts: Facts) -> Change | None:
    """By the kind, and of conversions by the format that was recognised."""
    library = finding.evidence.get("collate_library")
    handed_over = finding.evidence.get("receive_ms_per_batch") is not None
    if finding.kind is Kind.OVERHEAD_BOUND_LOADER and handed_over:  # of samples of any cost
        return CHANGES[finding.kind] if finding.evidence.get("sample_us") is not None else None
    of_torch = finding.evidence.get("collate") == "default_collate" or library == "torch"
    if finding.kind is Kind.COLLATE_BOUND and library is not None and not of_torch:
        return KEPT_BATCHES
    if finding.kind is Kind.COLLATE_BOUND and of_torch:
        n_bytes = finding.evidence.get("batch_bytes")
        large = isinstance(n_bytes, int | float) and n_bytes >= LARGE_BATCH_BYTES
        return FEWER_BYTES if large else CHANGES[Kind.OVERHEAD_BOUND_LOADER]
    if finding.kind is Kind.WORK_BETWEEN_STEPS and "what" in finding.evidence:
        return _of_work(finding)
    if finding.kind is Kind.TIME_OUTSIDE_STEPS:
        return OUTSIDE_CHANGES.get(str(finding.evidence.get("what")))
    if finding.kind is not Kind.DATASET_FORMAT_BOUND:
        return CHANGES.get(finding.kind)
    change = FORMAT_CHANGES.get(str(finding.evidence.get("format")))
    if change is not None and finding.evidence.get("format") == "pil-round-trip":
        return replace(change, example=from_array(facts.main_loader))
    return change


def _of_work(finding: Finding) -> Change | None:
    """By what it does and where; None where the advice says it all (a sleep)."""
    what = str(finding.evidence["what"])
    change = WORK_CHANGES.get(what)
    early = finding.evidence.get("before_forward_pass")
    if what in ("elements", "item") and early:
        return _AHEAD
    return _RARELY if change is _AHEAD and early is False else change


# Their share is of the step's own work, which no ablation touches.
_COMPUTING = (Kind.TF32_OFF, Kind.GRAD_NOT_SET_TO_NONE)


def code_advice(facts: Facts, findings: Iterable[Finding]) -> tuple[CodeAdvice, ...]:
    """A change of code for each finding that has one, in the findings' order.

    The bound is what the finding explains of the step: from ablation where it ran, else from the
    trace. More can't be gained by it, nor more than all CPUs together can do.
    """
    measured = by_ablation(facts)
    on_device = facts.machine is not None and facts.machine.device_name is not None
    out = []
    for finding in findings:
        change = _change(finding, facts)
        if change is None:
            continue
        if finding.kind is Kind.CPU_SATURATED_WORKERS and not (measured and on_device):
            continue  # only where ready batches proved that the CPU is the limit
        if finding.evidence.get("threads_of") == "loop":
            continue  # a setting answers it
        bound_ms = _bound_ms(finding, facts)
        computing = finding.kind in _COMPUTING
        source: PredictedFrom = "ablation" if measured and not computing else "trace"
        out.append(
            CodeAdvice(
                kind=finding.kind,
                title=change.title,
                example=change.example,
                bound_ms=bound_ms,
                predicted_from=source if bound_ms is not None else None,
                caution=change.caution,
            )
        )
    return tuple(out)


def _bound_ms(finding: Finding, facts: Facts) -> float | None:
    """The most of a step that the change may save; None where the finding has no share of it."""
    if finding.kind is Kind.TIME_OUTSIDE_STEPS:
        return None  # its share is not of the step
    if finding.share is None or facts.step_ms is None:
        return None
    bound_ms = finding.share * facts.step_ms
    reachable, machine = reachable_ms(facts), facts.machine
    if finding.kind is not Kind.WORKERS_SHARE_A_CORE or reachable is None or machine is None:
        return bound_ms
    shared = {core for one in facts.workers.cores for core in one} if facts.workers else ()
    if machine.usable_cpus > len(shared):  # else nothing tells how many CPUs there would be
        bound_ms = min(bound_ms, max(0.0, facts.step_ms - reachable))
    return bound_ms
