"""Which settings leave a training's samples and their order as they are, and when.

Not whether they may be tried at all: that is `trial_checks`. Here is what is known of the data,
and what follows from it for batches that the user's model is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset import only_seeds
from loaderdoctor.instrument.dataset.changes import marks
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
