"""Copies that could be pinned, hidden, merged or made smaller."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.facts.trace import CALL_MS, MIN_TENSOR_BYTES, small_copies
from loaderdoctor.findings import Finding, Kind, Prediction
from loaderdoctor.findings.exposure import (
    MIN_BLOCKED_PART,
    bandwidth_gb_per_s,
    copies_from,
    copy_cost,
    explained_by,
    lead_lost_ms,
    loader_id,
    severity,
    trace_alone,
)
from loaderdoctor.instrument.wire.records import TensorRecord

# Image batches: N x C x H x W or N x H x W x C. Anything smaller is copied in microseconds.
IMAGE_CHANNELS = (1, 3)
MIN_IMAGE_BYTES = 256 * 1024
BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def copy_not_overlapped(facts: Facts) -> Finding | None:
    """Pinned, non-blocking copies that run on the compute stream, so the step waits all the same.

    Decides on: exposed time of pinned copies on the stream that computes / step time. What a side
    stream can gain is that and no more.
    Abstains: no accelerator, streams not recorded, or the exposed part is under 5 % of the step.
    Fooled by: a loop that is short of batches: then the next one can't be copied ahead.
    """
    cost = copy_cost(facts)
    if cost is None:
        return None
    copies = [c for c in copies_from(facts, "pinned") if c.same_stream_as_compute]
    busy_ms = sum(c.busy_ms_per_step for c in copies)
    blocked_ms = sum(c.host_blocked_ms_per_step for c in copies)
    blocking = any(t.pinned and not t.non_blocking for t in facts.transfers)
    if not copies or blocking or blocked_ms >= MIN_BLOCKED_PART * busy_ms:
        return None
    explained = explained_by(facts, cost, copies)
    if explained.share < MODERATE_SHARE:
        return None
    n_bytes = sum(c.bytes_per_step for c in copies)
    return Finding(
        kind=Kind.COPY_NOT_OVERLAPPED,
        severity=explained.severity,
        share=explained.share,
        loader=loader_id(facts),
        summary=(
            f"{fmt.n_bytes(n_bytes)} are copied on the stream that computes, so nothing overlaps "
            f"them: {explained.of_step}."
        ),
        predictions=(
            Prediction(
                sentence="A side stream that copies the next batch meanwhile would gain at most "
                f"these {fmt.ms(explained.ms)}.",
                setting="side_stream",
                value=True,
            ),
        ),
        evidence={
            "exposed_copy_ms_per_step": explained.ms,
            "copy_busy_ms_per_step": busy_ms,
            "step_ms": cost.step_ms,
            "bytes_per_step": n_bytes,
            "bandwidth_gb_per_s": bandwidth_gb_per_s(copies),
        },
    )


def many_small_copies(facts: Facts) -> Finding | None:
    """Many small host-to-device copies a step: each costs a call and a latency, not bandwidth.

    Decides on: number and median size of the copies that the training thread makes, and their
    exposed time or their calls' time where the accelerator waits for the host.
    Abstains: no accelerator or copies not recorded.
    Fooled by: copies the framework makes for itself (scalars of an optimizer), which are counted.
    """
    trace, step_ms = facts.trace, facts.step_ms
    if trace is None or not trace.has_accelerator or not step_ms:
        return None
    small = small_copies(trace)
    n = sum(c.n_per_step - c.n_beside_per_step for c in small)
    if not small:
        return None
    exposed_ms = sum(c.exposed_ms_per_step for c in small)
    call_ms = min(n * CALL_MS, trace.host.exposed_ms)
    if trace_alone(facts):  # times of the trace itself: what their ops take, calls and copies
        op_ms = sum(c.op_host_ms_per_step for c in small)
        call_ms = max(call_ms, exposed_ms + op_ms)
    share = min(1.0, max(exposed_ms, call_ms) / step_ms)
    if share < MODERATE_SHARE:
        return None
    median = max(c.median_bytes for c in small)
    return Finding(
        kind=Kind.MANY_SMALL_COPIES,
        severity=severity(share),
        share=share,
        loader=loader_id(facts),
        summary=(
            f"{round(n)} small copies to the device a step (half of them under "
            f"{fmt.n_bytes(median)}) cost {fmt.ms(share * step_ms)} of {fmt.ms(step_ms)}: each "
            "pays a call and a latency. Send one packed tensor and split it on the device."
        ),
        evidence={
            "n_small_copies_per_step": n,
            "median_bytes": median,
            "exposed_copy_ms_per_step": exposed_ms,
            "step_ms": step_ms,
        },
        advice="Collate the small inputs into one tensor and split it on the device, or create "
        "them there.",
    )


def wide_dtype_copy(facts: Facts) -> Finding | None:
    """Images copied as floats, one channel value in 4 bytes (or 8) that held one byte on disk.

    Decides on: dtype and shape of the batch, and the exposed copy time those bytes take.
    Abstains: no accelerator, batch not seen, or copies hidden behind the step.
    Fooled by: float images that never were 8-bit (depth, medical, normalised features): shapes
    can't tell.
    """
    cost, loader = copy_cost(facts), facts.main_loader
    if cost is None or loader is None:
        return None
    wide = [t for t in loader.batch if t.device == "cpu" and _float_image(t)]
    all_bytes = sum(t.n_bytes for t in loader.batch if t.device == "cpu")
    if not wide or not all_bytes:
        return None
    narrow_bytes = sum(t.n_bytes // BYTES_OF[t.dtype] for t in wide)
    wide_bytes = sum(t.n_bytes for t in wide)
    saved = cost.part(cost.ms * (wide_bytes - narrow_bytes) / all_bytes)
    if saved.share < MODERATE_SHARE:
        return None
    widest = max(wide, key=lambda t: t.n_bytes)
    return Finding(
        kind=Kind.WIDE_DTYPE_COPY,
        severity=saved.severity,
        share=saved.share,
        loader=loader.id,
        summary=(
            f"Images travel as {widest.dtype}, {fmt.n_bytes(wide_bytes)} a step. As uint8 it is "
            f"{fmt.n_bytes(narrow_bytes)}."
        ),
        predictions=(
            Prediction(
                sentence=f"Sending uint8 and normalising on the device would save up to "
                f"{saved.of_step}.",
                setting="uint8",
                value=True,
            ),
        ),
        evidence={
            "dtype": widest.dtype,
            "shape": tuple(float(x) for x in widest.shape),
            "bytes_per_step": wide_bytes,
            "bytes_per_step_as_uint8": narrow_bytes,
            "exposed_copy_ms_per_step": cost.ms,
            "saved_ms_per_step": saved.ms,
            "step_ms": cost.step_ms,
        },
        advice="Return uint8 from the dataset, remove the CPU normalisation, and normalise after "
        "`.to(device)`.",
    )


def _float_image(tensor: TensorRecord) -> bool:
    if tensor.dtype not in BYTES_OF or len(tensor.shape) != 4 or tensor.n_bytes < MIN_IMAGE_BYTES:
        return False
    return tensor.shape[1] in IMAGE_CHANNELS or tensor.shape[3] in IMAGE_CHANNELS


def pin_ineffective(facts: Facts) -> Finding | None:
    """pin_memory=True, and yet the batch reaches the loop unpinned.

    Decides on: the loader's setting against the pinned flag of the batch's tensors, or of what the
    loop copies. Of all rules the one that needs no exposure to fire, as a hint: the user asked for
    pinning and does not get it.
    Abstains: no batch tensor of some size was seen; no accelerator (torch then pins nothing, and
    says so itself).
    Fooled by: a loop that makes new tensors from the batch (indexing, .float()) and copies those.
    """
    loader = facts.main_loader
    if loader is None or not loader.settings.pin_memory:
        return None
    if facts.machine is not None and facts.machine.device_name is None:
        return None
    on_host = [t for t in loader.batch if t.device == "cpu" and t.n_bytes >= MIN_TENSOR_BYTES]
    if on_host:
        unpinned = sum(t.n_bytes for t in on_host if not t.pinned)
        what = next((t.path for t in on_host if not t.pinned), "")
    else:
        sent = [t for t in facts.transfers if t.n_bytes >= MIN_TENSOR_BYTES]
        unpinned = sum(t.n_bytes for t in sent if not t.pinned)
        what = next((t.site for t in sent if not t.pinned), "")
    if not unpinned:
        return None
    cost = copy_cost(facts)
    paid = f" The step pays {cost.of_step} for its copies." if cost is not None else ""
    kind = f" of type {loader.batch_type}" if loader.batch_type else ""
    return Finding(
        kind=Kind.PIN_INEFFECTIVE,
        severity=cost.severity if cost is not None else severity(0.0),
        share=cost.share if cost is not None else None,
        loader=loader.id,
        summary=(
            f"pin_memory=True has no effect: {fmt.n_bytes(unpinned)} of the batch{kind} reach the "
            "loop unpinned. Give the batch class a pin_memory() method, or return tensors, tuples "
            f"or dicts.{paid}"
        ),
        evidence={
            "unpinned_bytes_per_step": unpinned,
            "batch_type": loader.batch_type,
            "first_unpinned": what,
            "copy_ms_per_step": cost.ms if cost is not None else None,
            "step_ms": facts.step_ms,
        },
        advice="Define pin_memory(self) on the batch class so that it pins its tensors and returns "
        "self: DataLoader calls it.",
    )


def pageable_copy(facts: Facts) -> Finding | None:
    """Host-to-device copies from pageable memory that the step waits for.

    Decides on: exposed copy time (ablation, else the trace's pageable copies) / step time, where
    the copies come from pageable memory by the trace or the loop's own calls.
    Abstains: no accelerator, or neither names the source memory.
    Fooled by: another program's kernels on the same GPU, unseen in this trace.
    """
    cost = copy_cost(facts)
    if cost is None:
        return None
    copies = copies_from(facts, "pageable")
    explained = explained_by(facts, cost, copies)
    n_bytes = sum(c.bytes_per_step for c in copies)
    if not copies:
        sent = [t for t in facts.transfers if not t.pinned and t.n_bytes >= MIN_TENSOR_BYTES]
        if not sent or (facts.trace is not None and facts.trace.copies):
            return None
        explained, n_bytes = cost, float(sum(t.n_bytes for t in sent))
    if explained.share < MODERATE_SHARE:
        return None
    blocking = any(t.non_blocking and not t.pinned for t in facts.transfers)
    lead_ms = lead_lost_ms(facts) if trace_alone(facts) else None
    useless = " non_blocking=True does nothing for pageable memory." if blocking else ""
    return Finding(
        kind=Kind.PAGEABLE_COPY,
        severity=explained.severity,
        share=explained.share,
        loader=loader_id(facts),
        summary=(
            f"The step waits {explained.of_step} for {fmt.n_bytes(n_bytes)} copied from pageable "
            f"memory.{useless}"
        ),
        predictions=(
            Prediction(
                sentence="pin_memory=True and non_blocking=True together would let the copy run at "
                "full speed next to the step.",
                setting="pin_memory",
                value=True,
            ),
        ),
        evidence={
            "exposed_copy_ms_per_step": explained.ms,
            "step_ms": cost.step_ms,
            "bytes_per_step": n_bytes,
            "bandwidth_gb_per_s": bandwidth_gb_per_s(copies),
            "host_blocked_ms_per_step": sum(c.host_blocked_ms_per_step for c in copies)
            if copies
            else None,
            "idle_after_copies_ms_per_step": lead_ms,
            "n_copies_per_step": sum(c.n_per_step for c in copies) if copies else None,
        },
    )


def blocking_copy(facts: Facts) -> Finding | None:
    """Copies from pinned memory whose call still waits for them: non_blocking is missing.

    Decides on: exposed copy time / step time, with pinned copies that hold the thread for at least
    half of their device time, or calls of the loop without non_blocking.
    Abstains: no accelerator, no exposed copy, or no pinned source.
    Fooled by: a loop that needs the copied data at once on the host's side; then nothing is gained.
    """
    cost = copy_cost(facts)
    if cost is None:
        return None
    pinned = copies_from(facts, "pinned")
    sent = [t for t in facts.transfers if t.pinned and t.n_bytes >= MIN_TENSOR_BYTES]
    blocked_ms = sum(c.host_blocked_ms_per_step for c in pinned)
    called_ms = CALL_MS * sum(c.n_per_step for c in pinned)  # which do not wait for the copy
    if sent:
        sites = sorted({t.site for t in sent if not t.non_blocking})
        if not sites:
            return None
    elif pinned and blocked_ms - called_ms >= MIN_BLOCKED_PART * sum(
        c.busy_ms_per_step for c in pinned
    ):
        sites = []
    else:
        return None
    explained = explained_by(facts, cost, pinned) if pinned else cost
    if explained.share < MODERATE_SHARE:
        return None
    at = f" at {', '.join(sites[:3])}" if sites else ""
    lead_ms = lead_lost_ms(facts) if trace_alone(facts) else None
    idle = ""
    if lead_ms and lead_ms >= explained.ms / 2:
        idle = (
            f" It waits for all work queued before it too, and the accelerator then idles "
            f"{fmt.ms(lead_ms)} until the next kernel."
        )
    return Finding(
        kind=Kind.BLOCKING_COPY,
        severity=explained.severity,
        share=explained.share,
        loader=loader_id(facts),
        summary=(
            f"The batch is pinned, but the copy{at} blocks the loop: {explained.of_step}.{idle} "
            "The loop could go on while it runs."
        ),
        predictions=(
            Prediction(
                sentence="non_blocking=True would let it.", setting="non_blocking", value=True
            ),
        ),
        evidence={
            "exposed_copy_ms_per_step": explained.ms,
            "host_blocked_ms_per_step": blocked_ms if pinned else None,
            "idle_after_copies_ms_per_step": lead_ms,
            "step_ms": cost.step_ms,
            "sites": ", ".join(sites) or None,
            "bytes_per_step": sum(c.bytes_per_step for c in pinned) if pinned else None,
        },
    )
