"""Looks for subnormal numbers in what a loop on the CPU trains, once, while it stands still.

A CPU hands operations on them to microcode: 627 µs in place of 14 for 100,000 products (measured).
Reads only: nothing of the loop's is changed, and the mode that flushes them is never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from typing import Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from loaderdoctor.instrument.system.interpreter import living
from loaderdoctor.instrument.wire.records import SubnormalRecord

MAX_VALUES: Final = 1 << 16  # of each kind, from the beginnings of its tensors
MAX_TENSORS: Final = 256
MIN_SHARE: Final = 0.001  # less is not kept: underflow happens
_TIMED: Final = 1 << 14  # values multiplied at once: 100 µs at the slowest
_REPEATS: Final = 5


def subnormals() -> SubnormalRecord | None:
    """The kind of tensors that has most; None where hardly any has, or there is no optimizer."""
    kinds: dict[str, list[Tensor]] = {"parameters": [], "gradients": [], "optimizer state": []}
    for kind, tensor in _tensors():
        if _readable(tensor) and len(kinds[kind]) < MAX_TENSORS:
            kinds[kind].append(tensor)
    found = []
    for kind, tensors in kinds.items():
        values = _values(tensors)
        if values is not None:
            share = float(_is_subnormal(values).float().mean())
            if share >= MIN_SHARE:
                found.append((share, kind, values))
    if not found:
        return None
    share, kind, values = max(found, key=lambda x: x[0])
    return SubnormalRecord(
        where=kind,  # type: ignore[arg-type]  # one of the three above
        share=share,
        n_looked_at=values.numel(),
        slowdown=_slowdown(values),
    )


def _tensors() -> Iterator[tuple[str, Tensor]]:
    for optimizer in living(Optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield "parameters", parameter
                if parameter.grad is not None:
                    yield "gradients", parameter.grad
                for value in optimizer.state.get(parameter, {}).values():
                    if isinstance(value, Tensor):
                        yield "optimizer state", value


def _readable(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in (torch.float32, torch.float64)
        and tensor.numel() > 0
    )


@torch.no_grad()
def _values(tensors: list[Tensor]) -> Tensor | None:
    """A copy of some of their values, float32, as many of each; None without any."""
    if not tensors:
        return None
    each = max(1, MAX_VALUES // len(tensors))
    # A float64 below float32's range would become subnormal only by being narrowed.
    parts = [x.detach().reshape(-1)[:each] for x in tensors if x.dtype is torch.float32]
    return torch.cat(parts) if parts else None


def _is_subnormal(values: Tensor) -> Tensor:
    """By their bits: where subnormal numbers are flushed, comparing them would say zero."""
    bits = values.contiguous().view(torch.int32)
    return ((bits & 0x7F800000) == 0) & ((bits & 0x007FFFFF) != 0)


@torch.no_grad()
def _slowdown(values: Tensor) -> float:
    """Of a product of subnormal ones against normal ones: about 1 where they are flushed."""
    small = values[_is_subnormal(values)]
    few = small.repeat(-(-_TIMED // small.numel()))[:_TIMED]
    normal = torch.ones_like(few)
    return _best_ns(few) / max(1, _best_ns(normal))


def _best_ns(values: Tensor) -> int:
    best = 0
    for _ in range(_REPEATS):
        began = perf_counter_ns()
        values * 0.75  # for its time; a half would only change the exponent
        took = perf_counter_ns() - began
        best = min(best or took, took)
    return best
