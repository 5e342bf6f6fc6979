"""The main guard that spawned workers need: around what runs, which stays what it is."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import msgspec

from loaderdoctor.advice.code import Written
from loaderdoctor.advice.writing import written
from loaderdoctor.instrument.wire.records import SafetyRecord
from loaderdoctor.settings import Settings
from tests.advice.printed import applied, blocks, facts_of
from tests.findings.builders import machine

SCRIPT = """import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __getitem__(self, i):
        return torch.tensor(TABLE[i])
    def __len__(self):
        return 3
TABLE = {}
"""
RUNS = """torch.manual_seed(0)
text, n = f'''a
  {n} b
 c''', 'd \\
e'
loader = DataLoader(Rows(), batch_size=8)  # train loader
for x in loader:  # train loop
    print(text)
"""


def spawned(text: str) -> Written:
    facts = facts_of(Path("train.py"), text=text)
    assert facts.main_loader is not None
    unguarded = SafetyRecord(guard_missing="if __name__ ...")
    loader = msgspec.structs.replace(facts.main_loader, safety=unguarded)
    on_spawn = replace(facts, loaders=(loader,), machine=machine(start_method="spawn"))
    return written(on_spawn, Settings(num_workers=2))


def test_what_runs_goes_under_the_guard_and_keeps_its_texts() -> None:
    text = SCRIPT + RUNS
    after = ast.parse(applied(text, blocks(spawned(text).code)))
    *_, guard = after.body
    assert isinstance(guard, ast.If)
    own = ast.parse(RUNS.replace("batch_size=8", "batch_size=8, num_workers=2"))
    assert ast.dump(ast.Module(guard.body, [])) == ast.dump(own)


def test_what_fills_the_samples_is_not_kept_from_the_workers() -> None:
    for line in (
        "TABLE[0] = [1.0]",
        "for i in range(3):\n    TABLE[i] = [i]",
        "TABLE.update({0: 1})",
    ):
        said = spawned(f"{SCRIPT}{line}\n{RUNS}")
        assert "__main__" not in said.code and "num_workers=2" in said.code
        assert said.idea is not None and "workers import the script again" in said.idea
