"""Compute axes in a watched loop: on during the window, and without a trace after it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.session.compute_watch import N_WATCHED
from loaderdoctor.instrument.trial import compute_switches as switches
from loaderdoctor.instrument.wire.protocol import WindowDone, WindowRequest
from loaderdoctor.settings import Settings
from tests.instrument.watched import Watched, watch


class Images(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3, 8, 8), index / 64), index % 2


class Inner(nn.Module):
    """Tells what it saw when it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.seen: list[tuple[bool, bool, torch.dtype]] = []

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.conv(images)
        channels_last = images.is_contiguous(memory_format=torch.channels_last)
        self.seen.append((torch.is_autocast_enabled("cpu"), channels_last, made.dtype))
        return made


class Loop:
    """Trains a small convolutional model; `each` is called after each step."""

    def __init__(self, optimizer: str = "Adam", each: Callable[[Loop], None] | None = None) -> None:
        torch.manual_seed(0)
        self.inner = Inner()
        self.model = nn.Sequential(
            self.inner, nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(144, 2)
        )
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-3)
        self.outputs: list[torch.dtype] = []
        self.grads: list[bool] = []
        self._each = each

    def step(self, images: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        self.grads.append(self.inner.conv.weight.grad is None)
        output = self.model(images)
        self.outputs.append(output.dtype)
        loss: Any = nn.functional.cross_entropy(output, labels)
        loss.backward()
        self.optimizer.step()
        if self._each is not None:
            self._each(self)

    def __call__(self) -> None:
        loader = DataLoader(Images(), batch_size=4)
        for _ in range(12):
            for images, labels in loader:
                self.step(images, labels)

    def state(self) -> dict[str, Any]:
        """Everything a switch touches, but for values that training changes."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return {
            "attributes": {
                name: (
                    sorted(vars(m)),
                    len(m._forward_pre_hooks),
                    len(m._forward_hooks),
                    getattr(m.forward, "__func__", None),
                )
                for name, m in self.model.named_modules()
            },
            "memory": [(t.data_ptr(), t.stride()) for t in tensors],
            "optimizer": sorted(set(vars(self.optimizer)) - {"_opt_called"}),
            "groups": [
                {k: v for k, v in group.items() if k != "params"}
                for group in self.optimizer.param_groups
            ],
            "state": [
                {k: (v.data_ptr(), v.stride(), v.device) for k, v in state.items()}
                for state in self.optimizer.state.values()
            ],
            "flags": (
                torch.backends.cudnn.benchmark,
                torch.get_float32_matmul_precision(),
                torch.get_num_threads(),
                len(torch_module._global_forward_hooks),
                len(torch_module._global_forward_pre_hooks),
            ),
        }


def trial(id_: int, settings: Settings, n_steps: int = 6) -> WindowRequest:
    return WindowRequest(id=id_, mode="trial", n_steps=n_steps, settings=settings, limit_s=60.0)


def run(loop: Loop, *settings: Settings) -> Watched:
    plain = WindowRequest(id=0, mode="plain", n_steps=4, limit_s=60.0)
    return watch(loop, plain, *(trial(i, s) for i, s in enumerate(settings, start=1)))


def windows(watched: Watched) -> list[WindowDone]:
    return [window for window in watched.windows if window.mode == "trial"]


SWITCHED = [
    Settings(amp=True),
    Settings(channels_last=True),
    Settings(zero_grad_none=False),
    Settings(checkpoint=True),
    Settings(fused_optimizer=True),
    Settings(amp=True, channels_last=True, checkpoint=True, fused_optimizer=True, batch_size=8),
]


@pytest.mark.parametrize("settings", SWITCHED, ids=Settings.label)
def test_after_the_window_everything_is_as_it_was(settings: Settings) -> None:
    states: list[dict[str, Any]] = []
    loop = Loop(each=lambda loop: states.append(loop.state()))
    (window,) = windows(run(loop, settings))
    assert window.status == "ok", window.reason
    assert window.n_steps == 6
    usual = states[0]
    assert states[-1] == usual
    others = [state for state in states if state != usual]
    assert len(others) >= N_WATCHED + window.n_steps  # it was on meanwhile


def test_peaks_of_memory_are_of_steps_with_the_switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    resets: list[int] = []
    monkeypatch.setattr(
        "loaderdoctor.instrument.system.memory.reset_gpu_peaks",
        lambda device: resets.append(len(loop.inner.seen)),
    )
    run(loop, Settings(amp=True))
    assert len(resets) == 2  # of the plain window, and of the trial behind its switch
    assert not loop.inner.seen[resets[-1] - 1][0]
    assert all(autocast for autocast, _, _ in loop.inner.seen[resets[-1] : resets[-1] + 6])


def test_autocast_reaches_the_model_and_the_loss_gets_float32() -> None:
    loop = Loop()
    watched = run(loop, Settings(amp=True))
    assert {(seen[0], seen[2]) for seen in loop.inner.seen} == {
        (False, torch.float32),
        (True, torch.bfloat16),
    }
    assert set(loop.outputs) == {torch.float32}
    assert any("bfloat16" in note.text for note in watched.notes if note.kind == "amp-dtype")


def test_channels_last_converts_weights_state_and_inputs() -> None:
    formats: list[tuple[bool, bool]] = []

    def look(loop: Loop) -> None:
        weight: Any = loop.model[2].weight
        average = loop.optimizer.state[weight]["exp_avg"]
        last = torch.channels_last
        formats.append(
            (weight.is_contiguous(memory_format=last), average.is_contiguous(memory_format=last))
        )

    loop = Loop(each=look)
    run(loop, Settings(channels_last=True))
    assert set(formats) == {(False, False), (True, True)}
    assert {seen[1] for seen in loop.inner.seen} == {False, True}


def test_gradients_are_zeroed_instead_of_dropped_where_asked() -> None:
    loop = Loop()
    (kept, dropped) = windows(run(loop, Settings(zero_grad_none=False), Settings(amp=True)))
    assert kept.status == dropped.status == "ok"
    assert set(loop.grads) == {True, False}
    assert loop.grads[-1] is True


def test_a_loop_that_clears_gradients_itself_cannot_be_switched() -> None:
    class Own(Loop):
        def step(self, images: Tensor, labels: Tensor) -> None:
            for parameter in self.model.parameters():
                parameter.grad = None
            loss: Any = nn.functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()

    (window,) = windows(run(Own(), Settings(zero_grad_none=False)))
    assert window.status == "failed"
    assert "without zero_grad" in (window.reason or "")


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_fused_steps_give_the_same_parameters(optimizer: str) -> None:
    usual, fused = Loop(optimizer), Loop(optimizer)
    batches = list(DataLoader(Images(), batch_size=4))
    for images, labels in batches[:4]:
        usual.step(images, labels)
        fused.step(images, labels)
    for i, (images, labels) in enumerate(batches[4:12]):
        usual.step(images, labels)
        if i < 4:
            with switches.fused(fused.optimizer, True):
                fused.step(images, labels)
        else:
            fused.step(images, labels)
    for a, b in zip(usual.model.parameters(), fused.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_an_optimizer_without_fused_kernels_is_left_out_with_the_reason() -> None:
    (window,) = windows(run(Loop("RMSprop"), Settings(fused_optimizer=True)))
    assert window.status == "skipped"
    assert "RMSprop has no fused version" in (window.reason or "")


def _same_gradients(change: Callable[[Loop], AbstractContextManager[Any]]) -> None:
    usual, other = Loop(), Loop()
    images, labels = next(iter(DataLoader(Images(), batch_size=8)))
    usual.step(images, labels)
    with change(other):
        other.step(images, labels)
    for a, b in zip(usual.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_checkpointed_parts_give_the_same_gradients_and_run_twice() -> None:
    _same_gradients(lambda loop: switches.checkpointed(loop.model))
    loop = Loop()
    calls: list[nn.Module] = []
    loop.inner.conv.register_forward_pre_hook(lambda module, args: calls.append(module))
    images, labels = next(iter(DataLoader(Images(), batch_size=8)))
    with switches.checkpointed(loop.model):
        loop.step(images, labels)
    assert len(calls) == 2


def test_channels_last_gives_the_same_gradients() -> None:
    _same_gradients(lambda loop: switches.channels_last(loop.model, [loop.optimizer]))


def test_what_needs_a_change_of_the_script_says_so() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(2, 2)

    with pytest.raises(TrialRefused, match="change of the script"), switches.checkpointed(Plain()):
        pass
    with pytest.raises(TrialRefused, match="no 4-d"), switches.channels_last(Plain(), []):
        pass


def test_a_model_that_does_not_compile_is_a_failed_trial_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(forward: Any) -> Any:
        def fails(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no compiler here\nlong story")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    loop = Loop()
    failed, plain = windows(run(loop, Settings(compile=True), Settings()))
    assert failed.status == "failed"
    assert failed.reason == "torch.compile: RuntimeError: no compiler here"
    assert plain.status == "ok"
    assert len(loop.outputs) == 12 * 16
    assert "forward" not in vars(loop.model)


def test_validation_and_short_last_batches_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def recording(forward: Any) -> Any:
        def compiled(images: Tensor) -> Any:
            sizes.append(len(images))
            return forward(images)

        return compiled

    monkeypatch.setattr(torch, "compile", recording)
    model, failures = nn.Linear(2, 2), list[str]()
    known: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()
    with switches.compiled(model, known, failures):
        for n in (4, 3, 4, 8):
            model(torch.zeros(n, 2))
        with torch.no_grad():
            model(torch.zeros(4, 2))
    assert sizes == [4, 4, 8]
    assert failures == []


@pytest.mark.slow
def test_a_compiled_model_trains_and_is_compiled_once() -> None:
    loop = Loop()
    watched = run(loop, Settings(compile=True), Settings(), Settings(compile=True))
    first, _, again = windows(watched)
    assert (first.status, again.status) == ("ok", "ok"), first.reason
    assert "forward" not in vars(loop.model)


def test_both_models_of_a_loop_with_two_optimizers_are_switched() -> None:
    class Two(Loop):
        def __init__(self) -> None:
            super().__init__()
            self.critic = nn.Linear(2, 1)
            self.other = torch.optim.SGD(self.critic.parameters(), lr=1e-3)

        def step(self, images: Tensor, labels: Tensor) -> None:
            super().step(images, labels)
            self.other.zero_grad()
            self.critic(torch.ones(1, 2)).sum().backward()
            self.other.step()

    loop = Two()
    seen: list[bool] = []
    loop.critic.register_forward_hook(
        lambda m, args, out: seen.append("forward" in vars(loop.critic))
    )
    run(loop, Settings(amp=True))
    assert set(seen) == {False, True}
    assert "forward" not in vars(loop.critic)
    assert "forward" not in vars(loop.model)


def test_samples_per_second_count_the_trials_own_batches() -> None:
    (small, large) = windows(run(Loop(), Settings(batch_size=2), Settings(batch_size=16)))
    assert (small.n_samples, large.n_samples) == (12, 96)
