"""Finds the step: which loader feeds the training work, on which thread, and what ends a step.

A loader belongs to the step if its fetches are followed by training work (backward or an
optimizer step) before its next fetch, and it is fetched often enough to be no validation. Batches
fetched without gradients are never the step's where others are. The steps are told by the loader
that is trained on most often; what joins or leaves them later `joining` notices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal

from loaderdoctor.instrument.session.loader_state import LoaderState
from loaderdoctor.instrument.session.passes import PassLog
from loaderdoctor.instrument.system import Site, living, user_site
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer


Tick = Literal["fetch", "optimizer", "backward"]

# Steps needed before roles are decided; the first ones of a run are transients anyway.
MIN_WORKED = 4
MIN_WORKED_SLOW = 2
SLOW_S = 5.0
# At least this share of a loader's fetches must be followed by work: batches of a validation
# loader come in rows without any, except its last.
MIN_FOLLOWED = 0.5
# Fetched less often than this against the busiest loader of the step: not part of each step.
MIN_FREQUENCY = 0.3
# Fewer optimizer steps than this per batch: gradients are accumulated over several batches.
ACCUMULATES_BELOW = 0.75
# A loop without backward and optimizer (inference) is measured too, once no training is in sight:
# after so many batches of a pass, and so long. Where a model is called on them and no optimizer
# exists that is soon; evaluation before training is over within half a minute as a rule. A pass
# that calls no model (statistics, batches skipped to resume) is hardly ever what a script is for:
# 2,000 batches of 10 ms took 20 s, and 63 s on a busy machine. If training begins later, all is
# decided again.
MIN_WORKLESS_FETCHES = 8
WORKLESS_S = 1.0
WORKLESS_WITH_OPTIMIZER_S = 30.0
WORKLESS_WITHOUT_MODEL_S = 120.0
LOOK_EVERY_S = 2.0  # for an optimizer: it walks all objects of the process, some 50 ms

_OF_INFERENCE = ", in inference: no backward pass and no optimizer step was seen"
_OF_READING = ", which is only read: no model, no backward pass and no optimizer step was seen"


@dataclass(slots=True)
class _Fetches:
    loader: LoaderState
    thread: int = 0
    n: int = 0
    n_followed: int = 0
    n_without_grad: int = 0
    last_without_grad: int = 0  # 1: the latest of them
    pending: bool = False


@dataclass(slots=True)
class _Work:
    thread: int
    n: int = 0
    site: Site | None = None
    optimizer: int | None = None  # id of the optimizer; None: backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a step is in this run."""

    clock: LoaderState  # its batches are the steps
    train: tuple[LoaderState, ...]  # all loaders of the step, `clock` first
    thread: int  # training thread (threading.get_ident)
    text: str
    tick: Tick = "fetch"
    optimizer: int | None = None  # tick "optimizer": which one (id)
    trains: bool = True  # False: no work was seen so far
    calls_model: bool | None = None  # where it does not train
    with_grad: bool = False  # it fetches with gradients on: a pass without them is no training

    def evaluates(self, loader: LoaderState) -> bool:
        """Whether it is read without gradients now, by a loop that trains with them: no step."""
        return self.with_grad and loader is self.clock and without_grad()

    def joined_by(self, loaders: Iterable[LoaderState]) -> Definition:
        """The same with these loaders, of which only some steps have a batch."""
        new = [x for x in loaders if x not in self.train]
        if not new:
            return self
        text = f"{self.text}, some with one of {' and '.join(x.id for x in new)}"
        return replace(self, train=(*self.train, *new), text=text)


