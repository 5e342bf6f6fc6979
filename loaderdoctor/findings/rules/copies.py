"""Copies that could be hidden, merged or made smaller."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import (
    MIN_BLOCKED_PART,
    MIN_TENSOR_BYTES,
    bandwidth_gb_per_s,
    copies_from,
    copy_cost,
    explained_by,
    loader_id,
    severity,
)
from loaderdoctor.findings.model import Finding, Kind, Prediction
from loaderdoctor.instrument.wire.records import TensorRecord

# Fewer are a usual batch: images, labels, a mask or two, and the optimizer's scalars.
MIN_SMALL_COPIES = 8
# Host time of one small `.to()`: in the H100 traces of `traces/` the aten::to span of a batch's
# pinned labels takes 0.02-0.03 ms; half of that is left for the profiler.
CALL_MS = 0.01
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

    Decides on: number and median size of the copies, and their exposed time or their calls' time
    where the accelerator waits for the host.
    Abstains: no accelerator or copies not recorded.
    Fooled by: copies the framework makes for itself (scalars of an optimizer), which are counted.
    """
    trace, step_ms = facts.trace, facts.step_ms
    if trace is None or not trace.has_accelerator or not step_ms:
        return None
    small = [c for c in trace.copies if c.median_bytes < MIN_TENSOR_BYTES]
    n = sum(c.n_per_step for c in small)
    if n < MIN_SMALL_COPIES:
        return None
    exposed_ms = sum(c.exposed_ms_per_step for c in small)
    call_ms = min(n * CALL_MS, trace.host.exposed_ms)
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
