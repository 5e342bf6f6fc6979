"""`with loaderdoctor.monitor()`: the loop of this process, recorded by another one."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderdoctor
from loaderdoctor.commands.run import monitor as monitor_module
from loaderdoctor.errors import RunError, UsageError

pytestmark = pytest.mark.slow

# Others may run their tests in this process: hooks of ours are looked for by name.
NEXT = torch.utils.data.dataloader._BaseDataLoaderIter.__next__


def train(n_steps: int) -> list[float]:
    """Losses of a loop with draws of its own."""
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(400, 8), torch.randint(0, 2, (400,)))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    losses: list[float] = []
    while len(losses) < n_steps:
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_the_loop_is_what_it_was_and_there_is_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = train(800)
    with loaderdoctor.monitor(
        output=tmp_path / "run", metrics_file=tmp_path / "metrics.prom"
    ) as monitor:
        watched = train(800)
    assert watched == alone
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is NEXT
    report = monitor.report(show=False)
    assert report is not None
    assert report.command == "run"
    assert report.run is not None and report.run.complete
    assert report.run.n_steps == 800
    assert report.target.startswith("test_monitor.py:")
    assert (tmp_path / "run" / "report.html").is_file()
    figures = (tmp_path / "metrics.prom").read_text().splitlines()
    assert "loaderdoctor_steps_total 800" in figures  # to the end, before any interval
    assert figures[-1] == "# EOF"
    capsys.readouterr()
    monitor.report()
    assert "The whole run" in capsys.readouterr().out


def test_only_one_block_at_a_time_is_recorded(tmp_path: Path) -> None:
    with loaderdoctor.monitor(output=tmp_path / "a"), pytest.raises(UsageError):
        loaderdoctor.monitor(output=tmp_path / "b").start()


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    own = psutil.Process()
    before = {p.pid for p in own.children(recursive=True)}
    monitor = loaderdoctor.monitor(output=tmp_path / "run")
    with monitor:
        train(200)
    left = [p for p in own.children(recursive=True) if p.pid not in before]
    assert all(p.status() == psutil.STATUS_ZOMBIE for p in left)


@pytest.mark.parametrize("body", ["import time\ntime.sleep(600)\n", "raise SystemExit(1)\n"])
def test_a_listener_that_cannot_be_had_leaves_the_loop_alone(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = tmp_path / "loaderdoctor" / "commands" / "run"
    fake.mkdir(parents=True)
    (fake / "apart.py").write_text(body)
    for package in (fake, *fake.parents[:2]):
        (package / "__init__.py").touch()  # without, one found later on the path has precedence
    monkeypatch.chdir(tmp_path)  # python -m looks here first
    monkeypatch.setattr(monitor_module, "START_S", 1.0)
    before = {p.pid for p in psutil.Process().children()}
    with loaderdoctor.monitor(output=tmp_path / "run") as monitor:
        assert len(train(100)) == 100
    assert {p.pid for p in psutil.Process().children()} <= before  # no zombie either
    assert "this loop goes on unrecorded" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert monitor.report() is None
    assert capsys.readouterr().err.count("\n") == 1


def test_ranks_above_the_first_are_told_where_the_report_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with loaderdoctor.monitor() as monitor:
        pass
    assert monitor.report() is None
    assert "of several ranks the first is recorded" in capsys.readouterr().err


def test_a_report_before_any_recording_is_refused() -> None:
    with pytest.raises(RunError, match="enter the block first"):
        loaderdoctor.monitor().report()


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that are waited for."""

    def __len__(self) -> int:
        return 800

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((8,), index / 800)


def train_slowly(n_epochs: int) -> list[float]:
    """What the loop sees of its batches and of its own draws."""
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=4, shuffle=True)
    seen: list[float] = []
    for _ in range(n_epochs):
        for x in loader:
            loss = torch.nn.functional.dropout(model(x)).mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            seen.append(loss.item())
    return seen


def test_a_loop_in_code_is_tuned_and_stays_what_it_was(tmp_path: Path) -> None:
    alone = train_slowly(6)
    with loaderdoctor.monitor(output=tmp_path / "run", tune="exact") as monitor:
        assert train_slowly(6) == alone
    report = monitor.report(show=False)
    assert report is not None
    run = report.run
    assert run is not None and run.tuning is not None
    assert run.tuning.not_tuned is None and run.tuning.tried
    assert not psutil.Process().children()
    # Its loader is gone, and with it all that had to stay for it.
    alone = train(400)
    with loaderdoctor.monitor(output=tmp_path / "next") as another:
        assert train(400) == alone
    after = another.report(show=False)
    assert after is not None and after.run is not None
    assert after.run.n_steps == 400
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is NEXT


def test_what_tune_can_be_is_said() -> None:
    with pytest.raises(UsageError, match="tune='fast'"):
        loaderdoctor.monitor(tune="fast")  # type: ignore[arg-type]
