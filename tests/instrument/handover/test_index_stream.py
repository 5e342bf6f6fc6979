"""When a sampler is asked: as the loader with its own settings would ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from loaderdoctor.instrument.handover.index_stream import (
    NONE_QUIET,
    IndexStream,
    QuietDraws,
    quiet_draws,
)
from tests.instrument.handover.loops import Squares

DATA = Squares()
N = len(DATA)


def taken(stream: IndexStream) -> list[Any]:
    """All indexes there are now."""

    def each() -> Iterator[Any]:
        with suppress(StopIteration):
            while True:
                yield stream.take()

    return list(each())


def test_without_quiet_draws_a_stream_draws_as_many_as_are_due() -> None:
    drawn = iter(range(10))
    stream = IndexStream(lambda: next(drawn), lead=3, quiet=NONE_QUIET)
    assert taken(stream) == [0, 1, 2]
    stream.asked()
    assert taken(stream) == [3]
    assert next(drawn) == 4


def test_quiet_draws_come_as_early_as_a_pool_takes_them() -> None:
    drawn = iter(range(10))
    stream = IndexStream(lambda: next(drawn), lead=0, quiet=QuietDraws(first=2, last=4))
    assert taken(stream) == []  # the first draw seeds something: not before its time
    stream.asked()
    assert taken(stream) == [0, 1, 2, 3]
    stream.asked()
    assert taken(stream) == []


def test_what_is_due_is_drawn_though_no_pool_takes_it() -> None:
    drawn = iter(range(10))
    stream = IndexStream(lambda: next(drawn), lead=2, quiet=NONE_QUIET)
    stream.asked()
    stream.asked()
    assert next(drawn) == 4
    assert taken(stream) == [0, 1, 2, 3]


def test_indexes_given_back_come_first_and_in_order() -> None:
    stream = IndexStream(iter(range(6)).__next__, lead=4, quiet=NONE_QUIET)
    first = [stream.take(), stream.take()]
    stream.give_back(first)
    assert taken(stream) == [0, 1, 2, 3]


def test_a_pass_taken_over_in_its_middle_goes_on_with_the_same_schedule() -> None:
    drawn = iter(range(5, 20))
    stream = IndexStream(drawn.__next__, lead=4, quiet=NONE_QUIET, n_drawn=5, n_asked=1)
    assert taken(stream) == []
    stream.asked()
    assert taken(stream) == [5]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


SAMPLERS: dict[str, Callable[[torch.Generator | None], Sampler[Any]]] = {
    "sequential": lambda g: SequentialSampler(DATA),
    "random": lambda g: RandomSampler(DATA, generator=g),
    "fewer": lambda g: RandomSampler(DATA, num_samples=N - 7, generator=g),
    "more": lambda g: RandomSampler(DATA, num_samples=2 * N + 3, generator=g),
    "replaced": lambda g: RandomSampler(DATA, replacement=True, num_samples=70, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(N), generator=g),
    "weighted": lambda g: WeightedRandomSampler([1.0] * N, N, generator=g),
    "distributed": lambda g: DistributedSampler(DATA, num_replicas=2, rank=0),
}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("given", [False, True], ids=["", "generator"])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_draws_called_quiet_leave_every_generator_alone(
    kind: str, given: bool, drop_last: bool
) -> None:
    generator = _generator() if given else None
    sampler = SAMPLERS[kind](generator)
    for loader in (
        DataLoader(DATA, batch_size=6, sampler=sampler, drop_last=drop_last),
        DataLoader(DATA, batch_size=None, sampler=sampler),
        DataLoader(DATA, batch_sampler=BatchSampler(sampler, 5, drop_last)),
    ):
        quiet = quiet_draws(loader)
        own: Iterator[Any] = iter(loader._index_sampler)
        number, ended = 0, False
        while not ended:
            before = _states(generator)
            number += 1
            ended = next(own, None) is None
            assert number not in quiet or _states(generator) == before, number


def test_the_common_samplers_may_be_asked_early() -> None:
    for kind in ("sequential", "random", "subset", "weighted", "distributed"):
        loader = DataLoader(DATA, batch_size=6, sampler=SAMPLERS[kind](None))
        assert all(number in quiet_draws(loader) for number in range(2, 9)), kind


def test_a_sampler_of_the_scripts_own_is_never_asked_early() -> None:
    class Own(RandomSampler):
        """May draw whenever it likes."""

    assert quiet_draws(DataLoader(DATA, batch_size=4, sampler=Own(DATA))) == NONE_QUIET

    class OwnBatches(BatchSampler):
        """The same."""

    batches = OwnBatches(SequentialSampler(DATA), 4, False)
    assert quiet_draws(DataLoader(DATA, batch_sampler=batches)) == NONE_QUIET


def _states(generator: torch.Generator | None) -> list[bytes]:
    states = [torch.get_rng_state()]
    if generator is not None:
        states.append(generator.get_state())
    return [state.numpy().tobytes() for state in states]
