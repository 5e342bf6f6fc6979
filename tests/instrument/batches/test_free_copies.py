"""The loop's copies answered with tensors that are on the device already."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from loaderdoctor.instrument.batches.free_copies import FreeCopies
from loaderdoctor.instrument.batches.h2d import H2DCall
from tests.instrument.on_meta import META, X

pytestmark = pytest.mark.usefixtures("no_hook_stays")


class Copies:
    """How often torch itself was asked to copy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        original = H2DCall.make

        def counted(call: H2DCall) -> Tensor:
            self.n += 1
            return original(call)

        monkeypatch.setattr(H2DCall, "make", counted)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def test_known_calls_are_answered_without_a_copy(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    for step in range(5):
        if step == 1:
            free.start_counting()
        free.begin_step()
        x = torch.zeros(4, 3).to(META, torch.float16, non_blocking=True)
        y = torch.zeros(4, 3).to(META)
        assert (x.dtype, y.dtype, x.device.type) == (torch.float16, torch.float32, "meta")
        stays = torch.zeros(4).to(torch.int64)
        assert stays.device.type == "cpu"
    free.remove()
    assert copies.n == 2
    assert (free.hits, free.misses, free.reason) == (8, 0, None)


def test_batches_that_come_once_are_answered_with_copies_made_ahead(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    batches = [torch.full((n, 3), float(n)) for n in range(1, 6)]  # each of another shape
    free.copy_ahead(batches)
    free.start_counting()
    for batch in batches:
        free.begin_step()
        handed_out = batch.detach()
        target = torch.empty_like(handed_out, device="meta")
        assert target.copy_(handed_out) is target
        assert handed_out.to(META).shape == handed_out.cpu().shape
    free.remove()
    assert copies.n == 0
    assert (free.hits, free.misses, free.reason) == (10, 0, None)


@pytest.mark.parametrize("change", ["mul_", "requires_grad_"])
def test_a_batch_moved_twice_gives_two_tensors(copies: Copies, change: str) -> None:
    free = FreeCopies(META)
    free.install()
    batches = [torch.full((n, 3), float(n)) for n in range(1, 6)]
    free.copy_ahead(batches)
    free.start_counting()
    for batch in batches:
        free.begin_step()
        one, two = batch.to(META), batch.to(META)
        version = two._version
        one.mul_(2.0) if change == "mul_" else one.requires_grad_()
        assert one is not two and one.untyped_storage()._cdata != two.untyped_storage()._cdata
        assert (two._version, two.requires_grad) == (version, False)
        target = torch.empty_like(batch, device="meta")
        assert target.copy_(batch) is target  # not from what the loop has changed
    free.remove()
    assert (free.hits, free.misses, copies.n) == (5, 10, 10)
    assert free.reason is not None and "copied more than once" in free.reason


def test_what_the_loop_made_of_them_is_copied_as_it_is(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    batches = [torch.full((n, 4), float(n)) for n in range(1, 6)]
    free.copy_ahead(batches)
    free.start_counting()
    for n, batch in enumerate(batches):
        free.begin_step()
        others = (
            batch.to(META, torch.float16),  # converted on the way
            batch[:, :2].to(META),  # a part of it
            batch.t().to(META),
            (batch + 1).to(META),
            batch.mul_(2.0).to(META),  # changed in place
        )
        assert others[0].dtype == torch.float16 and others[2].shape == (4, n + 1)
    free.remove()
    assert copies.n == free.misses == 25
    assert free.reason is not None
    free.copy_ahead(())
    assert batches[0].to(META).device.type == "meta"


def test_shapes_that_always_change_give_a_reason(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    free.start_counting()
    for step in range(5):
        free.begin_step()
        torch.zeros(step + 1).to(META)
    free.remove()
    assert free.hits == 0
    assert free.reason is not None
    assert free.reason.startswith("5 of 5")


def test_each_recorded_batch_has_its_own_answers_and_others_stand_in(copies: Copies) -> None:
    position = 0
    free = FreeCopies(META, position=lambda: position)
    free.install()
    for step in range(8):
        if step == 4:
            free.start_counting()
        position = step % 4
        free.begin_step()
        torch.zeros(3).to(META)
    assert copies.n == 4
    position = 99
    free.begin_step()
    torch.zeros(3).to(META)
    free.remove()
    assert copies.n == 4
    assert (free.hits, free.misses) == (5, 0)


def test_parameters_gradients_and_modules_are_let_through(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    weight = nn.Parameter(torch.ones(3))
    embedded = weight * 2
    norm = nn.BatchNorm1d(3)
    for step in range(4):
        if step == 2:
            free.start_counting()
        free.begin_step()
        weight.to(META)
        assert embedded.to(META).grad_fn is not None
        norm._buffers["running_mean"] = torch.zeros(3)
        norm.to("meta")
    free.remove()
    assert free.hits == 0
    assert free.reason is not None


def test_copies_into_the_loops_buffer_return_that_buffer(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    buffer = torch.empty(2, 3, device="meta")
    for step in range(4):
        if step == 1:
            free.start_counting()
        free.begin_step()
        before = buffer._version
        assert buffer.copy_(torch.zeros(2, 3), non_blocking=True) is buffer
        assert (buffer._version == before) is (step > 0)
    free.remove()
    assert copies.n == 1
    assert free.hits == 3


def test_a_buffer_that_changed_or_is_new_is_filled_on_the_device(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    buffer = torch.empty(3, device="meta")
    for step in range(4):
        if step == 1:
            free.start_counting()
        free.begin_step()
        before = buffer._version
        buffer.copy_(torch.zeros(3))
        assert buffer._version > before
        buffer.div_(255)
        fresh = torch.empty(4, device="meta")
        fresh.copy_(torch.zeros(4))
        assert fresh._version == 1
    free.remove()
    assert copies.n == 2


def test_two_halves_of_one_buffer_stay_filled(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()
    buffer = torch.empty(2, 3, device="meta")
    for step in range(4):
        if step == 1:
            free.start_counting()
            before = buffer._version
        free.begin_step()
        buffer[0].copy_(torch.zeros(3))
        buffer[1].copy_(torch.zeros(3))
    free.remove()
    assert copies.n == 2
    assert buffer._version == before


def test_each_threads_calls_are_counted_on_their_own(copies: Copies) -> None:
    free = FreeCopies(META)
    free.install()

    def prefetcher() -> None:
        for _ in range(5):
            free.begin_step()
            torch.zeros(7).to(META)
            torch.zeros(7, dtype=torch.int64).to(META)

    def copier() -> None:
        for _ in range(5):
            torch.zeros(9).to(META)

    for _ in range(2):
        threads = [threading.Thread(target=prefetcher), threading.Thread(target=copier)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        free.start_counting()
    free.remove()
    assert copies.n == 3


def test_answers_are_freed() -> None:
    free = FreeCopies(META)
    free.install()
    free.begin_step()
    X.to(META)
    free.remove()
    assert len(free._pools()) == 1
    free.release()
    assert free._pools() == []
