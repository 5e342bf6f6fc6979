"""The models and optimizers of the step: what a compute axis switches.

Optimizers are those that were seen to step; models are the outermost modules called in a step that
hold parameters of theirs.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Training:
    """What trains in the step."""

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]


def optimizers_seen(ids: Collection[int]) -> tuple[Optimizer, ...]:
    """Living optimizers among these ids."""
    # type(), not isinstance: lazy proxies answer __class__ by doing work.
    living = [o for o in gc.get_objects() if issubclass(type(o), Optimizer)]
    return tuple(o for o in living if id(o) in ids)


class CallObserver:
    """Sees which modules the loop itself calls, while installed. Calls within those don't count."""

    def __init__(self) -> None:
        self._calls: dict[int, nn.Module] = {}
        self._depth = threading.local()
        self._handles: list[Any] = []

    def install(self) -> None:
        """Global forward hooks; they slow every module call, so not for timed steps."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        """Leave torch as it was."""
        while self._handles:
            self._handles.pop().remove()

    def training(self, optimizers: tuple[Optimizer, ...]) -> Training:
        """The models among what was called, in order of their first call."""
        trained = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
        models = [
            m
            for m in self._calls.values()
            if any(id(p) in trained for p in m.parameters())
            or (not optimizers and any(p.requires_grad for p in m.parameters()))
        ]
        return Training(tuple(models), optimizers)

    def _enter(self, module: nn.Module, args: Any) -> None:
        depth = getattr(self._depth, "n", 0)
        if depth == 0:
            self._calls.setdefault(id(module), module)
        self._depth.n = depth + 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth.n = max(0, getattr(self._depth, "n", 0) - 1)
