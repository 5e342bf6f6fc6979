"""What the hooks call: keeps track of loaders and steps, and lets the driver act at boundaries.

All of it runs in the training process. Fetches may come from any thread; everything that decides
or waits happens on the training thread, inside the hook at a step boundary. In a plain window a
step costs a few microseconds here (`benchmarks/hook_overhead.py`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

from loaderdoctor.instrument.session import ranks
from loaderdoctor.instrument.session.feed import FEED, Feed, LightIterator, Torch
from loaderdoctor.instrument.session.loaders import N_DESCRIBED, LoaderRegistry, LoaderState
from loaderdoctor.instrument.session.recorder import Recorder
from loaderdoctor.instrument.session.recording import WorkerRecords
from loaderdoctor.instrument.session.replay_watch import NOTE, REPLAYED, ReplayWatch
from loaderdoctor.instrument.session.roles import Definition, RoleObserver
from loaderdoctor.instrument.session.step_clock import StepClock
from loaderdoctor.instrument.session.stopping import StopTraining, exit_after_grace, exit_now
from loaderdoctor.instrument.system.devices import device_of, training_device
from loaderdoctor.instrument.wire.channel import ConnectionLostError, Link, ToChild
from loaderdoctor.instrument.wire.protocol import Ended, FromRun, Note, Progress, Stop
from loaderdoctor.instrument.wire.records import BoundaryRecord

if TYPE_CHECKING:
    import torch

    from loaderdoctor.instrument.session.hooks import Hooks

MAX_BOUNDARIES = 1000  # kept for Ended; a loop that re-creates its iterator makes one a step
POLL_NS = 50_000_000  # look for a Stop this often while steps run


class ScriptOverError(Exception):
    """Thrown into the driver when the script ends while a window is open."""


Driver = Generator[None, int, None]


class Session:
    """One run of the user's script."""

    originals: Torch
    hooks: Hooks

    def __init__(
        self, channel: Link, *, run_dir: Path, records_workers: bool = True, group: bool = False
    ) -> None:
        self.channel = channel
        self.group = group  # one of several ranks: the loop never pauses
        self.stop_at: int | None = None  # steps after which all ranks meet to stop
        self.run_dir = run_dir
        self.live = True  # hooks act; False in forked children and once detached
        self.stopping = self._ended = False
        self.pristine = True  # nothing was ever substituted or thrown away in this run
        self.spans = False  # a profiler of ours is active: name what we see
        self.registry = LoaderRegistry()
        self.workers = WorkerRecords(run_dir, self.note, self.registry.id_of, records_workers)
        self.roles = RoleObserver()
        self.definition: Definition | None = None
        self.device: torch.device | None = None
        self.clock: StepClock | None = None
        self.recorder: Recorder | None = None
        self.boundaries: list[BoundaryRecord] = []
        self.n_steps = 0
        self.at_fresh_feed = False  # the boundary now handled begins an epoch
        self.at_edge = True  # it may also end one
        self.at_epoch_end: list[Any] = []  # called once, when the clock's epoch has run out
        # (optimizer id, batches of the clock fetched so far), while the loop settles
        self.optimizer_marks: list[tuple[int, int]] | None = []
        self.inbox: list[ToChild] = []
        # While transfers are watched or answered: what to call with each batch, and on each
        # thread other than the training one that fetches.
        self.watch_batch: Callable[[Any], None] | None = None
        self.begin_thread_step: Callable[[], None] | None = None
        self.next_poll = 0
        self.count: Callable[[int], bool] | None = None  # counts a step in the driver's place
        self.no_dataloader: Callable[[Any], None] | None = None  # told of work before any fetch
        self._driver: Driver | None = None
        self._replay = ReplayWatch()
        self._optimizer_device: torch.device | None = None

    # ------------------------------------------------------------ called by hooks

    def built(self, loader: Any) -> None:
        """A DataLoader is being constructed."""
        self.workers.start()
        self.registry.built(loader)

    def state_of(self, loader: Any) -> LoaderState:
        """The state of a loader that is being iterated."""
        return self.registry.state_of(loader)

    def open_iterator(self, loader: Any, original: Any) -> Any:
        """`iter(loader)`: torch's own iterator, or a light one while batches are substituted."""
        if self.stopping:
            exit_now()
        state = self.registry.state_of(loader)
        definition, clock = self.definition, self.clock
        start = perf_counter_ns()
        if (
            clock is not None
            and definition is not None
            and definition.tick == "fetch"
            and state is definition.clock
        ):
            clock.replaced(start)
        if state.source is not None:
            feed = Feed(state, keep_loader=loader)
            iterator: Any = LightIterator(feed, self.fetch)
        else:
            with self.span("loaderdoctor: create iterator"):
                iterator = original(loader)
            attributes = getattr(iterator, "__dict__", {})
            if FEED not in attributes:
                return iterator  # not torch's: a loader class with an iterator of its own
            # A persistent iterator is re-used for each epoch: a new pass, a new feed.
            feed = attributes[FEED] = Feed(state, spare=self.registry.spare(loader))
        if state.n_in_pass:
            state.left_after = state.n_in_pass
        state.n_in_pass = 0
        feed.at_ns = start
        feed.create_ns = perf_counter_ns() - start
        state.n_iterators += 1
        if clock is not None and state.role == "train":
            clock.created(feed.create_ns)
        return iterator

    def fetch(self, feed: Feed, own: Any) -> Any:
        """`next(iterator)`: the step boundary if this loader is the step's clock."""
        if not self.live:
            return feed.take(own, self.originals)
        if self.stopping:
            exit_now()
        loader = feed.loader
        start = perf_counter_ns()
        thread = get_ident()
        definition = self.definition
        if definition is None:
            definition = self.definition = self._look_for_step(start)
        if definition is not None:
            if loader is definition.clock:
                if definition.tick == "fetch" and thread == definition.thread:
                    self.at_fresh_feed, self.at_edge = feed.fresh, feed.at_edge()
                    self._replay.fetched()
                    self.boundary(start)
                    start = perf_counter_ns()
            elif loader.role == "other" and self.clock is not None:
                self.clock.foreign()
            if self.begin_thread_step is not None and thread != definition.thread:
                self.begin_thread_step()
        try:
            batch = feed.take(own, self.originals)
        except StopIteration:
            self._ran_out(feed, start)
            raise
        end = perf_counter_ns()
        if loader.source_epochs and loader.crossed() and self.clock is not None:
            self.clock.crossed()
        loader.fetched(feed)
        if feed.fresh:
            feed.fresh = False
            self._first_batch(feed, start, end)
        if self.recorder is not None:
            self.recorder.fetches.append((loader.index, start, end, thread))
        if definition is None:
            self.roles.fetched(loader, start)
        if self.watch_batch is not None:
            self.watch_batch(batch)
        if loader.recording and loader.replay_buffer is not None:
            loader.replay_buffer.record(batch)
        elif loader.n_fetches <= N_DESCRIBED:
            self._describe(loader, batch)
        return batch

    def worked(self, optimizer: Any) -> None:
        """An optimizer stepped, or (None) a backward pass ran."""
        if self.stopping:
            exit_now()
        definition = self.definition
        if definition is None:
            self.roles.worked(optimizer)
            if optimizer is not None and self._optimizer_device is None:
                self._optimizer_device = device_of(optimizer)
            if self.no_dataloader is not None:
                self.no_dataloader(optimizer)
            definition = self.definition = self._look_for_step(perf_counter_ns())
            if definition is None:
                return
        if self.optimizer_marks is not None and optimizer is not None:
            self.optimizer_marks.append((id(optimizer), definition.clock.n_fetches))
        if get_ident() != definition.thread:
            return
        if definition.tick == "fetch":
            if optimizer is not None and self._replay.worked(id(optimizer)):
                self.note(NOTE, f"{definition.clock.id}: {REPLAYED}")
                self.definition = replace(definition, tick="optimizer", optimizer=id(optimizer))
            return
        if (None if optimizer is None else id(optimizer)) == definition.optimizer:
            self.at_fresh_feed = False
            self.boundary(perf_counter_ns())

    def shut_down(self, feed: Feed, iterator: Any, original: Any) -> None:
        """Workers of an iterator of the loop's are being shut down."""
        start = perf_counter_ns()
        with self.span("loaderdoctor: shut down workers"):
            original(iterator)
        took = perf_counter_ns() - start
        feed.loader.teardown_ns += took
        if self.clock is not None and feed.loader.role == "train":
            self.clock.teardown(took)

    def disable_in_fork(self) -> None:
        """In a forked child: no hook acts, and the connection stays the parent's."""
        self.live = self.stopping = self.spans = False
        self.channel.forget_in_fork()

    # ------------------------------------------------------------ steps

    def boundary(self, now: int) -> None:
        """A step boundary on the training thread: the driver goes on from where it waits."""
        self.n_steps += 1
        if self.count is not None and self.count(now):
            return
        driver = self._driver
        try:
            if driver is None:
                from loaderdoctor.instrument.session.driver import drive

                driver = self._driver = drive(self, now)
                next(driver)
            elif not driver.gi_running:  # type: ignore[attr-defined]  # else: a loader of its own
                driver.send(now)
        except StopIteration:
            self.detach()
        except Exception:  # ours: the user's run must not fail for it
            self.note("internal-error", traceback.format_exc())
            self.detach()

    def poll(self, now: int) -> None:
        """While steps run: take a message, and stop if it says so."""
        if self.stop_at is not None and self.n_steps >= self.stop_at:
            ranks.wait_to_stop(self)
        if now < self.next_poll:
            return
        self.next_poll = now + POLL_NS
        try:
            message = self.channel.receive(0.0)
        except ConnectionLostError:
            return
        if isinstance(message, Stop) and not message.to_end:
            ranks.prepare_to_stop(self, message)
        elif message is not None:
            self.inbox.append(message)

    def _look_for_step(self, now: int) -> Definition | None:
        definition = self.roles.decide(now)
        if definition is None:
            return None
        for loader in definition.train:
            loader.role, loader.in_background = "train", definition.tick != "fetch"
        self.n_steps = definition.clock.n_fetches
        self.device = training_device(self._optimizer_device)
        if definition.tick != "backward":
            self.hooks.remove_backward()
        return definition

    def _ran_out(self, feed: Feed, start: int) -> None:
        took = perf_counter_ns() - start
        loader, definition = feed.loader, self.definition
        loader.teardown_ns = max(loader.teardown_ns, took)
        if not feed.tainted and feed.n_seen:
            loader.epoch_length = feed.n_seen
        loader.n_in_pass = 0
        if definition is None or loader is not definition.clock or definition.tick != "fetch":
            return
        self.n_steps -= 1
        self._replay.ran_out()
        if self.clock is not None:
            self.clock.exhausted(took)
        while self.at_epoch_end:
            self.at_epoch_end.pop()()

    def _first_batch(self, feed: Feed, start: int, end: int) -> None:
        loader = feed.loader
        record = BoundaryRecord(
            loader=loader.id,
            create_ns=feed.create_ns,
            first_wait_ns=end - start,
            teardown_ns=loader.teardown_ns,
            at_ns=feed.at_ns or start,
            first=loader.n_iterators <= 1,
        )
        loader.teardown_ns = 0
        if not feed.tainted and len(self.boundaries) < MAX_BOUNDARIES:
            self.boundaries.append(record)
        if self.recorder is not None:
            self.recorder.boundaries.append(record)

    def _describe(self, loader: LoaderState, batch: object) -> None:
        try:
            loader.describe(batch)
        except Exception as error:  # a custom batch type may object to being looked at
            self.note("batch-not-described", f"{loader.id}: {type(error).__name__}: {error}")

    def span(self, name: str) -> AbstractContextManager[Any]:
        """A named span in the trace while a profiler of ours is active."""
        if not self.spans:
            return nullcontext()
        import torch

        return torch.autograd.profiler.record_function(name)

    # ------------------------------------------------------------ messages and endings

    def send(self, message: FromRun) -> None:
        """Send one message to the command."""
        self.channel.send(message)

    def note(self, kind: str, text: str) -> None:
        """Something the report must say."""
        self.send(Note(kind=kind, text=text))

    def progress(self, text: str) -> None:
        """For the live display."""
        self.send(Progress(text=text, n_steps=self.n_steps))

    def stop(self) -> None:
        """End the script from here. Raises StopTraining."""
        self._send_ended("stopped", 0)
        self._close_driver()
        self.workers.stop()
        self.stopping = True
        exit_after_grace()
        raise StopTraining

    def detach(self) -> None:
        """Remove every hook and let the script run on unwatched.

        Epochs in which batches were substituted still end where the script expects it: for them
        the hooks of `__iter__` and `__next__` stay, and only count.
        """
        self.live = False
        self.workers.stop()
        self.clock = self.recorder = None
        for loader in self.registry.states:
            loader.end_source()
            loader.pending_drop = 0
        self.hooks.remove(but_epochs=not self.pristine)

    def script_over(
        self,
        how: Literal["script-ended", "script-failed", "interrupted"],
        exit_code: int,
        reason: str | None = None,
    ) -> None:
        """The script's last line ran, or it failed: an open window ends with what it has."""
        self._close_driver()
        no_loader = how == "script-ended" and not self.registry.states
        self._send_ended("no-loader" if no_loader else how, exit_code, reason)
        self.detach()

    def _close_driver(self) -> None:
        driver = self._driver
        if driver is None or driver.gi_running:  # type: ignore[attr-defined]  # generators have it
            return
        try:
            driver.throw(ScriptOverError())
        except (StopIteration, ScriptOverError):
            return
        except Exception:
            self.note("internal-error", traceback.format_exc())

    def _send_ended(
        self,
        how: Literal["stopped", "script-ended", "script-failed", "no-loader", "interrupted"],
        exit_code: int,
        reason: str | None = None,
    ) -> None:
        if self._ended:
            return
        self._ended = True
        self.send(
            Ended(
                how=how,
                exit_code=exit_code,
                n_steps=self.n_steps,
                reason=reason,
                boundaries=tuple(self.boundaries),
                loaders=self.registry.records(),
            )
        )
