"""Causes that look like input or compute and are neither, each next to a look-alike without it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from tests.scripts.memory_group import little_memory
from tests.scripts.running import CAUSES, diagnose

# Nothing is asked of a hub, and no one is told that it runs.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"}

pytestmark = [pytest.mark.scripts, pytest.mark.slow, pytest.mark.alone]


@pytest.mark.parametrize("how", ["auto", "asked"])
def test_garbage_collection_stops_the_loop(how: str, tmp_path: Path) -> None:
    done = diagnose(CAUSES / "collected.py", how, cwd=tmp_path, options=["--no-verify"])
    found = done.finding("gc-pauses")
    assert found.share is not None and found.share > 0.2
    assert found.evidence["asked_by"] == ("gc.collect()" if how == "asked" else None)
    assert "work-between-steps" not in done.kinds


@pytest.mark.parametrize("how", ["rarely", "frozen"])
def test_collections_that_cost_next_to_nothing_are_no_finding(how: str, tmp_path: Path) -> None:
    done = diagnose(CAUSES / "collected.py", how, cwd=tmp_path, options=["--no-verify"])
    assert "gc-pauses" not in done.kinds


@pytest.mark.parametrize("how", ["workers", "workers-off"])
def test_collections_in_workers_are_told(how: str, tmp_path: Path) -> None:
    done = diagnose(CAUSES / "collected.py", how, cwd=tmp_path, options=["--no-verify"])
    assert ("gc-in-workers" in done.kinds) is (how == "workers"), done.summary


@pytest.mark.parametrize("how", ["heap-rarely", "heap-numbers"])
def test_a_large_heap_that_workers_leave_alone_is_no_finding(how: str, tmp_path: Path) -> None:
    done = diagnose(
        CAUSES / "collected.py", how, cwd=tmp_path, budget_s=20, options=["--no-verify"]
    )
    assert "gc-in-workers" not in done.kinds, done.summary


def test_workers_that_leave_a_large_heap_alone_are_tried_and_written(tmp_path: Path) -> None:
    done = diagnose(CAUSES / "collected.py", "heap", cwd=tmp_path, budget_s=45.0)
    assert "gc-in-workers" in done.kinds and "cold-storage" not in done.kinds, done.summary
    as_is, *tried = done.said.trials
    frozen = [t for t in tried if t.settings.get("worker_gc")]
    assert frozen, [t.settings for t in tried]
    assert as_is.step_ms is not None
    for t in frozen:
        assert t.gain_ms is not None and t.gain_ms > 0.1 * as_is.step_ms, t  # in the same rounds
    advised = done.settings["worker_gc"]
    assert advised.to in ("frozen", "rarely")
    assert "(start)" in advised.code  # around the function that the script names


def test_fewer_collections_are_tried_in_the_running_loop(tmp_path: Path) -> None:
    done = diagnose(CAUSES / "collected.py", "auto", cwd=tmp_path, budget_s=30.0)
    advised = done.settings["gc"]
    assert advised.to in ("frozen", "manual")
    assert done.gain is not None and done.gain > 1.2


def subnormals_cost() -> bool:
    """Whether this CPU takes longer to multiply them, by what matters: some do, others don't."""

    def fastest_ms(value: float) -> float:
        a, b = torch.full((256, 256), value), torch.rand(256, 256)
        times = []
        for _ in range(30):
            began = time.perf_counter()
            a @ b
            times.append(time.perf_counter() - began)
        return min(times)

    return fastest_ms(1e-40) > 1.5 * fastest_ms(1.0)


@pytest.mark.parametrize(
    ("how", "kind", "twin"),
    [("subnormal", "subnormal-numbers", "normal"), ("padded", "padding-waste", "alike")],
)
def test_computing_that_costs_needlessly_is_told_and_its_twin_is_not(
    how: str, kind: str, twin: str, tmp_path: Path
) -> None:
    costs = how != "subnormal" or subnormals_cost()
    for which in (how, twin):
        folder = tmp_path / which
        folder.mkdir()
        done = diagnose(CAUSES / "computed.py", which, cwd=folder, options=["--no-verify"])
        assert (kind in done.kinds) is (which == how and costs), done.summary


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("latency", "latency-bound-storage"),
        ("bandwidth", "bandwidth-bound-storage"),
        ("pieces", "many-small-reads"),
        ("local", None),
    ],
)
def test_why_storage_is_slow_is_told_apart(how: str, kind: str | None, tmp_path: Path) -> None:
    done = diagnose(CAUSES / "objects.py", how, cwd=tmp_path, budget_s=45.0)
    slow = {"latency-bound-storage", "bandwidth-bound-storage", "many-small-reads"}
    # Of many requests each waits its time, so more readers get more as well.
    also = {"latency-bound-storage"} if how == "pieces" else set()
    assert (done.kinds & slow) - also == ({kind} if kind is not None else set())


