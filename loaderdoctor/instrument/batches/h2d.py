"""The loop's own host-to-device calls: `Tensor.to`, `Tensor.cuda` and `Tensor.copy_`, intercepted.

One `H2DHook` at a time replaces these three attributes of torch.Tensor and sees each call that
copies from host memory to the accelerator, and no other: not device-to-host, not between devices,
not dtype or memory format alone. `remove()` leaves the class as it was. Calls that torch's C++
code makes are unseen, as are tensors created on the device.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.batches import rebuild
from loaderdoctor.instrument.wire.records import TransferRecord

CallName = Literal["to", "cuda", "copy_"]

# torch's own methods, whatever is patched over them.
_TORCH = torch._C.TensorBase
_raw_to: Any = _TORCH.to
_raw_copy: Any = _TORCH.copy_


def raw_to(tensor: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
    """`tensor.to(device)` that no hook sees."""
    moved: Tensor = _raw_to(tensor, device, non_blocking=non_blocking)
    return moved


def raw_copy(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)` that no hook sees."""
    _raw_copy(target, source)


@dataclass(slots=True, kw_only=True)
class H2DCall:
    """One intercepted call, not yet made."""

    name: CallName
    source: Tensor  # in host memory
    target: Tensor | None  # copy_: where to
    device: torch.device
    dtype: torch.dtype
    non_blocking: bool
    copy: bool
    memory_format: torch.memory_format | None
    original: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def make(self) -> Tensor:
        """The call as the loop wrote it."""
        receiver = self.source if self.target is None else self.target
        return self.original(receiver, *self.args, **self.kwargs)

    def make_with(self, *, non_blocking: bool) -> Tensor:
        """The same call with another `non_blocking`."""
        if self.target is not None:
            return self.original(self.target, self.source, non_blocking)
        extra: dict[str, Any] = {}
        if self.memory_format is not None:
            extra["memory_format"] = self.memory_format
        if self.name == "cuda":
            return self.original(self.source, self.device, non_blocking, **extra)
        return self.original(self.source, self.device, self.dtype, non_blocking, self.copy, **extra)


class H2DHook:
    """Sees the loop's host-to-device calls while installed. Subclasses define `on_call`.

    `device_type` is the accelerator's; None takes any device that is no host memory.
    """

    def __init__(self, device_type: str | None = None) -> None:
        self._device_type = device_type
        self._thread = threading.local()  # not by thread id, which a later thread gets again

    def on_call(self, call: H2DCall) -> Tensor:
        """What the loop gets. Runs on the loop's thread."""
        raise NotImplementedError

    @property
    def installed(self) -> bool:
        return _Patch.hook is self

    def install(self) -> None:
        """Start to see calls. Raises RunError while another hook is installed."""
        if _Patch.hook is self:
            return
        if _Patch.hook is not None:
            raise RunError(
                f"{type(self).__name__}: {type(_Patch.hook).__name__} already watches the copies."
            )
        _Patch.hook = self
        _Patch.put()

    def remove(self) -> None:
        """Leave torch.Tensor as it was. Does nothing where not installed."""
        if _Patch.hook is self:
            _Patch.take_away()
            _Patch.hook = None

    def begin_step(self) -> None:
        """The calling thread starts its calls for another batch: its count starts at 0.

        Call it on the training thread at each step, and on any other thread that fetches batches
        at each of its fetches.
        """
        self._thread.ordinal = 0

    def _ordinal(self) -> int | None:
        """Which call of its thread's batch this is; None on a thread that begins no steps."""
        ordinal: int | None = getattr(self._thread, "ordinal", None)
        if ordinal is not None:
            self._thread.ordinal = ordinal + 1
        return ordinal

    def _wants(self, device: torch.device) -> bool:
        if self._device_type is None:
            return device.type != "cpu"
        return device.type == self._device_type


