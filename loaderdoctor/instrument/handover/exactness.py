"""Which settings leave a training's samples and their order as they are, and when.

Not whether they may be tried at all: that is `trial_checks`. Here is what is known of the data,
and what follows from it for batches that the user's model is trained on.

Workers hold the dataset as it was when they were started. A loop that changes it meanwhile (a
curriculum, an epoch number, a list shuffled in place) gets other samples from workers that are
started at another time: `marks` are what of its state can be seen to change (values, content,
versions, which object it is). `BetweenPasses` asks the same for advice: what is kept from epoch to
epoch (workers, samples) would stay as it was.
"""

from __future__ import annotations

import array
from collections import UserDict, UserList, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import PurePath
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import attributes
from loaderdoctor.instrument.dataset import only_seeds
from loaderdoctor.instrument.dataset.dataset_code import randomness_of_dataset
from loaderdoctor.instrument.trial.trial_checks import check
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.settings import Settings

# Settings that a running pass can go over to. Others change what a batch is, or what is trained.
HANDED_OVER = frozenset(
    {"num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order",
     "start_method"}
)  # fmt: skip

CHANGED = "the loop changes the dataset while it is read: other workers miss it"
_UNSEEN = (
    "its dataset holds more than can be compared from epoch to epoch: workers that are kept would "
    "miss what the loop changes of it"
)
MAX_DEPTH = 8
MAX_MARKS = 10_000  # about three microseconds each
# Of content, which is read again at each pass: a hash costs about a millisecond a megabyte.
MAX_BYTES = 4_000_000
_REFERENCE_BYTES = 8
# Of each loader: what changes from epoch to epoch does so in the first ones too, as a rule, and
# each look may take tens of milliseconds.
MAX_PASSES_LOOKED_AT = 4
ITS_LENGTH, ITS_ENTRIES = "its length", "its entries"
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_PLAIN_TYPES = frozenset(_PLAIN)
_SEQUENCES = (list, tuple, deque)


def never_reason(loader: DataLoader[Any]) -> str | None:
    """Why this loader's stream of batches can't be handed over at all; None where it can."""
    if isinstance(loader.dataset, (IterDataPipe, MapDataPipe)):
        return "its data pipes keep their place themselves, and another pool begins again"
    if isinstance(loader.dataset, IterableDataset):
        return (
            "an iterable dataset keeps its place in each worker, and another pool would begin again"
        )
    if type(loader)._get_iterator is not DataLoader._get_iterator:
        return f"{type(loader).__name__} makes its iterators itself"
    if getattr(loader, "in_order", True) is False:
        return "with in_order=False the order of its batches depends on time already"
    return None


@dataclass(slots=True)
class Nature:
    """What is known of how a loader's samples are made; learned while it is read."""

    own: Settings  # complete: the loader's own
    draws: tuple[str, ...] = ()  # functions of the dataset that draw at random, or words for it
    init_only_seeds: bool = True
    changed_by_loop: bool = False  # the dataset changes between two fetches of a pass
    changed_since_start: bool = False  # and since the pass began

    @staticmethod
    def of(loader: DataLoader[Any], own: Settings) -> Nature:
        """What the code says before any batch is made."""
        return Nature(
            own=own,
            draws=randomness_of_dataset(loader.dataset),
            init_only_seeds=only_seeds(loader.worker_init_fn),
        )

    @property
    def random(self) -> bool:
        return bool(self.draws)

    def refusal(self, settings: Settings, *, exact: bool) -> str | None:
        """Why the training can't go on with these (complete) settings; None where it can."""
        own = self.own
        others = settings.num_workers != own.num_workers
        moved = others or (settings.num_workers and settings.start_method != own.start_method)
        kept = bool(settings.persistent_workers) != bool(own.persistent_workers)
        if settings.in_order is False:
            return "in_order=False changes the order of the batches"
        if others and not self.init_only_seeds:
            return "its worker_init_fn may do something for each worker, not only seed it"
        # Workers that persist have the dataset as it was: any that are opened now have it as it is.
        if self.changed_by_loop and settings != own and (moved or kept or own.persistent_workers):
            return CHANGED
        if not exact or not self.random or settings == own:
            return None
        if moved or kept:
            return f"{self._in_words} draws at random: other workers draw other numbers"
        if own.num_workers and own.persistent_workers:
            return f"{self._in_words} draws at random, from generators that workers keep"
        return None

    def waits_for_epoch(self, settings: Settings, *, exact: bool) -> bool:
        """Whether they can take over only where a pass begins, or at any batch.

        Generators of workers begin with an epoch, and so does what else an init function prepares.
        """
        if not settings.num_workers and not self.own.num_workers:
            return False
        return (exact and self.random) or not self.init_only_seeds or self.changed_since_start

    @property
    def _in_words(self) -> str:
        return ", ".join(self.draws)