@pytest.mark.parametrize("how", ["refused", "waits"])
def test_requests_that_are_sent_again_are_told_and_slow_ones_are_not(
    how: str, tmp_path: Path
) -> None:
    pytest.importorskip("urllib3")
    done = diagnose(CAUSES / "refused.py", how, cwd=tmp_path, options=["--no-verify"])
    assert ("retried-requests" in done.kinds) is (how == "refused"), done.summary
    if how == "refused":
        found = done.finding("retried-requests")
        assert found.evidence["client"] == "urllib3"
        # 40 ms of a sample are the pause, and three requests take some of the rest.
        assert found.share is not None and found.share > 0.3
        assert "storage-bound-workers" not in done.kinds


@pytest.mark.parametrize("how", ["whole", "split"])
def test_a_stream_that_every_worker_reads_whole_is_told(how: str, tmp_path: Path) -> None:
    done = diagnose(CAUSES / "streams.py", how, cwd=tmp_path, options=["--no-verify"])
    assert ("samples-repeated" in done.kinds) is (how == "whole")
    if how == "whole":
        assert "get_worker_info()" in done.stdout


@pytest.mark.parametrize("how", ["uneven", "even"])
def test_workers_whose_shards_end_early_are_told(how: str, tmp_path: Path) -> None:
    done = diagnose(CAUSES / "streams.py", how, cwd=tmp_path, options=["--no-verify"])
    assert ("uneven-shards" in done.kinds) is (how == "uneven"), done.summary
    if how == "uneven":
        found = done.finding("uneven-shards")
        batches = found.evidence["batches_by_worker"]
        assert isinstance(batches, list)
        assert sorted(batches) == [6, 6, 24]
        # A batch takes 24 ms: six rounds of three in 144 ms, then 18 of one worker in 432. Two of
        # three idle for three quarters, and 12 batches each would take half of those 576 ms.
        assert found.share is not None and 0.3 < found.share < 0.6


@pytest.mark.parametrize("how", ["stored", "shuffled"])
def test_a_stream_in_the_order_of_its_labels_is_told(how: str, tmp_path: Path) -> None:
    done = diagnose(CAUSES / "streams.py", how, cwd=tmp_path, options=["--no-verify"])
    assert ("shuffle-collapsed" in done.kinds) is (how == "stored"), done.summary


@pytest.mark.parametrize("how", ["keeps", "keeps-few"])
def test_workers_that_keep_what_they_made_are_told(how: str, tmp_path: Path) -> None:
    done = diagnose(CAUSES / "memory.py", how, cwd=tmp_path, options=["--no-verify"])
    assert ("worker-memory-grows" in done.kinds) is (how == "keeps"), done.summary
    if how == "keeps":
        assert "kept" in done.finding("worker-memory-grows").summary


@pytest.mark.skipif(not Path("/sys/fs/cgroup").is_dir(), reason="Linux only")
@pytest.mark.parametrize("how", ["dicts", "array"])
def test_objects_that_every_worker_copies_are_forecast(how: str, tmp_path: Path) -> None:
    with little_memory(2 * 2**30):
        done = diagnose(CAUSES / "copied.py", how, cwd=tmp_path, options=["--no-verify"])
    assert ("workers-copy-dataset" in done.kinds) is (how == "dicts"), done.summary
    if how == "dicts":
        found = done.finding("workers-copy-dataset")
        assert found.evidence["container_entries"] == 300_000
        assert "entries, a list of 300,000" in found.summary
        # By sys.getsizeof a dictionary of two, its list and its numbers take some 300 bytes.
        assert 60e6 < found.evidence["copied_bytes_per_worker"] < 200e6


@pytest.mark.parametrize(
    ("library", "how", "kind"),
    [
        ("webdataset", "whole", "samples-repeated"),
        ("webdataset", "split", None),
        ("datasets", "whole", "idle-workers"),
        ("datasets", "split", None),
        ("litdata", "split", None),
        ("streaming", "split", None),
    ],
)
def test_streams_of_libraries_are_known_and_only_what_lacks_is_told(
    library: str, how: str, kind: str | None, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    args = (library, how)
    done = diagnose(
        CAUSES / "library_streams.py",
        *args,
        cwd=tmp_path,
        options=["--no-verify"],
        environment=OFFLINE,
    )
    told = {"samples-repeated", "idle-workers", "uneven-shards", "shuffle-collapsed"}
    assert done.kinds & told == ({kind} if kind is not None else set()), done.summary
