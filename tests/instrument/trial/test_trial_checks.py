"""Trials that are never begun, with the reason: repeated data, no room, what can't be spawned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Sampler,
    TensorDataset,
)

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.trial import trial_checks
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.opening import opened, reason
from tests.instrument.trial_cases import Squares

pytestmark = pytest.mark.usefixtures("nothing_is_left")


class Resuming(Sampler[int]):
    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 32:
            self.position += 1
            yield self.position - 1

    def __len__(self) -> int:
        return 32


class Paths(Squares):
    """Strings of 1,000 characters, 200 MB of them, which each worker comes to copy."""

    def __init__(self) -> None:
        super().__init__()
        self.paths = [f"{i:01000}" for i in range(200_000)]


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


def test_a_trial_is_checked_also_where_open_files_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(psutil.Process, "num_fds")  # as on Windows
    opened(DataLoader(Squares(), batch_size=2), Settings()).close()


def test_more_workers_never_repeat_an_unsharded_dataset() -> None:
    loader = DataLoader(cases.Unsharded(), batch_size=2)
    assert "every sample 2 times" in reason(loader, Settings(num_workers=2))
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
    monkeypatch.setattr(trial_checks, "can_be_guarded", lambda: False)  # as with `-m package`
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
        assert "160 MiB of host memory" in reason(loader, many)
    with monkeypatch.context() as patch:
        patch.setattr(trial_checks, "available_bytes", lambda: 2**30)
        opened(loader, many).close()
        heavy = DataLoader(Paths(), batch_size=4)
        assert "paths, a list of 200,000 (str)" in reason(heavy, many)
        as_many = DataLoader(Paths(), batch_size=4, num_workers=4)
        opened(as_many, Settings(prefetch_factor=4)).close()
        whole = many.over(trial_checks.loader_settings(heavy))
        with pytest.raises(TrialRefused, match="paths, a list"):  # taken over by a tuned loop
            trial_checks.check(heavy, whole, whole, has_accelerator=False, batch=(), continues=True)
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
