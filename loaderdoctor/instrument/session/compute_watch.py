"""How the loop computes: watched in a few of its first steps, which no window times.

Modules are seen through torch's global hooks, which leave no trace on the modules themselves (a
copy or a pickle of a model made meanwhile is what it would be). `zero_grad` is looked at in the
classes, for the same reason. Nothing is installed once torch.compile has made code of the loop:
it would look at its guards again.

Once, while the loop stands still, what a loop on the CPU trains is looked at for subnormal numbers
(`subnormals`): a CPU hands operations on them to microcode, 627 µs in place of 14 for 100,000
products (measured). Reads only: nothing of the loop's is changed, and the mode that flushes them is
never touched.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer

from loaderdoctor.instrument.system import Site, living, user_site
from loaderdoctor.instrument.wire.records import ComputeRecord, SubnormalRecord

N_WATCHED = 2  # steps: some loops take turns between two models
MAX_NAMED = 64  # layers listed; a deeper network repeats itself
MAX_VALUES: Final = 1 << 16  # of each kind, from the beginnings of its tensors
MAX_TENSORS: Final = 256
MIN_SHARE: Final = 0.001  # less is not kept: underflow happens
_TIMED: Final = 1 << 14  # values multiplied at once: 100 µs at the slowest
_REPEATS: Final = 5


class ComputeWatch:
    """Watches module calls and `zero_grad` of the whole process, while installed."""

    def __init__(self, device: torch.device | None, *, acting: Callable[[], bool]) -> None:
        self._device = device
        self._acting = acting  # False in a worker forked meanwhile
        self._handles: list[Any] = []
        self._replaced: list[tuple[type, Any, Any]] = []  # class, its zero_grad, ours
        self._roots: dict[int, weakref.ref[nn.Module]] = {}
        self._local = threading.local()  # depth of module calls, inside a zero_grad
        # Outputs of this step's biased layers: id -> (the tensor, its version, the layer).
        self._made: dict[int, tuple[weakref.ref[Any], int | None, nn.Module]] = {}
        self._pairs: dict[tuple[int, int], tuple[weakref.ref[Any], weakref.ref[Any]]] = {}
        self._norms: set[int] = set()
        self._n_replicas: int | None = None
        self._n_steps = self._n_fills = 0
        self._site: Site | None = None

    def install(self) -> bool:
        """Begin to watch; False where torch.compile is at work, and nothing is watched."""
        if compiles():
            return False
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        for owner in (nn.Module, *_with_zero_grad(Optimizer)):
            original = owner.__dict__["zero_grad"]
            ours = self._watching(original)
            owner.zero_grad = ours  # type: ignore[attr-defined]
            self._replaced.append((owner, original, ours))
        return True

    def stepped(self) -> bool:
        """A step ended; whether enough were seen."""
        self._n_steps += 1
        self._made = {}
        return self._n_steps >= N_WATCHED

    def remove(self) -> None:
        """Leave torch as it was. Idempotent."""
        while self._handles:
            self._handles.pop().remove()
        while self._replaced:
            owner, original, ours = self._replaced.pop()
            if owner.__dict__.get("zero_grad") is ours:
                owner.zero_grad = original  # type: ignore[attr-defined]

    def record(self) -> ComputeRecord:
        names: dict[int, str] = {}
        for root in self._roots.values():
            if (module := root()) is not None:
                for name, inner in module.named_modules():
                    names.setdefault(id(inner), name or type(inner).__name__)
        biased = []
        for pair in self._pairs.values():
            layer, norm = (ref() for ref in pair)
            if layer is not None and norm is not None:
                words = (names.get(id(x), type(x).__name__) for x in (layer, norm))
                biased.append(" -> ".join(words))
        major = None
        if self._device is not None and torch.version.cuda is not None:
            major = torch.cuda.get_device_capability(self._device)[0]
        return ComputeRecord(
            n_steps=self._n_steps,
            compute_major=major,
            n_replicas=self._n_replicas,
            biased=tuple(biased[:MAX_NAMED]),
            n_batch_norms=len(self._norms),
            n_zero_fills=self._n_fills,
            zero_fill_site=self._site.label if self._site is not None else None,
            zero_fill_code=self._site.code if self._site is not None else None,
        )

    # ------------------------------------------------------------ module calls

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self._acting():
            return
        here = self._local
        depth = getattr(here, "depth", 0)
        here.depth = depth + 1
        if depth == 0:
            self._roots.setdefault(id(module), weakref.ref(module))
        if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
            self._n_replicas = len(module.device_ids)
        elif isinstance(module, _BatchNorm) and module.training:
            self._norms.add(id(module))
            self._normalises(module, args[0] if args else None)

    def _normalises(self, norm: nn.Module, value: object) -> None:
        """A batch norm takes the mean of this batch from `value`, and with it any constant."""
        made = self._made.get(id(value))
        if made is None or made[0]() is not value:
            return
        _, version, layer = made
        # Another version: changed in place since (a ReLU), so the layer's bias does matter.
        if version is not None and _version(value) == version:
            key = (id(layer), id(norm))
            self._pairs.setdefault(key, (weakref.ref(layer), weakref.ref(norm)))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        here = self._local
        here.depth = max(0, getattr(here, "depth", 0) - 1)
        biased = isinstance(module, (_ConvNd, nn.Linear)) and module.bias is not None
        if biased and isinstance(output, torch.Tensor) and self._acting():
            self._made[id(output)] = (weakref.ref(output), _version(output), module)

    # ------------------------------------------------------------ gradients

    def _watching(self, original: Callable[..., None]) -> Callable[..., None]:
        default = inspect.signature(original).parameters.get("set_to_none")
        by_default = default is not None and default.default is True

        @functools.wraps(original)
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> None:
            to_none = args[0] if args else kwargs.get("set_to_none", by_default)
            # A wrapper's zero_grad that calls its optimizer's with what it was given is one call.
            nested = getattr(self._local, "clearing", False)
            if not to_none and to_none is not None and not nested:
                self._n_fills += 1
                self._site = self._site or user_site()
            self._local.clearing = True
            try:
                original(owner, *args, **kwargs)
            finally:
                self._local.clearing = nested

        return zero_grad


def _version(value: object) -> int | None:
    """How often a tensor has been changed in place; None for other values."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return None
    return value._version


