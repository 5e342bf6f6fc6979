"""Sets the loader of a recorded run: joins the loop, the tuner and the loader's pools.

Runs on the training thread. The tuner (`tuning`) hears of every step and asks for settings; the
loader (`handover`) goes over to them so that the training stays what it was.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loaderdoctor.estimate import Estimate
from loaderdoctor.instrument.handover.live_loader import LiveLoader
from loaderdoctor.instrument.recording.process_counts import BatchCosts
from loaderdoctor.instrument.recording.stretch import BESIDES, GAP
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.feed import bypass
from loaderdoctor.instrument.session.loader_state import LoaderState
from loaderdoctor.instrument.session.script_process import place, process_group
from loaderdoctor.instrument.system.machine import usable_cpus
from loaderdoctor.instrument.trial.trial_checks import start_method_of
from loaderdoctor.instrument.wire.measured import TriedRecord, TuningRecord
from loaderdoctor.settings import Settings
from loaderdoctor.tuning import Tuner
from loaderdoctor.tuning.candidates import Ask, TunedLoop
from loaderdoctor.tuning.step_windows import Step
from loaderdoctor.units import NS_PER_MS

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

RANKS = (
    "the training has several processes, and those that wait for one another must go over in the "
    "same step: each is recorded, none is tuned"
)
IN_BACKGROUND = "its batches are fetched on another thread than the one that trains"
NO_TRAINING = "no training was seen"
INTERNAL_ERROR = "an internal error ended that, and the loop's own settings are back"
# A pool without a batch for so long is taken for a hang, and the one before serves again.
FETCH_LIMIT_S = 60.0
NEVER = 2**31  # steps

# (loader index, begin, end, thread, CPU), as `OpenWindow.fetches` has them; ns.
Fetch = tuple[int, int, int, int, int]


class HandedLoader:
    """The `LiveLoader` of a place in the script; another when the script builds it anew."""

    def __init__(self, make: Callable[..., LiveLoader]) -> None:
        self.live: LiveLoader | None = None
        self._make = make
        self._for: Callable[[], Any] = lambda: None

    @property
    def took_over(self) -> bool:
        """Whether its passes are no longer torch's own, for good."""
        return self.live is not None and self.live.took_over

    def of(self, loader: DataLoader[Any]) -> LiveLoader:
        live = self.live
        if live is None or self._for() is not loader:
            live = self.live = self._make(loader, like=live)
            self._for = weakref.ref(loader)
        return live

    def close(self) -> None:
        """End workers between passes."""
        if self.live is not None:
            self.live.close()


