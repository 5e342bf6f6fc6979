"""Ready batches are as new to the loop as the loader's own, where it may depend on that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from loaderdoctor.instrument.wire.protocol import WindowDone
from tests.instrument.watched import Trainer, Watched, request, watch

N = 8  # steps of a window


class Longer:
    """Samples of which each is longer than the one before: no shape comes twice."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((index + 1, 4), float(index))


class Stream(IterableDataset[torch.Tensor]):
    """The same as they come, once."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((i + 1, 4), float(i)) for i in range(self.n))


def samples(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=None, **options)


class Seen:
    """A loop that notes the length of each batch, and how many batches each epoch had."""

    def __init__(self, loader: Any, n_epochs: int = 1, *, take: Callable[[Any], Any] = lambda x: x):
        self.lengths: list[int] = []
        self.epochs: list[int] = []
        self._loader, self._n_epochs, self._take = loader, n_epochs, take

    def __call__(self) -> None:
        trainer = Trainer()
        for _ in range(self._n_epochs):
            n = 0
            for batch in self._loader:
                x = self._take(batch)
                trainer.step(x)
                self.lengths.append(len(x))
                n += 1
            self.epochs.append(n)


def no_input(found: Watched) -> list[WindowDone]:
    return [w for w in found.windows if w.mode == "no_input"]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_shape_comes_twice_in_a_window_where_none_does_in_the_loop(workers: int) -> None:
    loop = Seen(samples(Longer(300), num_workers=workers))
    found = watch(loop, request(1, "plain", N), request(2, "no_input", N), request(3, "plain", N))
    window = no_input(found)[0]
    assert window.status == "ok" and window.n_steps == N
    assert window.ready is not None
    assert window.ready.n_new == window.ready.n_batches >= N
    # Batches recorded earlier are handed out while the loop gets steady, none made ahead is twice.
    again = {n for n in loop.lengths if loop.lengths.count(n) > 1}
    made_ahead = sorted(set(loop.lengths) - again)
    assert len(made_ahead) >= len(loop.lengths) - 2 * 12
    assert loop.epochs == [300]


def test_the_same_batches_can_be_had_again() -> None:
    loop = Seen(samples(Longer(300)))
    found = watch(
        loop,
        request(1, "no_input", N),
        request(2, "no_input", N, again=True),
        request(3, "no_input", N),
    )
    first, second, third = no_input(found)
    assert [w.status for w in (first, second, third)] == ["ok"] * 3
    assert third.ready is not None and third.ready.n_new == third.ready.n_batches
    twice = {n for n in loop.lengths if loop.lengths.count(n) == 2}
    assert len(twice) >= N  # handed out in two windows; the third's only once


def test_none_can_be_had_again_where_none_was_made_ahead() -> None:
    loop = Seen(samples([torch.zeros(3, 4)] * 100))
    found = watch(loop, request(1, "no_input", N), request(2, "no_input", N, again=True))
    first, second = no_input(found)
    assert (first.status, first.ready) == ("ok", None)
    assert second.status == "skipped"


def test_one_shape_is_recorded_once_and_handed_out_again_and_again() -> None:
    loop = Seen(samples([torch.full((3, 4), float(i)) for i in range(200)]))
    found = watch(loop, request(1, "no_input", N))
    assert no_input(found)[0].ready is None


def test_the_numbers_of_a_batch_are_kept_too() -> None:
    """One shape, but code that loops `n` times: each batch has its own."""
    data = [{"x": torch.full((3, 4), 1.0), "n": torch.tensor(i)} for i in range(200)]
    numbers: list[int] = []

    def take(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        numbers.append(int(batch["n"]))
        return batch["x"]

    found = watch(Seen(samples(data), take=take), request(1, "no_input", N))
    window = no_input(found)[0]
    assert window.ready is not None and window.ready.n_new == window.ready.n_batches
    assert len(numbers) == 200


def test_a_few_shapes_are_not_new() -> None:
    data = [torch.zeros(1 + i % 5, 4) for i in range(300)]
    found = watch(Seen(samples(data)), request(1, "no_input", N), request(2, "no_input", N))
    for window in no_input(found):
        assert window.ready is not None and window.ready.n_new == 0


def test_a_shape_that_changed_once_is_recorded_anew() -> None:
    changed = 26
    data = [torch.zeros(3 if i < changed else 5, 4) for i in range(300)]
    loop = Seen(samples(data))
    found = watch(
        loop,
        request(1, "no_input", 4),
        *(request(i, "plain", 10) for i in range(2, 8)),
        request(8, "no_input", N),
    )
    # No batch of the old shape is timed: they are made ahead, or recorded behind the change.
    assert no_input(found)[-1].ready is not None or 3 not in loop.lengths[60:]


def test_epochs_shorter_than_a_window_keep_their_length() -> None:
    loop = Seen(samples(Longer(6)), n_epochs=20)
    found = watch(loop, request(1, "no_input", N), request(2, "plain", N))
    assert no_input(found)[0].status == "ok"
    assert set(loop.epochs) == {6}


def test_a_stream_that_ends_gives_what_it_has() -> None:
    loop = Seen(samples(Stream(40)))
    found = watch(loop, request(1, "no_input", 60))
    assert 0 < no_input(found)[0].n_steps < 40


def test_batches_changed_in_place_come_out_whole() -> None:
    first: list[float] = []

    def take(batch: torch.Tensor) -> torch.Tensor:
        first.append(float(batch[0, 0]) - (len(batch) - 1))
        return batch.add_(1000.0)

    found = watch(
        Seen(samples(Longer(200)), take=take),
        request(1, "no_input", N),
        request(2, "no_input", N, again=True),
    )
    assert [w.status for w in no_input(found)] == ["ok", "ok"]
    assert len(first) == 200


def test_too_little_memory_for_new_batches_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from loaderdoctor.instrument.batches import replay_buffer

    monkeypatch.setattr(replay_buffer, "available_bytes", lambda: 12_000)
    found = watch(Seen(samples(Longer(300))), request(1, "no_input", N))
    window = no_input(found)[0]
    assert window.status == "skipped" and window.reason is not None
    assert "memory" in window.reason
    said = [note.text for note in found.notes if note.kind == "loader-not-separated"]
    assert said and "seen to wait" in said[0]
