"""Hints about computing: a flag or a line that makes the step's own work shorter.

A hint is never the verdict, and says nothing while the step waits for its batches: shorter work
would only make it wait longer.
"""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.facts.trace import ComputeFacts
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.exposure import exposed, has_accelerator

# With less than half of the step in kernels, most of what shorter kernels save is idle already:
# `gpu_resident` in `traces/` has 0.4 ms of kernels in a step of 3.3 ms.
MIN_COMPUTE_SHARE = 0.5
# An annotation of every step's forward pass; a window's edge may cut one off.
MIN_FORWARDS_PER_STEP = 0.5
TF32_SINCE = 8  # CUDA compute capability: Ampere
# Below a hundredth of the step nobody will find the gain again.
MIN_FILL_SHARE = 0.01
# An operation that takes 40 times as long on one value in a hundred takes 1.4 times as long.
MIN_SHARE = 0.01
# Two timings of some microseconds each: less may be the machine's.
MIN_SLOWDOWN = 3.0


def data_parallel(facts: Facts) -> Finding | None:
    """Replicas by nn.DataParallel: weights go to every GPU in each step, from one Python thread.

    Decides on: an nn.DataParallel over several devices that was called in the first steps, or
    in a trace its annotation while more than one device computes.
    Abstains: the step waits for its input; neither modules nor annotations were seen.
    Fooled by: a model so large next to its weights' copies that little is lost.
    """
    record, trace = facts.compute, _computing(facts)
    n_replicas = record.n_replicas if record is not None else None
    called = trace is not None and trace.n_data_parallel_forwards >= MIN_FORWARDS_PER_STEP
    if n_replicas is None and trace is not None and called:
        n_replicas = trace.n_computing_devices
    if n_replicas is None or n_replicas < 2 or _input_first(facts):
        return None
    return Finding(
        kind=Kind.DATA_PARALLEL,
        severity=Severity.LOW,
        share=None,
        summary=(
            f"nn.DataParallel replicates the model to {n_replicas} GPUs in every step and "
            "launches all their work from one process. DistributedDataParallel keeps a replica "
            "and a process for each GPU and overlaps the exchange of gradients with the backward "
            "pass."
        ),
        evidence={"n_replicas": n_replicas},
        advice="Use DistributedDataParallel with torchrun, one process for each GPU.",
    )


def tf32_off(facts: Facts) -> Finding | None:
    """Float32 matrix products run on ordinary cores, although the device could use TF32.

    Decides on: device time in float32 matrix kernels without tensor cores / step time, on a
    device of compute capability 8 or more.
    Abstains: kernels are less than half of the step; the device's capability is not known; the
    process allows TF32 already.
    Fooled by: a model that needs float32's full precision, which TF32 does not keep.
    """
    compute = _computing(facts)
    if compute is None or not _compute_bound(facts) or _input_first(facts):
        return None
    major = compute.compute_major
    if major is None and facts.compute is not None:
        major = facts.compute.compute_major
    if major is None or major < TF32_SINCE:
        return None
    if facts.machine is not None and facts.machine.tf32:
        return None
    share = _step_share(facts, compute.float32_gemm_ms)
    if share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.TF32_OFF,
        severity=Severity.LOW,
        share=share,
        summary=(
            f"Matrix products in full float32 take {fmt.ms(compute.float32_gemm_ms)} of the step "
            f"({fmt.share(share)}) without the tensor cores. TF32 shortens them, rounding their "
            "inputs to 10 bits of mantissa: it changes numerics."
        ),
        evidence={
            "float32_gemm_ms_per_step": compute.float32_gemm_ms,
            "compute_major": major,
            "tf32": facts.machine.tf32 if facts.machine is not None else None,
        },
        advice='torch.set_float32_matmul_precision("high"), where the model bears it.',
    )


