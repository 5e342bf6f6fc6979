"""Stack samples of the training thread over a window, as the measuring process sums them up."""

from __future__ import annotations

from typing import Literal

import msgspec

# Where in the step a sample fell, told from the frames on the stack: getting a batch, the model's
# own call, autograd, an optimizer (schedulers, gradient scaling and clipping with it), collectives;
# `own`: none of these; `outside`: own, between two epochs or in a step that fetches from another
# loader.
Stage = Literal["fetch", "forward", "backward", "optimizer", "communication", "own", "outside"]


class FramePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the user's code."""

    file: str
    line: int
    function: str
    code: str | None = None  # the source line, stripped


class StackPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Samples with the same user's frames on the stack, in the same call below them."""

    stage: Stage
    frames: tuple[FramePlace, ...]  # of the user's own code, outermost first
    n: int
    module: str | None = None  # of the outermost library function below them: "pandas.core.frame"
    function: str | None = None  # that function: "DataFrame.iloc"
    # What the innermost line calls just then, as its source has it: "loss.item", "frame.iloc[]".
    call: str | None = None
    operator: bool = (
        False  # an operator of torch, or one of + - * [] on something that is no number
    )


class StackRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All samples of a window. Those of places too rare to be kept are in `n` alone."""

    n: int  # within steps, waiting for batches included
    places: tuple[StackPlace, ...] = ()
    n_outside: int = 0  # between epochs
