"""Passes over loaders before training begins: statistics, skipped batches, checks, features.

Nothing that is read before the first backward pass or optimizer step is a training step. Whether a
model is called on the batches tells inference from reading alone, and is looked at only in a pass
that is clearly no step of training: an ordinary loop never meets the hook.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaderdoctor.instrument.session.loader_state import LoaderState
from loaderdoctor.instrument.system import Site, user_site
from loaderdoctor.instrument.wire.records import PassRecord
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    from torch import nn

# Batches without work after which a pass is looked at, and for how many: a first training step
# comes after one batch, or two where a prefetcher holds one.
LOOK_AFTER = 3
N_LOOKED_AT = 4
# Batches read right before the first training step, in the pass that training then goes on in:
# fewer are what prefetchers hold ahead.
MIN_SKIPPED = 8


@dataclass(slots=True)
class _Pass:
    """One pass over one loader."""

    loader: LoaderState
    site: Site
    thread: int
    n: int = 0
    n_measured: int = 0  # of them, while windows were measured: their time is not the script's own
    n_without_grad: int = 0
    took_ns: int = 0  # of those not measured
    last_fetch_ns: int = 0
    first_ns: int = 0  # end of its first fetch, and of its last
    last_ns: int = 0
    last_measured: bool = False
    over: bool = False
    skips: bool = False
    calls_model: bool | None = None  # None: not looked at

    def goes_on_with(self, latest: _Pass) -> bool:
        """Whether both are under way, as of `zip(images, labels)`."""
        first = self.n == latest.n == 1
        return self is latest or self.last_ns > latest.first_ns or first

    @property
    def key(self) -> tuple[int, str, bool]:
        """Alike in passes that are told as one."""
        return self.loader.index, self.site.label, self.skips


@dataclass(slots=True)
class _Alike:
    """Passes over one loader at one place that are over."""

    loader: LoaderState
    site: Site
    skips: bool
    n_passes: int = 0
    n_batches: int = 0
    n_known: int = 0  # of them, in passes of which it is known how long they took
    took_ns: float = 0.0  # of those passes
    calls_model: bool | None = None
    without_grad: bool = True

    def add(self, one: _Pass) -> None:
        self.n_passes += 1
        self.n_batches += one.n
        known = one.n - one.n_measured
        if known:
            self.n_known += one.n
            self.took_ns += one.took_ns * one.n / known
        if one.calls_model is not None:
            self.calls_model = one.calls_model or bool(self.calls_model)
        self.without_grad = self.without_grad and one.n_without_grad * 2 > one.n

    def record(self) -> PassRecord:
        took_s = self.took_ns / NS_PER_S * self.n_batches / self.n_known if self.n_known else None
        return PassRecord(
            loader=self.loader.id,
            site=self.site.label,
            code=self.site.code.partition("\n")[0] if self.site.code is not None else None,
            n_passes=self.n_passes,
            n_batches=self.n_batches,
            took_s=took_s,
            calls_model=self.calls_model,
            without_grad=self.without_grad,
            skips=self.skips,
        )


class PassLog:
    """All passes until training begins. Batches may come from any thread, one at a time mostly.

    Of those that are over sums are kept: a loop that never trains may make one for each batch.
    """

    def __init__(self) -> None:
        self.first_ns = 0  # of the first fetch
        self.began = False  # training did: nothing is added any more
        # By `_Pass.key`, as they first began.
        self._over: dict[tuple[int, str, bool], _Alike] = {}
        self._by_loader: dict[int, _Pass] = {}  # the latest one, by LoaderState.index
        self._last_ns = 0  # end of the latest fetch of any loader
        self._latest: LoaderState | None = None
        self._watch: _ModelWatch | None = None
        self._watched: _Pass | None = None

    def fetching(self) -> None:
        """A batch is about to be made: modules called on this thread meanwhile are transforms."""
        if self._watch is not None:
            self._watch.fetching = threading.get_ident()

    def fetched(
        self, loader: LoaderState, start: int, end: int, *, opened_ns: int | None, measured: bool
    ) -> None:
        """A batch came between `start` and `end`.

        `opened_ns`: it is the first of its iterator, which took so long to make; `measured`:
        windows are being measured.
        """
        import torch

        if self.began:
            return
        one = self._by_loader.get(loader.index)
        if one is None or opened_ns is not None or one.over:
            if one is not None and not one.over:
                self._end(one)
            one = self._by_loader[loader.index] = _Pass(loader, user_site(), threading.get_ident())
            self._sum(self._over, one)
            self._last_ns = start - (opened_ns or 0)
            self.first_ns = self.first_ns or self._last_ns
        one.first_ns, one.last_ns = one.first_ns or end, end
        one.n += 1
        one.n_without_grad += not torch.is_grad_enabled()
        one.last_measured = measured
        self._latest = loader
        if measured:
            one.n_measured += 1
        else:
            one.took_ns += end - self._last_ns
            one.last_fetch_ns = end - start
        self._last_ns = end
        self._look(one)

    def ran_out(self, loader: LoaderState, now: int) -> None:
        one = self._by_loader.get(loader.index)
        if one is None or self.began or one.over:
            return
        if not one.n_measured:
            one.took_ns += now - self._last_ns
            self._last_ns = now
        self._end(one)

    def training_began(self, *, by_backward: bool) -> None:
        """The first work was seen, on this thread: what was fetched for it is no such pass.

        Where that is an optimizer's step without any backward pass that we saw, those of the
        batches before may have gone unseen as well.
        """
        if self.began:
            return
        self.began = True
        self.stop_looking()
        present = [p for p in self._by_loader.values() if not p.over]
        latest = next((p for p in present if p.loader is self._latest), None)
        for one in present:
            if latest is not None and not one.goes_on_with(latest):
                continue  # left early, before the one that training goes on in
            one.skips = True
            if one.last_measured:
                one.n_measured -= 1
            else:
                one.took_ns -= one.last_fetch_ns
            one.n -= 1
            here = one.thread == threading.get_ident()
            if one.n < MIN_SKIPPED or not here or not by_backward:
                del self._by_loader[one.loader.index]

    def is_over(self, loader: LoaderState) -> bool:
        one = self._by_loader.get(loader.index)
        return one is not None and one.over

    def present(self, loader: LoaderState) -> tuple[int, bool | None]:
        """Of the present pass over it: batches so far, and whether a model is called on them."""
        one = self._by_loader.get(loader.index)
        return (one.n, one.calls_model) if one is not None and not one.over else (0, None)

    def records(self, *, but: LoaderState | None = None) -> tuple[PassRecord, ...]:
        """What there was, in order; passes alike are one record. `but` the passes over one."""
        found = {key: replace(alike) for key, alike in list(self._over.items())}
        for one in list(self._by_loader.values()):
            if not one.over and one.n:
                self._sum(found, one).add(one)
        return tuple(x.record() for x in found.values() if x.n_batches and x.loader is not but)

    def _sum(self, of: dict[tuple[int, str, bool], _Alike], one: _Pass) -> _Alike:
        return of.setdefault(one.key, _Alike(one.loader, one.site, one.skips))

    def _end(self, one: _Pass) -> None:
        one.over = True
        self._sum(self._over, one).add(one)
        if one is self._watched:
            self.stop_looking()

    def _look(self, one: _Pass) -> None:
        if one.calls_model is None and one.n >= LOOK_AFTER and self._watch is None:
            self._watch, self._watched = _ModelWatch(), one
        if one is not self._watched or self._watch is None:
            return
        self._watch.fetching = None
        if self._watch.called or one.n >= LOOK_AFTER + N_LOOKED_AT:
            one.calls_model = self._watch.called
            self.stop_looking()

    def stop_looking(self) -> None:
        """Take the hook out, whatever it has seen."""
        if self._watch is not None:
            self._watch.remove()
        self._watch = self._watched = None


class _ModelWatch:
    """Whether a model is called outside of making batches: a module with weights.

    Transforms of a batch are modules as well, and have none. Not hooked where torch.compile is
    at work, which would compile once more for it: what it has compiled is then called.
    """

    def __init__(self) -> None:
        from loaderdoctor.instrument.session.compute_watch import compiles

        self.called = compiles()
        self.fetching: int | None = None  # thread that makes a batch
        self._handle: Any = None
        if not self.called:
            from torch.nn.modules.module import register_module_forward_pre_hook

            self._handle = register_module_forward_pre_hook(self._enter)

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self.called and self.fetching != threading.get_ident():
            # Not state_dict(): of sharded models it is a collective.
            self.called = any(True for _ in module.parameters())