def _with_zero_grad(base: type) -> list[type]:
    """`base` and the classes below it that have a zero_grad of their own."""
    found: list[type] = []
    todo: list[type] = [base]
    seen = {base}
    while todo:
        owner = todo.pop()
        if "zero_grad" in owner.__dict__:
            found.append(owner)
        below: set[type] = set(type.__subclasses__(owner)) - seen
        seen |= below
        todo += below
    return found


def compiles() -> bool:
    """Whether torch.compile has compiled something in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return bool(counters and counters["frames"]["total"])


def subnormals() -> SubnormalRecord | None:
    """The kind of tensors that has most; None where hardly any has, or there is no optimizer."""
    kinds: dict[str, list[Tensor]] = {"parameters": [], "gradients": [], "optimizer state": []}
    for kind, tensor in _tensors():
        if _readable(tensor) and len(kinds[kind]) < MAX_TENSORS:
            kinds[kind].append(tensor)
    found = []
    for kind, tensors in kinds.items():
        if tensors:
            values = _values(tensors)
            found.append((float(_is_subnormal(values).float().mean()), kind, values))
    share, kind, values = max(found, key=lambda x: x[0], default=(0.0, "", torch.empty(0)))
    if share < MIN_SHARE:
        return None
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
        and tensor.dtype is torch.float32  # what lies below its range need not in others
        and tensor.numel() > 0
    )


@torch.no_grad()
def _values(tensors: list[Tensor]) -> Tensor:
    """A copy of some of their values, as many of each."""
    each = max(1, MAX_VALUES // len(tensors))
    return torch.cat([x.detach().reshape(-1)[:each] for x in tensors])


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
