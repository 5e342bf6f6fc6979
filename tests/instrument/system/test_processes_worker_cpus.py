"""Workers bound to CPUs: each where it should be, the same batches, or refused with the reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.system.processes import OnCpus, cpu_sets
from loaderdoctor.settings import Settings
from tests.instrument.opening import ids, opened, reason
from tests.instrument.trial_cases import Squares

pytestmark = [
    pytest.mark.usefixtures("nothing_is_left"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process choose its CPUs"),
]


def nodes(folder: Path, *lists: str) -> Path:
    for i, text in enumerate(lists):
        (folder / f"node{i}").mkdir()
        (folder / f"node{i}" / "cpulist").write_text(f"{text}\n")
    return folder


def test_nodes_are_read_and_kept_to_what_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 3, 9})
    found = cpu_sets("numa", nodes(tmp_path, "0-1,8", "2-3,9-11", "40", ""))
    assert found == (frozenset({0}), frozenset({2, 3, 9}))
    assert cpu_sets("apart") == tuple(frozenset({n}) for n in (0, 2, 3, 9))


def test_what_leaves_nothing_to_choose_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(TrialRefused, match="one NUMA node"):
        cpu_sets("numa", nodes(tmp_path, "0-1", "2-3"))
    with pytest.raises(TrialRefused, match="one NUMA node"):
        cpu_sets("numa", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})
    with pytest.raises(TrialRefused, match="one CPU only"):
        cpu_sets("apart")
    loader = DataLoader(Squares(), batch_size=4)
    assert "num_workers > 0" in reason(loader, Settings(worker_cpus="all"))


class Where(Squares):
    """Sample i is (the CPUs that its process may use, i)."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        mask = torch.zeros(1024)
        mask[sorted(os.sched_getaffinity(0))] = 1.0
        return mask, index


def own(worker_id: int) -> None:
    torch.set_num_threads(1)


def test_each_worker_has_its_cpu_and_the_users_init_runs() -> None:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("one CPU")
    loader: DataLoader[Any] = DataLoader(Where(), batch_size=4, worker_init_fn=own)
    source = opened(loader, Settings(num_workers=2, worker_cpus="apart"))
    try:
        for k in range(4):
            masks, numbers = source.next_batch()
            assert numbers.tolist() == [*range(4 * k, 4 * k + 4)]
            assert masks[0].nonzero().flatten().tolist() == [usable[k % 2]]
    finally:
        source.close()
    called: list[int] = []
    OnCpus((frozenset(usable),), called.append)(7)
    assert called == [7]


def test_all_cpus_are_given_back_to_workers_that_share_one() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one CPU")
    os.sched_setaffinity(0, {min(before)})  # as an import may do
    try:
        loader = DataLoader(Where(), batch_size=4)
        source = opened(loader, Settings(num_workers=1, worker_cpus="all"))
        try:
            masks, _ = source.next_batch()
        finally:
            source.close()
    finally:
        os.sched_setaffinity(0, before)
    assert set(masks[0].nonzero().flatten().tolist()) >= before


def test_batches_stay_what_they_are() -> None:
    source = opened(DataLoader(Squares(), batch_size=4), Settings(num_workers=2, worker_cpus="all"))
    try:
        assert ids(source, 16) == [*range(32)] * 2
    finally:
        source.close()
