"""One context manager for each compute axis: switched inside, as before outside; `worker_gc`.

A model's `forward` is replaced in the instance, so `model(x)` still runs its hooks. Loops that call
a method other than the module itself are not reached.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from loaderdoctor.errors import TrialRefused
from loaderdoctor.settings import Collector

_BFLOAT16_SINCE = (8, 0)  # compute capability of the first NVIDIA GPUs with bfloat16 tensor cores
_ABSENT = object()
# Fewer is no freeze of anyone's. Under Python 3.12 each collection moves what is immortal among the
# frozen (375 tuples of built-in types, 3.12.1, with and without `site`); a freeze in a process that
# has imported nothing has 4,591 objects at least.
FEWEST_FROZEN = 2_000
# What findings name: where the first is 2,000 at most (Python's own), a sample read into objects is
# looked through many times while it is made.
RARE_THRESHOLDS = (50_000, 20, 50)


# ---------------------------------------------------------------- flags of torch


@contextmanager
def flag(owner: Any, name: str, value: object) -> Iterator[None]:
    """An attribute set to `value`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def matmul_tf32(on: bool) -> Iterator[None]:
    """TensorFloat-32 in float32 matrix products and convolutions. Raises TrialRefused."""
    try:
        before = torch.get_float32_matmul_precision()
        convolutions = torch.backends.cudnn.allow_tf32
    except RuntimeError as error:  # torch >= 2.9 refuses after a mix of its old and new settings
        raise TrialRefused(f"torch doesn't say whether TF32 is on: {error}") from error
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(before)


@contextmanager
def intra_op_threads(n: int) -> Iterator[None]:
    """Intra-op threads of torch, of which the calling one is the first; those of workers stay."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def collector(how: Collector) -> Iterator[None]:
    """Python's garbage collector `manual`: it never starts; or `frozen`: it looks at nothing old.

    Thresholds stay. Raises TrialRefused where the script has done either already: undoing ours
    would undo its own.
    """
    if not gc.isenabled():
        raise TrialRefused("the script has switched the garbage collector off already")
    if how == "frozen" and gc.get_freeze_count() >= FEWEST_FROZEN:
        raise TrialRefused("the script has frozen its objects already")
    if how == "manual":
        gc.disable()
    else:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if how == "manual":
            gc.enable()
        else:
            gc.unfreeze()
            # A full one comes once objects have grown by a quarter since the last, which counted
            # none of those that were frozen: the loop's own windows would pay for one more.
            gc.collect()


class LessCollected:
    """A worker_init_fn that calls the user's, and then keeps what is there from the collector.

    Nothing is collected first: in a forked worker that would look at all the objects that it
    shares with the training process, and so copy their memory. `rarely` raises the thresholds too.
    """

    def __init__(self, how: str, init: Callable[[int], None] | None) -> None:
        self._how, self._init = how, init

    def __call__(self, worker_id: int) -> None:
        """Runs in the worker, where the dataset is and before its first sample."""
        if self._init is not None:
            self._init(worker_id)
        gc.freeze()
        if self._how == "rarely":
            gc.set_threshold(*RARE_THRESHOLDS)


def less_collected(
    how: str, init: Callable[[int], None] | None, *, forks: bool
) -> Callable[[int], None]:
    """The worker_init_fn for that. Raises TrialRefused where forked workers have it already."""
    if forks and not gc.isenabled():
        raise TrialRefused("the script has switched the garbage collector off, for workers too")
    if forks and how == "frozen" and gc.get_freeze_count() >= FEWEST_FROZEN:
        raise TrialRefused("the script has frozen its objects already, for forked workers too")
    return LessCollected(how, init)


# ---------------------------------------------------------------- forward of a model


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """`forward` in place of the module's, in the instance. Raises TrialRefused for TorchScript."""
    if isinstance(module, torch.jit.ScriptModule):
        raise TrialRefused(f"{type(module).__name__} is TorchScript: its forward can't be replaced")
    with _in_instance(module, "forward", forward):
        yield


@contextmanager
def _in_instance(owner: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """A method of this one object in place of its class's."""
    held = owner.__dict__
    before = held.get(name, _ABSENT)
    held[name] = method
    try:
        yield
    finally:
        if before is _ABSENT:
            held.pop(name, None)
        else:
            held[name] = before


def cast_type(device: torch.device) -> torch.dtype:
    """What autocast computes in here: bfloat16, which needs no loss scaling, where the GPU has it.

    Elsewhere float16 without a scaler: its speed is that of scaled training, its gradients may
    underflow.
    """
    if device.type == "cuda" and torch.version.hip is None:
        capable = torch.cuda.get_device_capability(device) >= _BFLOAT16_SINCE
        return torch.bfloat16 if capable else torch.float16
    return torch.bfloat16


@contextmanager
def autocast(module: nn.Module, device: torch.device) -> Iterator[None]:
    """The module's forward under autocast; floating-point outputs come back as float32."""
    inner, kind = module.forward, cast_type(device)

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=kind):
            output = inner(*args, **kwargs)
        return tree_map(lambda x: x.float() if _is_narrow(x) else x, output)

    with replaced_forward(module, forward):
        yield


def _is_narrow(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)


