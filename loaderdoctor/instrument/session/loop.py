"""What the hooks call: follows the user's loop, and lets the driver act at its step boundaries.

All of it runs in the training process. Fetches may come from any thread; everything that decides
or waits happens on the training thread, inside the hook at a step boundary. In a plain window a
step costs a few microseconds here (`benchmarks/hook_overhead.py`).
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from threading import RLock, get_ident
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.feed import FEED, Feed, LightIterator
from loaderdoctor.instrument.session.joining import ReplayWatch
from loaderdoctor.instrument.session.loader_state import N_DESCRIBED
from loaderdoctor.instrument.session.roles import (
    MIN_WORKED,
    Definition,
    device_of,
    training_device,
    without_grad,
)
from loaderdoctor.instrument.session.script_process import exit_now
from loaderdoctor.instrument.system import user_site

if TYPE_CHECKING:
    import torch

    from loaderdoctor.instrument.handover.live_pass import LoopsPass

MAX_PLACED = 16  # passes of a loader whose place in the code is looked up: training's is in them
MAX_FETCHES = 65_536  # kept of a recorded run between two beats, of 16,384 marks at most
MAX_BOUNDARIES = 1000  # kept for Ended; a loop that re-creates its iterator makes one a step


class Loop:
    """The user's loop, as the hooks see it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._replay = ReplayWatch()
        self._optimizer_device: torch.device | None = None
        self._defining = RLock()  # batches of a background thread may tell the step as work does

    # ------------------------------------------------------------ called by hooks

    def built(self, loader: Any) -> None:
        self._session.workers.start()
        self._session.registry.built(loader)

    def open_iterator(self, loader: Any, original: Any) -> Any:
        """`iter(loader)`: torch's own iterator, or a light one while batches are substituted."""
        session = self._session
        if session.stopping:
            exit_now()
        state = session.registry.state_of(loader)
        if session.recording is None:
            state.look_at(loader, session.registry.changed_in_passes)
        definition, clock = session.definition, session.window.clock
        start = perf_counter_ns()
        if (
            clock is not None
            and definition is not None
            and definition.tick == "fetch"
            and state is definition.clock
        ):
            clock.replaced(start)
        handed: LoopsPass | None = None
        iterator: Any = None
        if state.substitute.source is None:
            with session.window.span("loaderdoctor: create iterator"):
                if state.handed is None:
                    iterator = original(loader)
                else:
                    handed, iterator = state.handed.of(loader).begin_pass(lambda: original(loader))
        if iterator is None:
            feed = Feed(state, keep_loader=loader)
            iterator = LightIterator(feed, self.fetch)
        else:
            attributes = getattr(iterator, "__dict__", {})
            if FEED not in attributes:
                return iterator  # not torch's: a loader class with its own iterator
            # A persistent iterator is re-used for each epoch: a new pass, a new feed.
            spare = session.registry.spare(loader)
            feed = attributes[FEED] = Feed(state, spare=spare, iterator=iterator)
        feed.handed = handed
        feed.at_ns = start
        feed.create_ns = perf_counter_ns() - start
        state.passes.begin()
        if state.passes.n_begun <= MAX_PLACED:
            state.loop = user_site().label
        feeds = state.role == "train" and not (definition and definition.evaluates(state))
        if clock is not None and feeds:
            clock.created(feed.create_ns)
        if definition is not None and get_ident() == definition.thread:
            if feeds:
                session.wall.renewed(start, start + feed.create_ns)
            else:
                end = start + feed.create_ns
                session.wall.opened(state.id, start, end, n_steps=session.n_steps)
        return iterator

    def fetch(self, feed: Feed, own: Any) -> Any:
        """`next(iterator)`: the step boundary if this loader is the step's clock."""
        session = self._session
        if not session.live:
            return feed.take(own, session.originals)
        if session.stopping:
            exit_now()
        loader = feed.loader
        start = perf_counter_ns()
        thread, evaluates = get_ident(), False
        definition = session.definition
        if definition is None:
            definition = self._look_for_step(start)
        if (
            definition is not None
            and loader is definition.clock
            and definition.tick == "fetch"
            and thread == definition.thread
            and not (evaluates := definition.evaluates(loader))
        ):
            session.at_fresh_feed, session.at_edge = feed.fresh, feed.at_edge()
            self._replay.fetched()
            self.boundary(start)
            start = session.wall.began_ns
        window = session.window  # not before: the boundary may have closed the one before
        if definition is not None:
            if (loader.role != "train" or evaluates) and window.clock is not None:
                window.clock.foreign()
            if window.begin_thread_step is not None and thread != definition.thread:
                window.begin_thread_step()
        passes = session.passes
        if passes is not None:
            passes.fetching()
        cpu_ns = thread_time_ns() if window.fetch_cpu else 0
        queue = window.run_queue
        queued_ns = queue.if_due(loader.index, start) if queue is not None else None
        try:
            batch = feed.take(own, session.originals)
        except StopIteration:
            self._ran_out(feed, start, evaluates=evaluates)
            raise
        except Exception:  # of the user's dataset, which the loop may go on behind
            self._failed(feed)
            raise
        end = perf_counter_ns()
        if cpu_ns:
            cpu_ns = thread_time_ns() - cpu_ns
        window = session.window  # again: another thread may have opened one meanwhile
        crossed = bool(loader.substitute.epochs) and loader.substitute.crossed()
        if crossed and loader.role == "train" and window.clock is not None:
            window.clock.crossed()
        loader.n_fetches += 1
        loader.passes.n_seen = 0 if feed.tainted else feed.n_seen
        opened_ns = feed.create_ns if feed.fresh else None
        if feed.fresh:
            feed.fresh = False
            self._first_batch(feed, start, end)
        if passes is not None:
            measured = definition is not None
            passes.fetched(loader, start, end, opened_ns=opened_ns, measured=measured)
        if window.fetches is not None and (
            window.marks is None  # of a recorded run all that is kept may be kept for long
            or (loader.role == "train" and not evaluates and len(window.fetches) < MAX_FETCHES)
        ):
            window.fetches.append((loader.index, start, end, thread, cpu_ns))
            if queue is not None and queued_ns is not None:
                now_ns = queue.waited_ns()
                if now_ns is not None:
                    window.queued_ns[thread, start] = now_ns - queued_ns
        if definition is None:
            session.roles.fetched(loader, start)
        elif (loader.role == "other" or evaluates) and thread == definition.thread:
            with_grad = not without_grad()
            session.wall.fetched(
                loader.id, start, end, with_grad=with_grad, n_steps=session.n_steps
            )
            if with_grad:  # what it is for: validation has no backward pass
                window.hears_work = True
                self._replay.fetched_other()
                session.hooks.hear_backward()
        elif loader is not definition.clock:
            self._replay.fetched_beside()
        if window.watch_batch is not None:
            window.watch_batch(batch)
        shapes, replay_buffer = loader.shapes, loader.replay_buffer
        if loader.recording and replay_buffer is not None:
            if loader.workers:
                loader.pages.touch(batch)  # before recording reads it
            replay_buffer.record(batch)
            if shapes is not None:
                shapes.see(batch)
        elif loader.n_fetches <= (N_DESCRIBED if window.fetches else loader.n_described):
            if (why := feed.describe(batch)) is not None:
                session.note("batch-not-described", f"{loader.id}: {why}")
        elif shapes is not None and window.fetches is None:  # nobody times this step
            shapes.glance(batch)
        if window.marks is not None:
            if feed.quick is None:
                self._quicken(feed)
            elif loader.role == "train":
                window.hears_work = session.optimizer_marks is not None
        return batch

    def _quicken(self, feed: Feed) -> None:
        """Hand out the rest of this pass in the recorded loop's own way, where it is one."""
        session, window, loader = self._session, self._session.window, feed.loader
        definition = session.definition
        if (
            definition is None
            or loader is not definition.clock
            or not definition.trains
            or definition.tick != "fetch"
            or get_ident() != definition.thread
            or window.fetch_cpu
            or not feed.untouched
            or loader.n_fetches < loader.n_described
            or definition.evaluates(loader)
        ):
            return
        if window.quick is None:
            # Imports torch, which is the script's to import first.
            from loaderdoctor.instrument.session.timed_steps import quick_next

            window.quick = quick_next(session, self.fetch, self._ran_out, self._failed)
        feed.quick = window.quick
        window.hears_work = session.optimizer_marks is not None

    def worked(self, optimizer: Any) -> None:
        """An optimizer stepped, or (None) a backward pass ran."""
        session = self._session
        if session.stopping:
            exit_now()
        definition = session.definition
        if definition is not None and not definition.trains and session.start_over():
            definition = None
        if definition is None:
            session.roles.worked(optimizer)
            if optimizer is not None and self._optimizer_device is None:
                self._optimizer_device = device_of(optimizer)
            if session.no_dataloader is not None:
                session.no_dataloader(optimizer)
            definition = self._look_for_step(perf_counter_ns())
            if definition is None:
                return
        if session.optimizer_marks is not None and optimizer is not None:
            session.optimizer_marks.append((id(optimizer), definition.clock.n_fetches))
        if get_ident() != definition.thread:
            return
        if definition.tick == "fetch":
            if session.wall.eventful:
                session.wall.worked(stepped=optimizer is not None)
                if self._follow(definition):
                    return
            if optimizer is not None and (note := self._replay.worked(id(optimizer))):
                session.note(note[0], f"{definition.clock.id}: {note[1]}")
                session.definition = replace(definition, tick="optimizer", optimizer=id(optimizer))
            return
        if (None if optimizer is None else id(optimizer)) == definition.optimizer:
            session.at_fresh_feed = False
            now = perf_counter_ns()
            self.boundary(now)

    def saved(self, start: int) -> None:
        """The script saved something (`torch.save`), from `start` until now."""
        session, definition = self._session, self._session.definition
        if definition is None or get_ident() != definition.thread:
            return
        end = perf_counter_ns()
        if session.window.clock is not None:
            session.window.clock.foreign()
        session.wall.saved(user_site().label, start, end, n_steps=session.n_steps)

    def shut_down(self, feed: Feed, iterator: Any, original: Any) -> None:
        """Workers of an iterator of the loop's are being shut down."""
        session = self._session
        start = perf_counter_ns()
        with session.window.span("loaderdoctor: shut down workers"):
            original(iterator)
        took = perf_counter_ns() - start
        feed.loader.passes.teardown_ns += took
        clock = session.window.clock
        if feed.loader.role != "train":
            return
        if clock is not None:
            # The loop's own pool ends in a window that has other batches: none of that window's.
            substituted = feed.loader.substitute.source is not None
            (clock.apart if substituted else clock.teardown)(took)
        definition = session.definition
        if definition is not None and get_ident() == definition.thread:
            session.wall.renewed(start, start + took)

    # ------------------------------------------------------------ steps

    def boundary(self, now: int) -> None:
        """A step boundary on the training thread: the driver goes on from where it waits."""
        session = self._session
        session.n_steps += 1
        if session.wall.eventful:
            session.wall.boundary(now, session.n_steps)
            # Still so: work is to tell whether what was read before the step is trained on.
            if not session.wall.eventful:
                self._leave_backward(session.definition)
        count = session.window.count
        if count is not None and count(now):
            session.wall.began_ns = perf_counter_ns()
            return
        driver = session.driver
        session.stopped_ns = now
        try:
            if driver is None:
                # Imports torch, which is the script's to import first.
                from loaderdoctor.instrument.session.driver import drive

                driver = session.driver = drive(session, now)
                next(driver)
            elif not driver.gi_running:  # type: ignore[attr-defined]  # else: a loader of its own
                driver.send(now)
        except StopIteration:
            session.detach()
        except Exception:  # ours: the user's run must not fail for it
            session.note("internal-error", traceback.format_exc())
            session.detach()
        session.wall.goes_on(now)

    def _look_for_step(self, now: int) -> Definition | None:
        session = self._session
        with self._defining:
            found = session.roles.decide(now) if session.definition is None else None
            if found is not None:
                session.n_steps = found.clock.n_fetches
                session.device = training_device(self._optimizer_device)
                session.defined(found)
                self._leave_backward(found)
            return session.definition

    def _leave_backward(self, definition: Definition | None) -> None:
        """Hear of no backward pass while nothing but steps of known loaders is under way."""
        if definition is not None and definition.trains and definition.tick != "backward":
            self._session.hooks.remove_backward()

    def _follow(self, definition: Definition) -> bool:
        """Whether training has gone on to another loader, which is followed from now on."""
        session = self._session
        elsewhere = session.wall.trained_elsewhere() if definition.trains else None
        if elsewhere is None or elsewhere.n_worked < MIN_WORKED:
            return False
        return session.follow(elsewhere, perf_counter_ns())

    def _ran_out(self, feed: Feed, start: int, *, evaluates: bool = False) -> None:
        session = self._session
        took = perf_counter_ns() - start - feed.apart_ns
        loader, definition = feed.loader, session.definition
        feed.quick, session.window.hears_work = None, True
        loader.passes.end(None if feed.tainted else feed.n_seen, took, evaluates=evaluates)
        loader.look_again()
        if session.passes is not None:
            session.passes.ran_out(loader, start)
        if definition is None:
            return
        if (loader.role == "other" or evaluates) and get_ident() == definition.thread:
            session.wall.ran_out(loader.id, start, start + took, n_steps=session.n_steps)
        if loader is not definition.clock or definition.tick != "fetch" or evaluates:
            return
        session.wall.epoch_over(took)
        session.n_steps -= 1
        self._replay.ran_out()
        window = session.window
        if window.clock is not None:
            window.clock.exhausted(took)
        while window.at_epoch_end:
            window.at_epoch_end.pop()()

    def _failed(self, feed: Feed) -> None:
        """The batch of a step could not be made: the step begins with the next one that is."""
        session, loader, definition = self._session, feed.loader, self._session.definition
        if definition is None or loader is not definition.clock or definition.tick != "fetch":
            return
        if get_ident() == definition.thread and not definition.evaluates(loader):
            session.n_steps -= 1
            if session.window.clock is not None:
                session.window.clock.failed()

    def _first_batch(self, feed: Feed, start: int, end: int) -> None:
        session, record = self._session, feed.opening(start, end)
        if not feed.tainted and len(session.boundaries) < MAX_BOUNDARIES:
            session.boundaries.append(record)
        if session.window.fetches is not None and session.window.marks is None:
            session.window.boundaries.append(record)
