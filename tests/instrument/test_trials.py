"""Trials with real workers: the same data, the settings asked for, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

from loaderdoctor.instrument import trial_checks
from loaderdoctor.instrument.movers import Mover
from loaderdoctor.instrument.protocol import TensorRecord
from loaderdoctor.instrument.resident import ResidentSource
from loaderdoctor.instrument.supply import BatchRing, Source
from loaderdoctor.instrument.trials import (
    Withheld,
    loader_settings,
    measure_boundary,
    open_trial,
)
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.trial_cases import Squares

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = cases.children()
    yield
    gc.collect()
    assert cases.children() <= before
    assert cases.background_threads() == []


def opened(loader: DataLoader[Any], settings: Settings, **more: Any) -> Source:
    return open_trial(
        loader,
        settings,
        device=None,
        transfers=(),
        open_iter=cases.raw_iterator,
        fetch_limit_s=more.pop("fetch_limit_s", 60.0),
        **more,
    )


def ids(source: Source, n: int) -> list[int]:
    return [i for _ in range(n) for i in source.next_batch()[1].tolist()]


EACH_WAY = [
    Settings(),
    Settings(num_workers=2),
    Settings(num_workers=3, prefetch_factor=1, persistent_workers=True),
    Settings(num_workers=1, start_method="spawn", persistent_workers=True),
    Settings(num_workers=1, start_method="forkserver"),
    Settings(background="host"),
    Settings(num_workers=2, background="host"),
    Settings(num_workers=2, background="host", persistent_workers=True),
]


@pytest.mark.parametrize("settings", EACH_WAY, ids=Settings.label)
def test_every_batch_of_every_epoch_comes_once_and_in_order(settings: Settings) -> None:
    source = opened(DataLoader(Squares(), batch_size=4), settings)
    try:
        for _ in range(2):
            assert ids(source, 8) == list(range(32))
        assert source.startup_ns is not None
        squares, index = source.next_batch()
        assert torch.equal(squares[:, 0], index.double().square().float())
    finally:
        source.close()
        source.close()
    with pytest.raises(StopIteration):
        source.next_batch()


@pytest.mark.parametrize("settings", EACH_WAY[1:], ids=Settings.label)
def test_closing_in_the_middle_leaves_no_worker_thread_or_batch(settings: Settings) -> None:
    source = opened(DataLoader(Squares(), batch_size=4), settings)
    batch = weakref.ref(source.next_batch()[0])
    source.close()
    gc.collect()
    assert batch() is None


def test_workers_are_those_asked_for_and_persist_only_when_asked() -> None:
    def pids(settings: Settings, n_epochs: int) -> list[set[int]]:
        source = opened(DataLoader(cases.WorkerIds(), batch_size=4), settings)
        try:
            return [
                {pid for _ in range(8) for pid in source.next_batch().tolist()}
                for _ in range(n_epochs)
            ]
        finally:
            source.close()

    first, second = pids(Settings(num_workers=2), 2)
    assert len(first) == len(second) == 2
    assert not first & second
    first, second = pids(Settings(num_workers=2, persistent_workers=True), 2)
    assert first == second


def test_the_users_own_settings_hold_where_the_trial_says_nothing() -> None:
    made: list[DataLoader[Any]] = []

    def watched(loader: DataLoader[Any]) -> Any:
        made.append(loader)
        return cases.raw_iterator(loader)

    generator = torch.Generator()
    own = DataLoader(
        Squares(), batch_size=4, num_workers=2, prefetch_factor=3, persistent_workers=True,
        drop_last=True, timeout=17, generator=generator, shuffle=True, in_order=False,
    )  # fmt: skip
    source = open_trial(own, Settings(num_workers=1), device=None, transfers=(), open_iter=watched)
    source.close()
    (trial,) = made
    assert (trial.num_workers, trial.prefetch_factor, trial.timeout) == (1, 3, 17)
    assert (trial.persistent_workers, trial.drop_last, trial.in_order) == (True, True, False)
    assert trial.generator is generator
    assert trial.sampler is own.sampler
    assert trial.dataset is own.dataset
    assert own._iterator is None
    source = open_trial(own, Settings(num_workers=0), device=None, transfers=(), open_iter=watched)
    source.close()
    assert loader_settings(made[-1]) == Settings(num_workers=0, pin_memory=False)
    assert loader_settings(own) == Settings(
        num_workers=2, prefetch_factor=3, persistent_workers=True, pin_memory=False,
        in_order=False,
    )  # fmt: skip


class Endless(DataLoader[Any]):
    """Keeps one iterator for ever, as loaders of some projects do."""

    def __iter__(self) -> Any:
        return itertools.cycle([None])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Squares(), batch_sampler=BatchSampler(SequentialSampler(range(32)), 4, False)),
        DataLoader(Squares(), sampler=range(32), batch_size=4),
        Endless(Squares(), batch_size=4),
    ],
)
def test_samplers_and_subclasses_are_opened_as_plain_loaders(loader: DataLoader[Any]) -> None:
    source = opened(loader, Settings(num_workers=1))
    assert ids(source, 8) == list(range(32))
    source.close()


def test_a_loader_without_batching_is_opened_without() -> None:
    source = opened(DataLoader(Squares(), batch_size=None), Settings(num_workers=1))
    assert [source.next_batch()[1] for _ in range(32)] == list(range(32))
    source.close()


def test_batches_come_in_any_order_where_asked() -> None:
    class Uneven(Squares):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            self.sleep_s = 0.3 if index == 0 else 0.0
            return super().__getitem__(index)

    source = opened(DataLoader(Uneven(), batch_size=4), Settings(num_workers=2, in_order=False))
    order = ids(source, 8)
    source.close()
    assert order != list(range(32))
    assert sorted(order) == list(range(32))


# ------------------------------------------------------------------ epochs and boundaries


def test_each_reopening_is_recorded_with_its_parts() -> None:
    source = opened(DataLoader(Squares(8), batch_size=4), Settings(num_workers=1), loader_id="a:1")
    assert source.drop(5) == 5
    source.close()
    boundaries = source.boundaries  # type: ignore[attr-defined]
    assert [boundary.loader for boundary in boundaries] == ["a:1"] * 2
    assert all(b.create_ns > 0 and b.first_wait_ns > 0 and b.teardown_ns > 0 for b in boundaries)


@pytest.mark.alone
@pytest.mark.parametrize("background", ["off", "host"])
def test_persistent_workers_pay_less_at_the_boundary(background: Any) -> None:
    def boundary(*, persistent: bool) -> int:
        source = opened(
            DataLoader(Squares(64), batch_size=4),
            Settings(num_workers=2, persistent_workers=persistent, background=background),
        )
        try:
            return min(measure_boundary(source) for _ in range(3))
        finally:
            source.close()

    assert boundary(persistent=True) < boundary(persistent=False)


@pytest.mark.alone
def test_the_boundary_holds_the_first_batch_beyond_a_steady_fetch() -> None:
    """With one worker a batch takes 4 x 10 ms either way, so the sleep is in no boundary."""
    source = opened(DataLoader(Squares(400, sleep_s=0.01), batch_size=4), Settings(num_workers=0))
    measured = measure_boundary(source)
    source.close()
    assert measured < 0.5 * 4 * 0.01 * 1e9


def test_recorded_batches_have_no_boundary() -> None:
    assert measure_boundary(BatchRing().as_source()) == 0


def test_an_iterable_dataset_is_measured_and_opened_again() -> None:
    source = opened(DataLoader(cases.Sharded(), batch_size=2), Settings(num_workers=2))
    assert sorted(i for _ in range(8) for i in source.next_batch().tolist()) == list(range(16))
    assert measure_boundary(source) >= 0
    source.close()


def test_an_empty_epoch_ends_the_source() -> None:
    source = opened(DataLoader(Squares(0), batch_size=4), Settings())
    assert source.drop(3) == 0
    with pytest.raises(StopIteration):
        source.next_batch()
    source.close()


# ------------------------------------------------------------------ failing and hanging


@pytest.mark.parametrize(
    "settings", [Settings(), Settings(num_workers=1), Settings(background="host")]
)
def test_what_the_dataset_raises_reaches_the_caller(settings: Settings) -> None:
    source = opened(DataLoader(cases.Failing(), batch_size=2), settings)
    with pytest.raises(ValueError, match="sample 3 is broken"):
        source.drop(4)
    source.close()


@pytest.mark.parametrize(
    "settings",
    [
        Settings(num_workers=2),
        Settings(num_workers=2, persistent_workers=True),
        Settings(num_workers=2, background="host"),
        pytest.param(Settings(num_workers=1, start_method="spawn"), marks=pytest.mark.slow),
    ],
    ids=Settings.label,
)
def test_a_hanging_worker_ends_in_a_timeout_and_is_killed(settings: Settings) -> None:
    limit_s = 20.0 if settings.start_method else 1.0
    source = opened(DataLoader(Squares(hang_at=5), batch_size=4), settings, fetch_limit_s=limit_s)
    assert ids(source, 1) == [0, 1, 2, 3]
    with pytest.raises(TimeoutError):
        source.next_batch()
    source.close()


def test_the_background_thread_is_a_prefetch_generator() -> None:
    source = opened(DataLoader(Squares(), batch_size=4), Settings(background="host"))
    source.next_batch()
    (thread,) = cases.background_threads()
    assert type(thread).__module__.startswith("prefetch_generator")
    source.close()
    assert not thread.is_alive()


# ------------------------------------------------------------------ withheld


def reason(loader: DataLoader[Any], settings: Settings, **more: Any) -> str:
    with pytest.raises(Withheld) as withheld:
        opened(loader, settings, **more)
    return withheld.value.reason


class Resuming(Sampler[int]):
    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 32:
            self.position += 1
            yield self.position - 1

    def __len__(self) -> int:
        return 32


def test_data_that_comes_once_is_never_opened_again() -> None:
    taken: list[int] = []

    def stream() -> Iterator[int]:
        for i in range(8):
            taken.append(i)
            yield i

    class Once(cases.Unsharded):
        def __init__(self) -> None:
            self.stream = stream()

        def __iter__(self) -> Iterator[int]:
            return self.stream

    assert "stream" in reason(DataLoader(Once(), batch_size=2), Settings(background="host"))
    assert taken == []
    assert "position" in reason(DataLoader(Squares(), sampler=Resuming()), Settings(num_workers=1))
    spent = iter(range(32))
    assert "iterator" in reason(DataLoader(Squares(), sampler=spent), Settings())


def test_more_workers_never_repeat_an_unsharded_dataset() -> None:
    loader = DataLoader(cases.Unsharded(), batch_size=2)
    assert "each give all of it" in reason(loader, Settings(num_workers=2))
    one = opened(loader, Settings(num_workers=1))
    assert one.next_batch().tolist() == [0, 1]
    one.close()
    two = opened(DataLoader(cases.Unsharded(), batch_size=2, num_workers=2), Settings())
    two.close()


def test_invalid_combinations_say_why() -> None:
    loader = DataLoader(Squares())
    assert "num_workers > 0" in reason(loader, Settings(prefetch_factor=2))
    assert "accelerator" in reason(loader, Settings(pin_memory=True))
    assert "accelerator" in reason(loader, Settings(resident=True))
    assert "accelerator" in reason(loader, Settings(background="device"))


def test_what_does_not_pickle_is_forked_but_not_spawned() -> None:
    loader = DataLoader(Squares(), batch_size=4, collate_fn=lambda samples: samples)
    assert "spawn" in reason(loader, Settings(num_workers=1, start_method="spawn"))
    forked = opened(loader, Settings(num_workers=1, start_method="fork"))
    assert len(forked.next_batch()) == 4
    forked.close()


def test_a_script_without_a_guard_is_not_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_checks, "main_is_guarded", lambda: False)
    assert "__main__" in reason(
        DataLoader(Squares()), Settings(num_workers=1, start_method="spawn")
    )


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        ('import os\nif __name__ == "__main__":\n    main()\n', True),
        ("if '__main__' == __name__:\n    main()\n", True),
        ("for x in loader:\n    pass\n", False),
        ("import os\nif os.name == 'posix':\n    main()\n", False),
    ],
)
def test_the_guard_is_found_in_the_script(
    text: str, guarded: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    main = type("Main", (), {"__file__": str(script)})
    monkeypatch.setitem(trial_checks.sys.modules, "__main__", main)  # type: ignore[attr-defined]
    assert trial_checks.main_is_guarded() is guarded


def test_no_room_withholds_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Squares(), batch_size=4)
    batch = (TensorRecord(path="", shape=(1024,), dtype="float32", n_bytes=10**6),)
    many = Settings(num_workers=4, prefetch_factor=4)
    with monkeypatch.context() as patch:
        patch.setattr(trial_checks, "shm_free_bytes", lambda: 15 * 10**6)
        assert "/dev/shm" in reason(loader, many, batch=batch)
        opened(loader, Settings(num_workers=1), batch=batch).close()
    with monkeypatch.context() as patch:
        patch.setattr(trial_checks, "available_bytes", lambda: 10**8)
        assert "4 workers" in reason(loader, many)
    with monkeypatch.context() as patch:
        patch.setattr(trial_checks, "open_files_limit", lambda: 40)
        assert "files" in reason(loader, many, batch=batch)


def test_a_spawned_dataset_of_tensors_has_to_fit_into_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_checks, "shm_free_bytes", lambda: 10**6)
    loader = DataLoader(TensorDataset(torch.zeros(10**6)), batch_size=4)
    assert "/dev/shm" in reason(loader, Settings(num_workers=1, start_method="spawn"))
    opened(loader, Settings(num_workers=1, start_method="fork")).close()


# ------------------------------------------------------------------ moving and resident


def test_only_what_the_loop_moves_is_moved() -> None:
    meta = torch.device("meta")
    batch: Any = {"x": torch.zeros(4, 3), "n": torch.zeros(4, dtype=torch.int64), "name": "a"}
    by_place = Mover(meta, (cases.moved("['x']", (4, 3), "float32"),), non_blocking=False)
    out, new = by_place.move(batch)
    assert (out["x"].device.type, out["n"].device.type, out["name"]) == ("meta", "cpu", "a")
    assert new == [out["x"]] or new[0] is out["x"]
    assert batch["x"].device.type == "cpu"
    record = cases.moved("", (64, 3), "float32")
    by_kind = Mover(meta, (type(record)(**{**_fields(record), "path": None}),), non_blocking=False)
    assert by_kind.moves("anywhere", torch.zeros(2, 3))
    assert not by_kind.moves("anywhere", torch.zeros(2, 4))
    assert not by_kind.moves("anywhere", torch.zeros(2, 3, dtype=torch.float64))


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def resident(n: int, *, shuffle: bool, batch_size: int = 4) -> ResidentSource:
    loader = DataLoader(Squares(n), batch_size=batch_size)
    inner = opened(loader, Settings(num_workers=1))
    return ResidentSource(inner, Mover(CPU, (), non_blocking=False), len(loader), shuffle=shuffle)


def test_resident_batches_are_the_whole_dataset_each_epoch_in_a_new_order() -> None:
    others = cases.children()  # workers of earlier tests, not collected yet
    source = resident(64, shuffle=True)
    assert cases.children() <= others
    epochs = [ids(source, 16) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(64))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert measure_boundary(source) >= 0
    assert cases.children() <= others  # nor has it any worker to start at a boundary
    source.close()
    with pytest.raises(StopIteration):
        source.next_batch()


def test_resident_batches_keep_their_order_without_a_shuffle() -> None:
    source = resident(32, shuffle=False)
    assert ids(source, 16) == [*range(32), *range(32)]
    source.close()


def test_a_loop_that_changes_its_batch_does_not_change_the_resident_dataset() -> None:
    source = resident(32, shuffle=False)
    for _ in range(40):
        squares, index = source.next_batch()
        assert torch.equal(squares[:, 0], index.double().square().float())
        squares.add_(1)
        index.sub_(1)
    source.close()


def test_a_dataset_that_does_not_fit_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    from loaderdoctor.instrument import resident as module

    monkeypatch.setattr(module, "available_bytes", lambda: 500)
    with pytest.raises(Withheld, match="may be used"):
        resident(64, shuffle=False)


def test_filling_that_would_take_too_long_is_given_up_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from loaderdoctor.instrument import resident as module

    monkeypatch.setattr(module, "FILL_LIMIT_S", 0.5)
    loader = DataLoader(Squares(4000, sleep_s=0.002), batch_size=4)
    inner = opened(loader, Settings())
    with pytest.raises(Withheld, match="would take about"):
        ResidentSource(inner, Mover(CPU, (), non_blocking=False), len(loader), shuffle=False)


def test_shuffling_loaders_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from loaderdoctor.instrument.trials import _shuffles

    assert _shuffles(DataLoader(Squares(), shuffle=True))
    assert not _shuffles(DataLoader(Squares()))
    assert _shuffles(
        DataLoader(Squares(), batch_sampler=BatchSampler(RandomSampler(Squares()), 4, False))
    )


def test_opening_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    source = opened(DataLoader(Squares(), batch_size=4), Settings(num_workers=3))
    source.close()
    assert [str(warning.message) for warning in recwarn] == []
    assert threading.active_count() >= 1
