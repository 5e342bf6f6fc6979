"""Trials that give the step another batch, or an epoch other steps: what may be compared.

With another batch size a step is another amount of work, so trials are ranked by their time per
batch of the loop's own size; figures shown stay per step of the trial.
"""

from __future__ import annotations

import math

from loaderdoctor.settings import Settings


def batch_scale(settings: Settings, own: Settings) -> float:
    """Batches of the trial in the time of one of the loop's own: own size / the trial's size.

    1.0 where the size is not changed or not known.
    """
    if not settings.batch_size or not own.batch_size:
        return 1.0
    return own.batch_size / settings.batch_size


def epoch_steps(settings: Settings, own: Settings, steps_per_epoch: int | None) -> int | None:
    """Steps of an epoch under these settings; None where the loop's own number is not known."""
    if steps_per_epoch is None:
        return None
    steps = steps_per_epoch * batch_scale(settings, own) * (settings.portion or 1.0)
    return max(1, math.ceil(steps - 1e-9))
