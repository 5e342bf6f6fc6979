"""Compute axes switched in the running loop, and switched back exactly.

A switch is entered between two steps and left between two steps. What it changes are attributes of
the loop's own models and optimizers, the place of their tensors in memory, or flags of torch; all
are as before once it is left, but for what training did to the values meanwhile.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.system import living
from loaderdoctor.instrument.trial.compute_switches import (
    autocast,
    cast_type,
    channels_last,
    checkpointed,
    collector,
    compiled,
    flag,
    fused,
    intra_op_threads,
    matmul_tf32,
    zero_grad,
)
from loaderdoctor.settings import Settings

# Steps in which the loop's module calls are watched: several for loops that alternate models.
N_WATCHED = 3
# Steps before the window is timed in which torch.compile, or cuDNN's autotuner, does its work:
# the second call compiles again where a shape or a flag has changed.
N_COMPILING = 3
_ON_MODEL = ("amp", "channels_last", "compile", "checkpoint")
_ON_PROCESS = ("num_threads", "gc")  # no model and no optimizer is looked for
_AXES = (*_ON_MODEL, "cudnn_benchmark", "tf32", "zero_grad_none", "fused_optimizer", *_ON_PROCESS)


def asked(settings: Settings | None) -> bool:
    """Whether any compute axis of these settings is to be switched here."""
    return settings is not None and any(_wanted(settings, name) for name in _AXES)


def _wanted(settings: Settings, name: str) -> bool:
    value = settings.as_dict()[name]
    return value is not None and (value is True or name not in _ON_MODEL)


class Compute:
    """Switches compute axes for one window after another. Runs on the training thread."""

    def __init__(
        self, note: Callable[[str, str], None], optimizer_ids: Callable[[], list[int]]
    ) -> None:
        """`optimizer_ids`: `id` of the optimizers that were seen to step."""
        self._note = note
        self._optimizer_ids = optimizer_ids
        self._training: Callable[[], Training | None] = lambda: None
        self._stack = ExitStack()
        self._entered = False
        self._failures: list[str] = []
        self._compiled: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()
        self._checks: list[Callable[[], str | None]] = []

    def look(self, settings: Settings) -> Generator[None, int, None]:
        """Watch some steps for the models and optimizers that train, where they are switched."""
        known = self._training()
        others = (name for name in _AXES if name not in _ON_PROCESS)
        if known is not None or not any(_wanted(settings, name) for name in others):
            return
        observer = CallObserver()
        observer.install()
        try:
            for _ in range(N_WATCHED):
                yield
        finally:
            observer.remove()
        found = observer.training(optimizers_seen(self._optimizer_ids()))
        self._training = _weakly(found)

    def enter(self, settings: Settings) -> int:
        """Switch; the steps to run before timing. Leaves nothing where it raises TrialRefused."""
        self._entered = True
        try:
            return self._enter(settings)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> bool:
        """Switch back, if anything is switched; whether it was."""
        was, self._entered = self._entered, False
        self._failures.clear()
        self._checks.clear()
        self._stack.close()
        self._stack = ExitStack()
        return was

    def failure(self) -> str | None:
        """Why the steps are not what was asked for; None where they are."""
        if self._failures:
            return self._failures[0]
        return next((why for check in self._checks if (why := check()) is not None), None)

    def _enter(self, settings: Settings) -> int:
        training = self._training()
        models = training.models if training is not None else ()
        optimizers = training.optimizers if training is not None else ()
        if not models and any(_wanted(settings, name) for name in _ON_MODEL):
            raise TrialRefused("no module that the optimizer trains was seen to be called")
        if not optimizers and settings.fused_optimizer is not None:
            raise TrialRefused("no torch optimizer was seen to step")
        device = next((p.device for m in models for p in m.parameters()), torch.device("cpu"))
        stack, n_steps = self._stack, 0
        if settings.num_threads is not None:
            stack.enter_context(intra_op_threads(settings.num_threads))
        if settings.gc in ("frozen", "manual"):
            stack.enter_context(collector(settings.gc))
        if settings.tf32 is not None:
            stack.enter_context(matmul_tf32(settings.tf32))
        if settings.cudnn_benchmark is not None:
            cudnn = torch.backends.cudnn
            stack.enter_context(flag(cudnn, "benchmark", settings.cudnn_benchmark))
            n_steps = N_COMPILING
        if settings.fused_optimizer is not None:
            for optimizer in optimizers:
                stack.enter_context(fused(optimizer, settings.fused_optimizer))
        if settings.zero_grad_none is not None:
            owners: list[Optimizer | nn.Module] = [*optimizers, *models]
            counts = [
                stack.enter_context(zero_grad(owner, settings.zero_grad_none)) for owner in owners
            ]
            self._checks.append(
                lambda: (
                    None
                    if any(n for (n,) in counts)
                    else "the loop clears gradients without zero_grad(): nothing could be switched"
                )
            )
        for model in models:
            if settings.channels_last:
                stack.enter_context(channels_last(model, optimizers))
            if settings.checkpoint:
                stack.enter_context(checkpointed(model))
            if settings.compile:
                stack.enter_context(compiled(model, self._compiled, self._failures))
                n_steps = N_COMPILING
            if settings.amp:
                stack.enter_context(autocast(model, device))
        if settings.amp:
            kind = cast_type(device)
            scaled = ", without a gradient scaler" if kind is torch.float16 else ""
            self._note(
                "amp-dtype",
                f"amp: each model's forward runs under autocast to "
                f"{str(kind).removeprefix('torch.')}{scaled}; its outputs are float32 again, and "
                "the loss is computed outside.",
            )
        return n_steps


def _weakly(training: Training) -> Callable[[], Training | None]:
    """What was found, while all of it lives."""
    models = [weakref.ref(model) for model in training.models]
    optimizers = [weakref.ref(optimizer) for optimizer in training.optimizers]

    def found() -> Training | None:
        living_models = [model for ref in models if (model := ref()) is not None]
        living = [optimizer for ref in optimizers if (optimizer := ref()) is not None]
        if len(living_models) < len(models) or len(living) < len(optimizers):
            return None
        return Training(tuple(living_models), tuple(living))

    return found


# The models and optimizers of the step: what a compute axis switches.
#
# Optimizers are those that were seen to step; models are the outermost modules called in a step
# that hold parameters of theirs.


@dataclass(frozen=True, slots=True)
class Training:
    """What trains in the step."""

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]


def optimizers_seen(ids: Collection[int]) -> tuple[Optimizer, ...]:
    """Living optimizers among these ids."""
    return tuple(o for o in living(Optimizer) if id(o) in ids)


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
