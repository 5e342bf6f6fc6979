"""The collector's lines: before the script's own loop and at each epoch's end; in workers."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


SEEDED = """from torch.utils.data import DataLoader

def seeded(worker):
    called.append(worker)

called = []
loader = DataLoader(list(range(8)), num_workers=2, worker_init_fn={init})  # train loader
"""


@pytest.mark.parametrize("how", ["frozen", "rarely"])
@pytest.mark.parametrize(
    ("init", "calls"), [("seeded", [3]), ("lambda n: seeded(n + 1)", [4]), ("None", [])]
)
def test_workers_do_what_they_did_and_freeze_behind_it(
    how: str, init: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SEEDED.format(init=init)
    facts = facts_of(Path("train.py"), text=text)
    found = applied(text, blocks(written(facts, Settings(worker_gc=how)).code))  # type: ignore[arg-type]
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(found, "train.py", "exec"), names)
    done: list[object] = []
    monkeypatch.setattr(gc, "freeze", lambda: done.append(("frozen", list(names["called"]))))
    monkeypatch.setattr(gc, "set_threshold", lambda *x: done.append(x))
    names["loader"].worker_init_fn(3)
    rare = [(50_000, 20, 50)] if how == "rarely" else []
    assert done == [("frozen", calls), *rare]


def test_both_a_cpu_and_a_collector_go_into_one_function() -> None:
    text = SEEDED.replace(", worker_init_fn={init}", "")
    wanted = Settings(worker_cpus="apart", worker_gc="frozen", num_workers=3)
    found = written(facts_of(Path("train.py"), text=text), wanted).code
    assert "worker_init_fn=Frozen(own_cpu)" in found
    compile(applied(text, blocks(found)), "train.py", "exec")


@pytest.mark.parametrize("how", [{"worker_gc": "frozen"}, {"worker_cpus": "apart"}])
@pytest.mark.parametrize("arguments", ["", ", worker_init_fn=None"])
def test_a_librarys_worker_init_fn_is_not_kept_away(how: dict[str, Any], arguments: str) -> None:
    """Lightning gives one where the script has none: `Frozen()` would leave workers unseeded."""
    text = SEEDED.replace(", worker_init_fn={init}", arguments)
    seeded = facts_of(Path("train.py"), text=text, loader={"has_init": True})
    found = written(seeded, Settings(**how))
    assert "worker_init_fn=" not in found.code
    assert "gives it a worker_init_fn" in (found.idea or "")
    if not arguments or how.get("worker_gc"):
        bare = written(facts_of(Path("train.py"), text=text), Settings(**how))
        assert "worker_init_fn=" in bare.code


def test_a_worker_init_fn_that_cannot_be_seen_is_not_overwritten() -> None:
    text = SEEDED.format(init="None").replace("worker_init_fn=None", "**options")
    found = written(facts_of(Path("train.py"), text=text), Settings(worker_gc="frozen"))
    assert "worker_init_fn=" not in found.code
    assert "worker_init_fn" in (found.idea or "")