class LoopTuner:
    """Of one training process."""

    def __init__(self, session: Session, *, exact: bool) -> None:
        self._session = session
        self._exact = exact
        self._not_tuned: str | None = NO_TRAINING
        self._state: LoaderState | None = None
        self._handed: HandedLoader | None = None
        self._tuner: Tuner | None = None
        self._began_at = 0
        self._n_events = 0
        self._draws = False
        self._refused: dict[Settings, str | None] = {}
        self._sent: TuningRecord | None = None
        self._costs = BatchCosts(session.workers.sums_folder, self._given_by_others)
        self._n_marks = self._n_fetches = 0  # told of, of the lists that `hear` gets

    # ------------------------------------------------------------ beginning

    def begin(self) -> None:
        """Choose the loader; nothing is changed yet. Once, when the loop is warm."""
        self._not_tuned = self._begin()

    def _begin(self) -> str | None:
        session, definition = self._session, self._session.definition
        if definition is None or not definition.trains:
            return NO_TRAINING
        state = self._state = definition.clock
        group = process_group()
        if place() is not None or (group is not None and group[1] > 1):
            return RANKS
        if definition.tick != "fetch" or state.in_background:
            return IN_BACKGROUND
        loader = state.living()
        feed: Any = state.feed() if state.feed is not None else None
        if loader is None or feed is None:
            return "the loader no longer exists"
        handed = HandedLoader(self._live_loader)
        live = handed.of(loader)
        if live.never is not None:
            return live.never
        own = feed.iterator()
        if own is not None:
            feed.handed = live.adopt(own)
        self._handed = state.handed = handed
        self._began_at = session.n_steps
        if not live.own.num_workers:
            session.window.fetch_cpu = True
        loop = TunedLoop(
            own=live.own,
            n_cpus=max(1, int(usable_cpus())),
            start_method=start_method_of(live.own),  # type: ignore[arg-type]  # one of three words
            has_accelerator=session.device is not None,
            steps_per_epoch=state.limit,
            worker_start_ms=_worker_start_ms(live.own, state, feed),
        )
        self._tuner = Tuner(loop, self._refusal, self._costs.of)
        return None

    def _live_loader(self, loader: DataLoader[Any], like: LiveLoader | None = None) -> LiveLoader:
        state = self._state
        assert state is not None
        return LiveLoader(
            loader,
            exact=self._exact,
            has_accelerator=self._session.device is not None,
            batch=state.seen.last,
            fetch_limit_s=FETCH_LIMIT_S,
            opening=bypass,
            opened=lambda made: self._session.registry.same(made, state),
            living=state.living,
            like=like,
        )

    def _refusal(self, settings: Settings) -> str | None:
        """Asked again and again for the same ones while a trial can't be paid for."""
        if settings not in self._refused:
            assert self._handed is not None
            live = self._handed.live
            assert live is not None
            self._refused[settings] = live.refusal(settings)
        return self._refused[settings]

    # ------------------------------------------------------------ each step

    def hear(self, at: list[int], flags: dict[int, int], fetches: list[Fetch]) -> int:
        """Of all marks and fetches that are new in these lists; never raises.

        Steps that will be made until this has to be called again, if nothing else than steps comes.
        """
        try:
            return self._hear_all(at, flags, fetches)
        except Exception:  # ours: this is called from within the user's `next(loader)`
            self._give_up()
            return NEVER

    def emptied(self) -> None:
        """The lists are new: they begin with the last mark."""
        self._n_marks = self._n_fetches = 0

    def end(self) -> None:
        """Nobody hears of steps any more: what was chosen stays, and nothing that is tried."""
        tuner, live = self._tuner, self._handed.live if self._handed is not None else None
        if tuner is None or live is None:
            return
        try:
            live.settle(tuner.outcome().chosen)
        except Exception:
            self._give_up()

    def _give_up(self) -> None:
        self._session.note("internal-error", traceback.format_exc())
        self._tuner, self._not_tuned = None, INTERNAL_ERROR
        live = self._handed.live if self._handed is not None else None
        if live is not None:
            live.settle(live.own)

    def _hear_all(self, at: list[int], flags: dict[int, int], fetches: list[Fetch]) -> int:
        tuner, handed = self._tuner, self._handed
        if tuner is None or handed is None:
            return NEVER
        live = handed.live
        assert live is not None
        changed = len(live.events) != self._n_events
        asks = [self._hear(live, tuner)] if changed else []
        begin, last = self._n_marks, len(at) - 1
        self._n_marks = max(begin, last)
        odd = False
        while begin < last:
            end, odd = begin + 1, begin in flags
            while not odd and end < last and end not in flags:
                end += 1
            wait_ms = self._wait_ms(fetches, at[end])
            if not flags.get(begin, 0) & (GAP | BESIDES):
                now, ms = live.now, (at[end] - at[begin]) / NS_PER_MS
                first = now is not None and now.n_given == 1 and end == begin + 1 == last
                step = Step(
                    ms=ms + self._opening_ms() if first else ms,
                    wait_ms=wait_ms,
                    serving=live.own if now is None else now.serving,
                    settled=now is not None and now.settled and not changed,
                    first=first,
                    n=end - begin,
                )
                if now is not None:
                    self._costs.serves(step.serving if step.settled else None)
                asks.append(tuner.step(step))
            begin = end
        ask = next((x for x in reversed(asks) if x is not None), None)
        while ask is not None:
            reason = live.want(ask.settings, at_epoch=ask.at_epoch)
            ask = tuner.failed(ask.settings, reason) if reason is not None else None
        return 1 if odd or changed else tuner.n_quiet

    def _hear(self, live: LiveLoader, tuner: Tuner) -> Ask | None:
        ask: Ask | None = None
        events, self._n_events = live.events[self._n_events :], len(live.events)
        for event in events:
            if event.kind == "draws":
                self._draws = True
                self._refused.clear()
            elif event.kind != "switched":
                ask = tuner.failed(event.settings, event.reason) or ask
        return ask

    def _wait_ms(self, fetches: list[Fetch], until_ns: int) -> float:
        """In `__next__` of the loader, for the batches of steps that ended until then."""
        state, live = self._state, self._handed.live if self._handed is not None else None
        assert state is not None
        waited, index = 0, state.index
        here = live is not None and not live.serving.num_workers
        for loader, start, end, _, cpu_ns in fetches[self._n_fetches :]:
            if start >= until_ns:
                break
            self._n_fetches += 1
            if loader == index:
                waited += end - start
                if cpu_ns and here:
                    self._costs.fetched(end - start, cpu_ns)
        if not self._costs.wants_cpu:
            self._session.window.fetch_cpu = False
        return waited / NS_PER_MS

    def _given_by_others(self) -> int:
        """Batches of workers that are not the loop's loader's."""
        states = self._session.registry.states
        return sum(x.n_fetches for x in states if x is not self._state and x.workers)

    def _opening_ms(self) -> float:
        state = self._state
        feed: Any = state.feed() if state is not None and state.feed is not None else None
        return feed.create_ns / NS_PER_MS if feed is not None else 0.0

    # ------------------------------------------------------------ telling

    def news(self) -> TuningRecord | None:
        record = self._record()
        if record == self._sent:
            return None
        self._sent = record
        return record

    def _record(self) -> TuningRecord:
        name = self._state.id if self._state is not None else ""
        if self._tuner is None:
            return TuningRecord(loader=name, exact=self._exact, not_tuned=self._not_tuned)
        found = self._tuner.outcome()
        at = found.chosen_at_step
        chosen = found.chosen != found.own
        return TuningRecord(
            loader=name,
            exact=self._exact,
            own=found.own,
            chosen=found.chosen if chosen else None,
            chosen_at_step=self._began_at + at if chosen and at is not None else None,
            proven=found.proven,
            own_ms=_interval(found.own_ms),
            chosen_ms=_interval(found.chosen_ms) if chosen else None,
            n_steps=found.n_steps,
            lost_steps=round(found.lost_steps, 1),
            saved_s=found.saved_ms / 1e3,
            draws=self._draws and chosen and not self._exact,
            tried=tuple(
                TriedRecord(
                    settings=x.settings,
                    verdict=x.verdict,
                    at_step=self._began_at + x.at_step,
                    step_ms=x.step_ms.value if x.step_ms is not None else None,
                    against_ms=x.against_ms.value if x.against_ms is not None else None,
                    reason=x.reason,
                )
                for x in found.tried
            ),
        )


def _worker_start_ms(own: Settings, state: LoaderState, feed: Any) -> float | None:
    """What the loop's own pool took for each worker; None where it was not opened for this pass.

    Forked ones are there when the iterator is, others import torch behind it.
    """
    n, seen = own.num_workers, state.passes.n_begun == 1 or not own.persistent_workers
    if not n or not seen or start_method_of(own) != "fork":
        return None
    return feed.create_ns / NS_PER_MS / n  # type: ignore[no-any-return]


def _interval(known: Estimate | None) -> tuple[float, float, float] | None:
    if known is None or not known.bounded:
        return None
    return known.value, known.low, known.high
