"""What a step's tensors take on a CPU: by the allocator's reports, in one step of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from loaderdoctor.instrument.session.profiling import largest_rise, with_tensor_peak
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest

WIDTH, BATCH, DEPTH = 32, 2048, 8
LAYER_BYTES = 4 * WIDTH * BATCH  # what one layer's output takes


def test_the_rise_is_from_the_lowest_level_to_the_highest_after_it() -> None:
    assert largest_rise([]) == 0
    assert largest_rise([5, -5, 3, 4, -7]) == 7
    assert largest_rise([-10, 6, -2, 5]) == 9  # the gradients of the step before go first
    assert largest_rise([-3, -4]) == 0


def window(step: Callable[[], None], *, asked: bool = True, n_expected: int = 2) -> WindowDone:
    """A window of one step of a CPU loop, and the step after it that is watched."""

    def steps() -> Generator[None, int, WindowDone]:
        yield
        return WindowDone(id=1, mode="plain", status="ok", n_steps=1, host_step_ns=(1,))

    request = WindowRequest(id=1, mode="plain", n_steps=1, tensor_memory=asked)
    running = with_tensor_peak(None, request, steps())
    next(running)
    n_steps = 0
    while True:
        step()
        n_steps += 1
        try:
            running.send(0)
        except StopIteration as stop:
            assert n_steps == n_expected
            done: WindowDone = stop.value
            return done


def loop(*, keep: bool) -> Callable[[], None]:
    in_parts: Any = checkpoint_sequential
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8)))
    x = torch.randn(BATCH, WIDTH, requires_grad=True)

    def step() -> None:
        layers.zero_grad()
        y = layers(x) if keep else in_parts(layers, 4, x, use_reentrant=False)
        y.square().mean().backward()

    return step


def test_activations_that_are_made_again_take_less_than_those_kept() -> None:
    kept = window(loop(keep=True)).tensor_peak_bytes
    again = window(loop(keep=False)).tensor_peak_bytes
    assert kept is not None
    assert again is not None
    # Tanh keeps its output, which is the next layer's input: one tensor a layer, and the gradients.
    assert DEPTH * LAYER_BYTES <= kept <= (DEPTH + 6) * LAYER_BYTES
    assert again < 0.8 * kept


def test_what_was_not_asked_for_or_is_not_the_cpus_is_not_recorded() -> None:
    assert window(loop(keep=True), asked=False, n_expected=1).tensor_peak_bytes is None


def test_a_profiler_of_the_scripts_own_is_left_alone() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        done = window(loop(keep=True), n_expected=1)
    assert (done.status, done.tensor_peak_bytes) == ("ok", None)


def test_a_window_cut_short_is_not_gone_on_with() -> None:
    def steps() -> Generator[None, int, WindowDone]:
        yield
        return WindowDone(id=1, mode="plain", status="short", reason="over")

    request = WindowRequest(id=1, mode="plain", n_steps=1, tensor_memory=True)
    running = with_tensor_peak(None, request, steps())
    next(running)
    with pytest.raises(StopIteration):
        running.send(0)
