"""Entry of a checked run: the script, its first steps' inputs and losses, then the steps' times.

Unlike the measuring process nothing is asked of it while it runs, and nothing is substituted. For
the first steps calls of the model and of backward are recorded; of all later ones only the time at
which their optimizer step ends is kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import random
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from loaderdoctor.instrument.entry import (
    CopyFirst,
    run_target,
)
from loaderdoctor.instrument.entry.checked_samples import FixedDraws, SeenSamples
from loaderdoctor.instrument.session.hooks import ImportWatch
from loaderdoctor.instrument.session.script_process import StopTraining, exit_after_grace, exit_now
from loaderdoctor.instrument.system.processes import die_with_parent
from loaderdoctor.instrument.wire.channel import (
    CHECKED_VARIABLE,
    N_KEPT,
    CheckedConfig,
    CheckedRun,
    CheckedStep,
    draws_file,
    inputs_file,
)
from loaderdoctor.units import NS_PER_S

# Of the run's time, what goes by before steps are timed: caches fill, workers start.
WARM_UP_PART = 0.3
MAX_KEPT_BYTES = 64 * 2**20
# Steps of a second: fewer are compared once they have taken this long, and some are always timed.
CHECKING_S = 20.0
MIN_CHECKED = 5
MIN_TIMED = 10
# Steps are timed from one epoch's beginning to a later one's where that leaves so much of them: of
# epochs of a second, starting workers for 0.3 s, one turn would else hold two and the next three.
MIN_EPOCHS_PART = 1 / 3


class _Recorder:
    def __init__(self, config: CheckedConfig) -> None:
        self._config = config
        self._out = Path(config.out)
        self._steps: list[tuple[str | None, Any]] = []
        self._inputs: str | None = None
        self._fed = False  # whether the model was called in this step
        self._losses: list[Any] = []
        self._step_ns: list[int] = []
        self._first_ns: int | None = None
        self._began: int | None = None  # the loader of the last pass that no step followed yet
        # Passes that steps were made of: their loader, and how many steps had been timed before.
        self._passes: list[tuple[int, int]] = []
        self._checking = True
        self._handle: Any = None
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, original, ours
        self._pid = os.getpid()
        self._copy: CopyFirst | None = None
        self._fixed: FixedDraws | None = None
        self._samples: SeenSamples | None = None
        self.over = False

    def watch(self) -> None:
        """Hook torch as the script imports it, and seed it there."""
        if self._config.moved is not None:
            self._copy = CopyFirst(*self._config.moved)
            self._copy.install()
        if self._config.samples is not None:
            self._samples = SeenSamples(self._config.samples, lambda x: list(_tensors(x)))
            began = self._samples.pass_began
            self._fixed = FixedDraws(
                self._config.seed, by_sample=draws_file(self._out), began=began
            )
        elif self._config.fixed_draws:
            self._fixed = FixedDraws(self._config.seed)
        own = {"torch.utils.data.dataloader": self._hook_passes}
        fixed = self._fixed.hooks() if self._fixed is not None else own
        ImportWatch(
            {
                **fixed,
                "torch": self._seed,
                "numpy.random": self._seed_numpy,
                "torch.nn.modules.module": self._hook_modules,
                "torch.autograd": self._hook_backward,
                "torch.optim.optimizer": self._hook_optimizers,
            }
        ).install()
        random.seed(self._config.seed)

    def _seed(self, torch: ModuleType) -> None:
        torch.manual_seed(self._config.seed)

    def _seed_numpy(self, module: ModuleType) -> None:
        module.seed(self._config.seed)

    def _hook_modules(self, module: ModuleType) -> None:
        original = module.Module.__call__
        if self._samples is not None:
            self._replace(module.Module, "__call__", self._samples.around(original))
            return

        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if not self._fed and self._checking and next(model.parameters(), None) is not None:
                self._called((args, kwargs))
            return original(model, *args, **kwargs)

        self._replace(module.Module, "__call__", __call__)

    def _called(self, arguments: Any) -> None:
        """The first module with weights in a step is the model; those within it come after it.

        Transforms are modules too, called where the training process makes the batches.
        """
        import torch

        if os.getpid() != self._pid or not torch.is_grad_enabled():  # validation, say
            return
        self._fed = True
        try:
            tensors = list(_tensors(arguments))
            self._inputs = _hash(tensors)
            if len(self._steps) < N_KEPT:
                self._keep(tensors)
        except Exception:  # tensor classes of others: then the inputs were not seen
            self._inputs = None

    def _keep(self, tensors: list[Any]) -> None:
        import numpy as np

        if sum(x.numel() for x in tensors) * 8 <= MAX_KEPT_BYTES:
            kept = [x.detach().cpu().double().numpy() for x in tensors]
            np.savez(inputs_file(self._out, len(self._steps)), *kept)

    def _hook_passes(self, module: ModuleType) -> None:
        original = module.DataLoader.__iter__

        def __iter__(loader: Any) -> Any:  # noqa: N807
            if os.getpid() == self._pid:
                self._began = id(loader)
            return original(loader)

        module.DataLoader.__iter__ = __iter__

    def _hook_backward(self, autograd: ModuleType) -> None:
        original = autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._checking and os.getpid() == self._pid:
                roots = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
                self._losses += [x.detach().clone() for x in roots if x.numel() == 1]
            return original(tensors, *args, **kwargs)

        self._replace(autograd, "backward", backward)

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        """Until the steps are checked: timed ones run without."""
        self._replaced.append((owner, name, getattr(owner, name), ours))
        setattr(owner, name, ours)

    def _put_back(self) -> None:
        for owner, name, original, ours in self._replaced:
            if getattr(owner, name) is ours:  # else another has wrapped it: ours passes through
                setattr(owner, name, original)
        self._replaced.clear()

    def _hook_optimizers(self, module: ModuleType) -> None:
        self._handle = module.register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        if self.over or os.getpid() != self._pid:
            return
        if self._samples is not None:
            if self._samples.stepped():
                self._stop()
            return
        now_ns = perf_counter_ns()
        if self._first_ns is None:
            self._first_ns = now_ns
        elapsed_s = (now_ns - self._first_ns) / NS_PER_S
        if self._checking:
            self._steps.append((self._inputs, self._losses))
            self._inputs, self._fed, self._losses = None, False, []
            n = len(self._steps)
            slow = n >= MIN_CHECKED and elapsed_s > CHECKING_S
            if n >= self._config.n_checked or slow:
                self._checking = False
                self._put_back()
        if not self._checking:
            if self._began is not None:  # validation's passes are followed by training's
                self._passes.append((self._began, len(self._step_ns)))
            self._step_ns.append(now_ns)
        self._began = None
        if not self._checking and self._timed_enough(now_ns):
            self._stop()

    def _stop(self) -> NoReturn:
        self.finish(stopped=True)
        exit_after_grace()
        raise StopTraining

    def _timed_enough(self, now_ns: int) -> bool:
        elapsed_s = (now_ns - self._step_ns[0]) / NS_PER_S
        if elapsed_s < self._config.seconds:
            return False
        # Steps before a long boundary (a validation) may all lie in the warm-up: more come then.
        return self._config.seconds == 0.0 or len(self._timed()) > MIN_TIMED

    def _timed(self) -> tuple[int, ...]:
        """The ends of steps behind the warm-up, of whole epochs where these are short."""
        if not self._step_ns:
            return ()
        first_ns, last_ns = self._step_ns[0], self._step_ns[-1]
        from_ns = first_ns + WARM_UP_PART * (last_ns - first_ns)
        ends = self._step_ns[bisect_left(self._step_ns, from_ns) :]
        return tuple(_whole_epochs(ends, self._passes, first=len(self._step_ns) - len(ends)))

    def finish(self, *, stopped: bool) -> None:
        if self.over or os.getpid() != self._pid:
            return
        self.over = True
        self._synchronize()
        if stopped and self._step_ns:
            self._step_ns[-1] = perf_counter_ns()  # the last step ends when the device has done it
        timed = self._timed()
        if self._handle is not None:
            self._handle.remove()
        import torch

        seen = self._samples
        CheckedRun(
            steps=tuple(CheckedStep(inputs=i, loss=_total(losses)) for i, losses in self._steps),
            step_ns=timed,
            ended="stopped" if stopped else "script-ended",
            draws_fixed=self._fixed is None or not self._fixed.beside,
            draws_repeated=self._fixed is not None and self._fixed.repeated,
            epoch_ended=self._fixed.epoch_ended if self._fixed is not None else None,
            n_epochs=seen.write(self._out, ended=not stopped) if seen is not None else 0,
            rows_alike=seen is None or seen.alike,
            samples_drawn=draws_file(self._out).exists(),
            versions=f"torch {torch.__version__}, Python {platform.python_version()}",
            foreign=self._copy.missed() if self._copy is not None else (),
        ).write(self._out)

    def _synchronize(self) -> None:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()


def _whole_epochs(ends: list[int], passes: list[tuple[int, int]], *, first: int) -> list[int]:
    """`ends` (steps from `first` on) cut to the epochs of one loader; as they are, of long ones."""
    within = [(loader, n - 1 - first) for loader, n in passes if n > first]
    begins = [at for loader, at in within if loader == within[0][0]]
    if len(begins) < 2:
        return ends
    cut = ends[begins[0] : begins[-1] + 1]
    whole = cut[-1] - cut[0] >= MIN_EPOCHS_PART * (ends[-1] - ends[0])
    return cut if whole and len(cut) > MIN_TIMED else ends


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield from _parts(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name, None))


def _parts(tensor: Any) -> Iterator[Any]:
    """A tensor as ones of plain memory: of a nested one its values and offsets, for instance."""
    import torch

    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        yield from _parts(torch._C._functorch.get_unwrapped(tensor))
    elif tensor.is_nested:
        if tensor.layout == torch.jagged:
            yield from (tensor.values(), tensor.offsets())
        else:
            yield from tensor.unbind()
    elif tensor.layout == torch.sparse_coo:
        held = tensor.coalesce()
        yield from (held.indices(), held.values())
    else:
        yield tensor


def _hash(tensors: list[Any]) -> str | None:
    """Of shapes, dtypes and bytes; None where there is no tensor, or one that has no bytes."""
    import torch

    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return None
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        digest.update(f"{tuple(plain.shape)}{plain.dtype}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest() if tensors else None


def _total(losses: list[Any]) -> float | None:
    return sum(float(x) for x in losses) if losses else None


def main() -> NoReturn:
    """Run the script; the exit code is its own, 0 where it was stopped."""
    die_with_parent(os.getppid())
    config = msgspec.json.decode(os.environ.pop(CHECKED_VARIABLE), type=CheckedConfig)
    recorder = _Recorder(config)
    recorder.watch()
    end = run_target(config)
    if end.stopped:
        exit_now()
    if end.code == 0 and "torch" in sys.modules:
        recorder.finish(stopped=False)
    sys.exit(end.code)


if __name__ == "__main__":
    main()
