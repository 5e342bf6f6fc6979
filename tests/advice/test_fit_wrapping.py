"""Where a loader whose workers are kept is built, and what a rebuilt one may hold."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from loaderdoctor.advice import Candidate
from loaderdoctor.advice.code import Written
from loaderdoctor.advice.fit_wrapping import why_not_kept
from loaderdoctor.advice.prescription import not_advised
from loaderdoctor.advice.writing import written
from loaderdoctor.settings import Settings
from tests.advice.printed import applied, blocks, facts_of

KEPT = Settings(num_workers=2, persistent_workers=True)
HEAD = """
import random
import torch
from torch.utils.data import DataLoader, RandomSampler, Subset
data, other = [0.0] * 32, [1.0] * 8
order, sampler = list(range(32)), RandomSampler(data)
for epoch in range(3):
"""
TAIL = """
    for x in loader:  # train loop
        pass
"""


def rebuilt(body: str, settings: Settings = KEPT) -> tuple[str, Written]:
    """A script that builds its loader in each epoch, and what is written for it."""
    text = (HEAD + textwrap.indent(body, "    ") + TAIL).lstrip("\n")
    facts = facts_of(Path("train.py"), text=text)
    assert facts.step is not None and facts.main_loader is not None
    step = replace(facts.step, rebuilt=frozenset({facts.main_loader.id}))
    return text, written(replace(facts, step=step), settings)


@pytest.mark.parametrize(
    "body",
    [
        "loader = DataLoader(data, batch_size=8)  # train loader",
        "loader = DataLoader(Subset(data, order[:16]), batch_size=8)  # train loader",
        "loader = DataLoader(data, sampler=sampler)  # train loader\nsampler.set_epoch(epoch)",
        "with torch.no_grad():\n"
        "    print(epoch)\n"
        "    loader = DataLoader(data, collate_fn=lambda rows: torch.rand(2))  # train loader",
        "random.shuffle(other)\nloader = DataLoader(data)  # train loader",
    ],
)
def test_a_loader_of_what_stays_moves_out_of_the_epochs(body: str) -> None:
    text, said = rebuilt(body)
    after = applied(text, blocks(said.code))
    assert after.index("loader = DataLoader(") < after.index("for epoch")
    assert after.count("DataLoader(") == 1 and said.idea is None


def test_what_the_moved_loader_reads_is_defined_above_it() -> None:
    settings = Settings(num_workers=2, persistent_workers=True, worker_gc="frozen")
    text, said = rebuilt("loader = DataLoader(data, batch_size=8)  # train loader", settings)
    after = applied(text, blocks(said.code))
    assert after.index("class Frozen") < after.index("loader = ") < after.index("for epoch")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("loader = DataLoader(data)  # train loader\nfor x in loader:\n    pass\ndel loader",
         "its name is given to something else as well, or deleted"),
        ("loader = DataLoader(data)  # train loader\nfor x in loader:\n    pass\n"
         "loader = DataLoader(other)", "its name is given to something else as well, or deleted"),
        ("if epoch > 1:\n    loader = DataLoader(data)  # train loader\n    print(epoch)",
         "not every epoch builds it"),
        ("loader = DataLoader(Subset(data, torch.randperm(32)[:9]))  # train loader", "changes"),
        ("random.shuffle(data)\nloader = DataLoader(data)  # train loader", "changes"),
        ("data.set_epoch(epoch)\nloader = DataLoader(data)  # train loader", "changes"),
        ("data[0] = epoch\nloader = DataLoader(data)  # train loader", "changes"),
        ("order.sort()\nloader = DataLoader(Subset(data, order))  # train loader", "changes"),
        ("loader = DataLoader(data)  # train loader\nloader.dataset.draw()", "changes"),
        ("loader = DataLoader(data, generator=torch.Generator().manual_seed(1))  # train loader",
         "changes"),
    ],
)  # fmt: skip
def test_a_loader_of_what_each_epoch_changes_stays_in_them(body: str, why: str) -> None:
    text, said = rebuilt(body)
    after = applied(text, blocks(said.code))
    assert after.index("for epoch") < after.index("loader = DataLoader(")
    assert said.idea is not None and why in said.idea


@pytest.mark.parametrize(
    "settings",
    [Settings(cache=True), Settings(cache=True, batched=True, num_workers=0)],
)
def test_samples_are_not_kept_with_a_loader_that_each_epoch_builds(settings: Settings) -> None:
    _, said = rebuilt("loader = DataLoader(data, batch_size=8)  # train loader", settings)
    assert said.code == ""


TOLD = """
import torch
from torch.utils.data import DataLoader
data, sampler = [], torch.utils.data.RandomSampler([0])
for i in range(32):
    data.append(i)
loader = DataLoader(data, batch_size=8, sampler=sampler)  # train loader
for epoch in range(3):
    {}
    for x in loader:  # train loop
        pass
"""


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("data.set_epoch(epoch)", True),
        ("loader.dataset.set_epoch(epoch)", True),
        ("data.epoch = epoch", True),
        ("data[0] = epoch", True),
        ("random.shuffle(data)", True),
        ("sampler.set_epoch(epoch)", False),
        ("loader.sampler.set_epoch(epoch)", False),
        ("print(len(data))", False),
    ],
)
def test_workers_are_not_kept_from_what_each_epoch_tells_the_dataset(
    line: str, changes: bool
) -> None:
    facts = facts_of(Path("train.py"), text=TOLD.format(line).lstrip("\n"))
    assert facts.main_loader is not None
    assert (why_not_kept(facts) is not None) is changes
    samples = why_not_kept(facts, "batched")
    assert (samples is not None and "samples that are kept" in samples) is changes
    kept = Candidate(
        settings=Settings(persistent_workers=True), kinds=(), loader=facts.main_loader.id,
        predicted_step_ms=None, prediction="",
    )  # fmt: skip
    refused = not_advised(facts, [kept])
    assert bool(refused) is changes
    assert not changes or "train.py:8 changes the dataset" in refused[0].reason
