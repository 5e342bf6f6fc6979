"""A loader handed over in the running loop: the same batches and draws as without."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
    get_worker_info,
)

from loaderdoctor.instrument.handover import DRAWS, PoolUnfitError, live_loader
from loaderdoctor.instrument.handover.exactness import CHANGED
from loaderdoctor.instrument.handover.live_loader import LiveLoader
from loaderdoctor.settings import Settings
from tests.instrument.handover.loops import N_SAMPLES, Log, Squares, looped

S = Settings
PLAN = {
    5: S(num_workers=1),
    8: S(num_workers=3, prefetch_factor=1),
    13: S(num_workers=0),
    16: S(num_workers=2, persistent_workers=True),
    25: S(num_workers=1, prefetch_factor=4),
}
pytestmark = pytest.mark.usefixtures("nothing_is_left")


class DrawingBatches(Sampler[Any]):
    """Draws each batch when it is asked for it, from generators that the loop draws from too."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(10):
            at = int(torch.randint(0, N_SAMPLES, ()).item())
            other = int(np.random.randint(N_SAMPLES))  # noqa: NPY002 - the global generator
            yield [at, random.randrange(N_SAMPLES), other]

    def __len__(self) -> int:
        return 10


class Eager(Sampler[int]):
    """Draws as soon as `iter` is called, and again in torch's second call for workers."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N_SAMPLES).tolist())

    def __len__(self) -> int:
        return N_SAMPLES


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def distributed(**own: Any) -> DataLoader[Any]:
    sampler: Any = DistributedSampler(Squares(), num_replicas=2, rank=1, shuffle=True)
    return DataLoader(Squares(), batch_size=2, sampler=sampler, **own)


def weighted(**own: Any) -> DataLoader[Any]:
    weights = [1.0 + i % 3 for i in range(N_SAMPLES)]
    return DataLoader(Squares(), 4, sampler=WeightedRandomSampler(weights, 40), **own)


def given(**own: Any) -> DataLoader[Any]:
    return DataLoader(Squares(), batch_size=4, shuffle=True, generator=generator(), **own)


def replaced(**own: Any) -> DataLoader[Any]:
    g = generator()
    sampler = RandomSampler(Squares(), replacement=True, num_samples=80, generator=g)
    return DataLoader(Squares(), batch_size=5, sampler=sampler, generator=g, **own)


SHAPES: dict[str, Callable[..., DataLoader[Any]]] = {
    "plain": lambda **own: DataLoader(Squares(), batch_size=4, **own),
    "shuffle": lambda **own: DataLoader(Squares(), batch_size=4, shuffle=True, **own),
    "drop-last": lambda **own: DataLoader(Squares(), 3, shuffle=True, drop_last=True, **own),
    "samples": lambda **own: DataLoader(Squares(), batch_size=None, shuffle=True, **own),
    "weighted": weighted,
    "distributed": distributed,
    "generator": given,
    "replaced": replaced,
    "batch-sampler": lambda **own: DataLoader(Squares(), batch_sampler=DrawingBatches(), **own),
    "eager": lambda **own: DataLoader(Squares(), batch_size=4, sampler=Eager(), **own),
}
OWN: dict[str, dict[str, Any]] = {
    "none": {},
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 2, "prefetch_factor": 1, "persistent_workers": True},
}


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)


# Each shape and each of the loader's own settings; all pairs where there is time for them.
QUICK = {
    ("plain", "none"), ("shuffle", "two"), ("drop-last", "none"), ("samples", "none"),
    ("weighted", "none"), ("distributed", "none"), ("generator", "persistent"),
    ("replaced", "none"), ("batch-sampler", "none"), ("eager", "persistent"),
}  # fmt: skip
PAIRS = [
    pytest.param(shape, own, marks=[] if (shape, own) in QUICK else [pytest.mark.slow])
    for shape in SHAPES
    for own in OWN
]


QUICK_AT_EPOCH = {("shuffle", "persistent"), ("weighted", "two")}
PAIRS_AT_EPOCH = [
    pytest.param(shape, own, marks=[] if (shape, own) in QUICK_AT_EPOCH else [pytest.mark.slow])
    for shape in SHAPES
    for own in OWN
]


# One of the loader's own settings, and the others where there is time for them.
ONE_OWN = [pytest.param(x, marks=[] if x == "none" else [pytest.mark.slow]) for x in OWN]


@pytest.mark.parametrize(("shape", "own"), PAIRS)
def test_batches_and_draws_stay_those_of_the_untuned_loop(shape: str, own: str) -> None:
    def make() -> DataLoader[Any]:
        return SHAPES[shape](**OWN[own])

    plain = looped(make, before_epoch=set_epoch)
    tuned = looped(make, PLAN, before_epoch=set_epoch)
    assert tuned.steps == plain.steps
    assert tuned.reasons == [None] * len(tuned.reasons)
    assert len({x.num_workers for x in tuned.served}) >= 3


@pytest.mark.parametrize(
    ("shape", "own"), [x for x in PAIRS if x.values[0] in ("generator", "replaced", "eager")]
)
def test_a_loop_that_leaves_its_epochs_early_draws_what_it_drew(shape: str, own: str) -> None:
    def make() -> DataLoader[Any]:
        return SHAPES[shape](**OWN[own])

    plan = {4: S(num_workers=3), 9: S(num_workers=0), 11: S(num_workers=1, persistent_workers=True)}
    plain = looped(make, leave_at=6, n_epochs=4)
    assert looped(make, plan, leave_at=6, n_epochs=4).steps == plain.steps


@pytest.mark.parametrize("leave_at", [None, 7])
@pytest.mark.parametrize(("shape", "own"), PAIRS_AT_EPOCH)
def test_a_loop_that_is_first_handed_over_at_an_epoch_draws_what_it_drew(
    shape: str, own: str, leave_at: int | None
) -> None:
    def make() -> DataLoader[Any]:
        return SHAPES[shape](**OWN[own])

    n = leave_at or len(make())
    plan = {4: S(num_workers=3), n + 2: S(num_workers=1, persistent_workers=True)}
    plain = looped(make, before_epoch=set_epoch, leave_at=leave_at)
    tuned = looped(make, plan, before_epoch=set_epoch, leave_at=leave_at, at_epoch=True)
    assert tuned.steps == plain.steps
    assert {3, 1} <= {x.num_workers for x in tuned.served}


def test_what_the_old_pool_had_under_way_comes_first() -> None:
    log = looped(lambda: given(num_workers=2), {5: S(num_workers=1)}, n_epochs=1)
    served = [x.num_workers for x in log.served]
    assert served == [2] * 9 + [1]  # two workers had four more under way


def test_what_is_wanted_for_the_next_epoch_can_be_wanted_at_once_after_all() -> None:
    def after_step(step: int, loader: DataLoader[Any], live: LiveLoader | None) -> None:
        if live is not None and step in (2, 4):
            assert live.want(S(num_workers=1), at_epoch=step == 2) is None

    log = looped(lambda: given(num_workers=2), {}, n_epochs=1, after_step=after_step)
    assert [x.num_workers for x in log.served] == [2] * 9 + [1]


# ------------------------------------------------------------ random samples


class Noisy(Squares):
    """Augments at random, in the process that makes the sample."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample, at = super().__getitem__(index)
        return sample + torch.rand(3) + random.random(), at


