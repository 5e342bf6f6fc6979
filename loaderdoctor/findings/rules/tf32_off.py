"""Float32 matrix products that leave the tensor cores idle."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.shares import MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.hints import (
    compute_bound,
    computing,
    hint,
    input_first,
    step_share,
)

TF32_SINCE = 8  # CUDA compute capability: Ampere


def tf32_off(facts: Facts) -> Finding | None:
    """Float32 matrix products run on ordinary cores, although the device could use TF32.

    Decides on: device time in float32 matrix kernels without tensor cores / step time, on a
    device of compute capability 8 or more.
    Abstains: kernels are less than half of the step; the device's capability is not known; the
    process allows TF32 already.
    Fooled by: a model that needs float32's full precision, which TF32 does not keep.
    """
    compute = computing(facts)
    if compute is None or not compute_bound(facts) or input_first(facts):
        return None
    major = compute.compute_major
    if major is None and facts.compute is not None:
        major = facts.compute.compute_major
    if major is None or major < TF32_SINCE:
        return None
    if facts.machine is not None and facts.machine.tf32:
        return None
    share = step_share(facts, compute.float32_gemm_ms)
    if share < MODERATE_SHARE:
        return None
    return hint(
        Kind.TF32_OFF,
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
