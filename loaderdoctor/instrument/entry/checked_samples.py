"""Random draws tied to what they are drawn for, so that two forms of a script can be compared.

A change of settings often draws other random numbers and is otherwise the same: workers have seeds
of their own, workers that are kept draw none at the next epoch, a transform in the training process
shifts the model's dropout. In such a run each batch is made with generators seeded by its indexes,
which then are as they were; each pass of a loader begins with generators seeded by how many there
were before. Where whole samples are compared, each is seeded by its own index instead, in whatever
batch it comes; in every pass alike, so a file tells whether making any drew. Only the scripts
beside one another are run so, and only for their first steps.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from loaderdoctor.instrument.wire.channel import N_DIGEST_BYTES, CheckedSamples, samples_file

_global = np.random.mtrand._rand  # what numpy's own functions draw from, which scripts call
_MAP = 0  # torch's _DatasetKind.Map
# A model that was not called by then is no module, or is fed with what has no rows.
FIRST_STEPS = 5


class FixedDraws:
    """Patches torch's loader in this process and, by their `worker_init_fn`, in its workers."""

    def __init__(
        self,
        seed: int,
        *,
        by_sample: Path | None = None,
        began: Callable[[object], None] = lambda dataset: None,
    ) -> None:
        """`by_sample`: each sample is seeded, and this file is there once one has drawn."""
        self._seed = seed
        self._by_sample = by_sample
        self._told_began = began
        self._n_passes = 0
        self.beside = False  # whether batches were made in a thread beside the loop
        # Whether one came again: its draws are those it had, as a cache of them would give.
        self.repeated = False
        self._made: set[int] = set()
        self._passes_over: dict[object, int] = {}
        self._pass_of: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """What to do after the import of which module."""
        return {
            "torch.utils.data._utils.fetch": self._hook_fetch,
            "torch.utils.data.dataloader": self._hook_passes,
        }

    def _hook_fetch(self, module: ModuleType) -> None:
        fix_fetch(module, seed=self._seed, by_sample=self._by_sample)
        fixed, process = module._MapDatasetFetcher.fetch, os.getpid()

        def fetch(fetcher: Any, index: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                self.beside = self.beside or os.getpid() == process
            return fixed(fetcher, index)

        module._MapDatasetFetcher.fetch = fetch

    def _hook_passes(self, module: ModuleType) -> None:
        base, workers = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
        next_index, made = base._next_index, workers.__init__

        def _next_index(iterator: Any) -> Any:
            if self._pass_of.get(iterator) is not iterator._sampler_iter:
                self._pass_of[iterator] = iterator._sampler_iter
                self._begin(iterator)
            index = next_index(iterator)
            self._note(iterator, index)
            return index

        def __init__(iterator: Any, loader: Any) -> None:  # noqa: N807
            own = loader.worker_init_fn
            loader.worker_init_fn = functools.partial(
                _in_worker, seed=self._seed, by_sample=self._by_sample, own=own
            )
            try:
                made(iterator, loader)
            finally:
                loader.worker_init_fn = own

        base._next_index = _next_index
        workers.__init__ = __init__

    def _begin(self, iterator: Any) -> None:
        seed = _number(self._seed, "pass", self._n_passes)
        self._n_passes += 1
        dataset = _kind(iterator._dataset)
        self._passes_over[dataset] = self._passes_over.get(dataset, 0) + 1
        self._told_began(dataset)
        seed_all(seed)
        sampler = getattr(iterator._index_sampler, "sampler", iterator._index_sampler)
        generator = getattr(sampler, "generator", None)
        if generator is not None and hasattr(generator, "manual_seed"):
            generator.manual_seed(seed)

    def _note(self, iterator: Any, index: Any) -> None:
        if iterator._dataset_kind == _MAP:  # a stream's are no indexes
            batch = _number(_kind(iterator._dataset), "batch", index)
            self.repeated = self.repeated or batch in self._made
            self._made.add(batch)

    @property
    def epoch_ended(self) -> bool | None:
        """Whether a dataset was gone through again; None: no pass of a loader was seen."""
        return max(self._passes_over.values()) > 1 if self._passes_over else None


def _kind(dataset: Any) -> tuple[str, int | None]:
    """The same for a dataset that is built anew for each epoch, and seldom for two in one run."""
    try:
        return type(dataset).__qualname__, len(dataset)
    except Exception:  # the script's own; a stream has none
        return type(dataset).__qualname__, None


def fix_fetch(module: ModuleType, *, seed: int, by_sample: Path | None = None) -> None:
    """From now on each batch of a map-style dataset is drawn with a seed of its own.

    `by_sample`: each sample is, where the dataset makes them one by one; a file for whether any is.
    """
    fetcher = module._MapDatasetFetcher
    original = fetcher.fetch

    def fetch(self: Any, index: Any) -> Any:
        with _kept_generators():
            seed_all(_number(seed, "batch", index))
            if by_sample is None:
                return original(self, index)
            found = [_underneath(self.dataset, one) for one in index] if self.auto_collation else []
            whole = any(getattr(dataset, "__getitems__", None) is not None for dataset, _ in found)
            if whole or not self.auto_collation:
                with _noting_draws(by_sample):
                    return original(self, index)
            samples = []
            for dataset, one in found:
                seed_all(_number(seed, "sample", one))
                with _noting_draws(by_sample):
                    samples.append(dataset[one])
            with _noting_draws(by_sample):
                return self.collate_fn(samples)

    fetcher.fetch = fetch


def _underneath(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Of torch's own subsets the dataset that they are parts of, and the sample's index there."""
    from torch.utils.data import Subset

    while type(dataset) is Subset:
        dataset, index = dataset.dataset, dataset.indices[index]
    return dataset, index


def _in_worker(
    worker: int, *, seed: int, by_sample: Path | None, own: Callable[[int], object] | None
) -> None:
    """Before the script's own `worker_init_fn`; a forked worker has the patch already."""
    import torch.utils.data._utils.fetch as module

    if module._MapDatasetFetcher.fetch.__module__ != __name__:
        fix_fetch(module, seed=seed, by_sample=by_sample)
    if own is not None:
        own(worker)


def seed_all(seed: int) -> None:
    """Torch's default generator of the CPU, Python's and numpy's own."""
    import torch

    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    _global.seed(seed % 2**32)


@contextmanager
def _noting_draws(file: Path) -> Iterator[None]:
    """Makes the file where a generator has moved."""
    before = _positions()
    yield
    if before != _positions():
        with suppress(OSError):
            file.touch()


def _positions() -> tuple[object, ...]:
    import torch

    return (
        torch.default_generator.get_state().numpy().tobytes(),
        random.getstate(),
        *(x.tobytes() if isinstance(x, np.ndarray) else x for x in _global.get_state()),
    )


@contextmanager
def _kept_generators() -> Iterator[None]:
    import torch

    torchs, pythons = torch.default_generator.get_state(), random.getstate()
    numpys = _global.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(torchs)
        random.setstate(pythons)
        _global.set_state(numpys)


def _number(*parts: object) -> int:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class SeenSamples:
    """Told of passes over datasets, of calls of models and of optimizer steps, in that order."""

    def __init__(self, wanted: CheckedSamples, tensors: Callable[[Any], list[Any]]) -> None:
        self._wanted = wanted
        self._tensors = tensors  # of a call's arguments
        self._began = time.monotonic()
        self._last: object = None  # what was gone through last
        self._feeding: object = None  # what was, when the first step ended
        self._model: Any = None  # the first that was called in this step
        self._depth = 0
        self._of_step: list[bytes] = []
        self._rows: list[bytes] = []  # of this epoch
        self._first: list[bytes] = []  # as many as were asked for, epochs or not
        self._n_rows = self._n_steps = 0
        self._epochs: list[bytes] = []
        self._shapes: set[Any] = set()
        self._pid = os.getpid()
        self.complete = True  # False: the model was called with something that has no rows

    def pass_began(self, dataset: object) -> None:
        """Before its first index is drawn. In a thread beside the loop that is no epoch's end."""
        beside = threading.current_thread() is not threading.main_thread()
        if self._rows and dataset == self._feeding and not beside:
            self._close()
        self._last = dataset

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.__call__`: the outermost calls of a step's first model are those of its batches.

        Without gradients it is no training. With gradient accumulation they are several.
        """

        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if self._depth == 0 and os.getpid() == self._pid:
                self._called(model, (args, kwargs))
            self._depth += 1
            try:
                return original(model, *args, **kwargs)
            finally:
                self._depth -= 1

        return __call__

    def _called(self, model: Any, arguments: Any) -> None:
        import torch

        if not torch.is_grad_enabled() or next(model.parameters(), None) is None:
            return
        self._model = model if self._model is None else self._model
        if model is self._model:
            try:
                self._of_step += _rows(self._tensors(arguments), self._shapes)
            except Exception:  # tensor classes of others
                self.complete = False

    def stepped(self) -> bool:
        """An optimizer step ended; whether all is seen that was asked for, or time is up."""
        if self._feeding is None:
            self._feeding = self._last
        self._n_steps += 1  # of one of several optimizers there may be no call between two
        self.complete = self.complete and bool(
            self._of_step or self._n_rows or self._n_steps < FIRST_STEPS
        )
        self._rows += self._of_step
        self._n_rows += len(self._of_step)
        wanted = self._wanted
        if wanted.n_rows is not None:
            self._first += self._of_step[: wanted.n_rows - len(self._first)]
        self._of_step, self._model = [], None
        if time.monotonic() - self._began > wanted.limit_s or not self.complete:
            return True
        n = wanted.n_rows or 0  # an epoch that is not seen to end has ended by twice as many
        whole = len(self._epochs) >= wanted.n_epochs or 0 < 2 * n <= self._n_rows
        return whole and self._n_rows >= n

    @property
    def alike(self) -> bool:
        return len(self._shapes) <= 1

    def write(self, out: Path, *, ended: bool) -> int:
        """The whole epochs' digests, and those of the first samples; how many epochs.

        `ended`: the script did by itself, and its last epoch with it.
        """
        if self._rows and ended:
            self._close()
        if not self.complete:
            return 0
        for i, rows in enumerate(self._epochs):
            samples_file(out, i).write_bytes(rows)
        if self._wanted.n_rows is not None and len(self._first) >= self._wanted.n_rows:
            samples_file(out, None).write_bytes(b"".join(self._first))
        return len(self._epochs)

    def _close(self) -> None:
        self._epochs.append(b"".join(self._rows))
        self._rows = []


def _rows(tensors: list[Any], shapes: set[Any]) -> list[bytes]:
    """A digest for each row; a tensor that has others (a mask for all) is no part of a sample."""
    if not tensors or tensors[0].ndim == 0:
        raise ValueError("no rows")
    n = len(tensors[0])
    parts = [x for x in tensors if x.ndim and len(x) == n]
    shapes.add(tuple((tuple(x.shape[1:]), x.dtype) for x in parts))
    hashes = [blake2b(digest_size=N_DIGEST_BYTES) for _ in range(n)]
    for part in parts:
        for hashed, row in zip(hashes, _bytes_of(part), strict=True):
            text = row.tobytes().rstrip(b"\0")
            hashed.update(f"{part.dtype}{len(text)}:".encode())
            hashed.update(text)
    return [hashed.digest() for hashed in hashes]


def _bytes_of(tensor: Any) -> Any:
    """A row of bytes for each of its rows."""
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if not plain.numel():
        return np.zeros((len(plain), 0), dtype=np.uint8)
    return plain.reshape(-1).view(torch.uint8).numpy().reshape(len(plain), -1)
