"""Settings that go together are right together as written: every pair, in whole scripts."""

from __future__ import annotations

import contextlib
import gc
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from loaderdoctor.advice.source import unknown_names
from loaderdoctor.combinations import invalid_reason
from loaderdoctor.facts import Facts
from loaderdoctor.settings import Settings
from tests.advice.printed import applied, blocks, facts_of, printed
from tests.advice.test_printed_code import rows_of

HEAD = """\
import numpy
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

device = torch.device(DEVICE)
torch.manual_seed(3)
"""
ROWS = """\
x, y = torch.rand(40, 4), torch.rand(40, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)  # train loader
"""
# What the dataset makes of several indexes is a batch, and its collate function leaves it alone.
WHOLE = """\
class Whole(Dataset):
    def __init__(self):
        self.x, self.y = torch.rand(40, 4), torch.rand(40, 1)

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def __getitems__(self, indices):
        return [self.x[indices], self.y[indices]]


def as_made(batch):
    return batch


data = Whole()
loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=as_made)  # train loader
"""
ARRAYS = """\
class Arrays(Dataset):
    def __init__(self):
        draw = numpy.random.default_rng(0)
        self.x, self.y = draw.random((40, 4), "float32"), draw.random((40, 1), "float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] * 2, self.y[i]


data = Arrays()
loader = DataLoader(data, batch_size=8, shuffle=True)  # train loader
"""
TAIL = """\
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(2):
    for x, y in loader:  # train loop
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad(set_to_none=False)
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
KINDS = {"rows": ROWS, "whole": WHOLE, "arrays": ARRAYS}
# Settings and pairs that are written: those that need no GPU, and all.
N_WRITTEN = {"rows": (120, 136), "whole": (91, 105), "arrays": (106, 121)}
EACH = (
    Settings(num_workers=2),
    Settings(num_workers=2, worker_cpus="apart"),
    Settings(num_workers=2, worker_gc="frozen"),
    Settings(threads=3),
    Settings(batched=True),
    Settings(cache=True),
    Settings(packed=True),
    Settings(resident=True),
    Settings(background="host"),
    Settings(side_stream=True),
    Settings(pin_memory=True),
    Settings(non_blocking=True),
    Settings(cudnn_benchmark=True),
    Settings(num_threads=1),
    Settings(zero_grad_none=True),
    Settings(fused_optimizer=True),
    Settings(gc="manual"),
)
# Of settings that change the order of sums, over ten steps.
TOLERANCE = 1e-3


def valid_pairs() -> list[Settings]:
    own = Settings(num_workers=0)
    every = [b.over(a) for a, b in combinations(EACH, 2)]
    merged = dict.fromkeys((*EACH, *every))
    return [s for s in merged if invalid_reason(s.over(own), has_accelerator=True) is None]


def facts_in(tmp_path: Path, text: str, **recorded: Any) -> Facts:
    loader: dict[str, Any] = {"collate": "as_made" if "as_made" in text else "default_collate"}
    loader |= recorded
    return facts_of(tmp_path / "train.py", text=text, loader={**loader, "n_samples": 40})


def losses_of(text: str) -> list[float]:
    script = ModuleType("paired_script")  # workers name its classes by their module
    sys.modules[script.__name__] = script
    switches = torch.backends.cudnn.benchmark, torch.get_num_threads()
    try:
        exec(compile(text, "train.py", "exec"), vars(script))
    finally:
        del sys.modules[script.__name__]
        torch.backends.cudnn.benchmark = switches[0]
        torch.set_num_threads(switches[1])
        gc.enable()
        gc.unfreeze()
    return list(vars(script)["losses"])


def written_in(text: str, settings: Settings, tmp_path: Path) -> str | None:
    """The script with these settings, as printed; None where one of them is not written."""
    rows = rows_of(facts_in(tmp_path, text), settings)
    if not all(row.code for row in rows):
        return None
    after = applied(text, blocks(printed(rows)))
    assert after != text and unknown_names(after) <= unknown_names(text)
    return after


def check(kind: str, settings: Settings, tmp_path: Path, device: str) -> bool:
    """Whether these can be written as a whole; then the script must train as it did."""
    text = (HEAD + KINDS[kind] + TAIL).replace("DEVICE", repr(device))
    after = written_in(text, settings, tmp_path)
    if after is None:
        return False
    own, ours = losses_of(text), losses_of(after)
    assert len(own) == 10
    assert ours == pytest.approx(own, rel=TOLERANCE), after
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_that_is_written_trains_as_the_script_does(kind: str, tmp_path: Path) -> None:
    here = [s for s in valid_pairs() if not s.side_stream]  # that has CUDA's own streams
    written = [s for s in here if check(kind, s, tmp_path, "cpu")]
    assert len(written) == N_WRITTEN[kind][0]


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_pairs_are_written_as_ever(kind: str, tmp_path: Path) -> None:
    """None of them falls silently out of what is checked: what is left out makes no sense there."""
    text = (HEAD + KINDS[kind] + TAIL).replace("DEVICE", repr("cuda"))
    facts = facts_in(tmp_path, text)
    left_out = [s for s in valid_pairs() if not all(row.code for row in rows_of(facts, s))]
    written = [s for s in valid_pairs() if s not in left_out]
    assert (sum(not s.side_stream for s in written), len(written)) == N_WRITTEN[kind]
    wraps = {"rows": (), "whole": ("cache", "batched"), "arrays": ("batched",)}[kind]
    assert all(any(getattr(s, name) for name in wraps) for s in left_out)


@pytest.mark.parametrize("kind", KINDS)
def test_what_needs_a_gpu_is_written_beside_everything_else(kind: str, tmp_path: Path) -> None:
    text = (HEAD + KINDS[kind] + TAIL).replace("DEVICE", repr("cuda"))
    beside = [s for s in valid_pairs() if s.side_stream]
    written = [x for x in (written_in(text, s, tmp_path) for s in beside) if x is not None]
    assert len(written) > len(beside) // 2
    assert all("copied_ahead(" in one for one in written)
    assert any("copied_ahead(BackgroundGenerator(" in one for one in written)


class _NoStream:
    """One in which nothing is ever under way."""

    def wait_stream(self, other: object) -> None: ...


@pytest.fixture
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of what is written, without the streams: only a GPU has these."""
    monkeypatch.setattr(torch.cuda, "Stream", _NoStream)
    monkeypatch.setattr(torch.cuda, "current_stream", _NoStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)


