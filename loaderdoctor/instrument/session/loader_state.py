"""One DataLoader of the script, as it is known at any time: what it is, and what feeds it now."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from loaderdoctor.instrument.system import Site
from loaderdoctor.instrument.wire.records import LoaderRecord, SafetyRecord, TensorRecord

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from loaderdoctor.instrument.batches.properties import Labels, Lengths, PageProbe, Shapes
    from loaderdoctor.instrument.batches.replay_buffer import Ahead, ReplayBuffer
    from loaderdoctor.instrument.batches.source import Source
    from loaderdoctor.instrument.dataset.changes import BetweenPasses
    from loaderdoctor.instrument.handover.live_loader import LiveLoader

# Batches of each loader described during warm-up: enough to see whether shapes vary.
N_DESCRIBED = 4
MAX_DESCRIBED = 17

RAN_OUT = "the batches of this trial ran out"


class Substitute:
    """What hands out batches instead of the loader, where something does.

    Switched by the driver on the training thread, asked by whichever thread fetches.
    """

    __slots__ = ("_lock", "_n_epochs", "epochs", "failure", "source")

    def __init__(self) -> None:
        self.source: Source | None = None  # None: the loader itself
        self.failure: str | None = None  # why it stopped: the loader itself has gone on since
        # Epochs that ended within `source`, in its own list, which grows.
        self.epochs: Sequence[object] | None = None
        self._n_epochs = 0  # of them, those counted
        self._lock = threading.Lock()  # covers use and closing

    def put(self, source: Source | None) -> bool:
        """Hand out its batches from now on; the one before is closed. Whether it is another."""
        epochs = None
        if source is not None:
            from loaderdoctor.instrument.batches.source import epochs_ended

            epochs = epochs_ended(source)
        with self._lock:
            before, self.source = self.source, source
            self.failure = None
            self.epochs, self._n_epochs = epochs, len(epochs or ())
            if before is not None:
                before.close()
        return before is not source

    def end(self) -> None:
        """The loader itself again, for good; the trial's workers, thread and batches go."""
        with self._lock:
            before, self.source = self.source, None
            if before is not None:
                with contextlib.suppress(Exception):  # the user's run goes on
                    before.close()

    def next_batch(self) -> tuple[Any] | None:
        """Its next batch; None where there is none, and never will be: see `failure`."""
        with self._lock:
            source = self.source
            if source is None:
                return None
            try:
                return (source.next_batch(),)
            except StopIteration:
                self.failure = RAN_OUT
            except Exception as error:  # a trial that crashes is a result, not an end
                self.failure = _in_words(error)
            self.source = None
            source.close()
        return None

    def crossed(self) -> bool:
        """Whether another of its epochs has begun since this was last asked."""
        before, self._n_epochs = self._n_epochs, len(self.epochs or ())
        return self._n_epochs != before


def _in_words(error: Exception) -> str:
    """Why a trial's batches stopped coming."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, (ConnectionError, EOFError)):
        # What torch's SIGCHLD handler would say, had a read from the worker not failed before it.
        return f"a worker was killed or died ({text})"
    return text


def _page_probe() -> PageProbe:
    from loaderdoctor.instrument.batches.properties import PageProbe  # torch, which is there by now

    return PageProbe()


@dataclass(slots=True)
class Passes:
    """The loop's passes over a loader: how long they are, and what lies between two of them."""

    n_begun: int = 0
    epoch_length: int | None = None  # as observed: batches of the last epoch that ran out
    # Batches after which the loop left the last pass early; None: it did not.
    left_after: int | None = None
    n_seen: int = 0  # batches of the present pass, while none of them was substituted
    teardown_ns: int = 0  # worker shutdown since the last iterator was created

    @property
    def length(self) -> int | None:
        """Batches of the last pass that was seen whole: as far as the loop reads, or all.

        An iterator made for each batch has no epochs, and tells nothing.
        """
        left = self.left_after
        return left if left is not None and left > 1 else self.epoch_length

    def begin(self) -> None:
        if self.n_seen:
            self.left_after = self.n_seen
        self.n_seen = 0
        self.n_begun += 1

    def end(self, n_batches: int | None, took_ns: int, *, evaluates: bool = False) -> None:
        """The epoch ran out after `n_batches` (None: of other batches too), found in `took_ns`.

        What `evaluates` the data that is trained on is no epoch of training.
        """
        self.teardown_ns = max(self.teardown_ns, took_ns)
        if evaluates:
            self.n_seen = 0
            return
        if n_batches:
            self.epoch_length = n_batches
        self.n_seen, self.left_after = 0, None


