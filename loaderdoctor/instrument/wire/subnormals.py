"""Numbers so small that a CPU computes with them in a slow way of its own (subnormal ones)."""

from __future__ import annotations

from typing import Literal

import msgspec


class SubnormalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Of the tensors that the loop trains, those kinds that hold such numbers."""

    where: Literal["parameters", "gradients", "optimizer state"]  # the kind that has most
    share: float  # of the values of that kind that were looked at, 0…1
    n_looked_at: int
    slowdown: float  # one multiplication of them / the same of normal numbers, timed here
