"""Windows: what is measured, what is substituted, and what the loop sees meanwhile."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, dataloader

from loaderdoctor.instrument.protocol import WindowDone, WindowRequest
from loaderdoctor.settings import Settings
from tests.instrument.watched import Numbers, Trainer, loader_of, watch

pytestmark = pytest.mark.alone


class Slow(Numbers):
    """Samples that take a while."""

    def __init__(self, n: int, ms: float) -> None:
        super().__init__(n)
        self.ms = ms

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.ms / 1e3)
        return super().__getitem__(index)


def request(id_: int, mode: str, n_steps: int = 8, **more: object) -> WindowRequest:
    return WindowRequest(id=id_, mode=mode, n_steps=n_steps, limit_s=30.0, **more)  # type: ignore[arg-type]


def mean_ms(window: WindowDone) -> float:
    return fmean(window.host_step_ns) / 1e6


def counting_loop(
    loader: DataLoader[object], n_epochs: int, lengths: list[int], seen: list[int] | None = None
) -> Callable[[], None]:
    """Trains, and notes how many batches each epoch had (and the first index of each batch)."""
    trainer = Trainer()

    def loop() -> None:
        for _ in range(n_epochs):
            n = 0
            for x, _y in loader:
                trainer.step(x)
                n += 1
                if seen is not None:
                    seen.append(int(x[0, 0]))
            lengths.append(n)

    return loop


def test_no_input_takes_the_loader_out_and_plain_brings_it_back() -> None:
    loader: DataLoader[object] = DataLoader(Slow(64, 5.0), 4)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 5, lengths),
        request(1, "plain"),
        request(2, "no_input"),
        request(3, "plain"),
    )
    first, without, again = run.windows
    assert [w.status for w in run.windows] == ["ok", "ok", "ok"]
    assert mean_ms(first) > 20.0  # four sleeps of 5 ms
    assert mean_ms(again) > 20.0
    assert mean_ms(without) < mean_ms(first) / 3
    assert lengths == [16] * 5


def test_a_trial_is_a_loader_with_other_settings_under_the_same_loop() -> None:
    loader: DataLoader[object] = DataLoader(Slow(200, 5.0), 4)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 3, lengths),
        request(1, "plain"),
        request(2, "trial", settings=Settings(num_workers=2), measure_boundary=True),
        request(3, "plain"),
    )
    plain, trial, after = run.windows
    assert trial.status == "ok", trial.reason
    assert mean_ms(trial) < 0.8 * mean_ms(plain)
    assert trial.startup_ns
    assert trial.boundary_ns
    assert mean_ms(after) > 1.2 * mean_ms(trial)
    assert lengths == [50] * 3


def test_a_trials_own_epochs_end_inside_steps_that_say_so() -> None:
    # Epochs of 10 batches: a window of 30 steps crosses three ends of the trial's own data, each
    # of which starts two workers anew.
    loader: DataLoader[object] = DataLoader(Slow(40, 1.0), 4)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 12, lengths),
        WindowRequest(
            id=1, mode="trial", n_steps=30, settings=Settings(num_workers=2), drop_batches=False
        ),
    )
    (trial,) = run.windows
    assert trial.status == "ok", trial.reason
    assert len(trial.boundary_steps) >= 3
    at_boundaries = [trial.host_step_ns[i] for i in trial.boundary_steps]
    between = [t for i, t in enumerate(trial.host_step_ns) if i not in trial.boundary_steps]
    assert sorted(at_boundaries)[len(at_boundaries) // 2] > 2 * sorted(between)[len(between) // 2]


def test_a_trial_that_crashes_is_a_result() -> None:
    class Fails(Slow):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if torch.utils.data.get_worker_info() is not None:
                raise RuntimeError("no workers here")
            return super().__getitem__(index)

    loader: DataLoader[object] = DataLoader(Fails(120, 0.1), 2)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 2, lengths),
        request(1, "trial", settings=Settings(num_workers=1)),
        request(2, "plain"),
    )
    trial, plain = run.windows
    assert trial.status == "failed"
    assert "no workers here" in (trial.reason or "")
    assert plain.status == "ok"
    assert lengths == [60, 60]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_dropped_batches_never_shorten_an_epoch(n_workers: int) -> None:
    loader = loader_of(40, num_workers=n_workers)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 4, lengths),
        request(1, "no_input"),
        request(2, "plain"),
        request(3, "no_input"),
        request(4, "plain"),
    )
    assert [w.status for w in run.windows] == ["ok"] * 4
    assert lengths == [40] * 4


def test_short_epochs_are_measured_from_their_start() -> None:
    loader = loader_of(6, num_workers=2)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 24, lengths), request(1, "no_input", 6), request(2, "plain", 12)
    )
    plain = run.windows[1]
    assert plain.status == "ok", plain.reason
    assert plain.boundary_steps == (0, 6)
    assert set(lengths) == {6}


def test_an_epoch_boundary_is_inside_its_step_and_validation_is_not() -> None:
    train: DataLoader[object] = DataLoader(Slow(40, 1.0), 4)
    val = loader_of(2)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(6):
            for x, _y in train:
                trainer.step(x)
            for _batch in val:
                time.sleep(0.2)

    run = watch(loop, request(1, "plain", 20, drop_batches=False))
    window = run.windows[0]
    assert len(window.host_step_ns) == 20
    assert len(window.boundary_steps) == 2
    assert max(window.host_step_ns) < 200e6
    others = {i for i, r in enumerate(run.session.registry.records()) if r.role == "other"}
    assert len([f for f in window.fetches if f.loader in others]) == 4
    assert {b.loader for b in window.boundaries} == {r.id for r in run.session.registry.records()}


def test_an_iterator_made_each_step_is_a_boundary_in_each_step() -> None:
    loader = loader_of(10)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(60):
            x, _y = next(iter(loader))
            trainer.step(x)

    run = watch(loop, request(1, "plain", 10), request(2, "no_input", 10))
    plain, without = run.windows
    assert plain.boundary_steps == tuple(range(10))
    assert len(plain.boundaries) >= 9
    assert without.status == "ok"


def test_recreating_workers_each_step_costs_nothing_without_input() -> None:
    loader = loader_of(10, num_workers=1)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(40):
            x, _y = next(iter(loader))
            trainer.step(x)

    run = watch(loop, request(1, "plain", 5), request(2, "no_input", 5))
    plain, without = run.windows
    assert mean_ms(without) < mean_ms(plain) / 4


def test_leaving_an_epoch_early_counts_as_a_boundary() -> None:
    loader = loader_of(50)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(10):
            for i, (x, _y) in enumerate(loader):
                trainer.step(x)
                if i == 4:
                    break

    window = watch(loop, request(1, "plain", 15, drop_batches=False)).windows[0]
    assert window.n_steps == 15
    assert len(window.boundary_steps) == 3


def test_where_each_epoch_is_left_early_its_length_is_what_was_used() -> None:
    loader = loader_of(50)
    trainer = Trainer()

    def loop() -> None:
        for _ in range(10):
            for i, (x, _y) in enumerate(loader):
                trainer.step(x)
                if i == 4:
                    break

    assert watch(loop).observed.loaders[0].steps_per_epoch == 5


def test_cached_batches_of_itertools_cycle_are_told() -> None:
    loader = loader_of(20)
    trainer = Trainer()

    def loop() -> None:
        for x, _y in itertools.islice(itertools.cycle(loader), 120):
            trainer.step(x)

    run = watch(loop, request(1, "plain", 30))
    assert [n.kind for n in run.notes] == ["batches-replayed"]
    assert run.windows[0].status == "ok"


def test_an_endless_iterator_kept_by_a_subclass_stays_endless() -> None:
    class Repeat(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            return itertools.cycle([[0, 1], [2, 3]])

    class Endless(DataLoader[object]):
        def __init__(self) -> None:
            super().__init__(Numbers(4), batch_sampler=Repeat())
            self.kept = super().__iter__()

        def __iter__(self) -> Iterator[object]:  # type: ignore[override]
            for _ in range(10):
                yield next(self.kept)

    trainer = Trainer()
    lengths: list[int] = []

    def loop() -> None:
        loader = Endless()
        for _ in range(12):
            n = 0
            for batch in loader:
                trainer.step(batch[0])  # type: ignore[index]
                n += 1
            lengths.append(n)

    run = watch(loop, request(1, "plain"), request(2, "no_input"), request(3, "plain"))
    assert [w.status for w in run.windows] == ["ok"] * 3
    assert lengths == [10] * 12


def test_persistent_workers_survive_substitution() -> None:
    loader = loader_of(12, num_workers=1, persistent_workers=True)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 10, lengths),
        request(1, "no_input", 10),
        request(2, "plain", 10),
        request(3, "no_input", 10),
    )
    assert [w.status for w in run.windows] == ["ok"] * 3
    assert lengths == [12] * 10


def test_a_one_pass_stream_is_never_opened_twice() -> None:
    opened = []

    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            opened.append(1)
            return (torch.full((4,), float(i)) for i in range(400))

    loader: DataLoader[object] = DataLoader(Stream(), 2)
    trainer = Trainer()
    seen: list[int] = []

    def loop() -> None:
        for x in loader:
            trainer.step(x)
            seen.append(1)

    run = watch(loop, request(1, "no_input"), request(2, "plain"))
    assert [w.status for w in run.windows] == ["ok", "ok"]
    assert len(opened) == 1


def test_only_the_named_loader_is_replaced() -> None:
    fast, slow = loader_of(80), DataLoader(Slow(160, 4.0), 2)
    trainer = Trainer()

    def loop() -> None:
        for (x, _), (z, _) in zip(fast, slow, strict=True):
            trainer.step(x + z)

    ids = [r.id for r in watch(loop).observed.loaders]
    run = watch(
        loop,
        request(1, "plain"),
        request(2, "no_input", loader=ids[0]),
        request(3, "no_input", loader=ids[1]),
    )
    plain, without_fast, without_slow = run.windows
    assert mean_ms(plain) > 8.0  # two sleeps of 4 ms
    assert mean_ms(without_fast) > 8.0
    assert mean_ms(without_slow) < 0.7 * mean_ms(without_fast)


def test_a_background_thread_gets_substituted_batches_too() -> None:
    from prefetch_generator import BackgroundGenerator

    loader: DataLoader[object] = DataLoader(Slow(400, 2.0), 4)
    trainer = Trainer()

    def loop() -> None:
        for x, _y in BackgroundGenerator(loader):
            trainer.step(x)

    run = watch(loop, request(1, "plain"), request(2, "no_input"), request(3, "plain"))
    plain, without, again = run.windows
    assert mean_ms(without) < mean_ms(plain) / 3
    assert mean_ms(again) > 2 * mean_ms(without)


def test_a_profiled_window_leaves_a_trace_with_one_span_a_step(tmp_path: Path) -> None:
    from loaderdoctor.trace.read import read_trace

    path = tmp_path / "trace.json"
    loader = loader_of(10)
    lengths: list[int] = []
    run = watch(
        counting_loop(loader, 12, lengths), request(1, "profiled", 25, trace_path=str(path))
    )
    window = run.windows[0]
    assert window.status == "ok", window.reason
    assert window.trace_path == str(path)
    trace = read_trace(path)
    names = [trace.names[i] for i in trace.spans.name]
    steps = {n for n in names if n.startswith("ProfilerStep#")}
    marks = dict(window.clock_marks)
    assert steps <= set(marks) | {"ProfilerStep#0"}
    assert len(steps) >= 25
    assert sum(n == "loaderdoctor: create iterator" for n in names) == len(window.boundaries)


def test_a_profiler_of_the_scripts_own_is_left_alone(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    loader = loader_of(60)
    lengths: list[int] = []
    inner = counting_loop(loader, 1, lengths)

    def loop() -> None:
        with profile(activities=[ProfilerActivity.CPU]):
            inner()

    run = watch(
        loop, request(1, "profiled", trace_path=str(tmp_path / "t.json")), request(2, "plain")
    )
    profiled, plain = run.windows
    assert profiled.status == "failed"
    assert "profiler" in (profiled.reason or "")
    assert plain.status == "ok"


def test_a_window_cut_by_the_end_of_the_script_keeps_its_steps() -> None:
    lengths: list[int] = []
    run = watch(
        counting_loop(loader_of(30), 1, lengths),
        request(1, "plain", 1000),
        request(2, "plain", 10),
    )
    (cut,) = run.windows
    assert cut.status == "short"
    assert 0 < cut.n_steps < 30
    assert run.ended.how == "script-ended"


def test_windows_are_whole_worker_cycles() -> None:
    lengths: list[int] = []
    run = watch(counting_loop(loader_of(60, num_workers=3), 2, lengths), request(1, "plain", 10))
    assert run.windows[0].n_steps == 12


def test_hooks_leave_nothing_behind() -> None:
    before = {name: dataloader.DataLoader.__dict__[name] for name in ("__init__", "__iter__")}
    iterator = dict(dataloader._BaseDataLoaderIter.__dict__)
    backward = torch.autograd.backward
    lengths: list[int] = []
    watch(counting_loop(loader_of(40), 1, lengths), request(1, "no_input"))
    assert {n: dataloader.DataLoader.__dict__[n] for n in before} == before
    assert dict(dataloader._BaseDataLoaderIter.__dict__) == iterator
    assert torch.autograd.backward is backward


def test_no_batch_stays_alive() -> None:
    import gc
    import weakref

    refs: list[weakref.ref[torch.Tensor]] = []
    loader = loader_of(30)
    trainer = Trainer()

    def loop() -> None:
        for x, _y in loader:
            refs.append(weakref.ref(x))
            trainer.step(x)

    watch(loop, request(1, "plain"))
    gc.collect()
    assert not any(r() is not None for r in refs)


def test_an_unhooked_loop_and_a_watched_one_see_the_same_batches() -> None:
    def order(watched: bool) -> list[int]:
        torch.manual_seed(7)
        seen: list[int] = []
        loader = loader_of(25, shuffle=True)
        loop = counting_loop(loader, 2, [], seen)
        if watched:
            watch(loop, request(1, "plain", drop_batches=False))
        else:
            loop()
        return seen

    assert order(True) == order(False)


def test_dataset_errors_reach_the_loop_unchanged() -> None:
    class Broken(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> torch.Tensor:
            raise ValueError("sample is broken")

    def loop() -> None:
        for _ in DataLoader(Broken()):
            pass

    with pytest.raises(ValueError, match="sample is broken"):
        watch(loop)
