"""`spdl`: Meta's SPDL makes the batches, in worker processes of its own; an optional extra.

Its loader for PyTorch's datasets takes what the trial's own loader was given. It seeds no worker:
what samples draw at random, forked workers draw alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.trial.trial_checks import loader_settings, start_method_of


class SpdlFeed:
    """One epoch of the loader's batches, in the sampler's order.

    Raises TrialRefused where SPDL is not installed, or lacks what the loader has.
    """

    def __init__(self, loader: DataLoader[Any], limit_s: float) -> None:
        try:
            from spdl.dataloader import get_pytorch_dataloader
        except ImportError:
            raise TrialRefused("spdl is not installed (pip install loaderdoctor[spdl])") from None
        if loader.worker_init_fn is not None:
            raise TrialRefused("spdl calls no worker_init_fn, and the loader has one")
        batched = loader.batch_sampler is not None
        self._asked = _Asked(loader.batch_sampler or loader.sampler)
        by: dict[str, Any] = {"batch_sampler" if batched else "sampler": self._asked}
        own = get_pytorch_dataloader(
            loader.dataset,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=limit_s,
            multiprocessing_context=start_method_of(loader_settings(loader)),
            prefetch_factor=loader.prefetch_factor or 2,
            in_order=True,
            batch_size=None,
            **by,
        )
        self._batches: Iterator[Any] = iter(own)
        self._n = 0

    def next(self) -> Any:
        """The next batch. Raises RuntimeError at an epoch's end where SPDL left some out."""
        for batch in self._batches:
            self._n += 1
            return batch
        if self._n < self._asked.n and not self._asked.over:
            raise RuntimeError(
                f"SPDL left out {self._asked.n - self._n} of {self._asked.n} batches: making them "
                "raised an error, which it logs"
            )
        raise StopIteration

    def end_early(self) -> None:
        """The sampler has no further index."""
        self._asked.over = True

    def retire(self) -> None:
        """Nothing: SPDL ends its workers with the epoch."""

    def close(self, *, stuck: bool) -> None:
        """End its workers, which waits for the batches that they are making."""
        self.end_early()
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


class _Asked:
    """The sampler's indexes, until it is over."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler, self.over = sampler, False
        self.n = 0

    def __iter__(self) -> Iterator[Any]:
        for asked in self._sampler:
            if self.over:
                return
            self.n += 1
            yield asked
