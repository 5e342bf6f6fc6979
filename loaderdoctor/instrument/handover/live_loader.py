"""A loader of the running training whose settings can be changed while the training stays valid.

The samples, their order and every generator that the loop draws from stay what they would be with
the loader's own settings. What can't be shown to stay so is refused, with the reason.

Runs in the measuring process, on the thread that fetches.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Callable
from itertools import cycle, islice
from time import perf_counter_ns
from typing import Any

from torch.utils.data import DataLoader

from loaderdoctor.instrument.dataset.changes import Marks, marks
from loaderdoctor.instrument.handover import (
    DRAWS,
    Event,
    Kind,
    OwnRest,
    Pool,
    PoolUnfitError,
    Sample,
    in_words,
)
from loaderdoctor.instrument.handover.exactness import Nature, never_reason, refusal
from loaderdoctor.instrument.handover.index_stream import IndexStream, OwnDraws, quiet_draws
from loaderdoctor.instrument.handover.live_pass import LivePass, LoopsPass, OwnPass
from loaderdoctor.instrument.trial import FETCH_LIMIT_S
from loaderdoctor.instrument.trial.trial_checks import default_start_method, loader_settings
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings

# Batches of the loop's own loader that other pools have to make again; the latest are kept.
N_SAMPLES = 3
# Of the time, looking whether the loop changed what its workers miss; a look takes 30 ms at most.
MAX_SHARE_OF_TIME = 0.002


class LiveLoader:
    """One loader of the script. Ask for settings with `want`; passes go over when they can."""

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        exact: bool,
        has_accelerator: bool,
        batch: tuple[TensorRecord, ...] = (),
        fetch_limit_s: float = FETCH_LIMIT_S,
        opening: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        opened: Callable[[DataLoader[Any]], None] = lambda made: None,
        living: Callable[[], DataLoader[Any] | None] | None = None,
        like: LiveLoader | None = None,
    ) -> None:
        """`exact`: no sample may come out otherwise, random augmentation in workers included.

        `batch` is one batch, for what it takes to queue them. Pools are opened within `opening`,
        and `opened` gets the loader each is opened from. `living` finds the loader, or its like
        where the script holds it no longer than its iterator. `like` is the loader that this one
        was built in the place of: what is wanted and known goes on.
        """
        self.exact = exact
        self.own = loader_settings(loader)
        self.never = never_reason(loader)
        self.nature = Nature.of(loader, self.own)
        self.wanted = self._opened_last = self.own
        self.events: list[Event] = []
        self.failures: dict[Settings, str] = {}
        self._loader = living or weakref.ref(loader)
        self._dataset = id(loader.dataset)
        self._has_accelerator, self._batch, self._limit_s = has_accelerator, batch, fetch_limit_s
        self._opening, self._opened = opening, opened
        self._samples: deque[Sample] = deque(maxlen=N_SAMPLES)
        self._samples_of: Marks | None = None  # the dataset, as they were made of it
        self._proven = {self.own}  # made the samples as they were
        self._previous = self.own  # what was wanted before `wanted`
        self._pass: weakref.ref[LoopsPass] | None = None
        self._draws: OwnDraws | None = None  # once taken over
        self._kept: Pool | None = None  # persistent workers, between passes
        self._kept_marks: Marks | None = None  # the dataset, as those workers were started with it
        self._own_marks: Marks | None = None  # the same for its own, of this pass or for good
        self._look_at_ns = 0  # at the dataset again, not before
        self._waits = False  # for the next pass: what is wanted can't take over within this one
        if like is not None:
            self._go_on_as(like)

    # ------------------------------------------------------------ asked by the tuner

    def refusal(self, settings: Settings) -> str | None:
        """Why the training can't go on with these changes of its own settings; None: it can."""
        whole = self.complete(settings)
        loader = self._loader()
        if self.never is not None or loader is None:
            return self.never or "the loader no longer exists"
        if whole in self.failures:
            return self.failures[whole]
        return refusal(
            loader,
            self.nature,
            whole,
            exact=self.exact,
            has_accelerator=self._has_accelerator,
            batch=self._batch,
        )

    def complete(self, settings: Settings) -> Settings:
        """These changes over the loader's own, without what means nothing at 0 workers."""
        whole = settings.over(self.own)
        if whole.num_workers:
            defaults = Settings(
                prefetch_factor=DEFAULT_PREFETCH_FACTOR,
                persistent_workers=False,
                in_order=True,
                start_method=default_start_method(),  # type: ignore[arg-type]  # one of three words
            )
            whole = whole.over(defaults)
        else:
            whole = Settings(num_workers=0, pin_memory=whole.pin_memory)
        return settings if settings == whole else whole  # the same object is told apart at once

    def want(self, settings: Settings, *, at_epoch: bool = False) -> str | None:
        """Go over to these changes of its own settings as soon as it can be done.

        `at_epoch`: where the next pass begins, not before. None, or the reason where it can't be
        done; the settings stay what they are then.
        """
        reason, whole = self.refusal(settings), self.complete(settings)
        if reason is None and whole != self.wanted:
            self._previous, self.wanted = self.wanted, self.own if whole == self.own else whole
            self._waits = at_epoch
        elif reason is None and not at_epoch:
            self._waits = False  # no longer
        return reason

    def settle(self, settings: Settings) -> None:
        """Want these for good; the loop's own where they are refused or fail."""
        if settings == self.own or self.want(settings) is not None:
            self.wanted, self._waits = self.own, False
        self._previous = self.own

    @property
    def now(self) -> LoopsPass | None:
        """The loop's pass; None between two."""
        return self._pass() if self._pass is not None else None

    @property
    def serving(self) -> Settings:
        """The settings that made the loop's last batch."""
        now = self.now
        return self.own if now is None else now.serving

    @property
    def took_over(self) -> bool:
        """Whether passes of this loader are no longer torch's own, for good."""
        return self._draws is not None

    # ------------------------------------------------------------ asked by the loop's iterators

    def adopt(self, own: Any) -> LoopsPass:
        """The pass that torch's iterator serves and that began before this was asked for."""
        loader = self._loader()
        if loader is not None:
            self._own_marks = self._samples_of = marks(loader.dataset)
        return self._new_pass(None, own)

    def begin_pass(self, open_own: Callable[[], Any]) -> tuple[LoopsPass, Any]:
        """`iter(loader)`: the pass, and torch's iterator where the loop gets that; else None.

        Raises what the user's sampler does, and what opening its own workers raises.
        """
        loader = self._loader()
        if loader is None:
            raise RuntimeError("the loader no longer exists")
        self._waits = self.nature.changed_since_start = False
        now = marks(loader.dataset)
        if self._own_marks is None or not self.own.persistent_workers:
            self._own_marks = now
        if now != self._samples_of:
            self._samples, self._samples_of = deque(maxlen=N_SAMPLES), now
        self._look_again(loader)
        if self._draws is None and (self.wanted == self.own or self._lacks_samples):
            own = open_own()
            return self._new_pass(None, own), own
        return self._new_pass(self._begin_taken(loader), None), None

    def close(self) -> None:
        """End workers that persist between passes."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def _new_pass(self, taken: LivePass | None, own: Any) -> LoopsPass:
        made = LoopsPass(self, taken, OwnPass.of(own))
        self._pass = weakref.ref(made)
        return made

    def _begin_taken(self, loader: DataLoader[Any]) -> LivePass:
        before = self._draws or OwnDraws.of_kept_workers(loader)
        draws = self._draws = OwnDraws.begin(loader, before)
        stream = IndexStream(
            draws.next_index(), lead=self.own.queue_length, quiet=quiet_draws(loader)
        )
        pool = self._kept_pool(loader)
        while pool is None:
            settings, last = self.wanted, self._before(self.wanted)
            if self._lacks_samples:  # of the dataset as it is now: these are made first
                settings = last if last in self._proven else self.own
            pool = self.open_pool(settings, draws.base_seed)
            if pool is None and settings == self.own:
                raise RuntimeError(self.failures[self.own])
            if pool is None:
                self.wanted = last
        return LivePass(self, stream, draws.base_seed, pool)

    def _kept_pool(self, loader: DataLoader[Any]) -> Pool | None:
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        # Where the loop changed the dataset, workers that start with each epoch would see it.
        if kept.settings == self.wanted and marks(loader.dataset) == self._kept_marks:
            try:
                kept.begin_pass()
                return kept
            except Exception as error:
                self.failed(kept.settings, error)
                kept.close(stuck=True)
        else:
            kept.close()
        return None

    def take_over(self, own: Any, seen: OwnPass) -> LivePass | None:
        """Go on with the pass that torch's iterator is in the middle of; None: it stays its own."""
        loader = self._loader()
        if loader is None or self._waits or self._lacks_samples:
            return None
        self.nature.changed_by_loop |= seen.changed_by_loop(own)
        if self.wanted_within_pass() is None:
            return None
        pool = self.open_pool(self.wanted, int(own._base_seed))
        if pool is None:
            self.wanted = self.own
            return None
        rest = OwnRest(self.own, seen.n_under_way(own))
        seen.let_go(own)
        self._draws = OwnDraws.continuing(loader, own)
        if loader._iterator is own:
            loader._iterator = None
        stream = IndexStream(
            self._draws.next_index(),
            lead=self.own.queue_length,
            quiet=quiet_draws(loader),
            n_drawn=seen.n_drawn,
            n_asked=seen.n_asked,
        )
        return LivePass(self, stream, self._draws.base_seed, pool, rest=rest)

    def _look_again(self, loader: DataLoader[Any]) -> None:
        """What is wanted may no longer fit: the loop changed the dataset that its workers hold."""
        if self.wanted == self.own:
            return
        nature = self.nature
        try:
            if self.own.num_workers:
                nature.changed_since_start = marks(loader.dataset) != self._own_marks
                if self.own.persistent_workers:
                    nature.changed_by_loop |= nature.changed_since_start
            if (reason := self.refusal(self.wanted)) is None:
                return
            self._happened("refused", self.wanted, reason)
        except Exception as error:  # ours: the loop goes on with its own settings
            self._failed_with(self.wanted, in_words(error), "failed")
        self.wanted = self.own

    def saw(self, sample: Sample | None, *, drew: bool, changed: bool) -> None:
        if sample is not None:
            self._samples.append(sample)
        self.nature.changed_by_loop |= changed
        if drew:
            self._drew(self.own)

    def _go_on_as(self, like: LiveLoader) -> None:
        self.events, self.failures = like.events, like.failures
        self.nature.draws = self.nature.draws or like.nature.draws
        if like._dataset == self._dataset:
            self._samples, self._samples_of = like._samples, like._samples_of
            self._proven |= like._proven
        if like.own == self.own:
            self.own, self.wanted, self._previous = like.own, like.wanted, like._previous
        like.close()

    # ------------------------------------------------------------ asked by passes

    def wanted_within_pass(self) -> Settings | None:
        loader = self._loader()
        if self._waits or loader is None or self._lacks_samples:
            return None
        self._look_again(loader)
        self._waits = self.nature.waits_for_epoch(self.wanted, exact=self.exact)
        return None if self._waits else self.wanted

    def open_pool(self, settings: Settings, seed: int) -> Pool | None:
        """A pool with these complete settings; None where it can't be had, which is noted."""
        loader = self._loader()
        if loader is None:
            self.failures[settings] = "the loader no longer exists"
            return None
        samples: list[Sample] = []
        if self._reopens(settings):
            if not self._samples:
                self._failed_with(settings, "no batch of its own could be compared", "refused")
                return None
            samples = list(islice(cycle(self._samples), max(1, settings.num_workers or 0)))
        is_own = settings == self.own  # waits as torch would: nothing else could serve
        try:
            with self._opening():
                pool = Pool(
                    loader,
                    settings,
                    seed=seed,
                    samples=samples,
                    no_draws=self.exact and not self.nature.random and not is_own,
                    limit_s=(loader.timeout or math.inf) if is_own else self._limit_s,
                    opened=self._opened,
                )
        except Exception as error:  # no process, no file, no memory; what can't be pickled
            self._failed_with(settings, in_words(error), "failed")
            return None
        self._kept_marks = marks(loader.dataset)
        if settings != self._opened_last:
            self._opened_last = settings
            self._happened("switched", settings)
        return pool

    def failed(self, settings: Settings, error: Exception) -> Settings | None:
        """Settings to go back to; None where it is the loop that must see the error."""
        if isinstance(error, PoolUnfitError) and str(error) == DRAWS:
            self._drew(settings)
            if not self.exact and settings not in self.failures:
                return settings  # other draws of the same distribution, which is said
        if settings == self.own:
            return None
        self._failed_with(settings, in_words(error), "failed")
        self.wanted = self._before(settings)
        return self.wanted

    def changed_meanwhile(self) -> bool:
        loader, began = self._loader(), perf_counter_ns()
        if self.own.num_workers or loader is None or began < self._look_at_ns:
            return False
        changed = marks(loader.dataset) != self._kept_marks
        self._look_at_ns = began + int((perf_counter_ns() - began) / MAX_SHARE_OF_TIME)
        if changed:
            self.nature.changed_by_loop = True
            self._look_again(loader)  # which is refused, so that its own settings are wanted
        return changed

    def keep(self, pool: Pool) -> None:
        self.close()
        self._kept = pool

    def proved(self, settings: Settings) -> None:
        self._proven.add(settings)

    @property
    def wants_sample(self) -> bool:
        return len(self._samples) < N_SAMPLES and not self.nature.random

    @property
    def _lacks_samples(self) -> bool:
        """Whether what is wanted has to wait for a batch that it can be compared with."""
        return self._reopens(self.wanted) and not self._samples

    def _reopens(self, settings: Settings) -> bool:
        """Whether a pool with these has first to make samples again."""
        return settings not in self._proven and not self.nature.random

    def _before(self, settings: Settings) -> Settings:
        """The settings before these, unless they failed too: the loader's own then."""
        before = self._previous
        return self.own if before == settings or before in self.failures else before

    def _failed_with(self, settings: Settings, reason: str, kind: Kind) -> None:
        self.failures[settings] = reason
        self._happened(kind, settings, reason)

    def _happened(self, kind: Kind, settings: Settings, reason: str = "") -> None:
        self.events.append(Event(kind=kind, settings=settings, reason=reason))

    def _drew(self, settings: Settings) -> None:
        if not self.nature.random:
            self.nature.draws = ("making a sample",)
            self._happened("draws", settings)
