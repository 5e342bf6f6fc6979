"""`compute`: settings of the computation, each against its default, on small loops made for them.

Over a script of the user's the same settings are tried in its loop. They change numerics or
training, and are never tried unless asked for.

`ladder`: each rung keeps the ones before it; on `cifar10-mobilenetv2` by the script's options. Our
own search has two rungs: the one where settings of the loader were tuned, and the last, since what
makes computing faster leaves the loader behind again. Published on an 8 GB Quadro RTX 4000:
117.1 ms and 273 samples/s at the bottom, 92.6 ms and 1,381 samples/s at the top (505 %).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.sweep.presets.model import (
    Change,
    Claim,
    Figures,
    Judged,
    Preset,
    faster,
    is_lower,
    not_testable,
    rows_of,
    slower,
)
from loaderdoctor.tryout import Needs, Published, Row

NUMERICS = "changes numerics or training"
ACTIVATIONS = "activations"
_Side = tuple[str, tuple[str, ...], dict[str, Published]]  # name, words of the recipe, settings
_PARALLEL = ("--case", "parallel", "--parallel")
# (group, what it needs, the default, the remedy)
CASES: tuple[tuple[str, Needs | None, _Side, _Side], ...] = (
    (
        "convolution",
        "accelerator",
        ("cudnn heuristics", ("--case", "conv"), {"cudnn_benchmark": False}),
        ("cudnn autotuner", ("--case", "conv", "--remedy"), {"cudnn_benchmark": True}),
    ),
    (
        "pointwise",
        None,
        ("eager", ("--case", "pointwise"), {"compile": False}),
        ("compiled", ("--case", "pointwise", "--remedy"), {"compile": True}),
    ),
    (
        "zero_grad",
        None,
        ("gradients to zero", ("--case", "zero-grad"), {"zero_grad_none": False}),
        ("gradients to None", ("--case", "zero-grad", "--remedy"), {"zero_grad_none": True}),
    ),
    (
        "bias before BatchNorm",
        None,
        ("with bias", ("--case", "bias"), {}),
        ("without bias", ("--case", "bias", "--remedy"), {}),
    ),
    (
        ACTIVATIONS,
        None,
        ("kept", ("--case", "checkpoint"), {"checkpoint": False}),
        ("checkpointed", ("--case", "checkpoint", "--remedy"), {"checkpoint": True}),
    ),
    (
        "parallel",
        "two-accelerators",
        ("DataParallel", (*_PARALLEL, "data_parallel"), {"ddp": "data_parallel"}),
        ("DDP", (*_PARALLEL, "ddp"), {"ddp": "ddp"}),
    ),
)


def compute_rows() -> tuple[Row, ...]:
    return tuple(
        Row(
            name=name,
            group=group,
            base=default[0],
            args=args,
            settings=settings,
            needs=needs,
            tensor_memory=group == ACTIVATIONS,
            note=NUMERICS if settings and name == remedy[0] else None,
        )
        for group, needs, default, remedy in CASES
        for name, args, settings in (default, remedy)
    )


def _faster(group: str) -> Callable[[Figures], Judged]:
    _, _, default, remedy = next(case for case in CASES if case[0] == group)
    return lambda figures: faster(figures.change(remedy[0], default[0], group))


def _smaller(figures: Figures) -> Judged:
    """Of tensors, not of the process: what the C library keeps says nothing of activations."""
    for name in ("kept", "checkpointed"):
        if (why := figures.reason(name, ACTIVATIONS)) is not None:
            return not_testable(why)
    before, after = (figures.memory(name, ACTIVATIONS) for name in ("kept", "checkpointed"))
    return is_lower(after, before)


COMPUTE = Preset(
    name="compute",
    summary="cudnn autotuner, fusion, zero_grad, bias before BatchNorm, checkpointing, DDP.",
    recipe="compute",
    baseline="",
    rows=rows_of(*compute_rows()),
    budget_s=300.0,
    n_rounds=2,
    one_loop=False,
    claims=(
        Claim(
            text="cudnn's autotuner is faster for Conv2d on a (32, 64, 64, 64) input",
            published="faster",
            rule=_faster("convolution"),
        ),
        Claim(
            text="compiling fuses pointwise operations: faster",
            published="faster",
            rule=_faster("pointwise"),
        ),
        Claim(
            text="gradients to None are faster than zeroing",
            published="faster",
            rule=_faster("zero_grad"),
        ),
        Claim(
            text="no bias before BatchNorm is faster",
            published="faster",
            rule=_faster("bias before BatchNorm"),
        ),
        Claim(text="checkpointing needs less memory", published="smaller", rule=_smaller),
        Claim(text="DDP is faster than DataParallel", published="faster", rule=_faster("parallel")),
    ),
)


BASELINE = "baseline, batch 32"

# (rung, words for the recipe's script, the same as settings, whether it changes the numbers)
_Rung = tuple[str, tuple[str, ...], dict[str, Published], bool]
RUNGS: tuple[_Rung, ...] = (
    ("AMP", ("--amp",), {"amp": True}, True),
    ("batch 128", ("--batch-size", "128"), {"batch_size": 128}, True),
    ("uint8, normalised on the device", ("--uint8",), {"uint8": True}, False),
    ("2 workers", ("--num-workers", "2"), {"num_workers": 2}, False),
    (
        "pinned, non_blocking",
        ("--pin-memory", "--non-blocking"),
        {"pin_memory": True, "non_blocking": True},
        False,
    ),
    ("what our search recommends", (), {}, False),
    ("channels_last", ("--channels-last",), {"channels_last": True}, True),
    ("cudnn autotuner", ("--cudnn-benchmark",), {"cudnn_benchmark": True}, True),
    ("fused optimizer", ("--fused-optimizer",), {"fused_optimizer": True}, True),
    ("our search once more", (), {}, False),
)
# Rungs that have what our own search found -> the rung whose loop it searched.
SEARCHED = {
    "what our search recommends": "pinned, non_blocking",
    "our search once more": "fused optimizer",
}
# MobileNetV2 took 13 times as long under autocast on a CPU with AVX2 alone (240 → 3,069 ms a step,
# torch 2.14): no rung above it could be measured within ten minutes, or would tell of itself.
NO_BF16 = (
    "this CPU has no bfloat16 instructions and takes many times as long without; "
    "sweep --grid amp=true shows it"
)
WITHOUT_AMP = "without AMP"
# Samples/s relative to the baseline, as published.
PUBLISHED = {
    "AMP": 1.44,
    "batch 128": 2.01,
    "uint8, normalised on the device": 2.30,
    "2 workers": 3.20,
    "pinned, non_blocking": 5.05,
}


def ladder_rows(observed: Observed | None = None) -> tuple[Row, ...]:
    """The rungs from the bottom, each with all before it.

    On a CPU that only emulates bfloat16 the rung of AMP is left out, and of those above it.
    """
    emulates = (
        observed is not None and observed.device is None and observed.environment.cpu_bf16 is False
    )
    args: tuple[str, ...] = ()
    made = [Row(name=BASELINE, args=args, settings={"batch_size": 32}, in_loop=True)]
    settings: dict[str, Published] = {"batch_size": 32}
    before: tuple[str, ...] = ()
    for name, words, more, numerics in RUNGS:
        if emulates and more.get("amp"):
            with_amp = {**settings, **more}
            made.append(Row(name=name, args=(*args, *words), settings=with_amp, skip=NO_BF16))
            continue
        args, settings = (*args, *words), {**settings, **more}
        notes = ([NUMERICS] if numerics else []) + ([WITHOUT_AMP] if emulates else [])
        source = SEARCHED.get(name)
        made.append(
            Row(
                name=name,
                args=args,
                settings=settings,
                in_loop=True,
                searched_from=source,
                found_before=before,
                needs="accelerator" if name == "cudnn autotuner" else None,
                note="; ".join(notes) or None,
            )
        )
        before = (*before, source) if source is not None else before
    return tuple(made)


def _rung(name: str) -> Callable[[Figures], Judged]:
    def rule(figures: Figures) -> Judged:
        published = 1 / PUBLISHED[name] - 1  # time of the same work
        change = figures.change(name, BASELINE)
        judged = faster(change, published=published)
        return judged if judged.ours is None else replace(judged, ours=_samples_per_s(change))

    return rule


def _samples_per_s(change: Change) -> str | None:
    """A change of time as samples/s of the baseline's, as the claims are published."""
    estimate = change.estimate
    if estimate is None:
        return None
    text = f"{100 / (1 + estimate.value):.0f} %"
    if not estimate.bounded:
        return text
    fastest = f"{100 / (1 + estimate.low):.0f}" if estimate.low > -1 else "…"
    return f"{text} [{100 / (1 + estimate.high):.0f}, {fastest}]"


