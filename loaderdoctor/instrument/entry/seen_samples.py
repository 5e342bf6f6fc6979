"""Which samples reach the model in each epoch, as digests: whether any is lost or comes twice.

Rows of what the model is called with, wherever and in whatever order they were made. A row counts
without the zeros at its end, so that one that is padded with them stays the same in any batch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from loaderdoctor.instrument.wire.checked import N_DIGEST_BYTES, CheckedSamples, samples_file

# A model that was not called by then is no module, or is fed with what has no rows.
FIRST_STEPS = 5


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
        """Whether all rows had one shape."""
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
