"""Convolutions without cuDNN's autotuner."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import HIGH_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.hints import (
    compute_bound,
    computing,
    hint,
    input_first,
    step_share,
)


def cudnn_benchmark_off(facts: Facts) -> Finding | None:
    """CuDNN guesses the algorithms of convolutions whose shapes never change.

    Decides on: device time in convolution kernels / step time, torch.backends.cudnn.benchmark
    off, and batches that all had one shape.
    Abstains: shapes vary or were not seen (cuDNN would tune each anew); the flag is not known;
    kernels are less than half of the step.
    Fooled by: guesses that are best already: the gain is not known before it was tried.
    """
    compute, machine = computing(facts), facts.machine
    if compute is None or not compute_bound(facts) or input_first(facts):
        return None
    if machine is None or machine.cudnn_benchmark is not False or not _one_shape(facts):
        return None
    share = step_share(facts, compute.convolution_ms)
    if share < HIGH_SHARE:
        return None
    return hint(
        Kind.CUDNN_BENCHMARK_OFF,
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


def _one_shape(facts: Facts) -> bool:
    """Whether every loader of the step was seen to give batches of one shape only."""
    loaders = [x for x in facts.loaders if x.role == "train"]
    return bool(loaders) and all(x.batch and not x.shapes_vary for x in loaders)