def refusal(
    loader: DataLoader[Any],
    nature: Nature,
    settings: Settings,
    *,
    exact: bool,
    has_accelerator: bool,
    batch: tuple[TensorRecord, ...] = (),
) -> str | None:
    """Why these complete settings must not take over this training; None where they may."""
    foreign = [x for x in settings.changed() if x not in HANDED_OVER]
    if foreign:
        return f"{foreign[0]} changes more than how batches are fetched"
    reason = nature.refusal(settings, exact=exact)
    if reason is not None or settings == nature.own:
        return reason
    kept = settings.persistent_workers and not nature.own.persistent_workers
    if kept and not marks(loader.dataset).whole:
        return _UNSEEN
    try:
        check(
            loader,
            settings,
            settings,
            has_accelerator=has_accelerator,
            batch=batch,
            continues=True,
        )
    except TrialRefused as refused:
        return refused.reason
    return None


@dataclass(frozen=True, slots=True)
class Marks:
    """Equal where no change can be seen."""

    content: Any
    whole: bool  # nothing that can be changed in place was left out


def marks(dataset: object) -> Marks:
    """Of a dataset as it is now. Never raises: what objects to being looked at is left out."""
    look = _Look()
    try:
        content = look.at(dataset, 0)
    except Exception:  # any class may object in its own way, and may be changed by a thread
        return Marks(id(dataset), whole=False)
    return Marks(content, whole=look.whole)


class BetweenPasses:
    """What of a loader's dataset the loop was seen to change between two of its first passes.

    What changes within a pass that this process reads is the dataset's own doing (samples that it
    keeps, a file that it opens), and tells nothing. A pass that the loop leaves early has no end
    where that could be told apart: then only the length does.
    """

    def __init__(self, own: set[str]) -> None:
        """`own`: attributes that datasets change themselves; loaders may share a dataset."""
        self._n_left = MAX_PASSES_LOOKED_AT
        self._dataset: int | None = None  # the id of the one that was looked at
        self._length: int | None = None
        self._begun: dict[str, Any] = {}  # its attributes, compared by what `marks` compares
        self._last: dict[str, Any] | None = None  # as the loop had them last; None: not known
        self._own = own

    def begins(self, loader: DataLoader[Any]) -> str | None:
        """What the loop changed since the pass before; None: nothing that was seen."""
        if not self._n_left:
            return None
        self._n_left -= 1
        dataset, length = loader.dataset, _length(loader.dataset)
        parts, same = _parts(dataset), id(dataset) == self._dataset
        found = None
        if same and length != self._length:
            found = ITS_LENGTH
        elif same and self._last is not None:
            found = next((x for x in _differing(self._last, parts) if x not in self._own), None)
        self._dataset, self._length, self._begun = id(dataset), length, parts
        self._last = parts if loader.num_workers else None  # workers read copies of it
        return found

    def ended(self, loader: DataLoader[Any]) -> None:
        """A pass found its end."""
        if self._n_left and not loader.num_workers and id(loader.dataset) == self._dataset:
            self._last = _parts(loader.dataset)
            self._own.update(_differing(self._begun, self._last))


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # the user's own __len__ may raise anything
        return None