@dataclass(slots=True)
class BatchesSeen:
    """What the first batches of a loader look like; the batches themselves are not kept."""

    described: list[tuple[TensorRecord, ...]] = field(default_factory=list)
    kind: str = ""
    holds_others: bool = False  # one of them: entries that are no tensors
    lengths: Lengths | None = None
    fingerprints: list[bytes | None] = field(default_factory=list)
    labels: Labels | None = None

    def describe(self, batch: object) -> None:
        from loaderdoctor.instrument.batches import describe_batch, fingerprint, holds_others
        from loaderdoctor.instrument.batches.properties import Labels, Lengths

        self.described.append(describe_batch(batch))
        self.kind = type(batch).__name__
        self.holds_others = self.holds_others or holds_others(batch)
        self.lengths = self.lengths or Lengths()
        self.lengths.add(batch)
        self.fingerprints.append(fingerprint(batch))
        self.labels = self.labels or Labels()
        self.labels.add(batch)

    @property
    def n_equal_first(self) -> int | None:
        """Batches from the first on that hold the same; None where all did, or it is not known.

        One: the second differs. Where all are alike, nothing tells copies from constant data.
        """
        first = self.fingerprints[0] if self.fingerprints else None
        if first is None:
            return None
        return next((i for i, x in enumerate(self.fingerprints) if x != first), None)

    @property
    def last(self) -> tuple[TensorRecord, ...]:
        """The tensors of the last one; empty where none was described."""
        return self.described[-1] if self.described else ()

    @property
    def shapes_vary(self) -> bool:
        return len({tuple(tensor.shape for tensor in batch) for batch in self.described}) > 1


class _Pass(Protocol):
    """The loop's pass over a loader (`feed.Feed`)."""

    @property
    def held(self) -> DataLoader[Any] | None: ...

    @property
    def iterator(self) -> Callable[[], Any]: ...

    n_drawn: int


