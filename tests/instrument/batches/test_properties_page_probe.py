"""Batches of worker processes are mapped page by page by who reads them first: counted, not timed.

Linux only, as the counters are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.attribution.ablation import page_facts
from loaderdoctor.facts.loop import PageFacts
from loaderdoctor.instrument.batches.properties import PAGE_BYTES, PageProbe
from loaderdoctor.instrument.wire.protocol import WindowRequest
from tests.instrument.watched import Trainer, watch

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="faults are counted by thread on Linux"),
]
MIB = 1 << 20


class Rows(Dataset[torch.Tensor]):
    def __init__(self, n: int, n_bytes: int) -> None:
        self.n, self.row = n, torch.ones(n_bytes // 4)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.row


def reading(x: torch.Tensor) -> None:
    x.max()


def pages_of(
    n_workers: int,
    n_bytes: int,
    use: Callable[[torch.Tensor], None] = reading,
    modes: tuple[str, str] = ("no_input", "plain"),
) -> PageFacts | None:
    """Of a loop over batches of `n_bytes`, in one plain and one no-input window."""
    trainer = Trainer()
    loader: DataLoader[Any] = DataLoader(Rows(200, n_bytes // 2), 2, num_workers=n_workers)

    def loop() -> None:
        for x in loader:
            use(x)
            trainer.step(torch.ones(2, 4))

    requests = [
        WindowRequest(id=i, mode=mode, n_steps=8, limit_s=30.0)  # type: ignore[arg-type]
        for i, mode in enumerate(modes)
    ]
    done = {w.mode: w for w in watch(loop, *requests).windows}
    assert [w.status for w in done.values()] == ["ok", "ok"]
    return page_facts([(done["plain"], done["no_input"])])


def test_a_loop_that_reads_batches_of_workers_takes_the_faults_of_each() -> None:
    pages = pages_of(2, 8 * MIB)
    assert pages is not None
    assert pages.batch_bytes == 8 * MIB
    # A fault maps up to 64 KiB around it, on a kernel set to the least one page.
    assert 8 * MIB // (64 * 1024) <= pages.faults_per_batch <= 1.1 * 8 * MIB / PAGE_BYTES
    assert pages.part > 0.8
    assert pages.touch_ms > 0.0
    assert pages.release_ms > 0.0


def test_of_a_single_round_that_threw_no_batch_away_mapping_is_known() -> None:
    pages = pages_of(2, 8 * MIB, modes=("plain", "no_input"))
    assert pages is not None
    assert pages.faults_per_batch >= 8 * MIB // (64 * 1024)
    assert pages.part > 0.8
    assert pages.touch_ms > 0.0
    assert pages.mapping_ms == pytest.approx(pages.part * pages.touch_ms)  # dropping: not known


def test_a_loop_that_never_reads_them_takes_none() -> None:
    pages = pages_of(2, 8 * MIB, use=lambda x: None)
    assert pages is not None
    assert pages.faults_per_batch >= 8 * MIB // (64 * 1024)
    assert pages.part < 0.2


def test_a_batch_made_by_the_loop_itself_is_mapped_already() -> None:
    pages = pages_of(0, 8 * MIB)
    # Nothing is dropped between windows without workers, as nothing queues up.
    assert pages is None


def test_using_up_a_batch_reads_it_once_and_lets_it_go() -> None:
    probe = PageProbe()
    views = torch.arange(3 * MIB, dtype=torch.float32).view(3, MIB)[1:, ::2]
    others = {"empty": torch.empty(0), "label": 3, "sparse": torch.eye(3).to_sparse()}
    held: list[Any] = [{"x": views, **others}]
    before = views.clone()
    probe.use_up(held)
    assert held == []
    assert torch.equal(views, before)
    found = probe.record()
    assert found is not None
    assert found.n_batches == 1
    assert found.n_bytes == (MIB + MIB - 1) * 4  # from the first byte of the view to its last
    assert found.n_faults < 100  # in memory that is mapped


def test_batches_without_tensors_are_let_go_all_the_same() -> None:
    probe = PageProbe()
    held: list[Any] = ["a text"]
    probe.use_up(held)
    assert held == []
    assert probe.record() is None