def _parts(dataset: Any) -> dict[str, Any]:
    """What a dataset is compared by, for each of its attributes."""
    content = marks(dataset).content
    if not isinstance(content, tuple) or content[:1] != (id(dataset),):
        return {ITS_ENTRIES: content}
    return dict(content[1])


def _differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [name for name, mark in b.items() if name in a and a[name] != mark]


class _Look:
    """One look at a dataset; what it returns holds nothing that can be changed."""

    def __init__(self) -> None:
        self.whole = True
        self._room = MAX_BYTES
        self._n_marks = 0
        self._seen: dict[int, int] = {}  # objects by id, numbered

    def at(self, value: Any, depth: int) -> Any:
        """What `value` is compared by."""
        if isinstance(value, (*_PLAIN, np.generic)):
            return value
        if isinstance(value, PurePath):  # notes in itself what was asked of it
            return str(value)
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        self._n_marks += 1
        if self._n_marks > MAX_MARKS or depth > MAX_DEPTH:
            return self._unseen(value)
        if isinstance(value, Tensor):
            return id(value), value._version  # raises for those of inference mode
        if isinstance(value, np.ndarray):
            return self._array(value, depth)
        if isinstance(value, (bytearray, array.array)):
            return self._bytes(value, len(value) * getattr(value, "itemsize", 1))
        if isinstance(value, _SEQUENCES):
            return self._items(value, depth), self._held(value, depth)
        if isinstance(value, dict):
            if not self._fits(2 * len(value)):
                return self._unseen(value)
            keys = tuple(k if isinstance(k, (*_PLAIN, tuple)) else id(k) for k in value)
            return keys, self._items(value.values(), depth), self._held(value, depth)
        if isinstance(value, (set, frozenset)):
            fits = self._fits(len(value)) and set(map(type, value)) <= _PLAIN_TYPES | {tuple}
            return frozenset(value) if fits else self._unseen(value)
        if isinstance(value, type):
            return id(value)
        if hasattr(type(value), "__setitem__") and not isinstance(
            value, (nn.Module, UserDict, UserList)
        ):
            self.whole = False  # a table, say, whose content is out of reach
        return id(value), self._held(value, depth)

    def _held(self, value: Any, depth: int) -> Any:
        """Its attributes."""
        return tuple((name, self.at(item, depth + 1)) for name, item in attributes(value))

    def _items(self, items: Collection[Any], depth: int) -> Any:
        if not self._fits(len(items)):
            return self._unseen(items)
        kinds = set(map(type, items))
        if kinds <= _PLAIN_TYPES:
            return tuple(items)
        if kinds == {tuple}:  # names with classes, say
            inner: Iterable[Any] = chain.from_iterable(items)
            if set(map(type, inner)) <= _PLAIN_TYPES and self._fits(sum(map(len, items))):
                return tuple(items)
        return tuple(self.at(item, depth + 1) for item in items)

    def _array(self, value: np.ndarray[Any, Any], depth: int) -> Any:
        if value.dtype.hasobject:
            return value.shape, self._items(value.reshape(-1).tolist(), depth)
        about = id(value), value.shape, value.dtype.str
        return (*about, self._bytes(value, value.nbytes)) if _writable(value) else about

    def _bytes(self, value: Any, n_bytes: int) -> Any:
        if not self._fits(n_bytes / _REFERENCE_BYTES):
            return self._unseen(value)
        data = np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else value
        return blake2b(data, digest_size=16).digest()

    def _fits(self, n_references: float) -> bool:
        """Whether there is room for so much more content; it is taken."""
        n_bytes = n_references * _REFERENCE_BYTES
        if n_bytes > self._room:
            return False
        self._room -= int(n_bytes)
        return True

    def _unseen(self, value: Any) -> Any:
        self.whole = False
        return id(value) if not hasattr(value, "__len__") else (id(value), len(value))


def _writable(value: Any) -> bool:
    """Whether its content can be changed in this process, by itself or what it is a view of."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return True
        value = value.base
    return False
