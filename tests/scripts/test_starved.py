"""Loops that starve, each for one reason, and their healthy look-alikes.

The costs are built in (waiting and CPU time of each sample, length of a step), so the verdict and
the finding are known. Only ratios are asserted: machines with two busy cores run these too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import STARVED, Diagnosed, diagnose

pytestmark = [pytest.mark.scripts, pytest.mark.alone]
slow = pytest.mark.slow
# Kinds that blame the loader; none may be said of a loop that does not wait for it.
LOADER_KINDS = {
    "loader-in-main-process", "too-few-workers", "cpu-saturated-workers", "storage-bound-workers",
    "overhead-bound-loader", "worker-startup-each-epoch", "iterator-recreated",
    "head-of-line-stall", "sampler-bound", "collate-bound", "dataset-format-bound", "idle-workers",
}  # fmt: skip


def starved(done: Diagnosed) -> Diagnosed:
    """Waiting for the loader bounds the step; on a machine with other work perhaps `uncertain`."""
    said = done.said
    assert said.verdict.bound == "input", done.summary
    assert said.verdict.severity in ("high", "moderate", "uncertain"), done.summary
    assert done.share > 0.2, done.summary
    return done


def untouched(done: Diagnosed) -> Diagnosed:
    """No kind blames the loader of a loop that does not wait, beyond the noise."""
    verdict = done.said.verdict
    # Workers of a busy machine with two cores take a tenth of the step from any loop.
    assert (verdict.bound, verdict.severity) != ("input", "high"), done.summary
    blamed = {f.kind for f in done.said.findings if f.severity != "uncertain"}
    assert not blamed & LOADER_KINDS, done.summary
    return done


def test_a_loader_in_the_training_process_is_named_and_workers_help(tmp_path: Path) -> None:
    done = starved(diagnose(STARVED / "main_process.py", "5", cwd=tmp_path, budget_s=20))
    assert "loader-in-main-process" in done.kinds, done.summary
    assert done.share > 0.5  # 40 of 50 ms
    fastest = min(t.step_ms for t in done.said.trials if t.step_ms is not None)
    assert done.said.step.wall_ms is not None
    assert fastest < 0.8 * done.said.step.wall_ms, done.said.trials
    assert done.settings["num_workers"].to >= 3
    finding = done.finding("loader-in-main-process")
    (tested,) = finding.tested
    assert tested.setting == "num_workers"
    assert "keep up" not in finding.summary, finding.summary
    assert f"Tried in this run ({tested.tried})" in finding.summary, finding.summary


@slow
def test_a_fast_loader_without_workers_is_no_fault(tmp_path: Path) -> None:
    untouched(diagnose(STARVED / "main_process.py", "0", cwd=tmp_path, options=["--no-verify"]))


@slow
@pytest.mark.parametrize("n_workers", ["0", "2"])
def test_tiny_samples_in_memory_are_overhead_and_get_no_more_workers(
    n_workers: str, tmp_path: Path
) -> None:
    done = starved(diagnose(STARVED / "in_memory.py", n_workers, "256", "8", cwd=tmp_path))
    assert "overhead-bound-loader" in done.kinds, done.summary
    more = [r for r in done.said.recommendations if r.setting == "num_workers"]
    assert not [r for r in more if r.to > int(n_workers)], more


@slow
def test_workers_of_joined_loaders_start_anew_and_all_are_tried_together(tmp_path: Path) -> None:
    # A loaded machine starts six workers slowly; a quiet one has decided long before.
    done = starved(diagnose(STARVED / "joined.py", "3", "4", cwd=tmp_path, budget_s=90))
    assert "iterator-recreated" not in done.kinds, done.summary
    finding = done.finding("worker-startup-each-epoch")
    assert "6 workers of 3 loaders" in finding.summary
    assert "num_workers=0" in {test.tried for test in finding.tested}, finding.summary
    if done.said.verdict.severity == "uncertain":
        return  # nothing is recommended then
    assert done.gain is not None and done.gain > 2, done.said.trials
    code = next(r.code for r in done.said.recommendations if r.code)
    assert code.count("DataLoader(") == 2  # one line builds all three: taken out and put in


@slow
def test_in_memory_samples_under_a_big_model_are_no_fault(tmp_path: Path) -> None:
    # Of layers half as wide the samples were 5.9 % of the step on a quick machine: no big model.
    untouched(
        diagnose(STARVED / "in_memory.py", "0", "16", "3000", cwd=tmp_path, options=["--no-verify"])
    )


@slow
def test_workers_that_wait_longer_than_the_step_are_too_few(tmp_path: Path) -> None:
    # A batch takes 8 × 12 = 96 ms in one of four workers: one each 24 ms, for a 4 ms step.
    done = starved(diagnose(STARVED / "workers.py", "4", "12", "0", "4", cwd=tmp_path, budget_s=30))
    assert done.kinds & {"too-few-workers", "storage-bound-workers"}, done.summary
    assert done.share > 0.5


@slow
def test_workers_that_keep_up_are_no_fault(tmp_path: Path) -> None:
    untouched(
        diagnose(STARVED / "workers.py", "4", "2", "0", "20", cwd=tmp_path, options=["--no-verify"])
    )


@slow
def test_workers_that_compute_are_told_from_workers_that_wait(tmp_path: Path) -> None:
    (tmp_path / "spin").mkdir()
    (tmp_path / "wait").mkdir()
    computing = starved(diagnose(STARVED / "workers.py", "2", "0", "5", "1", cwd=tmp_path / "spin"))
    waiting = starved(diagnose(STARVED / "workers.py", "2", "5", "0", "1", cwd=tmp_path / "wait"))
    assert "storage-bound-workers" not in computing.kinds, computing.summary
    assert computing.kinds & {"cpu-saturated-workers", "too-few-workers"}, computing.summary
    assert "cpu-saturated-workers" not in waiting.kinds, waiting.summary
    spun, waited = computing.said.workers, waiting.said.workers
    assert spun is not None and spun.cpu_share is not None
    assert waited is not None and waited.cpu_share is not None
    assert spun.cpu_share > 3 * waited.cpu_share


@slow
def test_workers_started_again_each_short_epoch_are_named(tmp_path: Path) -> None:
    done = starved(diagnose(STARVED / "short_epochs.py", "started", cwd=tmp_path, budget_s=20))
    assert "worker-startup-each-epoch" in done.kinds, done.summary
    step = done.said.step
    assert step.steps_per_epoch == 8
    assert step.boundary_ms is not None and step.within_epoch_ms is not None
    assert step.boundary_ms > 2 * step.within_epoch_ms


@slow
def test_a_loader_built_in_the_epoch_loop_is_to_be_moved_out_for_its_workers_to_stay(
    tmp_path: Path,
) -> None:
    done = starved(diagnose(STARVED / "short_epochs.py", "rebuilt", cwd=tmp_path, budget_s=20))
    finding = done.finding("worker-startup-each-epoch")
    assert finding.evidence["loader_built_each_epoch"] is True
    assert "built again" in finding.summary
    row = done.settings["persistent_workers"]
    assert "persistent_workers=True" in row.code
    assert "once, before the loop over the epochs" in (row.idea or "")  # it is all of its `if`
    assert "the loader built once" in done.said.verdict.summary


@slow
def test_a_missing_main_guard_is_named_and_workers_are_tried_as_if_it_were_there(
    tmp_path: Path,
) -> None:
    done = starved(diagnose(STARVED / "no_main_guard.py", cwd=tmp_path, budget_s=60))
    assert done.finding("main-guard-missing").evidence["start_method"] == "spawn"
    assert "main guard" in done.said.verdict.summary
    tried = [t for t in done.said.trials if t.settings.get("num_workers") and t.step_ms]
    assert tried, done.said.trials
    assert done.said.step.wall_ms is not None
    assert min(t.step_ms or 0.0 for t in tried) < 0.7 * done.said.step.wall_ms
    row = done.settings["num_workers"]
    assert '+ if __name__ == "__main__":' in row.code


@slow
def test_workers_that_stay_pay_no_startup(tmp_path: Path) -> None:
    done = diagnose(
        STARVED / "short_epochs.py", "kept", cwd=tmp_path, options=["--no-verify"], budget_s=20
    )
    assert "worker-startup-each-epoch" not in done.kinds, done.summary


@slow
def test_more_threads_than_cores_in_the_workers_are_named(tmp_path: Path) -> None:
    done = diagnose(STARVED / "many_threads.py", "8", cwd=tmp_path, budget_s=20)
    assert "thread-oversubscription" in done.kinds, done.summary


@slow
def test_workers_with_one_thread_each_are_not_oversubscribed(tmp_path: Path) -> None:
    done = diagnose(
        STARVED / "many_threads.py", "1", cwd=tmp_path, options=["--no-verify"], budget_s=20
    )
    assert "thread-oversubscription" not in done.kinds, done.summary


@slow
@pytest.mark.parametrize("how", ["pinned", "free"])
def test_workers_that_share_one_core_are_named(how: str, tmp_path: Path) -> None:
    done = diagnose(STARVED / "one_core.py", how, cwd=tmp_path, options=["--no-verify"])
    assert ("workers-share-a-core" in done.kinds) == (how == "pinned"), done.summary


@slow
def test_ready_batches_behind_a_slow_one_are_named(tmp_path: Path) -> None:
    done = starved(diagnose(STARVED / "slow_ones.py", "uneven", cwd=tmp_path, budget_s=20))
    assert "head-of-line-stall" in done.kinds, done.summary


@slow
def test_even_batches_stall_nobody(tmp_path: Path) -> None:
    done = diagnose(STARVED / "slow_ones.py", "even", cwd=tmp_path, options=["--no-verify"])
    assert "head-of-line-stall" not in done.kinds, done.summary


@slow
@pytest.mark.parametrize("n_workers", ["0", "2"])
def test_an_iterator_for_each_batch_is_named(n_workers: str, tmp_path: Path) -> None:
    done = starved(diagnose(STARVED / "new_iterator.py", n_workers, cwd=tmp_path))
    assert "iterator-recreated" in done.kinds, done.summary


@slow
def test_a_slow_sampler_is_named_and_more_workers_are_not_advised(tmp_path: Path) -> None:
    done = starved(diagnose(STARVED / "slow_sampler.py", "10", cwd=tmp_path))
    assert "sampler-bound" in done.kinds, done.summary
    # Fewer, if any: it is the sampler that they wait for.
    workers = done.settings.get("num_workers")
    assert workers is None or workers.to < 2, done.said.recommendations


@slow
def test_a_fast_sampler_is_no_fault(tmp_path: Path) -> None:
    done = diagnose(
        STARVED / "slow_sampler.py", "0", cwd=tmp_path, options=["--no-verify"], budget_s=20
    )
    assert "sampler-bound" not in done.kinds, done.summary


@slow
def test_python_work_in_collate_and_before_forward_are_told_apart(tmp_path: Path) -> None:
    for where in ("collate", "forward"):
        (tmp_path / where).mkdir()
    collate = starved(
        diagnose(STARVED / "slow_collate.py", "collate", cwd=tmp_path / "collate", budget_s=15)
    )
    assert "collate-bound" in collate.kinds, collate.summary
    forward = diagnose(
        STARVED / "slow_collate.py", "forward", cwd=tmp_path / "forward", budget_s=15
    )
    assert forward.said.verdict.bound == "host", forward.summary
    assert "work-between-steps" in forward.kinds, forward.summary
    assert not forward.kinds & LOADER_KINDS, forward.summary


@slow
def test_batches_in_new_shared_memory_are_named_and_no_fight_is(tmp_path: Path) -> None:
    done = diagnose(
        STARVED / "fresh_pages.py", "32", cwd=tmp_path, options=["--no-verify"], budget_s=25
    )
    assert "batch-page-faults" in done.kinds, done.summary
    assert "gil-contention" not in done.kinds, done.summary
    evidence = done.finding("batch-page-faults").evidence
    assert float(str(evidence["extra_page_faults_per_step"])) > 400  # 512 of 64 KiB
    assert done.finding("batch-page-faults").advice is not None


@slow
def test_memory_fetched_anew_in_each_step_is_named_and_none_where_it_is_kept(
    tmp_path: Path,
) -> None:
    kept = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_MAX_": "0"}
    for name, environment in (("anew", {}), ("kept", kept)):
        (tmp_path / name).mkdir()
        done = diagnose(
            STARVED / "fresh_memory.py", cwd=tmp_path / name, options=["--no-verify"],
            budget_s=25, environment=environment,
        )  # fmt: skip
        assert ("allocator-page-faults" in done.kinds) is (name == "anew"), done.summary
        if name == "anew":
            evidence = done.finding("allocator-page-faults").evidence
            assert float(str(evidence["page_faults_per_step"])) > 9000  # 38 MB in 4 KiB


@slow
def test_small_batches_in_new_shared_memory_are_no_fault(tmp_path: Path) -> None:
    done = diagnose(STARVED / "fresh_pages.py", "0.1", cwd=tmp_path, options=["--no-verify"])
    assert "batch-page-faults" not in done.kinds, done.summary


@slow
def test_a_background_thread_that_waits_does_not_fight_for_the_interpreter(tmp_path: Path) -> None:
    done = diagnose(STARVED / "background.py", cwd=tmp_path, options=["--no-verify"])
    assert "fetched on a background thread" in done.said.step.definition
    assert "gil-contention" not in done.kinds, done.summary


@slow
def test_a_background_thread_that_computes_fights_and_no_pages_are_blamed(tmp_path: Path) -> None:
    done = diagnose(
        STARVED / "background.py", "spin", cwd=tmp_path, options=["--no-verify"], budget_s=25
    )
    assert "gil-contention" in done.kinds, done.summary
    assert "batch-page-faults" not in done.kinds, done.summary


@slow
def test_a_sleep_in_the_loop_is_work_between_steps_and_no_loaders_fault(tmp_path: Path) -> None:
    done = diagnose(STARVED / "sleeps.py", cwd=tmp_path, options=["--with-stack", "--no-verify"])
    assert (done.said.verdict.bound, done.said.verdict.severity) == ("host", "high"), done.summary
    assert not done.kinds & LOADER_KINDS, done.summary
    hotspot = done.finding("work-between-steps").evidence
    assert Path(str(hotspot["file"])).name == "sleeps.py", hotspot
    source = (STARVED / "sleeps.py").read_text().splitlines()
    assert "time.sleep" in source[int(str(hotspot["line"])) - 1], hotspot


@slow
def test_a_dataset_that_turns_lists_into_tensors_is_named_by_line(tmp_path: Path) -> None:
    done = starved(diagnose(STARVED / "formats.py", "list", cwd=tmp_path))
    assert "dataset-format-bound" in done.kinds, done.summary
    finding = done.finding("dataset-format-bound")
    assert "formats.py:" in str(finding.evidence), finding


@slow
def test_a_dataset_of_tensors_is_no_format_problem(tmp_path: Path) -> None:
    done = diagnose(STARVED / "formats.py", "tensor", cwd=tmp_path, options=["--no-verify"])
    assert "dataset-format-bound" not in done.kinds, done.summary


@slow
def test_a_first_epoch_that_fills_the_cache_is_cold_storage(tmp_path: Path) -> None:
    done = diagnose(STARVED / "cold_disk.py", cwd=tmp_path, budget_s=15)
    assert "cold-storage" in done.kinds, done.summary
    assert "cache" in done.finding("cold-storage").summary


@slow
def test_samples_that_are_slow_in_each_epoch_are_no_cold_storage(tmp_path: Path) -> None:
    done = diagnose(STARVED / "cold_disk.py", "always", cwd=tmp_path, budget_s=15)
    assert "cold-storage" not in done.kinds, done.summary


@slow
@pytest.mark.parametrize("shards", ["one", "all"])
def test_workers_without_data_are_named(shards: str, tmp_path: Path) -> None:
    done = diagnose(STARVED / "idle_workers.py", shards, cwd=tmp_path, options=["--no-verify"])
    assert ("idle-workers" in done.kinds) == (shards == "one"), done.summary


@slow
@pytest.mark.parametrize(
    ("n_workers", "method", "how"),
    [
        ("0", "fork", "once"),
        ("0", "fork", "helper"),
        ("2", "fork", "once"),
        ("2", "fork", "helper"),
        ("2", "spawn", "once"),
        ("2", "forkserver", "once"),
    ],
)
def test_a_slow_validation_loader_over_the_same_dataset_changes_no_figure_of_the_train_loader(
    n_workers: str, method: str, how: str, tmp_path: Path
) -> None:
    """Told apart by what each is made of: validation samples take 20 times as long, by Warp."""
    found = []
    for cost in ("20", "none"):
        folder = tmp_path / cost
        folder.mkdir()
        done = diagnose(
            STARVED / "two_splits.py", n_workers, method, how, cost, cwd=folder,
            options=["--no-verify"],
        )  # fmt: skip
        train = next(x.id for x in done.said.loaders if x.role == "train")
        workers = done.said.workers
        assert workers is not None
        assert workers.loader == train
        assert set(workers.transforms) == {"Crop"}
        assert not [x for x in workers.lines if x.function.startswith("Warp")]
        for other in done.said.other_workers:
            assert other.loader != train
            assert set(other.transforms) == {"Warp"}
        found.append(workers)
    both, alone = found
    assert both.sample_ms_quantiles is not None and alone.sample_ms_quantiles is not None
    # Medians, because machines with other work to do stretch single sleeps.
    assert both.sample_ms_quantiles[3] < 4 * alone.sample_ms_quantiles[3]
    assert both.batch_ms < 4 * alone.batch_ms
