"""The collector's lines: where the loop is the script's own, before it and at each epoch's end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from loaderdoctor.advice.writing import written
from loaderdoctor.settings import Settings
from tests.advice.printed import SCRIPTS, applied, blocks, facts_of, marked

EPOCHS = """import torch
from torch.utils.data import DataLoader

loader = DataLoader(list(range(8)), batch_size=2)  # train loader
for epoch in range(3):
    for batch in loader:  # train loop
        print(batch)
    print(epoch)
"""
CALLED = """import gc
from torch.utils.data import DataLoader

def train(loader):
\tfor batch in loader:  # train loop
\t\tprint(batch)

loader = DataLoader(list(range(8)), batch_size=2)  # train loader
for epoch in range(3):
\ttrain(loader)
"""


def after(text: str, gc: str) -> str:
    facts = facts_of(Path("train.py"), text=text)
    return applied(text, blocks(written(facts, Settings(gc=gc)).code))  # type: ignore[arg-type]


def test_frozen_once_before_the_epochs() -> None:
    found = after(EPOCHS, "frozen")
    assert "import gc\n" in found
    assert "gc.collect()\ngc.freeze()\nfor epoch in range(3):\n" in found


def test_by_hand_at_the_end_of_each_epoch() -> None:
    found = after(EPOCHS, "manual")
    assert "gc.disable()\nfor epoch" in found
    assert "        print(batch)\n    gc.collect()\n    print(epoch)\n" in found


def test_a_loop_that_each_epoch_calls_freezes_once_in_the_scripts_own_indent() -> None:
    found = after(CALLED, "frozen")
    assert found.count("import gc") == 1
    assert (
        "\tglobal objects_frozen\n\tif not objects_frozen:\n\t\tobjects_frozen = True\n"
        "\t\tgc.collect()\n\t\tgc.freeze()\n\tfor batch" in found
    )
    froze: list[str] = []
    own = SimpleNamespace(collect=lambda: froze.append("c"), freeze=lambda: froze.append("f"))
    code = compile(found.replace("import gc\n", ""), "train.py", "exec")
    exec(code, {"gc": own, "__name__": "train"})
    assert froze == ["c", "f"]  # of three epochs


def test_a_flag_of_the_scripts_own_is_left_alone() -> None:
    own = CALLED.replace("import gc\n", "import gc\nobjects_frozen = True\n")
    found = written(facts_of(Path("train.py"), text=own), Settings(gc="frozen"))
    assert not found.code
    assert found.idea


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda p: p.stem)
@pytest.mark.parametrize("gc", ["frozen", "manual"])
def test_every_script_gets_code_that_compiles_or_words(path: Path, gc: str) -> None:
    text = path.read_text()
    facts = facts_of(path)
    found = written(facts, Settings(gc=gc))  # type: ignore[arg-type]
    if marked(text, "train loop") is None or not found.code:
        assert found.idea
        return
    compile(applied(text, blocks(found.code)), path.name, "exec")
