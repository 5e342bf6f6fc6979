"""Epochs that a window has to hold whole: where a part of one says nothing about the rest."""

from __future__ import annotations

# An epoch of at most this many queues is measured whole: workers fill most of it at once, and a
# part of it shows either their filled queue or their start. Windows of 4 to 8 steps of such epochs
# on an H200 read 28 to 65 ms a step for a true 6. The steps behind a start are slow in any epoch.
SHORT_EPOCH = 4
CHEAP_EPOCH_S = 0.5  # so short an epoch is measured whole in any case: there is time for many


def measured_whole(
    steps_per_epoch: int | None, *, queue: int, step_s: float, longest_s: float
) -> bool:
    """Whether windows should be whole epochs; `queue` is batches, 0 where no workers are started.

    Never where an epoch takes longer than `longest_s` seconds.
    """
    if not steps_per_epoch or not queue:
        return False
    epoch_s = steps_per_epoch * step_s
    return epoch_s <= (longest_s if steps_per_epoch <= SHORT_EPOCH * queue else CHEAP_EPOCH_S)
