"""Samples of a real loop: what is found of it, and that nothing of us stays behind."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from loaderdoctor.instrument.session.stack_samples import LoopSamples, StackSampler
from loaderdoctor.instrument.wire.measured import StackPlace, StackRecord

MODEL = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
ROWS = torch.rand(96, 256).tolist()


def shape_words() -> list[int]:
    counts = []
    for row in ROWS:
        total = 0
        for value in row:
            total = (total * 31 + int(value * 1000)) % 9973
        counts.append(total)
    return counts


def train() -> None:
    x = torch.rand(256, 64)
    loss = MODEL(x).mean()
    loss.backward()


def both() -> None:
    shape_words()
    train()


def sampled(
    step: Callable[[], object], *, seconds: float = 0.8, outside: bool = False
) -> StackRecord:
    """A loop of `step`, sampled for so long."""
    samples = LoopSamples(lambda: outside)
    sampler = StackSampler(threading.get_ident(), samples.take)
    sampler.start()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        step()
    sampler.stop()
    return samples.record()


def most(record: StackRecord) -> StackPlace:
    return max(record.places, key=lambda x: x.n)


def test_a_loop_over_elements_is_seen_in_its_function() -> None:
    record = sampled(shape_words)
    inside = sum(x.n for x in record.places if x.frames[-1].function == "shape_words")
    assert record.n >= 10
    assert inside >= 0.8 * record.n
    assert {x.stage for x in record.places if x.frames[-1].function == "shape_words"} == {"own"}


@dataclass
class Sums:
    """Its `__init__` is code of a file that nobody has."""

    n: int

    def __post_init__(self) -> None:
        self.all = [shape_words() for _ in range(self.n)]


def test_what_a_dataclass_does_as_it_is_made_is_seen_with_the_calls_that_lead_there() -> None:
    def step() -> None:
        Sums(2)

    record = sampled(step)
    functions = [[frame.function.rpartition(".")[2] for frame in x.frames] for x in record.places]
    inside = [names for names in functions if "shape_words" in names]
    assert inside
    assert all({"step", "__post_init__"} <= set(names) for names in inside)


def test_it_is_seen_next_to_another_thread_too() -> None:
    """As one that pins batches: with the usual wait for the interpreter only what follows is."""
    stop = threading.Event()
    other = threading.Thread(target=stop.wait, daemon=True)
    other.start()
    try:
        record = sampled(both)
    finally:
        stop.set()
        other.join()
    inside = sum(x.n for x in record.places if x.frames[-1].function == "shape_words")
    assert inside >= 0.3 * record.n


def test_the_parts_of_a_step_are_told_by_torchs_own_frames() -> None:
    optimizer = torch.optim.Adam(MODEL.parameters())

    def step() -> None:
        train()
        optimizer.step()

    stages = Counter[str]()
    for place in sampled(step).places:
        stages[place.stage] += place.n
    assert {"forward", "backward", "optimizer"} <= set(stages)
    assert stages["own"] <= 0.5 * sum(stages.values())


def test_a_call_into_a_library_is_named_with_its_module_and_its_source() -> None:
    record = sampled(lambda: copy.deepcopy(ROWS))
    place = most(record)
    assert (place.stage, place.module, place.function) == ("own", "copy", "deepcopy")
    if sys.version_info >= (3, 11):
        assert place.call == "copy.deepcopy"
    assert place.frames[-1].code is not None
    assert "copy.deepcopy(ROWS)" in place.frames[-1].code


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects know no columns")
def test_a_call_into_c_code_is_named_by_the_source() -> None:
    x = torch.rand(200_000)
    assert most(sampled(lambda: x.tolist())).call == "x.tolist"
    ops = sampled(lambda: torch.sort(x))
    assert sum(p.n for p in ops.places if p.operator) >= 0.8 * ops.n


def test_own_work_outside_steps_is_kept_apart() -> None:
    record = sampled(shape_words, outside=True)
    assert record.n_outside >= 10
    assert {x.stage for x in record.places} == {"outside"}


def test_nothing_stays_behind() -> None:
    interval, threads = sys.getswitchinterval(), set(threading.enumerate())
    sampled(shape_words, seconds=0.1)
    assert sys.getswitchinterval() == interval
    assert set(threading.enumerate()) == threads


def test_samples_keep_no_tensor_alive() -> None:
    gone = []

    def step() -> None:
        x = torch.rand(100_000)
        gone.append(x.data_ptr())
        x.tolist()

    samples = LoopSamples(lambda: False)
    sampler = StackSampler(threading.get_ident(), samples.take)
    sampler.start()
    for _ in range(20):
        step()
    sampler.stop()
    assert len(set(gone)) < len(gone)  # memory was given back while samples were taken
