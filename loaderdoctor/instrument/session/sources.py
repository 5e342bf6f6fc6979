"""Where the loop's batches come from: the real loaders, recorded batches, or a trial's loader."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter_ns
from typing import TYPE_CHECKING

from loaderdoctor.errors import LoaderdoctorError, TrialRefused
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.loader_state import RAN_OUT, LoaderState
from loaderdoctor.instrument.session.roles import Definition
from loaderdoctor.instrument.system.memory import LeakCheck, empty_gpu_cache
from loaderdoctor.instrument.wire.measured import ReadyRecord
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.instrument.wire.records import TransferRecord
from loaderdoctor.settings import AXES_BY_NAME, Settings
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    from torch import Tensor

    from loaderdoctor.instrument.batches.source import Source

NO_LIMIT_S = 600.0  # of a window that names none
MAX_RECORD_STEPS = 24  # a buffer that isn't full by then won't be
# Where one step in eight draws a batch, by chance, of 24 steps two in five times fewer than the
# three that a buffer needs; of so many once in a hundred.
MAX_RECORD_STEPS_BESIDE = 64


# A window of fewer steps says nothing about its mean.
MIN_AHEAD_STEPS = 3
NOT_SEPARATED = (
    "Ready batches that repeat would spare the model what it does for each new shape: they don't "
    "tell the loader from that. The loader is judged by what the loop was seen to wait."
)


class SourceError(LoaderdoctorError):
    """No batches can be substituted; the message is the reason."""


class Sources:
    """Switches the loaders of the step between real and substituted batches."""

    def __init__(
        self, session: Session, definition: Definition, transfers: tuple[TransferRecord, ...]
    ) -> None:
        self.train = list(definition.train)
        self.clock = definition.clock  # that of them whose batches are the steps
        self.switched = False  # since the last window
        self.at_epoch_start = False  # real again from the first batch of an epoch on
        self._session = session
        self._definition = definition
        self._transfers = transfers
        self._leak_check = LeakCheck()

    def targets(self, request: WindowRequest) -> list[LoaderState]:
        """The loaders a window replaces: all of the step, or the one it names."""
        if request.loader is None:
            return self.train
        chosen = [x for x in self.train if x.id == request.loader]
        if not chosen:
            raise SourceError(f"{request.loader}: not a loader of the step")
        return chosen

    def failure(self) -> str | None:
        """Why the batches of this window stopped coming; None while they do."""
        for state in self.train:  # asked each step
            if state.substitute.failure is not None:
                return state.substitute.failure
        return None

    @property
    def substituting(self) -> bool:
        """Whether any loader of the step gets other batches than its own."""
        return any(state.substitute.source is not None for state in self.train)

    def crash(self) -> str | None:
        """The same, where its figures are worth nothing: not for data that was at an end."""
        reason = self.failure()
        return reason if reason != RAN_OUT else None

    def check(self) -> None:
        reason = self.failure()
        if reason is not None:
            raise SourceError(reason)

    # ------------------------------------------------------------ recorded batches

    def record(self, targets: list[LoaderState]) -> Generator[None, int, list[LoaderState]]:
        """Record real batches of loaders that have no replay buffer yet. Raises SourceError.

        Returns those to replace: one that joins some steps may have given its last batch.
        """
        from loaderdoctor.instrument.batches.replay_buffer import ReplayBuffer

        missing = [x for x in targets if x.replay_buffer is None or _outdated(x)]
        if missing:
            yield from self.to_real(missing)
            self._session.pristine = False
            for state in missing:
                if state.replay_buffer is not None:
                    state.replay_buffer.release()
                state.replay_buffer = ReplayBuffer()
                state.recording = True
            try:
                beside = any(x.beside for x in missing)
                for _ in range(MAX_RECORD_STEPS_BESIDE if beside else MAX_RECORD_STEPS):
                    if all(x.replay_buffer is not None and x.replay_buffer.ready for x in missing):
                        break
                    yield
            finally:
                for state in missing:
                    state.recording = False
        read = [x for x in targets if not _left(x)] or targets
        for state in read:
            replay_buffer = state.replay_buffer
            if replay_buffer is None or not replay_buffer.ready:
                reason = replay_buffer.reason if replay_buffer is not None else None
                raise SourceError(f"{state.id}: {reason or 'too few batches were seen'}")
        return read

    def use_ready(self, request: WindowRequest, targets: list[LoaderState], n_ahead: int) -> None:
        """Hand out recorded batches from now on, or such as are as new as the loader's own.

        The latter where batches differ in what code may depend on: `n_ahead` of them are made by
        the loader itself, from its next batch on. Raises SourceRefusedError.
        """
        until_ns = perf_counter_ns() + int((request.limit_s or NO_LIMIT_S) * NS_PER_S)
        for state in targets:
            replay_buffer = state.replay_buffer
            assert replay_buffer is not None  # just recorded
            if request.again and state.ahead is None:
                raise SourceRefusedError(f"{state.id}: no batches of the window before are held")
            if not request.again and self._must_be_new(state):
                self._make_ahead(state, n_ahead, until_ns)
            if state.ahead is not None:
                self._set(state, state.ahead.as_source(replay_buffer))
            else:
                self._set(state, replay_buffer.as_source())

    def _must_be_new(self, state: LoaderState) -> bool:
        """Whether repeated batches might spare the loop work that each new one makes.

        With an accelerator such as repeat by themselves may be repeated: what it does for a shape
        once it has done.
        """
        shapes = state.shapes
        if shapes is None or not shapes.vary:
            return False
        return self._session.device is None or shapes.novel

    def _make_ahead(self, state: LoaderState, n_batches: int, until_ns: int) -> None:
        from loaderdoctor.instrument.batches.replay_buffer import Ahead

        self._release_ahead(state)
        assert state.shapes is not None
        state.ahead = Ahead(state.shapes, n_batches, until_ns)

    def begin_ahead(self, n_lead: int) -> int | None:
        """Hand out what was made ahead; steps that it is enough for behind `n_lead`, None: any.

        Call it when the loop is steady. Raises SourceRefusedError where it is too little.
        """
        n_steps: int | None = None
        for state in self.train:
            source, ahead = state.substitute.source, state.ahead
            begin = getattr(source, "begin", None)
            if ahead is None or begin is None:
                continue
            n = ahead.n_batches - n_lead
            if n < MIN_AHEAD_STEPS:
                if not ahead.n_new:
                    continue  # what was recorded earlier stands for them
                reason = (
                    f"{state.id}: its batches differ in shape, and only {ahead.n_batches} as new "
                    f"as they are could be made ahead: {ahead.reason}"
                )
                self._session.note("loader-not-separated", f"{reason}. {NOT_SEPARATED}")
                raise SourceRefusedError(reason)
            begin()
            n_steps = n if n_steps is None else min(n, n_steps)
        return n_steps

    def held_ahead(self) -> list[Tensor]:
        """The tensors of all batches made ahead for this window."""
        return [
            tensor
            for state in self.train
            if state.ahead is not None and hasattr(state.substitute.source, "begin")
            for tensor in state.ahead.held_tensors()
        ]

    def ready_record(self) -> ReadyRecord | None:
        """What the step's main loader made ahead for the window; None where nothing."""
        ahead, source = self.clock.ahead, self.clock.substitute.source
        if ahead is None or not hasattr(source, "begin"):
            return None
        return ReadyRecord(n_batches=ahead.n_batches, n_new=ahead.n_new)

    def restore_ready(self) -> None:
        """Undo what the loop changed in recorded batches, outside the timed part."""
        for state in self.train:
            if state.ahead is not None:
                state.ahead.end()
            if state.substitute.source is None:
                continue
            if state.replay_buffer is not None:
                state.replay_buffer.restore()
            if state.ahead is not None:
                state.ahead.restore()

    def _release_ahead(self, state: LoaderState) -> None:
        if state.ahead is not None:
            self._set(state, None)
            state.ahead.release()
            state.ahead = None

    @property
    def n_replay_batches(self) -> int:
        """Recorded batches of the loader that holds most."""
        return max(
            (x.replay_buffer.n_batches for x in self.train if x.replay_buffer is not None),
            default=0,
        )

    def replay_position(self) -> int:
        """Which recorded batch the step's main loader handed out last."""
        replay_buffer = self.clock.replay_buffer
        return replay_buffer.position if replay_buffer is not None else 0

    # ------------------------------------------------------------ trials

    def open_trial(self, request: WindowRequest, targets: list[LoaderState]) -> int | None:
        """Open loaders with the request's settings, drop their first batches: startup time (ns).

        Raises SourceError with the reason where a trial is refused, and what the loader raises.
        """
        from loaderdoctor.instrument.trial import FETCH_LIMIT_S
        from loaderdoctor.instrument.trial.open_trial import open_trial

        settings = request.settings or Settings()
        self._session.pristine = False
        for state in self.train:
            self._set(state, None)
            self._release_ahead(state)
        self._free_memory()
        startup_ns: int | None = None
        n_to_open = len(targets)
        for n_open, state in enumerate(targets):
            loader = state.living()
            if loader is None:
                raise SourceError(f"{state.id}: the loader no longer exists")
            try:
                source = open_trial(
                    loader,
                    _for_loader(settings, state),
                    device=self._session.device,
                    transfers=self._transfers,
                    open_iter=self._session.originals.open_iterator,
                    batch=state.seen.last,
                    loader_id=state.id,
                    fetch_limit_s=request.fetch_limit_s or FETCH_LIMIT_S,
                    note=self._session.note,
                    opened=self._leak_check.opened,
                    cache_limit_s=request.cache_limit_s,
                    n_alike=n_to_open - n_open,
                    n_drawn=_n_drawn(state),
                )
            except TrialRefused as error:
                raise SourceRefusedError(str(error)) from error
            self._leak_check.opened(source)
            self._set(state, source)
            # The first batch is dropped at least: it is the start-up that is told apart.
            drop = drop_count(settings.over(state.record.settings)) if request.drop_batches else 0
            source.drop(max(1, drop))
            if source.startup_ns is not None:
                startup_ns = (startup_ns or 0) + source.startup_ns
        return startup_ns

    def boundary_ns(self, request: WindowRequest) -> int | None:
        """One epoch boundary of the open trial, where the request asks for it.

        Of all loaders that were opened: they come to their epoch's end one after the other.
        """
        if not request.measure_boundary:
            return None
        from loaderdoctor.instrument.trial.open_trial import measure_boundary

        sources = [state.substitute.source for state in self.train]
        seen = [measure_boundary(source) for source in sources if source is not None]
        return sum(seen) if seen else None

    # ------------------------------------------------------------ real batches

    def to_real(
        self, states: list[LoaderState], *, paused: bool = False
    ) -> Generator[None, int, bool]:
        """Real batches again. True where queues are as in an undisturbed run, or emptied.

        While batches were substituted, or the loop was paused, workers filled their queues:
        those batches are thrown away. In a short epoch that would throw most of it away, so the
        loop first finishes such an epoch, and the next one is real from its start.
        """
        substituted = [x for x in states if x.substitute.source is not None or x.substitute.failure]
        drops = {x.index: drop_count(x.record.settings) for x in states}
        longest = max(drops.values(), default=0)
        # After a pause alone only where throwing batches away would take as long.
        if (substituted and self._epoch_is_short(2 * longest)) or (
            paused and self._epoch_is_short(longest)
        ):
            yield from self._finish_epoch(states)
        if self.at_epoch_start:
            return True
        for state in states:
            if state in substituted or (paused and not self._session.pristine):
                state.pending_drop = drops[state.index]
            self._set(state, None)
        return not paused or not self._session.pristine

    def _epoch_is_short(self, most: int) -> bool:
        limit = self.clock.limit
        return self._definition.tick == "fetch" and limit is not None and 0 < limit <= most

    def _finish_epoch(self, states: list[LoaderState]) -> Generator[None, int, None]:
        session, clock = self._session, self.clock

        def release() -> None:
            for state in states:
                self._set(state, None)

        session.window.at_epoch_end.append(release)
        for _ in range(2 * (clock.limit or 0) + 1):
            yield
            if session.at_fresh_feed and clock.substitute.source is None:
                self.at_epoch_start = True
                break
        session.window.at_epoch_end.clear()

    def _set(self, state: LoaderState, source: Source | None) -> None:
        if state.substitute.put(source):
            self.switched = True

    def _free_memory(self) -> None:
        """The previous trial's tensors go, and the allocator's cache with them."""
        self._leak_check.clear(self._session.device)
        empty_gpu_cache(self._session.device)