def _amp_memory(figures: Figures) -> Judged:
    if not figures.memory_is_exact:
        return not_testable("GPU memory needs an accelerator")
    return is_lower(
        figures.memory("AMP"),
        figures.memory(BASELINE),
        published=1.32 / 2.51 - 1,
    )


def _pinning_busy(figures: Figures) -> Judged:
    rows = ("2 workers", "pinned, non_blocking")
    before, after = (figures.gpu_busy(row) for row in rows)
    if before is None or after is None:
        return not_testable(
            "the accelerator's busy time needs an accelerator and a trace of both rows (which a "
            "larger --budget allows)"
        )
    judged = slower(figures.busy_change(*rows[::-1]), published=86.2 / 79.5 - 1)
    return replace(judged, ours=f"{before:.1%} → {after:.1%}")


LADDER = Preset(
    name="ladder",
    summary="One speed-up on top of the other, from batch 32 in float32 to everything.",
    recipe="cifar10-mobilenetv2",
    baseline=BASELINE,
    rows=ladder_rows,
    budget_s=500.0,
    n_rounds=3,
    shortened="each rung is timed for windows of steps, not an epoch; on a CPU images are 16x16",
    claims=(
        *(
            Claim(
                text=f"samples/s with '{name}' (baseline 100 %)",
                published=f"{100 * share:.0f} %",
                rule=_rung(name),
            )
            for name, share in PUBLISHED.items()
        ),
        Claim(text="AMP halves GPU memory", published="2.51 → 1.32 GB", rule=_amp_memory),
        Claim(
            text="pinning lifts the GPU's busy share",
            published="79.5 → 86.2 %",
            rule=_pinning_busy,
        ),
    ),
)
