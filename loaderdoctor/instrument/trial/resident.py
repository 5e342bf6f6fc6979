"""`resident`: the whole dataset on the device, its batches indexed there in the sampler's order.

Every sample is made once, by the loop's own number of workers. A batch is then the rows that the
loader's sampler asks for: the batches are the loader's own, wherever samples don't vary.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import digest, rebuild, tensors
from loaderdoctor.instrument.batches.h2d import ToDevice, raw_to
from loaderdoctor.instrument.batches.source import Source
from loaderdoctor.instrument.dataset import put_back
from loaderdoctor.instrument.dataset.loading_threads import N_IN_BATCH
from loaderdoctor.instrument.system.machine import available_bytes
from loaderdoctor.instrument.system.memory import gpu_free_bytes
from loaderdoctor.instrument.trial.data_axes import Note, TrialData
from loaderdoctor.instrument.trial.epochs import OpenEpochs
from loaderdoctor.instrument.trial.trial_checks import loader_settings

# Of the free device memory; the rest is the loop's own room to breathe.
MAX_SHARE_OF_FREE_MEMORY = 0.80
# Filling takes one epoch of loading; nobody waits longer than this for one trial.
FILL_LIMIT_S = 120.0
# Batches after which the time and the bytes of the rest are foretold.
N_PROBED = 8
FROZEN = (
    "resident: samples that were made again came out differently. What is drawn at random for them "
    "is drawn once and stays."
)


@dataclass(slots=True)
class _Room:
    """What is taken of the device's and the host's memory, and of the time to fill them."""

    device: torch.device
    began: float = field(default_factory=time.monotonic)
    on_device: int = 0
    on_host: int = 0
    n: int = 0
    device_room: int = 0
    host_room: int = 0

    def __post_init__(self) -> None:
        free = gpu_free_bytes(self.device)
        available = available_bytes() or 0
        self.device_room = int((available if free is None else free) * MAX_SHARE_OF_FREE_MEMORY)
        self.host_room = int(available * MAX_SHARE_OF_FREE_MEMORY)

    def take(
        self, moved: Iterable[Tensor], stay: Iterable[Tensor], share: float, *, alike: bool
    ) -> None:
        """Count another batch, `share` of all being there then. Raises TrialRefused.

        `alike`: the first one tells what all take.
        """
        self.n += 1
        self.on_device += sum(tensor.nbytes for tensor in moved)
        self.on_host += sum(tensor.nbytes for tensor in stay)
        passed = time.monotonic() - self.began
        told = self.n >= N_PROBED or share >= 1.0
        part = share if told or alike else 1.0
        if self.on_device > self.device_room * part or self.on_host > self.host_room * part:
            raise TrialRefused(
                f"the dataset takes about {int(self.on_device / share)} bytes on the device and "
                f"{self.device_room} may be used"
            )
        if passed > FILL_LIMIT_S or (told and passed > FILL_LIMIT_S * share):
            raise TrialRefused(
                f"loading the whole dataset would take about {passed / share:.0f} s, "
                f"more than {FILL_LIMIT_S:.0f} s"
            )


class ResidentSource:
    """Batches that live on the device, those of an epoch in the order of `epoch()`.

    `pick` gives the batch for what the epoch yields.
    """

    def __init__(
        self, epoch: Callable[[], Iterator[Any]], pick: Callable[[Any], Any], startup_ns: int
    ) -> None:
        self._epoch, self._pick = epoch, pick
        self.startup_ns: int | None = startup_ns
        self._left: Iterator[Any] | None = None
        self._closed = False

    def next_batch(self) -> Any:
        """A batch that is on the device already. StopIteration once closed, or of no samples."""
        if self._closed:
            raise StopIteration
        if self._left is not None:
            for asked in self._left:
                return self._pick(asked)
        self._left = self._epoch()
        return self._pick(next(self._left))

    def drop(self, n: int) -> int:
        """Nothing queues up: 0 have to be dropped."""
        return 0

    def close(self) -> None:
        self._closed = True
        self._left = None
        self._epoch = self._pick = _nothing

    def boundary_ns(self) -> int:
        """A new order is all an epoch boundary takes; the rest of this epoch is dropped."""
        began = time.perf_counter_ns()
        self._left = self._epoch()
        next(self._left)
        return time.perf_counter_ns() - began


def _refuse(kind: str, text: str) -> None:
    raise TrialRefused(text.removeprefix("resident: "))


def _nothing(*_: Any) -> Any:
    raise StopIteration


def resident(
    loader: DataLoader[Any],
    data: TrialData,
    sampling: DataLoader[Any],
    to_device: ToDevice,
    open_epochs: OpenEpochs,
    limit_s: float,
    note: Note,
    *,
    n: int,
    refuse_random: bool = False,
) -> ResidentSource:
    """The first `n` samples on the device, in the order in which `sampling` asks for them.

    Raises TrialRefused where they don't fit, filling takes too long, or batches are no rows, and
    with `refuse_random` where samples that are made again come out differently.
    """
    began = time.perf_counter_ns()
    room = _Room(to_device.device)
    if isinstance(loader.dataset, IterableDataset):
        source = open_epochs(sampling, data, loader_settings(sampling))
        kept = _in_order(source, to_device, room, n)
        return ResidentSource(lambda: iter(kept), _fresh, time.perf_counter_ns() - began)
    batched = sampling.batch_sampler is not None
    filling = _Filling(
        loader, data, open_epochs, limit_s, size=(data.batch_size or N_IN_BATCH) if batched else 0
    )
    with put_back():
        if batched:
            pick = _rows(filling, to_device, room, n, _refuse if refuse_random else note)
        else:
            samples = _in_order(filling.source(range(n)), to_device, room, n)

            def pick(index: Any) -> Any:
                return _fresh(samples[index])

    if to_device.device.type == "cuda":
        torch.cuda.synchronize(to_device.device)

    def epoch() -> Iterator[Any]:
        # As a loader's iterator draws when it is made, so that a shuffled order is its own.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return iter(sampling.batch_sampler if batched else sampling.sampler)  # type: ignore[arg-type]

    return ResidentSource(epoch, pick, time.perf_counter_ns() - began)


@dataclass(slots=True)
class _Filling:
    """The loop's own way to make samples, for others than its sampler asks for."""

    loader: DataLoader[Any]
    data: TrialData
    open_epochs: OpenEpochs
    limit_s: float
    size: int  # of a batch; 0: the dataset makes them

    def source(self, asked: Iterable[Any]) -> Source:
        """Batches of these indexes, or the samples where the dataset makes batches."""
        loader, workers = self.loader, self.loader.num_workers
        by: dict[str, Any] = (
            {"batch_sampler": list(asked)}
            if self.size
            else {"batch_size": None, "sampler": list(asked)}
        )
        if workers:
            by |= {
                "worker_init_fn": loader.worker_init_fn,
                "timeout": loader.timeout or self.limit_s,
                "multiprocessing_context": loader_settings(loader).start_method,
            }
        made: DataLoader[Any] = DataLoader(
            self.data.dataset,
            num_workers=workers,
            collate_fn=self.data.collate,
            generator=torch.Generator(),
            **by,
        )
        return self.open_epochs(made, self.data, loader_settings(loader))