class Handed(Protocol):
    """A loader of the training whose pools can be replaced (`recording.loop_tuner`)."""

    @property
    def took_over(self) -> bool: ...

    def of(self, loader: DataLoader[Any]) -> LiveLoader: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class LoaderState:
    """One DataLoader of the script; re-built at the same place, it stays the same one."""

    index: int  # position in Observed.loaders and Ended.loaders
    id: str
    site: Site
    loader: weakref.ref[DataLoader[Any]]
    record: LoaderRecord
    feed: weakref.ref[_Pass] | None = None  # the loop's latest pass
    role: Literal["train", "other"] = "other"
    in_background: bool = False  # fetched on another thread than the one that trains
    beside: bool = False  # its batches join the steps that another loader's tell
    substitute: Substitute = field(default_factory=Substitute)
    loop: str | None = None  # where the loop last began to read it: "train.py:57"
    rebuilt: bool = False  # by another DataLoader object since the pass before
    between: BetweenPasses | None = None
    changed: str | None = None  # what of its dataset the loop was seen to change
    pending_drop: int = 0  # real batches to throw away at the next real fetch
    pages: PageProbe = field(default_factory=_page_probe)  # uses up what is thrown away
    replay_buffer: ReplayBuffer | None = None
    recording: bool = False  # put real batches into `replay_buffer`
    shapes: Shapes | None = None  # of its batches; None: it does not feed the step
    ahead: Ahead | None = None  # batches that the loader makes, or made, ahead of a window
    n_fetches: int = 0
    passes: Passes = field(default_factory=Passes)
    seen: BatchesSeen = field(default_factory=BatchesSeen)

    # Whose settings may be changed while it is trained with: gives the one for a loader built here.
    handed: Handed | None = None

    def living(self) -> DataLoader[Any] | None:
        """The loader, or while `for x in DataLoader(…)` runs, where nobody holds it, its like."""
        loader = self.loader()
        if loader is not None:
            return loader
        feed = self.feed() if self.feed is not None else None
        return feed.held if feed is not None else None

    def look_at(self, loader: DataLoader[Any], own: set[str]) -> None:
        """A pass begins over `loader`, the present object; `own`: as `BetweenPasses` has it."""
        from loaderdoctor.instrument.dataset.changes import BetweenPasses  # torch is there now

        self.between = self.between or BetweenPasses(own)
        self.between.begins(loader)
        self.changed = self.between.changed

    def look_again(self) -> None:
        """The pass found its end."""
        loader = self.living()
        if self.between is not None and loader is not None:
            self.between.ended(loader)

    def start_over(self) -> None:
        """Its own batches again, and no part in a step: which loaders have one is open again."""
        self.leave()
        self.role, self.in_background, self.beside = "other", False, False
        self.recording = False

    def leave(self) -> None:
        """Its own batches again, and none of them stays with us."""
        self.substitute.end()
        self.pending_drop = 0
        for held in (self.replay_buffer, self.ahead):
            if held is not None:
                held.release()
        self.replay_buffer = self.ahead = None

    @property
    def workers(self) -> int:
        return self.record.settings.num_workers or 0

    @property
    def queue_length(self) -> int:
        """Batches the workers may hold ready or in work, pin-memory queue included."""
        return self.record.settings.queue_length

    @property
    def limit(self) -> int | None:
        """Batches in an epoch: what the loop may see at most; None where unknown."""
        if self.record.kind == "map" and self.record.steps_per_epoch is not None:
            return self.record.steps_per_epoch
        return self.passes.epoch_length or self.record.steps_per_epoch

    @property
    def reopenable(self) -> bool:
        """Whether a second pass over the data is the same data: never true for iterables."""
        return self.record.kind == "map"

    @property
    def n_described(self) -> int:
        """First batches that are looked at: of a stream one of each worker, and the next."""
        if self.record.kind != "iterable":
            return N_DESCRIBED
        return max(N_DESCRIBED, min(self.workers + 1, MAX_DESCRIBED))

    def full_record(self) -> LoaderRecord:
        """What the report gets: the loader's nature plus what was seen of its batches."""
        return msgspec.structs.replace(
            self.record,
            role=self.role,
            beside=self.beside,
            loop=self.loop,
            steps_per_epoch=self._steps_per_epoch(),
            batch=self.seen.last,
            n_equal_first=self.seen.n_equal_first,
            batch_type=self.seen.kind,
            holds_others=self.seen.holds_others,
            shapes_vary=self.seen.shapes_vary,
            padding=self.seen.lengths.record() if self.seen.lengths is not None else None,
            labels=self.seen.labels.record() if self.seen.labels is not None else None,
            in_background=self.in_background,
            safety=self._safety(),
        )

    def _safety(self) -> SafetyRecord:
        if self.between is None:
            return self.record.safety
        return msgspec.structs.replace(
            self.record.safety, changed_while_read=self.between.while_read
        )

    def _steps_per_epoch(self) -> int | None:
        """len(loader), or what the loop was seen to use where it leaves each epoch early."""
        passes = self.passes
        if passes.length != passes.epoch_length:
            return passes.length
        return self.record.steps_per_epoch or passes.epoch_length