class Hidden(Squares):
    """The same, where reading the code of the dataset does not show it."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return exec_noise(super().__getitem__(index))


def exec_noise(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    found: dict[str, Any] = {"x": sample[0]}
    exec("import torch\ny = x + torch.rand(3)", found)
    return found["y"], sample[1]


@pytest.mark.parametrize("data", [Noisy, Hidden])
@pytest.mark.parametrize("own", ONE_OWN)
def test_exact_tuning_leaves_out_what_changes_random_samples(own: str, data: type[Squares]) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(data(), batch_size=4, shuffle=True, **OWN[own])

    plan = {7: S(num_workers=1), 12: S(num_workers=3), 15: S(persistent_workers=True)}
    plain, tuned = looped(make), looped(make, plan)
    if own != "none":  # without workers a hidden draw is seen in the loop's own process
        assert "switched" not in tuned.kinds or data is Hidden
    if data is Noisy or own == "none":
        assert tuned.steps == plain.steps
        refused = [reason for reason in tuned.reasons if reason is not None]
        assert len(refused) >= 2 and all("random" in reason for reason in refused)


def test_random_samples_of_workers_survive_another_queue_at_an_epochs_beginning() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)

    plan = {3: S(prefetch_factor=4), 14: S(prefetch_factor=1)}
    plain, tuned = looped(make), looped(make, plan)
    assert tuned.steps == plain.steps
    assert [x.prefetch_factor for x in tuned.served] == [2] * 10 + [4] * 10 + [1] * 10


def test_other_draws_are_accepted_and_said_where_exactness_is_not_asked_for() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Hidden(), batch_size=4, num_workers=2)

    log = looped(make, {7: S(num_workers=3)}, exact=False, n_epochs=2)
    assert "draws" in log.kinds
    assert "failed" not in log.kinds
    assert log.served[-1].num_workers == 3


def test_samples_that_differ_by_worker_are_noticed_before_the_loop_gets_them() -> None:
    class ByWorker(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            info = get_worker_info()
            return torch.full((3,), 0.0 if info is None else float(info.id)), index

    def make() -> DataLoader[Any]:
        return DataLoader(ByWorker(), batch_size=4, num_workers=1)

    plain = looped(make, n_epochs=2)
    for exact in (True, False):
        tuned = looped(make, {6: S(num_workers=2)}, n_epochs=2, exact=exact)
        assert [x for x, _ in tuned.steps[:20]] == [x for x, _ in plain.steps[:20]]
        assert tuned.kinds == ["switched", "failed", "switched"]
        assert tuned.live is not None
        assert "not the same" in tuned.live.events[1].reason


# ------------------------------------------------------------ what can't be handed over


def test_an_iterable_dataset_is_left_alone_with_the_reason() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

    def make() -> DataLoader[Any]:
        return DataLoader(Stream(), batch_size=4, num_workers=1)

    tuned = looped(make, {2: S(num_workers=2)})
    assert tuned.steps == looped(make).steps
    assert "keeps its place" in (tuned.reasons[0] or "")


def test_an_init_function_with_other_effects_keeps_the_number_of_workers() -> None:
    opened: list[int] = []

    def open_file(worker_id: int) -> None:
        opened.append(worker_id)

    def make() -> DataLoader[Any]:
        return DataLoader(Squares(), batch_size=4, num_workers=2, worker_init_fn=open_file)

    tuned = looped(make, {3: S(num_workers=3), 7: S(prefetch_factor=3)})
    assert tuned.steps == looped(make).steps
    assert "worker_init_fn" in (tuned.reasons[0] or "")
    assert [x.prefetch_factor for x in tuned.served] == [2] * 10 + [3] * 20


def seed_worker(worker_id: int) -> None:
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)  # noqa: NPY002 - as torch's documentation has it
    random.seed(seed)


def test_an_init_function_that_only_seeds_is_no_obstacle() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Squares(), batch_size=4, num_workers=2, worker_init_fn=seed_worker)

    tuned = looped(make, {5: S(num_workers=3)})
    assert tuned.reasons == [None]
    assert tuned.steps == looped(make).steps


class Growing(Squares):
    """Its samples depend on a stage that the loop sets."""

    stage = 0

    def __init__(self) -> None:
        self.stage = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(self.stage)), index


@pytest.mark.parametrize("own", ONE_OWN)
@pytest.mark.parametrize("every", [3, 10])
def test_a_loop_that_changes_its_dataset_gets_what_it_would_have_got(own: str, every: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Growing(), batch_size=4, **OWN[own])

    def later(step: int, loader: DataLoader[Any], live: LiveLoader | None) -> None:
        if step % every == 0:
            dataset: Any = loader.dataset
            dataset.stage += 1

    plan = {12: S(num_workers=1), 15: S(num_workers=3, persistent_workers=True)}
    plain = looped(make, after_step=later, n_epochs=4)
    assert looped(make, plan, after_step=later, n_epochs=4).steps == plain.steps


@pytest.mark.parametrize("own", [{}, {"num_workers": 1}])
def test_a_dataset_that_is_another_in_each_epoch_is_held_against_its_own_batches(
    own: dict[str, Any],
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Growing(), batch_size=4, **own)

    def later(loader: DataLoader[Any], epoch: int) -> None:
        dataset: Any = loader.dataset
        dataset.stage += 1

    plan = {10: S(num_workers=2), 20: S(num_workers=3), 25: S(num_workers=4)}
    tuned = looped(make, plan, before_epoch=later, n_epochs=4)
    assert tuned.steps == looped(make, before_epoch=later, n_epochs=4).steps
    assert set(tuned.kinds) == {"switched"}
    assert tuned.served[-1].num_workers == 4


def test_a_change_that_workers_miss_brings_the_loops_own_settings_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_loader, "MAX_SHARE_OF_TIME", math.inf)  # looked at for each batch

    def make() -> DataLoader[Any]:
        return DataLoader(Growing(), batch_size=2)

    def later(step: int, loader: DataLoader[Any], live: LiveLoader | None) -> None:
        if step % 13 == 0:
            dataset: Any = loader.dataset
            dataset.stage += 1

    plan = {4: S(num_workers=2), 16: S(num_workers=1, persistent_workers=True)}
    tuned = looped(make, plan, after_step=later)
    assert tuned.steps == looped(make, after_step=later).steps
    assert tuned.served[5].num_workers == 2 and tuned.served[13].num_workers == 0
    assert tuned.kinds == ["switched", "refused", "switched"]
    assert tuned.reasons == [None, CHANGED]


def test_workers_that_persist_are_not_opened_anew_for_a_dataset_that_was_changed() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Growing(), batch_size=4, num_workers=1, persistent_workers=True)

    def later(loader: DataLoader[Any], epoch: int) -> None:
        dataset: Any = loader.dataset
        dataset.stage += 1

    tuned = looped(make, {5: S(prefetch_factor=4)}, before_epoch=later, at_epoch=True)
    assert tuned.steps == looped(make, before_epoch=later).steps
    assert tuned.kinds == ["refused"]


class Ordered(Squares):
    """Reads its samples in an order that the loop changes in place."""

    def __init__(self, n_more: int = 0) -> None:
        self.order = list(range(N_SAMPLES))
        self.more = np.zeros(n_more)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(self.order[index])


@pytest.mark.parametrize("n_more", [0, 1_000_000])
def test_kept_workers_never_serve_a_dataset_that_was_changed_in_place(n_more: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Ordered(n_more), batch_size=4, num_workers=1)

    def shuffle(loader: DataLoader[Any], epoch: int) -> None:
        dataset: Any = loader.dataset
        random.Random(epoch).shuffle(dataset.order)

    plan = {6: S(persistent_workers=True)}
    plain = looped(make, before_epoch=shuffle)
    tuned = looped(make, plan, before_epoch=shuffle)
    assert tuned.steps == plain.steps
    (reason,) = tuned.reasons
    if n_more:
        assert "compared" in (reason or "")
    else:
        assert reason is None
        assert tuned.served[-1].persistent_workers


# ------------------------------------------------------------ failures


def test_a_pool_that_can_not_be_opened_again_is_not_asked_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = DataLoader(Squares(), batch_size=4)
    live = LiveLoader(loader, exact=False, has_accelerator=False)
    two, drew = live.complete(S(num_workers=2)), PoolUnfitError(DRAWS)
    assert live.failed(two, drew) == two  # other draws of the same distribution

    def full(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(live_loader, "Pool", full)
    assert live.open_pool(two, seed=0) is None
    assert live.failed(two, drew) == live.own


def kill_a_worker_at(step: int) -> Callable[[int, DataLoader[Any], LiveLoader | None], None]:
    def later(now: int, loader: DataLoader[Any], live: LiveLoader | None) -> None:
        if now == step and live is not None:
            made = live._pass()._taken._line[-1]  # type: ignore[union-attr, misc]
            worker = made._workers._workers[0]  # type: ignore[union-attr]
            os.kill(worker.pid, signal.SIGKILL)
            while worker.is_alive():
                time.sleep(0.01)

    return later


@pytest.mark.parametrize("own", ONE_OWN)
def test_a_pool_whose_worker_dies_is_replaced_and_no_sample_is_lost(own: str) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Squares(), batch_size=2, shuffle=True, **OWN[own])

    log = looped(make, {6: S(num_workers=3)}, n_epochs=2, after_step=kill_a_worker_at(13))
    assert log.steps == looped(make, n_epochs=2).steps
    assert log.kinds[:3] == ["switched", "failed", "switched"]
    assert log.served[-1] == log.served[0]


class Fragile(Squares):
    """Fails for a sample in any process, or in workers only."""

    def __init__(self, *, workers_only: bool) -> None:
        self.workers_only = workers_only

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 30 and not (self.workers_only and get_worker_info() is None):
            raise KeyError("sample 30")
        return super().__getitem__(index)


def seen_with_errors(plan: dict[int, Settings] | None, workers_only: bool) -> Log:
    """A loop that goes on behind a sample that can't be made."""
    torch.manual_seed(7)
    loader = DataLoader(Fragile(workers_only=workers_only), batch_size=4)
    log = Log(live=None if plan is None else LiveLoader(loader, exact=True, has_accelerator=False))
    own: Any = None
    made: Any = None
    if log.live is None:
        own = iter(loader)
    else:
        made, own = log.live.begin_pass(lambda: iter(loader))
    for step in range(1, 11):
        try:
            batch = next(own) if made is None else made.next_batch(own)
            log.steps.append(batch[1].tolist())
        except KeyError as error:
            log.steps.append(type(error).__name__)
        if plan is not None and log.live is not None and step in plan:
            log.live.want(plan[step])
    if made is not None:
        made.close()
    return log


