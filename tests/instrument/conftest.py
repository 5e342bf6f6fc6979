"""What must be gone after a test: workers and threads of its trials, hooks on tensors, ranks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

from loaderdoctor.instrument.batches import h2d
from tests.instrument.ranks import MARK, children_of_test
from tests.instrument.trial_cases import background_threads, children


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """After the test there is no worker that was not there before, and no thread of a trial."""
    before = children()
    yield
    gc.collect()
    assert children() <= before
    assert background_threads() == []


@pytest.fixture
def no_hook_stays() -> Iterator[None]:
    """After the test no call of a tensor's goes through us, whether it removed its hook or not."""
    yield
    if h2d._Patch.hook is not None:
        h2d._Patch.hook.remove()
    for name in ("to", "cuda", "copy_"):
        assert name not in Tensor.__dict__


@pytest.fixture(autouse=True)
def compiled_code_is_forgotten() -> Iterator[None]:
    """After the test torch.compile has compiled nothing: a loop with compiled code is watched less.

    One process runs many tests, and `compute_watch` asks dynamo's counters of the whole process.
    """
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
        dynamo.utils.counters.clear()


@pytest.fixture
def no_process_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After the test nothing runs that it started; one intra-op thread in each."""
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    assert children_of_test(tmp_path) == []