class _Method:
    """Stands in for a method of torch.Tensor.

    It equals the method it replaces: tensor subclasses look `func` up in tables of methods, and
    torch passes them whatever `torch.Tensor.to` is at the time.
    """

    def __init__(self, name: CallName, original: Any) -> None:
        self._name: CallName = name
        self.original = original
        self.__name__ = name
        self.__qualname__ = original.__qualname__
        self.__doc__ = original.__doc__
        self.__wrapped__ = original

    def __get__(self, tensor: Tensor | None, owner: type | None = None) -> Any:
        return self if tensor is None else types.MethodType(self, tensor)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self.original)

    def __hash__(self) -> int:
        return hash(self.original)

    def __call__(self, tensor: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
        hook = _Patch.hook
        # copy_ is called on the device tensor, the others on the host tensor.
        skip = hook is None or tensor.is_cpu is (self._name == "copy_")
        if not skip and type(tensor) is not Tensor:
            # Within `__torch_function__` of a subclass: the outer call was seen already.
            skip = not torch._C._is_torch_function_enabled()
        call = None if skip else _parse(self._name, self.original, tensor, args, kwargs)
        if hook is None or call is None or not hook._wants(call.device):
            return self.original(tensor, *args, **kwargs)  # type: ignore[no-any-return]
        return hook.on_call(call)


class _Patch:
    """The one place where torch.Tensor is changed."""

    hook: H2DHook | None = None
    before: ClassVar[dict[str, Any]] = {}  # what the class itself held; most methods are inherited

    @classmethod
    def put(cls) -> None:
        names: tuple[CallName, ...] = ("to", "cuda", "copy_")
        # All before the first is replaced: each look at a class that was just changed numbers it
        # anew, and from Python 3.13 on a class has a thousand numbers in all.
        originals = {name: getattr(Tensor, name) for name in names}
        for name, original in originals.items():
            if name in Tensor.__dict__:
                cls.before[name] = Tensor.__dict__[name]
            setattr(Tensor, name, _Method(name, original))

    @classmethod
    def take_away(cls) -> None:
        for name in ("to", "cuda", "copy_"):
            if name in cls.before:
                setattr(Tensor, name, cls.before.pop(name))
            else:
                delattr(Tensor, name)


def _parse(
    name: CallName, original: Any, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> H2DCall | None:
    """The call, where it copies from host memory to a device; None where not, or where torch
    itself will have to say what is wrong with it.
    """  # noqa: D205
    if name == "copy_":
        source = args[0] if args else kwargs.get("other")
        if not isinstance(source, Tensor) or not source.is_cpu:
            return None
        return H2DCall(
            name=name,
            source=source,
            target=tensor,
            device=tensor.device,
            dtype=tensor.dtype,
            non_blocking=bool(args[1] if len(args) > 1 else kwargs.get("non_blocking", False)),
            copy=False,
            memory_format=None,
            original=original,
            args=args,
            kwargs=kwargs,
        )
    place: Any = kwargs.get("device")
    dtype: Any = kwargs.get("dtype")
    rest = list(args)
    other = kwargs.get("tensor")
    if rest and isinstance(rest[0], Tensor):
        other = rest.pop(0)
    if isinstance(other, Tensor):
        place, dtype = other.device, other.dtype
    elif rest and name == "to" and isinstance(rest[0], torch.dtype):
        dtype = rest.pop(0)
    elif rest:
        place = rest.pop(0)
        if rest and name == "to" and (rest[0] is None or isinstance(rest[0], torch.dtype)):
            dtype = rest.pop(0)
    if name == "cuda":
        place = "cuda" if place is None else place
    if place is None:
        return None
    try:
        device = torch.device("cuda", place) if _is_index(name, place) else torch.device(place)
    except (RuntimeError, TypeError):
        return None
    if device.type == "cpu":
        return None
    return H2DCall(
        name=name,
        source=tensor,
        target=None,
        device=device,
        dtype=tensor.dtype if dtype is None else dtype,
        non_blocking=bool(rest[0] if rest else kwargs.get("non_blocking", False)),
        copy=bool(rest[1] if len(rest) > 1 else kwargs.get("copy", False)),
        memory_format=kwargs.get("memory_format"),
        original=original,
        args=args,
        kwargs=kwargs,
    )


def _is_index(name: CallName, place: Any) -> bool:
    return name == "cuda" and isinstance(place, int) and not isinstance(place, bool)


# Moves the tensors of a batch that the loop itself moves to the accelerator, and no other.


class ToDevice:
    """Which tensors of a batch go to the device.

    By their place in the batch where the loop's calls name it; where none does (the loop copies
    what it made of the batch), by dtype and the shape of one sample. Lengths and other tensors
    that the loop reads on the host stay there.
    """

    def __init__(
        self, device: torch.device, transfers: tuple[TransferRecord, ...], *, non_blocking: bool
    ) -> None:
        self.device = device
        self.non_blocking = non_blocking
        self._paths = {transfer.path for transfer in transfers if transfer.path is not None}
        self._kinds = {(t.dtype, t.shape[1:]) for t in transfers}

    def moves(self, path: str, tensor: Tensor) -> bool:
        """Whether that tensor of a batch goes to the device."""
        if tensor.device == self.device:
            return False
        return self.moves_like(path, tensor.dtype, tensor.shape)

    def moves_like(self, path: str, dtype: torch.dtype, shape: Sequence[int]) -> bool:
        """Whether such a tensor of host memory does."""
        if self._paths:
            return path in self._paths
        return (str(dtype).removeprefix("torch."), tuple(shape[1:])) in self._kinds

    def move(self, batch: Any) -> tuple[Any, list[Tensor]]:
        """The batch with those tensors on the device, and these, new ones only.

        Copies are queued on the calling thread's current stream. Raises UnsupportedBatch.
        """
        moved: list[Tensor] = []

        def place(path: str, tensor: Tensor) -> Tensor:
            if not self.moves(path, tensor):
                return tensor
            made = raw_to(tensor, self.device, non_blocking=self.non_blocking)
            moved.append(made)
            return made

        return rebuild(batch, place), moved
