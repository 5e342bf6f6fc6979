"""Advice that would break the run is not given, and the reason says what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from loaderdoctor.advice.prescription import candidates, not_advised, prescribe
from loaderdoctor.facts import Facts
from loaderdoctor.findings.capacity import fed_workers, why_unsafe, worker_limit, workers_needed
from loaderdoctor.findings.rules import find
from loaderdoctor.instrument.wire.records import ContainerRecord
from loaderdoctor.settings import Settings
from tests.findings.builders import IMAGE, loader, machine, step, with_exposed, workers

FOUR = Settings(num_workers=4)


def no_workers(
    *, safety: dict[str, Any] | None = None, kind: str = "map", **machine_changes: Any
) -> Facts:
    return with_exposed(
        input_=0.7,
        loaders=(
            loader(
                settings={"num_workers": 0, "prefetch_factor": None},
                safety=safety or {},
                kind=kind,
            ),
        ),
        workers=workers(n_workers=0, batch_ms=7.0, cores=()),
        step=step(raw_wait_ms=7.0, worker_cpu_cores=None),
        machine=machine(**machine_changes),
    )


@pytest.mark.parametrize(
    ("facts", "changes", "setting", "words"),
    [
        (
            no_workers(safety={"unsharded_iterable": True}, kind="iterable"),
            FOUR,
            "num_workers",
            "4 workers would deliver every sample 4 times",
        ),
        (
            no_workers(safety={"one_pass": True}, kind="iterable"),
            FOUR,
            "num_workers",
            "one-pass stream",
        ),
        (
            no_workers(safety={"cuda_tensors": True}),
            FOUR,
            "num_workers",
            "makes CUDA tensors",
        ),
        (
            no_workers(safety={"open_handles": ("file", "index")}),
            FOUR,
            "num_workers",
            "open files (file, index) that forked workers would share",
        ),
        (
            no_workers(
                safety={"pickles": False, "pickle_error": "a lambda"}, start_method="forkserver"
            ),
            FOUR,
            "num_workers",
            "workers start by forkserver here, and the dataset or collate function does not pickle",
        ),
        (
            no_workers(safety={"pickles": False}),
            Settings(num_workers=4, start_method="spawn"),
            "start_method",
            "does not pickle",
        ),
        (
            no_workers(shm_free_bytes=64 * 1024**2),
            FOUR,
            "num_workers",
            "docker run --shm-size=2g",
        ),
        (
            no_workers(memory_available_bytes=600 * 1024**2),
            FOUR,
            "num_workers",
            "would swap or be killed",
        ),
        (
            no_workers(open_files_limit=160),
            FOUR,
            "num_workers",
            "ulimit -n 256",
        ),
        (
            no_workers(device_memory_bytes=10 * 1024**3),
            Settings(resident=True),
            "resident",
            "8.97 GiB, more than half",
        ),
    ],
)
def test_unsafe_settings_are_not_advised_with_the_reason(
    facts: Facts, changes: Settings, setting: str, words: str
) -> None:
    unsafe = why_unsafe(facts, changes)
    assert unsafe is not None
    assert unsafe.setting == setting
    assert words in unsafe.reason


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        (no_workers(), FOUR),
        (no_workers(safety={"unsharded_iterable": True}, kind="iterable"), Settings(num_workers=1)),
        (no_workers(safety={"open_handles": ("file",)}, start_method="spawn"), FOUR),
        (no_workers(safety={"pickles": False}), FOUR),
        (no_workers(safety={"one_pass": True}), FOUR),
        (no_workers(shm_free_bytes=1024**2), Settings(pin_memory=True)),
        (no_workers(shm_free_bytes=None, open_files_limit=None, memory_available_bytes=None), FOUR),
        (no_workers(device_memory_bytes=20 * 1024**3), Settings(resident=True)),
    ],
)
def test_the_same_settings_pass_where_they_do_no_harm(facts: Facts, changes: Settings) -> None:
    assert why_unsafe(facts, changes) is None


def test_only_the_unsafe_candidates_are_taken_out() -> None:
    facts = no_workers(safety={"unsharded_iterable": True}, kind="iterable")
    found = find(facts)
    tried = candidates(facts, found)
    unsafe = not_advised(facts, tried)
    assert {w.settings.num_workers for w in unsafe} == {3, 5}
    result = prescribe(facts, found)
    assert result.not_advised == unsafe
    safe = [Settings(background="host"), Settings(num_workers=1)]
    assert [c.settings for c in result.candidates] == safe


def test_the_size_of_shared_memory_grows_with_workers_prefetch_and_batch() -> None:
    # 16 workers x 2 batches of 9.6 MB: 308 MB, and a quarter more while they are being made.
    facts = no_workers(shm_free_bytes=300 * 1000**2)
    assert why_unsafe(facts, Settings(num_workers=16)) is not None
    assert why_unsafe(facts, Settings(num_workers=8)) is None
    assert why_unsafe(facts, Settings(num_workers=8, prefetch_factor=8)) is not None
    assert IMAGE.n_bytes * 32 > 300 * 1000**2


def test_workers_that_would_not_fit_are_replaced_by_the_most_that_do() -> None:
    """Before advice: 8 CPUs feed them, memory has room for three that copy the dataset's list."""
    samples = ContainerRecord(path="samples", kind="list", n=9_000_000, n_bytes=2 * 1024**3)
    facts = no_workers(memory_available_bytes=9 * 1024**3)
    record = msgspec.structs.replace(facts.loaders[0], containers=(samples,))
    facts = replace(facts, loaders=(record,), workers=workers(n_workers=0, batch_ms=20.0, cores=()))
    assert (workers_needed(facts), fed_workers(facts), worker_limit(facts)) == (7, 9, 3)
    given = prescribe(facts, find(facts))
    counts = {c.settings.num_workers for c in given.candidates}
    assert max(n for n in counts if n) == 3
    refused = next(x for x in given.not_advised if x.settings.num_workers == 7)
    assert "14.5 GiB of host memory" in refused.reason
    assert "samples, a list of 9,000,000" in refused.reason
    chosen = next(c for c in given.candidates if c.settings.num_workers == 3)
    assert "this machine has memory for 3" in chosen.prediction
