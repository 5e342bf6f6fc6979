"""What must be gone after a test: the workers and threads of its trials, hooks on tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from torch import Tensor

from loaderdoctor.instrument import h2d
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
