"""`loaderdoctor.watch` and `watching`: loops of this process, measured and left as they were."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import dataloader as torch_dataloader

import loaderdoctor
from loaderdoctor.diagnosis import Diagnosis
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.instrument.session.hooks import Hooks

alone = pytest.mark.alone
Batch = tuple[torch.Tensor, torch.Tensor]


class Waiting(Dataset[tuple[torch.Tensor, int]]):
    """Samples that take 3 ms, and differ from run to run only by torch's seed."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.003)
        return torch.full((8,), float(index)) + torch.randn(8), index % 2


def trainer() -> tuple[torch.nn.Module, Callable[[Batch], float]]:
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: Batch) -> float:
        x, y = batch
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        return loss.item()

    return model, step


def patched() -> list[Any]:
    """Everything of torch's that is replaced while we watch."""
    return [
        DataLoader.__init__,
        DataLoader.__iter__,
        torch_dataloader._BaseDataLoaderIter.__init__,
        torch_dataloader._BaseDataLoaderIter.__next__,
        torch_dataloader._MultiProcessingDataLoaderIter._shutdown_workers,
        torch.autograd.backward,
        torch.utils.data._utils.worker._worker_loop,
        torch.utils.data._utils.pin_memory._pin_memory_loop,
        len(sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks),
    ]


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Any:
    before = patched()
    yield
    assert patched() == before
    assert Hooks.active is None
    assert not [t for t in threading.enumerate() if t.name == "loaderdoctor"]


@alone
def test_a_watched_pass_prints_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Waiting(800), 4)
    _, step = trainer()
    watched = loaderdoctor.watch(loader)
    assert len(watched) == 200
    assert sum(1 for batch in watched if step(batch)) == 200
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Input-bound, high test_api.py:")
    assert "loader-in-main-process" in said


def test_results_of_a_watched_loop_are_those_of_an_unwatched_one() -> None:
    def run(batches: Callable[[DataLoader[Any]], Any]) -> tuple[list[float], str]:
        torch.manual_seed(5)
        loader = DataLoader(Waiting(240), 2, shuffle=True)
        model, step = trainer()
        losses = [step(batch) for batch in batches(loader)]
        return losses, str([p.tolist() for p in model.parameters()])

    assert run(lambda loader: loader) == run(loaderdoctor.watch)


@pytest.mark.slow
@alone
def test_a_block_may_hold_several_short_epochs_and_write_a_run_folder(tmp_path: Path) -> None:
    with loaderdoctor.watching(ablation=True, budget_s=8, output=tmp_path / "run") as watched:
        loader = DataLoader(Waiting(40), 4)
        _, step = trainer()
        lengths = [sum(1 for batch in loader if step(batch)) for _ in range(60)]
    report = watched.report(show=False)
    assert set(lengths) == {10}
    assert report.verdict.bound == "input"
    assert report.step.steps_per_epoch == 10
    assert report.ablation is not None and report.ablation.no_input_ms is not None
    assert report.ablation.no_input_ms < 0.5 * report.ablation.plain_ms
    assert (tmp_path / "run" / "report.json").stat().st_size > 1000
    assert list((tmp_path / "run" / "tensorboard" / "baseline").glob("*.pt.trace.json.gz"))
    assert watched.report(show=False) is report


@pytest.mark.slow
def test_settings_can_be_tried_in_a_watched_loop() -> None:
    with loaderdoctor.watching(verify=True, budget_s=12) as watched:
        _, step = trainer()
        for batch in DataLoader(Waiting(4000), 4):
            step(batch)
            if Hooks.active is not None and not Hooks.active._session.live:
                break  # everything is measured
    trials = watched.report(show=False).trials
    assert len(trials) >= 2
    assert {t.status for t in trials} == {"ok"}


def test_a_watched_pass_that_the_loop_leaves_prints_its_report_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watched = loaderdoctor.watch(DataLoader(Waiting(4000), 4))
    _, step = trainer()
    for n, batch in enumerate(watched):
        step(batch)
        if n == 200:
            break
    assert "loader-in-main-process" in capsys.readouterr().out
    # The next epoch goes on, unwatched.
    assert sum(1 for batch in watched if step(batch)) == 1000
    assert capsys.readouterr() == ("", "")


def test_a_loop_goes_on_where_what_measures_it_breaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Diagnosis, observed: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(Diagnosis, "measure", broken)
    n_steps: list[int] = []

    def loop() -> None:
        _, step = trainer()
        n_steps.append(sum(1 for x in loaderdoctor.watch(DataLoader(Waiting(400), 4)) if step(x)))

    running = threading.Thread(target=loop, daemon=True)
    running.start()
    running.join(60)
    assert n_steps == [100], "the loop waits for its next window"
    assert "KeyError('ours')" in capsys.readouterr().err


def test_too_few_steps_are_said_to_be_too_few(capsys: pytest.CaptureFixture[str]) -> None:
    _, step = trainer()
    for batch in loaderdoctor.watch(DataLoader(Waiting(16), 4)):
        step(batch)
    out, err = capsys.readouterr()
    assert out == ""
    assert "ended before enough training steps were seen" in err
    with loaderdoctor.watching() as watched:
        pass
    with pytest.raises(RunError, match="no torch DataLoader was iterated"):
        watched.report()


def test_an_error_in_the_loop_is_the_users_own_and_what_was_measured_is_kept() -> None:
    watched = loaderdoctor.watching()

    def train() -> None:
        _, step = trainer()
        with watched:
            for n, batch in enumerate(DataLoader(Waiting(4000), 4)):
                step(batch)
                if n == 120:
                    _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        train()
    assert watched.report(show=False).verdict.bound in ("input", "unknown")


def test_two_blocks_at_a_time_are_refused() -> None:
    with (
        loaderdoctor.watching(),
        pytest.raises(UsageError, match="another loop"),
        loaderdoctor.watching(),
    ):
        pass


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys, loaderdoctor\n"
        "assert not {'torch', 'numpy', 'msgspec', 'click'} & set(sys.modules)\n"
        "loaderdoctor.watch\n"
        "assert 'torch' not in sys.modules\n"
        "try: loaderdoctor.nothing\n"
        "except AttributeError: pass"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