def _for_loader(settings: Settings, state: LoaderState) -> Settings:
    """Of settings for several loaders those that this one can take: it may have no workers."""
    if settings.over(state.record.settings).num_workers:
        return settings
    changed = {k: v for k, v in settings.changed().items() if not AXES_BY_NAME[k].needs_workers}
    return Settings(**changed)  # type: ignore[arg-type]


class SourceRefusedError(SourceError):
    """The trial would lose or repeat data, or break the run: it is not made."""


def _n_drawn(state: LoaderState) -> int:
    """Batches that the loop's data gave so far, where their shapes are not all alike."""
    feed = state.feed() if state.feed is not None else None
    vary = state.shapes is not None and state.shapes.vary
    return feed.n_drawn if feed is not None and vary else 0


def drop_count(settings: Settings) -> int:
    """Batches that queue up while nobody fetches: twice what workers hold, and the pin queue.

    Measured: without this, 20-step windows of 4 workers read 8.6 ms for a true 10.7.
    """
    queue = settings.queue_length
    return 2 * queue + (queue if settings.pin_memory else 0)


def _left(state: LoaderState) -> bool:
    """Whether it joined the steps as the loop settled, and gave none since it was looked for."""
    seen = state.replay_buffer
    return state.beside and seen is not None and not seen.n_batches and seen.reason is None


def _outdated(state: LoaderState) -> bool:
    """Whether batches had another shape when they were recorded than they all have now."""
    shapes, replay_buffer = state.shapes, state.replay_buffer
    if shapes is None or replay_buffer is None or shapes.vary or shapes.last is None:
        return False
    return not replay_buffer.stands_for(shapes.last.structure)