@contextmanager
def compiled(
    module: nn.Module, known: MutableMapping[nn.Module, Any], failures: list[str]
) -> Iterator[None]:
    """The module's forward compiled; where that fails, its own forward runs and `failures` grows.

    Validation, and the short last batch of an epoch, run uncompiled: each would be compiled again,
    for half a minute in the middle of a window, which a real run pays once. `known` keeps what was
    compiled for the next time.
    """
    inner = module.forward
    if known.get(module, (None,))[0] != inner:
        known[module] = (inner, torch.compile(inner))
    fast = known[module][1]
    usual: list[torch.Size] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        shapes = [x.shape for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if failures or not torch.is_grad_enabled() or _is_short(shapes, usual):
            return inner(*args, **kwargs)
        usual[:] = usual or shapes
        try:
            return fast(*args, **kwargs)
        except Exception as error:  # the compiler, or the model itself: its own forward tells
            output = inner(*args, **kwargs)
            text = str(error).strip().splitlines()
            failures.append(f"torch.compile: {type(error).__name__}: {text[0] if text else ''}")
            return output

    with replaced_forward(module, forward):
        yield


def _is_short(shapes: list[torch.Size], usual: list[torch.Size]) -> bool:
    """Whether these are the usual shapes but for fewer samples."""
    return (
        len(shapes) == len(usual) > 0
        and [shape[1:] for shape in shapes] == [shape[1:] for shape in usual]
        and any(a[:1] < b[:1] for a, b in zip(shapes, usual, strict=True))
    )


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """The parts of the model's largest chain keep no activations: forward runs again in backward.

    Raises TrialRefused where the model has no chain of modules (Sequential, ModuleList).
    """
    chains = [
        [part for part in module if any(True for _ in part.parameters())]
        for module in model.modules()
        if isinstance(module, (nn.Sequential, nn.ModuleList))
    ]
    parts = max(chains, key=len, default=[])
    if len(parts) < 2:
        raise TrialRefused(
            "the model has no chain of modules to checkpoint: it needs a change of the script"
        )
    with ExitStack() as stack:
        for part in dict.fromkeys(parts):
            stack.enter_context(replaced_forward(part, _run_twice(part.forward)))
        yield


def _run_twice(inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return inner(*args, **kwargs)
        return checkpoint(inner, *args, use_reentrant=False, **kwargs)

    return forward


# ---------------------------------------------------------------- memory format


@contextmanager
def channels_last(model: nn.Module, optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """The model's 4-d tensors, those of its optimizer's state, and its inputs in channels_last.

    Afterwards every tensor lies again in the memory it had, with the values training gave it.
    """
    owned = [*model.parameters(), *model.buffers()]
    ids = {id(tensor) for tensor in owned}
    state = [
        value
        for optimizer in optimizers
        for parameter, values in optimizer.state.items()
        if id(parameter) in ids
        for value in values.values()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    ]
    moved = [
        (tensor, tensor.data)
        for tensor in (*owned, *state)
        if tensor.dim() == 4 and not tensor.is_contiguous(memory_format=torch.channels_last)
    ]
    if not any(tensor.dim() == 4 for tensor in owned):
        raise TrialRefused("the model has no 4-d parameters: channels_last means nothing to it")
    for tensor, before in moved:
        tensor.data = before.contiguous(memory_format=torch.channels_last)

    def convert(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map(_channels_last, args), tree_map(_channels_last, kwargs)

    handle = model.register_forward_pre_hook(convert, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        for tensor, before in moved:
            before.copy_(tensor.data)
            tensor.data = before
            if tensor.grad is not None and tensor.grad.stride() != before.stride():
                tensor.grad = torch.empty_like(before).copy_(tensor.grad)


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value


# ---------------------------------------------------------------- the optimizer


@contextmanager
def zero_grad(owner: Optimizer | nn.Module, to_none: bool) -> Iterator[list[int]]:
    """`zero_grad()` of this object with that `set_to_none`, whatever the loop passes.

    Gives a list of one number: how often it was called.
    """
    inner, n_calls = owner.zero_grad, [0]

    def zero(*_: Any, **__: Any) -> None:
        n_calls[0] += 1
        inner(set_to_none=to_none)

    with _in_instance(owner, "zero_grad", zero):
        yield n_calls


@contextmanager
def fused(optimizer: Optimizer, on: bool) -> Iterator[None]:
    """The optimizer steps with torch's fused kernels, or without. Raises TrialRefused.

    Fused steps count on the device, others on the host; counters go back to where they were.
    """
    name = type(optimizer).__name__
    if "fused" not in optimizer.defaults:
        raise TrialRefused(f"{name} has no fused version")
    groups = optimizer.param_groups
    if all(bool(group.get("fused")) is on for group in groups):
        raise TrialRefused(f"{name} is {'fused' if on else 'not fused'} already")
    parameters = [p for group in groups for p in group["params"]]
    if on and not all(p.is_floating_point() for p in parameters):
        raise TrialRefused(f"fused {name} takes floating-point parameters only")
    if any(group.get("capturable") or group.get("differentiable") for group in groups):
        raise TrialRefused(f"{name} is capturable or differentiable: its step can't be switched")
    before = [(group, group.get("fused"), group.get("foreach")) for group in groups]
    counters = [
        (state, state["step"], parameter.device if on else torch.device("cpu"))
        for parameter, state in optimizer.state.items()
        if isinstance(state.get("step"), Tensor)
    ]
    for group in groups:
        group["fused"], group["foreach"] = on, False if on else group.get("foreach")
    for state, counter, device in counters:
        state["step"] = counter.to(device, copy=True)
    try:
        yield
    finally:
        for state, counter, _ in counters:
            counter.copy_(state["step"])
            state["step"] = counter
        for group, was_fused, was_foreach in before:
            group["fused"], group["foreach"] = was_fused, was_foreach