def _rows(
    filling: _Filling, to_device: ToDevice, room: _Room, n: int, note: Note
) -> Callable[[list[int]], Any]:
    """All samples as columns where the loop computes; a batch is rows of them, and of the host's.

    One batch more is made of samples in another order, and compared with their rows.
    """
    parts = [list(range(at, min(at + filling.size, n))) for at in range(0, n, filling.size)]
    again = random.Random(0).sample(range(n), min(n, filling.size))
    source = filling.source([*parts, again])
    columns: dict[str, Tensor] = {}
    seen: dict[tuple[str, int], Tensor] = {}  # rows of `again`, as they were first made
    like: Any = None  # a batch without what its tensors hold
    try:
        for part in parts:
            batch = _next(source)
            leaves = _leaves(batch, len(part))
            bare = rebuild(batch, lambda _, tensor: torch.empty(0, dtype=tensor.dtype))
            like = bare if like is None else like
            if digest(bare) != digest(like):
                raise TrialRefused("its batches hold more than tensors with a row for each sample")
            moved = {path for path, tensor in leaves.items() if to_device.moves(path, tensor)}
            room.take(
                (leaves[path] for path in moved),
                (leaf for path, leaf in leaves.items() if path not in moved),
                (part[-1] + 1) / n,
                alike=True,
            )
            for path, leaf in leaves.items():
                if path not in columns:
                    where = to_device.device if path in moved else leaf.device
                    columns[path] = torch.empty(
                        (n, *leaf.shape[1:]), dtype=leaf.dtype, device=where
                    )
                if columns[path].shape[1:] != leaf.shape[1:] or columns[path].dtype != leaf.dtype:
                    raise TrialRefused("its samples differ in shape")
                columns[path][part[0] : part[-1] + 1].copy_(leaf)
                seen |= {(path, i): leaf[i - part[0]].clone() for i in set(again) & set(part)}
        leaves = _leaves(_next(source), len(again))
        expected = {path: torch.stack([seen[path, i] for i in again]) for path in columns}
        if {k: (v.shape, v.dtype) for k, v in leaves.items()} != {
            k: (v.shape, v.dtype) for k, v in expected.items()
        }:
            raise TrialRefused("its batches are no rows, one for each sample")
        if digest(leaves) != digest(expected):
            note("resident-frozen", FROZEN)
    finally:
        source.close()

    def pick(indices: list[int]) -> Any:
        at = torch.as_tensor(indices)
        there = raw_to(at, to_device.device, non_blocking=False)
        return rebuild(
            like, lambda path, _: (x := columns[path])[at if x.device == at.device else there]
        )

    return pick


def _in_order(source: Source, to_device: ToDevice, room: _Room, n: int) -> list[Any]:
    """Whole batches, as they come."""
    kept: list[Any] = []
    try:
        for i in range(n):
            try:
                batch = source.next_batch()
            except StopIteration:
                break
            made, moved = to_device.move(batch)
            on_device = {id(tensor) for tensor in moved}
            stay = [tensor for _, tensor in tensors(made) if id(tensor) not in on_device]
            room.take(moved, stay, (i + 1) / n, alike=False)
            kept.append(_own(made, on_device))
    finally:
        source.close()
    return kept


def _next(source: Source) -> Any:
    try:
        return source.next_batch()
    except StopIteration:
        raise TrialRefused("the loader ended before all samples were made") from None


def _leaves(batch: Any, n: int) -> dict[str, Tensor]:
    found = dict(tensors(batch))
    if not found or any(t.ndim == 0 or len(t) != n for t in found.values()):
        raise TrialRefused("not every tensor of a batch has a row for each sample")
    return found


def _own(batch: Any, on_device: set[int]) -> Any:
    """The batch with clones of what stays in host memory: a worker's shared memory goes back."""
    return rebuild(batch, lambda _, t: t if id(t) in on_device else t.detach().clone())


def _fresh(batch: Any) -> Any:
    """A copy: a loop that changes its batch in place changes no other epoch's."""
    return rebuild(batch, lambda _, tensor: tensor.detach().clone())
