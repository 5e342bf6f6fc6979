"""`compute`: settings of the computation, each against its default, on small loops made for them.

Over a script of the user's the same settings are tried in its loop. They change numerics or
training, and are never tried unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.judge import faster, is_lower, not_testable
from loaderdoctor.sweep.presets.model import Claim, Judged, Preset, rows_of
from loaderdoctor.tryout.trials import Needs, Published, Row

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