@dataclass(slots=True)
class RoleObserver:
    """Watches the first steps. Fetches may come from any thread."""

    passes: PassLog = field(default_factory=PassLog)
    patient: bool = True  # False: the loop is what is to be measured, whether it trains or not
    first_ns: int = 0
    fetches: dict[int, _Fetches] = field(default_factory=dict)  # by LoaderState.index
    work: dict[int | None, _Work] = field(default_factory=dict)  # by optimizer id; None: backward
    _looked_s: float = float("-inf")

    def fetched(self, loader: LoaderState, now: int) -> None:
        one = self.fetches.get(loader.index)
        if one is None:
            one = self.fetches[loader.index] = _Fetches(loader)
            self.first_ns = self.first_ns or now
        one.thread = threading.get_ident()
        one.n += 1
        one.pending = True
        one.last_without_grad = int(without_grad())
        one.n_without_grad += one.last_without_grad

    def worked(self, optimizer: Optimizer | None) -> None:
        """Training work on this thread: an optimizer's step, or a backward pass (None)."""
        key = None if optimizer is None else id(optimizer)
        if not self.work:
            self._begin(by_backward=optimizer is None)
        one = self.work.get(key)
        if one is None:
            one = self.work[key] = _Work(threading.get_ident(), optimizer=key, site=user_site())
        one.n += 1
        for fetches in self._seen():
            if fetches.pending:
                fetches.pending = False
                fetches.n_followed += 1

    def _begin(self, *, by_backward: bool) -> None:
        """Training begins: what was read before, but for its first batches, tells nothing of it."""
        self.passes.training_began(by_backward=by_backward)
        if not by_backward:
            return  # perhaps an accumulated one, of which nothing else was seen
        self.fetches = {
            one.loader.index: _Fetches(
                one.loader, one.thread, n=1, n_without_grad=one.last_without_grad, pending=True
            )
            for one in self._seen()
            if one.pending and not self.passes.is_over(one.loader)
        }
        self.first_ns = perf_counter_ns()

    def _seen(self) -> list[_Fetches]:
        """All loaders so far; another thread may come with a new one at any time."""
        return list(self.fetches.values())

    def optimizer_ids(self) -> list[int]:
        """Of all that stepped."""
        return [key for key in self.work if key is not None]

    def decide(self, now: int) -> Definition | None:
        """The step, once enough was seen; None until then."""
        elapsed_s = (now - self.first_ns) / NS_PER_S if self.first_ns else 0.0
        if self.work:
            candidates = self._fed_by()
            needed = MIN_WORKED if elapsed_s < SLOW_S else MIN_WORKED_SLOW
            if candidates and max(c.n_followed for c in candidates) >= needed:
                return self._definition(candidates)
            return None
        return self._without_work(elapsed_s)

    def _fed_by(self) -> list[_Fetches]:
        """Loaders of the step: that which work follows most often, then as first fetched."""
        seen = [f for f in self._seen() if f.n_followed]
        with_grad = [f for f in seen if f.n_without_grad * 2 <= f.n] or seen
        steady = [f for f in with_grad if f.n_followed >= MIN_FOLLOWED * f.n]
        # Accumulation without visible backward passes: work follows few of the fetches.
        chosen = steady or with_grad[:1]
        most = max((f.n for f in chosen), default=0)
        # One batch before the first step may be of a check that the loop left early.
        least = max(MIN_FREQUENCY * most, min(2, most))
        fed = [f for f in chosen if f.n >= least]
        most_followed = max((f.n_followed for f in fed), default=0)
        return sorted(fed, key=lambda f: f.n_followed < most_followed)

    def _without_work(self, elapsed_s: float) -> Definition | None:
        """The loop as it is, once it is unlikely that it trains; None until then."""
        if elapsed_s < WORKLESS_S:
            return None
        lengths = [(f, self.passes.present(f.loader)[0]) for f in self._seen()]
        longest = max((n for _, n in lengths), default=0)
        least = max(MIN_WORKLESS_FETCHES, MIN_FREQUENCY * longest)
        read = [f for f, n in lengths if n >= least]
        if not read:
            return None
        if not self.patient:
            return self._definition(read)
        if not any(self.passes.present(f.loader)[1] for f in read):
            if elapsed_s < WORKLESS_WITHOUT_MODEL_S:
                return None
        elif elapsed_s < WORKLESS_WITH_OPTIMIZER_S:
            if elapsed_s - self._looked_s < LOOK_EVERY_S:
                return None
            self._looked_s = elapsed_s
            if optimizer_exists():
                return None
        return self._definition(read)

    def _definition(self, fed_by: list[_Fetches]) -> Definition:
        first = fed_by[0]
        train = tuple(f.loader for f in fed_by)
        optimizers = [w for w in self.work.values() if w.optimizer is not None]
        work = max(optimizers or list(self.work.values()), key=lambda w: w.n, default=None)
        text = f"one batch of {first.loader.id}"
        others = [x.id for x in train[1:]]
        if others:
            text += f" with one of {' and '.join(others)}"
        if work is not None and work.site is not None:
            what = "the optimizer" if optimizers else "the backward pass"
            text += f" (which feeds {what} at {work.site.label})"
        calls_model: bool | None = None
        if work is None:
            calls_model = any(self.passes.present(f.loader)[1] for f in fed_by)
            text += _OF_INFERENCE if calls_model else _OF_READING
        if work is not None and first.thread != work.thread:
            # Batches come from a background thread: what happens once a batch on the training
            # thread marks the step instead.
            best = self._once_per_batch(first.n)
            return Definition(
                clock=first.loader,
                train=train,
                tick="backward" if best.optimizer is None else "optimizer",
                optimizer=best.optimizer,
                thread=best.thread,
                text=f"{text}, fetched on a background thread",
            )
        return Definition(
            clock=first.loader,
            train=train,
            thread=first.thread,
            text=text,
            trains=work is not None,
            calls_model=calls_model,
            with_grad=work is not None and first.n_without_grad == 0,
        )

    def _once_per_batch(self, n_batches: int) -> _Work:
        """What happens once a batch: an optimizer's step, unless gradients are accumulated."""
        backward = self.work.get(None)
        optimizers = [w for w in self.work.values() if w is not backward]
        best = min(optimizers or [*self.work.values()], key=lambda w: abs(w.n - n_batches))
        if backward is not None and best.n < ACCUMULATES_BELOW * min(backward.n, n_batches):
            return backward
        return best


def without_grad() -> bool:
    """Whether gradients are switched off on this thread."""
    import torch

    return not torch.is_grad_enabled()


def optimizer_exists() -> bool:
    from torch.optim import Optimizer

    return bool(living(Optimizer))


def device_of(optimizer: torch.optim.Optimizer) -> torch.device | None:
    """Where an optimizer's first parameter lies."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            device: torch.device = parameter.device
            return device
    return None


def training_device(optimizer_device: torch.device | None) -> torch.device | None:
    """The CUDA (or ROCm) device in use, initialising none; None: the loop trains on the CPU."""
    import torch

    if optimizer_device is not None and optimizer_device.type == "cuda":
        return optimizer_device
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device())
    return None
