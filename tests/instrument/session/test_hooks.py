"""What the hooks leave of a loop: all of it, the same batches and errors, and nothing of ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, dataloader

from loaderdoctor.instrument.session.hooks import Hooks
from tests.instrument.watched import (
    Trainer,
    counting_loop,
    loader_of,
    request,
    watch,
)


def test_hooks_leave_nothing_behind() -> None:
    before = {name: dataloader.DataLoader.__dict__[name] for name in ("__init__", "__iter__")}
    iterator = dict(dataloader._BaseDataLoaderIter.__dict__)
    backward = torch.autograd.backward
    lengths: list[int] = []
    watch(counting_loop(loader_of(40), 1, lengths), request(1, "no_input"))
    assert {n: dataloader.DataLoader.__dict__[n] for n in before} == before
    assert dict(dataloader._BaseDataLoaderIter.__dict__) == iterator
    assert torch.autograd.backward is backward


def test_a_loader_that_an_earlier_session_tuned_is_said_to_stay_unrecorded(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loader, other = loader_of(40), loader_of(40)
    registry = SimpleNamespace(taken_over=lambda x: x is loader)
    earlier = SimpleNamespace(_session=SimpleNamespace(registry=registry, holds_loaders=True))
    monkeypatch.setattr(Hooks, "_left", [earlier])
    watch(counting_loop(other, 2, []), request(1, "plain"))
    assert "tuned in an earlier recording" not in capfd.readouterr().err
    watch(counting_loop(loader, 2, []), request(1, "plain"))
    assert capfd.readouterr().err.count("tuned in an earlier recording") == 1


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


def test_no_recorded_batch_stays_alive_once_all_is_measured() -> None:
    trainer, held = Trainer(), list[object]()

    def loop() -> None:
        for n, (x, _) in enumerate(loader_of(200)):
            trainer.step(x)
            if n == 150:  # the hooks of the pass are left: it saw recorded batches
                held.extend(x.replay_buffer for x in Hooks._left[-1]._session.registry.states)

    run = watch(loop, request(1, "plain"), request(2, "no_input"))
    assert [w.status for w in run.windows] == ["ok"] * 2
    assert held == [None]


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


class Shy(dict[str, torch.Tensor]):
    """A batch that does not let itself be walked."""

    def items(self) -> NoReturn:
        raise KeyError("ask for a name")


def shy(samples: list[tuple[torch.Tensor, int]]) -> Shy:
    return Shy(x=torch.stack([x for x, _ in samples]))


def test_a_batch_that_objects_to_being_looked_at_reaches_the_loop() -> None:
    trainer, seen = Trainer(), 0

    def loop() -> None:
        nonlocal seen
        for batch in loader_of(80, collate_fn=shy):
            trainer.step(batch["x"])
            seen += 1

    run = watch(loop, request(1, "plain"), request(2, "no_input"), request(3, "plain"))
    assert seen == 80
    assert [w.status for w in run.windows] == ["ok", "failed", "ok"]
    assert "Shy can't be walked" in (run.windows[1].reason or "")


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