def cudnn_benchmark_off(facts: Facts) -> Finding | None:
    """CuDNN guesses the algorithms of convolutions whose shapes never change.

    Decides on: device time in convolution kernels / step time, torch.backends.cudnn.benchmark
    off, and batches that all had one shape.
    Abstains: shapes vary or were not seen (cuDNN would tune each again); the flag is not known;
    kernels are less than half of the step.
    Fooled by: guesses that are best already: the gain is not known before it was tried.
    """
    compute, machine = _computing(facts), facts.machine
    if compute is None or not _compute_bound(facts) or _input_first(facts):
        return None
    if machine is None or machine.cudnn_benchmark is not False or not _one_shape(facts):
        return None
    share = _step_share(facts, compute.convolution_ms)
    if share < HIGH_SHARE:
        return None
    return Finding(
        kind=Kind.CUDNN_BENCHMARK_OFF,
        severity=Severity.LOW,
        share=None,
        summary=(
            f"Convolutions take {fmt.ms(compute.convolution_ms)} of the step ({fmt.share(share)}), "
            "all batches had one shape, and cuDNN's autotuner is off. It times the algorithms once "
            "and keeps the fastest, which may add in another order: it changes numerics."
        ),
        evidence={
            "convolution_ms_per_step": compute.convolution_ms,
            "convolution_share": share,
            "cudnn_benchmark": False,
        },
        advice="torch.backends.cudnn.benchmark = True, while all batches have one shape.",
    )


def grad_not_set_to_none(facts: Facts) -> Finding | None:
    """zero_grad(set_to_none=False) fills every gradient with zeros instead of dropping it.

    Decides on: time of the zero fills inside Optimizer.zero_grad / step time; where the loop was
    seen to call zero_grad(set_to_none=False), of a module too, all zero fills of its thread.
    Abstains: no trace, the fills take less than 1 % of the step, or it waits for its input.
    Fooled by: code that needs zeros rather than no gradient. The backward pass then also adds to
    the zeros, about as much again, which is not counted.
    """
    compute, record = _computing(facts), facts.compute
    if compute is None or facts.trace is None or _input_first(facts):
        return None
    seen = record is not None and record.n_zero_fills > 0
    fill_ms = compute.zero_fill_ms if seen else compute.zero_grad_fill_ms
    share = _step_share(facts, fill_ms)
    if share < MIN_FILL_SHARE:
        return None
    site = record.zero_fill_site if record is not None else None
    return Finding(
        kind=Kind.GRAD_NOT_SET_TO_NONE,
        severity=Severity.LOW,
        share=share,
        summary=(
            f"Filling gradients with zeros takes {fmt.ms(fill_ms)} of the step ({fmt.share(share)})"
            f"{f', at {site}' if site else ''}. Dropping them costs nothing, and the "
            "backward pass then writes them instead of adding to zeros."
        ),
        evidence={
            "zero_fill_ms_per_step": fill_ms,
            "site": site,
            "site_code": record.zero_fill_code if record is not None else None,
        },
        advice="optimizer.zero_grad(), whose default sets gradients to None.",
    )


def bias_before_batchnorm(facts: Facts) -> Finding | None:
    """A convolution or Linear adds a bias that a batch norm in training subtracts at once.

    Decides on: the very tensor that a layer with a bias returned is what a batch norm in
    training was called with, unchanged in between, in the loop's first steps.
    Abstains: modules were not watched (torch.compile at work), or the step waits for its input.
    Fooled by: a layer whose output something else reads as well; there the bias does count.
    """
    record = facts.compute
    if record is None or not record.biased or _input_first(facts):
        return None
    n = len(record.biased)
    first = record.biased[0]
    layers = f"{n} layers add a bias" if n > 1 else "One layer adds a bias"
    return Finding(
        kind=Kind.BIAS_BEFORE_BATCHNORM,
        severity=Severity.LOW,
        share=None,
        summary=(
            f"{layers} that the batch norm behind subtracts again with the batch's mean "
            f"({first}): adding it and summing its gradient is work without effect."
        ),
        evidence={"n_layers": n, "n_batch_norms": record.n_batch_norms, "first": first},
        advice="bias=False in the layer before a batch norm.",
    )