def test_an_error_of_the_users_dataset_reaches_the_loop_as_it_would() -> None:
    plain, tuned = seen_with_errors(None, False), seen_with_errors({4: S(num_workers=2)}, False)
    assert tuned.steps == plain.steps
    assert "KeyError" in plain.steps
    assert tuned.kinds == ["switched", "failed", "switched"]


def test_a_dataset_that_fails_in_workers_only_goes_back_to_where_it_worked() -> None:
    plain, tuned = seen_with_errors(None, True), seen_with_errors({4: S(num_workers=2)}, True)
    assert tuned.steps == plain.steps
    assert "KeyError" not in plain.steps
    assert tuned.kinds == ["switched", "failed", "switched"]


def test_a_pool_that_hangs_is_given_up() -> None:
    class Hanging(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if get_worker_info() is not None and index > 30:
                time.sleep(600)
            return super().__getitem__(index)

    def make() -> DataLoader[Any]:
        return DataLoader(Hanging(), batch_size=4)

    log = looped(make, {4: S(num_workers=2)}, n_epochs=1, fetch_limit_s=1.0)
    assert log.steps == looped(make, n_epochs=1).steps
    assert log.kinds == ["switched", "failed", "switched"]


@pytest.mark.parametrize(("timeout", "limit_s"), [(0, math.inf), (7, 7)])
def test_the_loops_own_settings_are_waited_for_and_may_draw(
    timeout: int, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int | None, float, bool]] = []

    def pool(loader: Any, settings: Settings, **given: Any) -> Any:
        asked.append((settings.num_workers, given["limit_s"], given["no_draws"]))
        raise OSError("not opened")

    monkeypatch.setattr(live_loader, "Pool", pool)
    loader = DataLoader(Squares(), 4, num_workers=2, timeout=timeout)
    live = LiveLoader(loader, exact=True, has_accelerator=False, fetch_limit_s=5.0)
    other = live.complete(S(num_workers=1))
    live.proved(other)
    for settings in (live.own, other):
        assert live.open_pool(settings, 0) is None
    assert asked == [(2, limit_s, False), (1, 5.0, True)]


