"""The Python examples of docs/frameworks.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.test_api import Waiting, trainer

pytestmark = pytest.mark.alone
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def example(name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    assert found is not None
    return found[1]


def test_the_examples_run_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    model, step = trainer()

    def train_one_epoch(loader: Any) -> None:
        for batch in loader:
            step(batch)

    names: dict[str, Any] = {
        "loader": DataLoader(Waiting(600), 4),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "loss_function": torch.nn.functional.cross_entropy,
        "train_one_epoch": train_one_epoch,
        "n_epochs": 1,
    }
    exec(example("watch"), names)
    assert "What to change" in capsys.readouterr().out
    exec(example("watching"), names)
    assert capsys.readouterr().out.splitlines()[-1].startswith("input 0.")