def padding_waste(facts: Facts) -> Finding | None:
    """Much of what is copied and computed is padding, up to the longest sample of each batch.

    Decides on: the cells of the batch's largest padded tensor that are padding, counted in its
    first batches, times the step's computing and copying.
    Abstains: the step waits for its input; no tensor was seen to be padded; computing was not
    recorded.
    Fooled by: a model that packs its sequences and never computes the padding; samples that end
    in the value of the padding.
    """
    loader = facts.main_loader
    padding = loader.padding if loader is not None else None
    compute, step_ms = facts.share("compute"), facts.step_ms
    if padding is None or compute is None or step_ms is None or _input_first(facts):
        return None
    share = padding.share * min(1.0, compute + (facts.share("copy") or 0.0))
    if share < MODERATE_SHARE:
        return None
    seen = fmt.count(padding.n_batches, "batch", "batches")
    fixed = ", and all have one length" if padding.one_length else ""
    longest = "pad to the longest sample of each batch, and " if padding.one_length else ""
    advice = f"{longest}put samples of about one length into a batch (bucketing)."
    return Finding(
        kind=Kind.PADDING_WASTE,
        severity=Severity.LOW,
        share=share,
        summary=(
            f"{fmt.share(padding.share)} of the cells of the batch's {padding.path} are padding "
            f"({seen} counted{fixed}). Without them the step could be up to "
            f"{fmt.ms(share * step_ms)} shorter, where its work grows with the cells."
        ),
        evidence={
            "padding_share_of_cells": padding.share,
            "tensor": padding.path,
            "n_batches": padding.n_batches,
        },
        advice=f"{advice[:1].upper()}{advice[1:]}",
    )


def subnormal_numbers(facts: Facts) -> Finding | None:
    """What a loop on the CPU trains holds subnormal numbers, and they cost time here.

    Decides on: their share among parameters, gradients and the optimizer's state, looked at once
    after the first steps, and a product of them timed against one of normal numbers.
    Abstains: an accelerator, no optimizer of torch's, or a CPU that flushes them.
    Fooled by: activations, which are not looked at; and tensors that the step hardly touches.
    """
    seen = facts.subnormals
    if seen is None or has_accelerator(facts):
        return None
    if seen.share < MIN_SHARE or seen.slowdown < MIN_SLOWDOWN:
        return None
    return Finding(
        kind=Kind.SUBNORMAL_NUMBERS,
        severity=Severity.LOW,  # what of the step it is was not measured
        share=None,
        summary=(
            f"{fmt.share(seen.share)} of the {seen.where} are subnormal numbers (below 1.2e-38): "
            f"a product of them takes {fmt.number(seen.slowdown)} times as long on this CPU as one "
            "of others, timed in this run. What they cost a step was not measured."
        ),
        evidence={
            "where": seen.where,
            "subnormal_share": seen.share,
            "values_looked_at": seen.n_looked_at,
            "slowdown": seen.slowdown,
            "step_ms": facts.step_ms,
        },
        advice="torch.set_flush_denormal(True) once, before training: they are then taken for 0, "
        "which changes results by less than 1.2e-38 an operation.",
    )


def _input_first(facts: Facts) -> bool:
    """Whether the step waits for batches so much that nothing else matters yet."""
    cost = exposed(facts, "input")
    return cost is not None and cost.share >= HIGH_SHARE


def _compute_bound(facts: Facts) -> bool:
    """Whether an accelerator's kernels are at least half of the step; False where unknown."""
    if facts.trace is None or not facts.trace.has_accelerator:
        return False
    share = facts.share("compute")
    if share is None:
        share = facts.trace.shares.compute
    return share is not None and share >= MIN_COMPUTE_SHARE


def _computing(facts: Facts) -> ComputeFacts | None:
    """How the traced steps compute; None without such a trace."""
    return facts.trace.compute if facts.trace is not None else None


def _step_share(facts: Facts, ms_per_step: float) -> float:
    """Device time of a traced step as a share of the plain step, where that was measured."""
    step_ms = facts.step_ms
    assert facts.trace is not None
    wall_ms = step_ms if step_ms and facts.trace.has_accelerator else facts.trace.wall_ms
    return min(1.0, ms_per_step / wall_ms) if wall_ms > 0 else 0.0


def _one_shape(facts: Facts) -> bool:
    """Whether every loader of the step was seen to give batches of one shape only."""
    loaders = [x for x in facts.loaders if x.role == "train"]
    return bool(loaders) and all(x.batch and not x.shapes_vary for x in loaders)