def test_a_hidden_draw_of_the_loops_own_workers_is_no_error() -> None:
    class Late(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            info = get_worker_info()
            if info is not None and info.num_workers == 2 and index >= 30:
                exec_noise(super().__getitem__(index))
            return super().__getitem__(index)

    def make() -> DataLoader[Any]:
        return DataLoader(Late(), batch_size=4, num_workers=2)

    tuned = looped(make, {5: S(num_workers=1), 12: S(num_workers=2)})
    assert tuned.steps == looped(make).steps
    assert {x.num_workers for x in tuned.served} == {1, 2}
    assert tuned.served[-1].num_workers == 2


def test_the_scripts_own_timeout_ends_a_wait_as_torch_ends_it() -> None:
    class Slow(Squares):
        slow = False

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if self.slow and index == 4:
                time.sleep(3.0)
            return super().__getitem__(index)

    data = Slow()
    loader = DataLoader(data, batch_size=4, num_workers=2, timeout=1)
    live = LiveLoader(loader, exact=True, has_accelerator=False)
    made, own = live.begin_pass(lambda: iter(loader))
    for step in range(8):
        made.next_batch(own)
        if step == 5:
            live.want(S(num_workers=1))
    assert live.took_over
    made.close()
    del own
    live.want(live.own)
    data.slow = True
    made, own = live.begin_pass(lambda: iter(loader))
    assert own is None
    made.next_batch(own)
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        made.next_batch(own)
    batch: Any = None
    while batch is None:  # it still comes, and none is left out
        with contextlib.suppress(RuntimeError):
            batch = made.next_batch(own)
    assert batch[1].tolist() == [4, 5, 6, 7]
    made.close()


def test_a_bug_in_looking_again_leaves_the_loop_its_own_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = DataLoader(Squares(), batch_size=4, num_workers=1)
    live = LiveLoader(loader, exact=True, has_accelerator=False)
    assert live.want(S(num_workers=2)) is None

    def broken(settings: Settings) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(live, "refusal", broken)
    _, own = live.begin_pass(lambda: iter(loader))
    assert own is not None
    assert live.wanted is live.own
    assert [event.kind for event in live.events] == ["failed"]
    del own


def test_a_pass_left_in_its_middle_leaves_no_worker() -> None:
    loader = DataLoader(Squares(), batch_size=2, num_workers=1)
    live = LiveLoader(loader, exact=True, has_accelerator=False)
    made, own = live.begin_pass(lambda: iter(loader))
    for step in range(8):
        made.next_batch(own)
        if step == 5:
            live.want(S(num_workers=2))
    del made, own  # `nothing_is_left` looks for its workers


@pytest.mark.parametrize("own", OWN)
def test_a_pass_that_began_before_is_taken_over_where_it_is(own: str) -> None:
    def batches(*, tuned: bool) -> list[Any]:
        torch.manual_seed(3)
        loader = DataLoader(Squares(), 2, shuffle=True, generator=generator(), **OWN[own])
        iterator: Any = iter(loader)
        seen = [next(iterator)[1].tolist() for _ in range(2)]
        if not tuned:
            seen += [batch[1].tolist() for batch in iterator]
        else:
            live = LiveLoader(loader, exact=True, has_accelerator=False)
            made = live.adopt(iterator)
            for step in range(18):
                seen.append(made.next_batch(iterator)[1].tolist())
                if step == 3:
                    assert live.want(S(num_workers=1, prefetch_factor=3)) is None
            with pytest.raises(StopIteration):
                made.next_batch(iterator)
            assert live.serving.prefetch_factor == 3
            live.close()
        return [*seen, torch.rand(()).item(), torch.rand((), generator=loader.generator).item()]

    assert batches(tuned=True) == batches(tuned=False)


def test_a_loader_built_anew_for_each_epoch_goes_on_with_what_was_wanted() -> None:
    data = Squares()

    def batches(*, tuned: bool) -> tuple[list[Any], list[int | None]]:
        torch.manual_seed(3)
        live: LiveLoader | None = None
        seen: list[Any] = []
        served: list[int | None] = []
        for _ in range(3):
            loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=1)
            if not tuned:
                seen += [batch[1].tolist() for batch in loader]
                continue
            live = LiveLoader(loader, exact=True, has_accelerator=False, like=live)
            made, own = live.begin_pass(lambda: iter(loader))  # noqa: B023 - called at once
            for step in range(10):
                seen.append(made.next_batch(own)[1].tolist())
                served.append(live.serving.num_workers)
                if step == 5:
                    live.want(S(num_workers=2))
            del own, made
        return [*seen, torch.rand(()).item()], served

    tuned, served = batches(tuned=True)
    assert tuned == batches(tuned=False)[0]
    assert served[10:] == [2] * 20