@pytest.mark.usefixtures("no_streams")
def test_batches_copied_ahead_of_the_loop_train_as_the_script_does(tmp_path: Path) -> None:
    for settings in (Settings(), Settings(background="host"), Settings(gc="manual")):
        assert check("rows", Settings(side_stream=True).over(settings), tmp_path, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_that_is_written_trains_so_on_a_gpu(kind: str, tmp_path: Path) -> None:
    written = [s for s in valid_pairs() if check(kind, s, tmp_path, "cuda")]
    assert len(written) == N_WRITTEN[kind][1]


def test_what_makes_whole_batches_is_wrapped_in_nothing(tmp_path: Path) -> None:
    for settings in (Settings(cache=True), Settings(batched=True)):
        assert check("arrays", settings, tmp_path, "cpu") or settings.batched
        assert not check("whole", settings, tmp_path, "cpu")


@pytest.mark.parametrize(
    ("built", "dataset", "wraps"),
    [
        ("Whole()", "Whole", False),
        ("torch.utils.data.Subset(Whole(), range(40))", "Subset", False),
        ("torch.utils.data.random_split(Whole(), [30, 10])[0]", "Subset", False),
        ("Held(Whole(), range(40))", "Held", False),  # its class is derived from Subset
        ("TensorDataset(torch.rand(40, 4), torch.rand(40, 1))", "TensorDataset", True),
    ],
)
def test_what_may_hold_a_dataset_of_whole_batches_is_wrapped_in_nothing(
    tmp_path: Path, built: str, dataset: str, wraps: bool
) -> None:
    held = "class Held(torch.utils.data.Subset):\n    pass\n\n\n"
    text = HEAD + held + WHOLE.replace("data = Whole()", f"data = {built}") + TAIL
    facts = facts_in(tmp_path, text.replace("DEVICE", "'cpu'"), dataset=dataset)
    assert all(row.code for row in rows_of(facts, Settings(cache=True))) == wraps


def test_a_library_s_dataset_is_wrapped_where_the_script_makes_no_whole_batches(
    tmp_path: Path,
) -> None:
    text = ARRAYS.replace("data = Arrays()", "data = torch.utils.data.Subset(Arrays(), range(40))")
    facts = facts_in(tmp_path, (HEAD + text + TAIL).replace("DEVICE", "'cpu'"), dataset="Subset")
    assert all(row.code for row in rows_of(facts, Settings(cache=True)))


def test_samples_on_the_device_are_made_as_the_loader_makes_them(tmp_path: Path) -> None:
    for kind in KINDS:
        assert check(kind, Settings(resident=True), tmp_path, "cpu")
